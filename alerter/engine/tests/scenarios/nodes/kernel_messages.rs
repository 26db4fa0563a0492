//! Messages of the kernel that no pattern knows: one that few nodes of a run have is a ticket, and
//! one that the fleet has is none.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::State;

use super::bench::{Bench, hw};

/// As an exporter publishes a message that is new on its node.
fn told(b: &mut Bench, node: &str, template: &str) {
    let text = format!("new on this node: {template}");
    let extra = [("template", template), ("device", template), ("once", "true")];
    b.feed(hw(node, "kernel_message", true, "info", &text, &extra));
}

/// Incidents of nodes: the run of these tests takes no step, and hangs sooner or later.
fn faults(b: &Bench) -> Vec<(Severity, State)> {
    let of_nodes = b.summary().into_iter().filter(|(kind, ..)| *kind == Kind::NodeFault);
    of_nodes.map(|(_, severity, state)| (severity, state)).collect()
}

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

#[test]
fn on_one_node_of_a_run_it_is_a_ticket() {
    let mut b = Bench::with_run("llama", &NODES);
    told(&mut b, "n2", "foo: something broke");
    assert_eq!(faults(&b), [], "the other nodes may log it in a moment");
    b.wait(150);
    assert_eq!(faults(&b), [(Severity::Ticket, State::Open)]);
    assert_eq!(&b.last().nodes[..], ["n2".to_owned()]);
    let m = &b.notifications[0].message;
    assert!(m.summary.contains("on this node: foo: something broke"), "{}", m.summary);
}

#[test]
fn on_all_nodes_of_a_run_it_is_none_and_neither_is_it_on_the_next() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in ["n1", "n2", "n3"] {
        told(&mut b, node, "foo: rolled out");
        b.wait(20);
    }
    b.wait(300);
    assert_eq!(faults(&b), []);
    told(&mut b, "n4", "foo: rolled out");
    b.wait(300);
    assert_eq!(faults(&b), [], "the fleet knows it");
    told(&mut b, "n4", "bar: never before");
    b.wait(300);
    assert_eq!(faults(&b), [(Severity::Ticket, State::Open)]);
}
