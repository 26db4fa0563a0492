//! Links that go down, come back, and share a switch.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, dead, fell_off, gpu_lost, link, said, with};

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
    let m = &b.notifications.last().unwrap().message;
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
    assert!(i.summary.to_string().starts_with("links of 4 nodes (n1, n2, n3, n4)"), "{}", i.summary);
    // Idle nodes, too, are one ticket.
    let mut b = Bench::new();
    for node in nodes {
        b.feed(link(node, "mlx5_0/1", false));
        b.wait(1);
    }
    assert_eq!(b.open(), [(Kind::LinkFault, Severity::Ticket, "", nodes_of(&["n1", "n3", "n2", "n4"]))]);
    assert_eq!(
        (b.summary().len(), b.notifications.len()),
        (2, 5),
        "the second became part of the first, once the third was down"
    );
    nodes.iter().for_each(|node| b.feed(link(node, "mlx5_0/1", true)));
    b.wait(61);
    assert!(b.open().is_empty(), "{:?}", b.open());
}

fn nodes_of<'a>(nodes: &[&'a str]) -> Vec<&'a str> {
    nodes.to_vec()
}

/// Steps of runs that have a node each, once every two seconds.
fn go_on(b: &mut Bench, runs: &[(&str, &str)], step: &mut i64, seconds: i64) {
    for _ in 0..seconds / 2 {
        b.wait(2);
        *step += 1;
        runs.iter().for_each(|(run, node)| b.step(run, 0, node, *step));
    }
}

#[test]
fn links_that_have_nothing_in_common_are_as_many_incidents() {
    let mut b = Bench::new();
    let (mut step, well) = (0, [("run-fl", "fl"), ("run-er", "er")]);
    go_on(&mut b, &[well[0], well[1], ("run-dn", "dn")], &mut step, 200);
    // A link for management of an idle node, a flap, a cable that was pulled, errors: all within a
    // minute, and then some.
    let e = said(EventKind::Link, "nb", "eth1", "warn", "Ethernet link eth1 went down");
    b.feed(Event { code: Some(0), ..with(e, &[("medium", "ethernet"), ("state", "down")]) });
    go_on(&mut b, &[well[0], well[1], ("run-dn", "dn")], &mut step, 40);
    b.feed(link("fl", "mlx5_2/1", false));
    go_on(&mut b, &[well[0], well[1], ("run-dn", "dn")], &mut step, 8);
    b.feed(link("fl", "mlx5_2/1", true));
    b.feed(link("dn", "mlx5_5/1", false));
    let e = said(EventKind::Link, "er", "mlx5_1/1", "warn", "symbol errors: 500 an hour");
    let e = with(e, &[("medium", "infiniband"), ("state", "errors"), ("once", "true")]);
    b.feed(Event { code: Some(0), ..e });
    go_on(&mut b, &well, &mut step, 20);
    let ticket = |run, node| (Kind::LinkFault, Severity::Ticket, run, vec![node]);
    let dn = (Kind::LinkFault, Severity::Page, "run-dn", vec!["dn"]);
    assert_eq!(b.open(), [ticket("", "nb"), ticket("run-fl", "fl"), dn.clone(), ticket("run-er", "er")]);
    assert_eq!(b.pages(), 1);
    // The run that stands is part of why it does.
    go_on(&mut b, &well, &mut step, 400);
    assert!(b.open().contains(&dn) && b.open().iter().all(|i| i.0 == Kind::LinkFault), "{:?}", b.open());
    assert!(b.timeline.iter().any(|t| t == "hang of run-dn: one fault"), "{:#?}", b.timeline);
    assert!(b.incidents.iter().all(|i| !i.summary.to_string().contains("switch")), "{:#?}", b.incidents);
}

#[test]
fn the_link_of_another_run_pages_though_the_first_is_acknowledged() {
    let mut b = Bench::new();
    go_on(&mut b, &[("run-a", "a"), ("run-b", "b")], &mut 0, 200);
    b.feed(link("a", "mlx5_5/1", false));
    b.wait(20);
    b.ack("alice");
    b.wait(25);
    b.feed(link("b", "mlx5_1/1", false));
    b.wait(20);
    let page = |run, node| (Kind::LinkFault, Severity::Page, run, vec![node]);
    assert_eq!((b.open(), b.pages()), (vec![page("run-a", "a"), page("run-b", "b")], 2));
}

