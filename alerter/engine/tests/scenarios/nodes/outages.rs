//! What a scheduler says of nodes, by the exporter that reads it.

use stepwatch_engine::{Refusal, SourceInput};
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, UUID, address, hw, said, with};

fn drained(node: &str, holds: bool) -> Event {
    let text = if holds { "Slurm: drained (Kill task failed)" } else { "Slurm: in service" };
    hw("login1", "node_out_of_service", holds, "info", text, &[("about", node)])
}

/// A node with an exporter of its own.
fn appear(b: &mut Bench, node: &str) {
    b.feed(with(said(EventKind::Health, node, "gpu", "info", ""), &[("gpu", UUID)]));
}

/// What holds on each node.
fn holds(b: &Bench) -> Vec<(&str, Vec<&str>)> {
    let nodes = b.engine.nodes().map(|node| &node.state);
    nodes
        .map(|node| {
            let held = node.conditions.iter().filter(|(_, c)| c.holds());
            (node.name.as_str(), held.map(|(_, c)| c.text.as_str()).collect())
        })
        .collect()
}

fn texts(b: &Bench) -> Vec<&str> {
    holds(b).into_iter().flat_map(|(_, texts)| texts).collect()
}

#[test]
fn a_drained_node_shows_it_and_calls_nobody() {
    let mut b = Bench::new();
    appear(&mut b, "gpu-7");
    let heard = b.engine.nodes().next().unwrap().state.last_heard;
    b.wait(60);
    b.answer(SourceInput::SourceUp { source: &address("login1"), many_nodes: true });
    b.feed(drained("gpu-7", true));
    assert_eq!(holds(&b), [("gpu-7", vec!["Slurm: drained (Kill task failed)"])]);
    // A node that the scheduler drained may be down: it was not heard by this.
    assert_eq!(b.engine.nodes().next().unwrap().state.last_heard, heard);
    assert_eq!((b.summary(), b.pages()), (vec![], 0));
    b.restart();
    assert_eq!(holds(&b), [("gpu-7", vec!["Slurm: drained (Kill task failed)"])]);
    b.answer(SourceInput::SourceUp { source: &address("login1"), many_nodes: true });
    b.feed(drained("gpu-7", false));
    assert_eq!((holds(&b), b.summary()), (vec![("gpu-7", vec![])], vec![]));
}

#[test]
fn it_is_not_over_when_the_nodes_own_exporter_starts_anew() {
    let mut b = Bench::new();
    appear(&mut b, "gpu-7");
    b.answer(SourceInput::SourceUp { source: &address("login1"), many_nodes: true });
    b.feed(drained("gpu-7", true));
    b.reboot("b");
    for _ in 0..20 {
        b.wait(30);
        appear(&mut b, "gpu-7");
    }
    assert_eq!(texts(&b), ["Slurm: drained (Kill task failed)"]);
    // The exporter that reads the scheduler is gone: nobody says so any more.
    for _ in 0..40 {
        b.wait(30);
        appear(&mut b, "gpu-7");
    }
    assert!(texts(&b).is_empty());
}

#[test]
fn only_a_source_that_may_speak_for_others_does_and_only_of_nodes_that_are_there() {
    let mut b = Bench::new();
    appear(&mut b, "gpu-7");
    b.find("login1");
    b.feed(drained("gpu-7", true));
    assert_eq!(holds(&b), [("gpu-7", vec![])]);
    let refused = |b: &Bench| {
        let of = b.engine.refused().find(|(source, _)| *source == address("login1"));
        of.map_or(0, |(_, refused)| refused.count_of(Refusal::OtherNode))
    };
    assert_eq!(refused(&b), 1);
    b.answer(SourceInput::SourceUp { source: &address("login1"), many_nodes: true });
    for invented in ["gpu-9", "gpu", "gpu-7.other", ""] {
        b.feed(drained(invented, true));
    }
    assert_eq!(holds(&b)[0], ("gpu-7", vec![]));
    assert_eq!(refused(&b), 1);
    // Of itself it speaks as every exporter does.
    b.feed(drained("login1", true));
    assert_eq!(holds(&b)[1].0, "login1");
}

#[test]
fn a_scheduler_may_leave_out_the_domain_if_it_is_unambiguous() {
    let mut b = Bench::new();
    for node in ["gpu-7.a", "gpu-70.a", "gpu-8.a", "gpu-8.b"] {
        appear(&mut b, node);
    }
    b.answer(SourceInput::SourceUp { source: &address("login1"), many_nodes: true });
    b.feed(drained("gpu-7", true));
    b.feed(drained("gpu-8", true));
    let out: Vec<_> = holds(&b).into_iter().filter(|(_, texts)| !texts.is_empty()).map(|(n, _)| n).collect();
    assert_eq!(out, ["gpu-7.a"]);
}
