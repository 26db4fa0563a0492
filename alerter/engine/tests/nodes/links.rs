//! Links that go down, come back, and share a switch.

use stepwatch_engine::incident::State;
use stepwatch_engine::verdict::{Kind, Severity};
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, link, said, with};

#[test]
fn a_flap_is_a_ticket_and_a_link_that_stays_down_is_a_page() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(link("gpu-7", "mlx5_0/1", false));
    b.wait(5);
    b.feed(link("gpu-7", "mlx5_0/1", true));
    b.steps("llama", &["gpu-7"], 40);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Resolved)]);
    b.feed(link("gpu-7", "mlx5_0/1", false));
    b.wait(16);
    assert_eq!(b.summary()[1], (Kind::LinkFault, Severity::Page, State::Open));
    let m = &b.told.last().unwrap().message;
    assert_eq!(m.title, "PAGE llama on gpu-7: link fault at step 140");
    let start = "InfiniBand port mlx5_0/1 went down, on gpu-7, 2 times; run llama has 1 rank there";
    assert!(m.summary.starts_with(start), "{}", m.summary);
}

#[test]
fn errors_are_a_ticket_that_ends_when_there_are_no_more() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    let e = said(EventKind::Link, "gpu-7", "mlx5_0/1", "warn", "symbol errors: 200 an hour");
    let e = with(e, &[("medium", "infiniband"), ("state", "errors"), ("once", "true")]);
    b.feed(Event { code: Some(0), ..e });
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Open)]);
    b.steps("llama", &["gpu-7"], 340);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Resolved)]);
}

#[test]
fn links_of_many_nodes_that_go_down_together_are_the_fabric() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut b = Bench::with_run("llama", &nodes);
    for node in nodes {
        b.feed(link(node, "mlx5_0/1", false));
        b.wait(3);
    }
    b.wait(30);
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::LinkFault, Severity::Page, State::Open)], 1));
    let i = b.last();
    assert_eq!(i.nodes, nodes);
    assert!(i.summary.starts_with("links of 4 nodes (n1, n2, n3, n4)"), "{}", i.summary);
    // Idle nodes, too, are one ticket.
    let mut b = Bench::new();
    nodes.iter().for_each(|node| b.feed(link(node, "mlx5_0/1", false)));
    assert_eq!((b.summary().len(), b.told.len()), (1, 4), "one first word, and news in its thread");
    nodes.iter().for_each(|node| b.feed(link(node, "mlx5_0/1", true)));
    b.wait(61);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Resolved)]);
}

/// As the exporter tells of a port: `over` closes whatever was open of it.
fn port(b: &mut Bench, state: &str, level: &str, over: bool) {
    let e = said(EventKind::Link, "gpu-7", "mlx5_0/1", level, &format!("InfiniBand port mlx5_0/1: {state}"));
    b.feed(Event { code: Some(i64::from(over)), ..with(e, &[("medium", "infiniband"), ("state", state)]) });
}

#[test]
fn a_link_is_down_or_flaps_or_is_lost_and_one_word_ends_it() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    port(&mut b, "down", "warn", false);
    b.wait(5);
    port(&mut b, "flap", "warn", false);
    b.steps("llama", &["gpu-7"], 100);
    assert_eq!(
        b.summary(),
        [(Kind::LinkFault, Severity::Ticket, State::Open)],
        "it is up again, however often it was not"
    );
    port(&mut b, "down", "warn", false);
    b.wait(3);
    port(&mut b, "drop", "error", false);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Page, State::Open)], "lost is lost");
    port(&mut b, "up", "info", true);
    b.steps("llama", &["gpu-7"], 40);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Page, State::Resolved)]);
}

#[test]
fn an_ethernet_link_of_no_importance_wakes_nobody() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    let e = said(EventKind::Link, "gpu-7", "eno1", "warn", "Ethernet link eno1 went down");
    b.feed(Event { code: Some(0), ..with(e, &[("medium", "ethernet"), ("state", "down")]) });
    b.steps("llama", &["gpu-7"], 100);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Open)]);
}
