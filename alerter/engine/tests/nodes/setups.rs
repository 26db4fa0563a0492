//! Nodes of one run that are set up differently.

use stepwatch_engine::incident::State;
use stepwatch_engine::verdict::{Kind, Severity};
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::Bench;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// In two parts, as one with many keys comes.
fn told(b: &mut Bench, node: &str, run: Option<&str>, keys: &[(&str, &str)]) {
    let fingerprint: String = keys.iter().flat_map(|(_, v)| v.chars()).collect();
    let halves = keys.split_at(keys.len() / 2);
    for (part, keys) in [(1.0, halves.0), (2.0, halves.1)] {
        let mut e = Event {
            node: Some(node.into()),
            name: Some("config".into()),
            run: run.map(Into::into),
            ..Event::new(EventKind::Health)
        };
        e.extra.insert("fingerprint".into(), Value::Text(fingerprint.clone()));
        e.extra.insert("part".into(), Value::Number(part));
        e.extra.insert("parts".into(), Value::Number(2.0));
        for (key, value) in keys {
            e.extra.insert((*key).into(), Value::Text((*value).into()));
        }
        b.feed(e);
    }
}

fn setup(b: &mut Bench, node: &str, driver: &str, bios: &str) {
    told(b, node, None, &[("driver", driver), ("bios_version", bios), ("nccl", "2.27.3"), ("kernel", "6.8")]);
}

#[test]
fn the_odd_one_out_is_named_with_both_values() {
    let mut b = Bench::new();
    // Exporters speak before the run is there.
    for node in NODES {
        setup(&mut b, node, if node == "n3" { "570.86.10" } else { "570.124.06" }, "1.2");
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)]);
    let i = b.last();
    let why =
        "n3 differs from the other nodes of the run (4 in all): driver is 570.86.10, elsewhere 570.124.06";
    assert_eq!((i.summary.as_str(), i.suspects[0].what.as_str()), (why, "node n3"));
    // Told again every ten minutes: nothing new.
    for node in NODES {
        setup(&mut b, node, if node == "n3" { "570.86.10" } else { "570.124.06" }, "1.2");
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.told.len(), 1);
    setup(&mut b, "n3", "570.124.06", "1.2");
    b.steps("llama", &NODES, 70);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Resolved)]);
}

#[test]
fn what_makes_no_difference_is_an_annotation() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in NODES {
        setup(&mut b, node, "570", if node == "n1" { "1.1" } else { "1.2" });
    }
    b.steps("llama", &NODES, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 1));
}

#[test]
fn the_run_sees_its_own_configuration_differently() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in NODES {
        let lr = if node == "n4" { "0.0003" } else { "0.0001" };
        told(&mut b, node, Some("llama"), &[("lr", lr), ("seed", "1")]);
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)]);
    assert!(b.last().summary.contains("lr is 0.0003, elsewhere 0.0001"), "{}", b.last().summary);
}

#[test]
fn a_node_that_is_not_of_the_run_does_not_count() {
    let mut b = Bench::with_run("llama", &NODES);
    NODES.iter().for_each(|node| setup(&mut b, node, "570", "1"));
    setup(&mut b, "elsewhere", "550", "1");
    b.steps("llama", &NODES, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 0));
}
