//! Incidents that a run leaves behind on its nodes do not absorb faults that hit the next run.

use stepwatch_model::{Kind, Severity};
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, UUID, dead, fell_off, gpu_lost, hw, link, reading, with};

const NODES: [&str; 2] = ["n1", "n2"];
const OTHER: [(&str, &str); 2] =
    [("gpu", "GPU-55555555-0000-0000-0000-000000000005"), ("pci", "0000:5d:00.0")];

fn bye(b: &mut Bench, run: &str, nodes: &[&str], code: i64) {
    for (rank, node) in nodes.iter().enumerate() {
        let e = Event { run: Some(run.into()), node: Some((*node).into()), ..Event::new(EventKind::Bye) };
        b.feed(Event { code: Some(code), rank: Some(rank as u32), ..e });
    }
}

/// The run takes steps, and its nodes report.
fn lively(b: &mut Bench, run: &str, rounds: usize) {
    for _ in 0..rounds {
        b.steps(run, &NODES, 5);
        NODES.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 0.9)])));
    }
}

/// The run dies with a rank on the first node, and somebody takes that.
fn dies(b: &mut Bench, run: &str) {
    b.feed(dead(run, 0, "n1"));
    b.wait(10);
    bye(b, run, &NODES, 1);
    b.wait(60);
    b.ack("ada");
    b.wait(1200);
}

#[test]
fn another_gpu_of_the_node_is_the_next_runs_page() {
    let mut b = Bench::with_run("run1", &NODES);
    lively(&mut b, "run1", 40);
    b.feed(fell_off("n1"));
    b.feed(gpu_lost("n1", true));
    b.wait(5);
    dies(&mut b, "run1");
    b.reboot("b");
    b.feed(gpu_lost("n1", false));
    let mut reset = hw("n1", "gpu_reset", true, "info", "the GPU was reset", &[("gpu", UUID)]);
    reset.extra.insert("once".into(), Value::Bool(true));
    b.feed(reset);
    lively(&mut b, "run2", 1800);
    let pages = b.pages();
    b.feed(with(fell_off("n1"), &OTHER));
    let i = b.last();
    assert_eq!((i.kind, i.severity, i.run.as_str()), (Kind::GpuFault, Severity::Page, "run2"));
    assert_eq!(b.pages(), pages + 1, "{:#?}", b.timeline);
    let m = &b.notifications.last().unwrap().message;
    assert!(m.title.starts_with("PAGE run2 on n1: GPU fault"), "{}", m.title);
    assert!(b.engine.audit(b.now).is_empty());
}

#[test]
fn a_gpu_of_a_node_whose_link_killed_a_run_is_the_next_runs_page() {
    let mut b = Bench::with_run("run1", &NODES);
    lively(&mut b, "run1", 40);
    b.feed(link("n1", "mlx5_0/1", false));
    b.steps("run1", &NODES, 2);
    b.feed(link("n1", "mlx5_0/1", true));
    dies(&mut b, "run1");
    lively(&mut b, "run2", 1800);
    b.feed(fell_off("n1"));
    let m = &b.notifications.last().unwrap().message;
    assert!(m.title.starts_with("PAGE run2 on n1: GPU fault"), "{}", m.title);
    assert_eq!(m.reason, "new incident");
    assert!(m.details.advice.as_deref().is_some_and(|a| a.starts_with("drain n1")), "{:?}", m.details.advice);
}

#[test]
fn the_same_gpu_pages_for_the_same_run_while_another_node_is_still_faulty() {
    let mut b = Bench::with_run("run1", &NODES);
    lively(&mut b, "run1", 40);
    b.feed(gpu_lost("n1", true));
    b.feed(gpu_lost("n2", true));
    b.wait(5);
    b.ack("ada");
    b.feed(gpu_lost("n1", false));
    for _ in 0..20 {
        lively(&mut b, "run1", 30);
        b.feed(with(gpu_lost("n2", true), &[("again", "true")]));
    }
    let pages = b.pages();
    b.feed(gpu_lost("n1", true));
    assert_eq!((b.pages(), b.open().len()), (pages + 1, 2), "{:#?}", b.timeline);
}

#[test]
fn a_run_that_is_stopped_leaves_its_nodes_page_to_the_one_that_lives_there() {
    let mut b = Bench::new();
    for _ in 0..50 {
        b.steps("big", &NODES, 1);
        b.steps("small", &["n1"], 1);
    }
    b.feed(fell_off("n1"));
    assert_eq!((b.pages(), b.last().run.as_str()), (1, "big"));
    bye(&mut b, "big", &NODES, 130);
    let m = &b.notifications.last().unwrap().message;
    assert!(m.title.starts_with("PAGE small on n1: GPU fault"), "{}", m.title);
    b.steps("small", &["n1"], 1000);
    assert_eq!(b.open(), [(Kind::GpuFault, Severity::Page, "small", vec!["n1"])]);
    assert!(b.pages() > 2, "nobody has answered: {:#?}", b.timeline);
    // A person who stops the last run that is hit has seen the fault.
    bye(&mut b, "small", &["n1"], 130);
    let pages = b.pages();
    b.wait(1000);
    assert_eq!(b.pages(), pages);
}

#[test]
fn a_page_that_somebody_has_stays_theirs_when_their_run_is_stopped() {
    let mut b = Bench::new();
    for _ in 0..50 {
        b.steps("big", &NODES, 1);
        b.steps("small", &["n1"], 1);
    }
    b.feed(fell_off("n1"));
    b.ack("ada");
    bye(&mut b, "big", &NODES, 130);
    b.steps("small", &["n1"], 600);
    assert_eq!((b.pages(), b.last().acked_by.as_deref()), (1, Some("ada")));
}