/// Eight nodes of four runs that share a switch.
const RACK: [(&str, &str); 8] = [
    ("r0", "n0"),
    ("r1", "n1"),
    ("r2", "n2"),
    ("r3", "n3"),
    ("r0", "n4"),
    ("r1", "n5"),
    ("r2", "n6"),
    ("r3", "n7"),
];

fn rack() -> Bench {
    let mut b = Bench::new();
    for step in 1..100 {
        b.wait(2);
        for (i, (run, node)) in RACK.iter().enumerate() {
            b.step(run, i as u32 / 4, node, step);
        }
    }
    b
}

#[test]
fn a_switch_that_fails_under_many_runs_is_one_page() {
    let mut b = rack();
    for (_, node) in RACK {
        b.feed(link(node, "mlx5_0/1", false));
        b.wait(1);
    }
    b.wait(30);
    let open = b.open();
    assert_eq!((open.len(), b.pages()), (1, 1), "{open:#?}");
    assert_eq!((open[0].1, open[0].3.len()), (Severity::Page, 8));
    let i = b.incidents.iter().find(|i| i.state == State::Open).unwrap();
    assert!(
        i.summary
            .to_string()
            .starts_with("links of 8 nodes (n0, n1, n2, n3, n4, n5, n6, n7): look at the switch"),
        "{}",
        i.summary
    );
    assert!(i.suspects[0].what().starts_with("switch or cable"), "{:#?}", i.suspects);
    // Over for one is not over for all.
    b.feed(link("n0", "mlx5_0/1", true));
    b.wait(120);
    assert_eq!(b.open().iter().filter(|i| i.0 == Kind::LinkFault).count(), 1);
}

#[test]
fn whoever_has_a_switch_acknowledged_hears_of_another_run_and_not_of_each_node() {
    let mut b = rack();
    for node in ["n0", "n4", "n1"] {
        b.feed(link(node, "mlx5_0/1", false));
    }
    b.wait(20);
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:?}", b.open());
    b.ack("alice");
    // The same run again, then another.
    b.feed(link("n5", "mlx5_0/1", false));
    b.wait(20);
    let first = b.pages();
    b.feed(link("n2", "mlx5_0/1", false));
    b.wait(20);
    assert_eq!(b.open().iter().filter(|i| i.0 == Kind::LinkFault).count(), 1, "{:?}", b.open());
    assert_eq!(
        (first, b.pages()),
        (2, 2),
        "one call for what is not of the run that the incident names, and then nobody has it"
    );
}

#[test]
fn a_second_node_of_one_run_pages_though_the_first_is_acknowledged() {
    let mut b = Bench::with_run("llama", &["n1", "n2", "n3"]);
    b.feed(fell_off("n1"));
    b.ack("alice");
    b.wait(30);
    b.feed(gpu_lost("n1", true));
    b.feed(dead("llama", 0, "n1"));
    b.wait(40);
    assert_eq!(b.pages(), 1, "what comes of it is known: {:#?}", b.timeline);
    b.feed(fell_off("n2"));
    assert_eq!((b.open().len(), b.pages()), (1, 2), "{:#?}", b.timeline);
}

#[test]
fn the_cause_of_a_standstill_is_notified_to_its_owner_without_a_page() {
    let mut b = Bench::with_run("llama", &["n1", "n2"]);
    b.feed(dead("llama", 0, "n1"));
    b.wait(40);
    b.ack("alice");
    b.feed(fell_off("n1"));
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:#?}", b.timeline);
}

/// The event that the exporter publishes of a port: `over` ends all conditions of the port.
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

#[test]
fn more_links_than_are_counted_are_said_to_be_more() {
    let mut b = Bench::new();
    for n in 0..300 {
        b.feed(link(&format!("n{n:03}"), "mlx5_0/1", false));
    }
    let many = b
        .incidents
        .iter()
        .map(|i| i.summary.to_string())
        .find(|s| s.starts_with("links of 256 or more nodes (n"));
    assert!(many.is_some_and(|s| s.contains(" and others): look at the switch")), "{:?}", b.last().summary);
}
