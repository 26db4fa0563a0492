//! Nodes that fall silent: hosts that died under a run, exporters that were only started anew, and
//! nodes that no run uses.

use stepwatch_engine::SourceInput;
use stepwatch_model::{Kind, Severity, Suspect};
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, address, dead, fell_off, reading};

/// The advice of the last message.
fn advice(b: &Bench) -> &str {
    let message = &b.notifications.last().unwrap_or_else(|| panic!("nobody was notified")).message;
    message.details.advice.as_deref().unwrap_or_default()
}

/// The ranks of these nodes take a step every two seconds; the other nodes report nothing.
fn go_on(b: &mut Bench, nodes: &[&str], heard: impl Fn(&str) -> bool, steps: core::ops::Range<i64>) {
    for step in steps {
        b.wait(2);
        for (rank, node) in nodes.iter().enumerate().filter(|(_, node)| heard(node)) {
            b.step("multi", rank as u32, node, step);
        }
    }
}

const NODES: [&str; 3] = ["m1", "m2", "m3"];

/// The run has come to step 100 everywhere, and to 101 where it stands.
fn standing() -> Bench {
    let mut b = Bench::with_run("multi", &NODES);
    b.wait(1);
    b.step("multi", 0, "m1", 101);
    b.step("multi", 2, "m3", 101);
    b
}

fn bye(run: &str, rank: u32, node: &str) -> Event {
    let (run, node) = (Some(run.into()), Some(node.into()));
    Event { run, node, rank: Some(rank), code: Some(0), ..Event::new(EventKind::Bye) }
}

#[test]
fn a_node_that_dies_under_a_run_is_one_incident_and_a_page_after_three_minutes() {
    let mut b = standing();
    b.lose("m2");
    b.wait(61);
    assert_eq!(b.open(), [(Kind::SourceLost, Severity::Ticket, "multi", vec!["m2"])]);
    let m = &b.notifications[0].message;
    assert_eq!(m.title, "TICKET multi on m2: source lost");
    let start = format!(
        "Node m2 ({}) has not answered for 1m (the connection broke); the run has not moved for",
        address("m2")
    );
    assert!(m.summary.starts_with(&start), "{}", m.summary);
    assert_eq!(m.details.suspects[0].what(), "node m2");
    b.wait(120);
    assert_eq!(b.open(), [(Kind::Hang, Severity::Page, "multi", vec!["m2"])]);
    assert_eq!((b.pages(), b.summary().len()), (1, 1));
    let i = b.last();
    assert!(i.suspects[0].what().ends_with("m2"), "{:#?}", i.suspects);
    assert!(
        i.suspects.iter().any(|s| s.why().contains("its exporter does not answer since")),
        "{:#?}",
        i.suspects
    );
    // The run goes on without it, and the node is taken out.
    b.find("m2");
    b.steps("multi", &NODES, 3);
    for step in 102..140 {
        b.wait(2);
        (0..3).for_each(|rank| b.step("multi", rank, NODES[rank as usize], step));
    }
    b.wait(70);
    assert!(b.open().iter().all(|i| i.0 != Kind::SourceLost), "{:?}", b.open());
}

#[test]
fn the_node_may_be_lost_after_the_run_is_known_to_stand() {
    let mut b = standing();
    // Its last words took a while to be its last.
    b.wait(40);
    b.lose("m2");
    b.wait(145);
    assert_eq!(b.open(), [(Kind::Hang, Severity::Page, "multi", vec!["m2"])]);
    // Long after, it is another thing.
    let mut b = standing();
    b.wait(185);
    b.lose("m2");
    b.wait(200);
    let open = b.open();
    assert!(open.contains(&(Kind::Hang, Severity::Ticket, "multi", vec![])), "{open:?}");
    assert_eq!((open.len(), b.pages()), (2, 0), "{open:?}");
}

#[test]
fn an_exporter_that_is_gone_while_the_run_goes_on_is_a_ticket() {
    // Of the node that leads, and of another.
    for gone in ["m1", "m3"] {
        let mut b = Bench::with_run("multi", &NODES);
        b.lose(gone);
        for step in 101..500 {
            b.wait(2);
            for (rank, node) in NODES.iter().enumerate().filter(|(_, node)| **node != gone) {
                b.step("multi", rank as u32, node, step);
            }
        }
        assert_eq!(
            (b.open(), b.pages()),
            (vec![(Kind::SourceLost, Severity::Ticket, "multi", vec![gone])], 0)
        );
    }
}

#[test]
fn an_exporter_that_is_started_anew_while_a_run_evaluates_wakes_nobody() {
    let mut b = standing();
    b.lose("m2");
    b.wait(50);
    b.find("m2");
    b.wait(420);
    assert_eq!(b.pages(), 0);
    assert_eq!(b.open(), [(Kind::Hang, Severity::Ticket, "multi", vec![])]);
}

#[test]
fn ranks_that_cannot_be_heard_went_with_those_that_said_goodbye() {
    let mut b = standing();
    b.lose("m2");
    b.feed(bye("multi", 0, "m1"));
    b.wait(20);
    b.feed(bye("multi", 2, "m3"));
    b.wait(3000);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::SourceLost, Severity::Ticket, "multi", vec!["m2"])], 0));
}

#[test]
fn a_faulty_node_that_falls_silent_is_one_incident() {
    let mut b = standing();
    b.feed(fell_off("m2"));
    b.wait(2);
    b.lose("m2");
    b.wait(600);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::GpuFault, Severity::Page, "multi", vec!["m2"])], 1));
}

#[test]
fn nothing_is_lost_on_a_node_that_no_run_uses() {
    let mut b = Bench::new();
    b.feed(reading("spare", 0, &[("utilization_ratio", 0.0)]));
    b.lose("spare");
    b.wait(61);
    let m = &b.notifications[0].message;
    assert_eq!(m.title, "TICKET spare: source lost");
    let labels: Vec<&str> = m.facts.iter().map(|f| f.label.as_str()).collect();
    assert_eq!(labels, ["Since", "Suspect", "Runs"]);
    assert_eq!((m.details.cost.as_ref(), m.details.checkpoint.as_ref()), (None, None));
}

#[test]
fn an_exporter_that_was_away_before_is_not_the_host_that_died() {
    let nodes = ["m1", "m2", "m3", "m4"];
    let mut b = Bench::with_run("multi", &nodes);
    nodes.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 1.0)])));
    b.lose("m1");
    go_on(&mut b, &nodes, |node| node != "m1", 101..140);
    let ticket = || (Kind::SourceLost, Severity::Ticket, "multi", vec!["m1"]);
    assert_eq!(b.open(), [ticket()]);
    b.lose("m2");
    b.wait(190);
    assert_eq!(b.open(), [ticket(), (Kind::Hang, Severity::Page, "multi", vec!["m2"])]);
    let i = b.last();
    assert_eq!(i.suspects[0].what(), "node m2", "{:#?}", i.suspects);
    assert!(i.suspects.iter().all(|s| !s.why().contains("stopped at step 100")), "{:#?}", i.suspects);
    assert!(advice(&b).starts_with("see whether the host m2 is up"), "{}", advice(&b));
}

#[test]
fn who_stopped_first_is_named_and_not_who_cannot_be_heard() {
    let nodes = ["m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"];
    let mut b = Bench::with_run("multi", &nodes);
    b.lose("m2");
    go_on(&mut b, &nodes, |node| node != "m2", 101..140);
    go_on(&mut b, &nodes, |node| node != "m2" && node != "m5", 140..141);
    b.wait(1900);
    let hang =
        b.incidents.iter().find(|i| i.kind == Kind::Hang).unwrap_or_else(|| panic!("{:#?}", b.incidents));
    assert_eq!(hang.suspects[0].what(), "rank 4 on m5", "{:#?}", hang.suspects);
    assert!(
        hang.suspects[0].why().starts_with("stopped at step 139, the others reached 140"),
        "{:#?}",
        hang.suspects
    );
    // The deaths that follow are reported, and the node that is silent is no more so than before.
    let mut b = Bench::with_run("multi", &nodes);
    b.lose("m2");
    go_on(&mut b, &nodes, |node| node != "m2", 101..140);
    for (rank, node) in nodes.iter().enumerate().filter(|(_, node)| **node != "m2") {
        b.feed(dead("multi", rank as u32, node));
    }
    b.wait(60);
    let page = b.incidents.iter().find(|i| i.severity == Severity::Page);
    let suspects = &page.unwrap_or_else(|| panic!("{:#?}", b.incidents)).suspects;
    assert!(suspects[0].what().starts_with("rank 0 on m1"), "{suspects:#?}");
}

#[test]
fn a_node_that_is_heard_again_pages_though_its_run_could_not_be_seen() {
    let mut b = Bench::with_run("multi", &NODES);
    NODES.iter().for_each(|node| b.lose(node));
    b.wait(400);
    let lost = (Kind::SourceLost, Severity::Page, "multi", NODES.to_vec());
    assert_eq!((b.open(), b.pages()), (vec![lost], 1));
    b.find("m1");
    b.find("m2");
    go_on(&mut b, &NODES, |node| node != "m3", 101..110);
    b.feed(fell_off("m1"));
    assert_eq!(b.pages(), 2, "{:#?}", b.timeline);
}

#[test]
fn what_is_left_of_a_page_is_a_ticket_that_calls_nobody() {
    let mut b = standing();
    b.lose("m2");
    b.wait(190);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::Hang, Severity::Page, "multi", vec!["m2"])], 1));
    // The run trains on elsewhere.
    go_on(&mut b, &["m1", "m4", "m3"], |_| true, 102..120);
    assert_eq!(b.open().len(), 1, "it may stop again");
    go_on(&mut b, &["m1", "m4", "m3"], |_| true, 120..2000);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::SourceLost, Severity::Ticket, "multi", vec!["m2"])], 1));
    let m = &b.notifications.last().unwrap().message;
    assert_eq!(m.title, "TICKET multi on m2: source lost");
    assert!(m.summary.starts_with("Source lost of multi: left of incident "), "{}", m.summary);
    assert!(
        b.timeline.iter().any(|t| t.contains("what is left is source lost of multi")),
        "{:#?}",
        b.timeline
    );
    b.find("m2");
    b.wait(121);
    assert!(b.open().is_empty(), "{:?}", b.open());
}

#[test]
fn a_run_that_moves_for_a_moment_stays_the_page_it_was() {
    let mut b = standing();
    b.lose("m2");
    b.wait(190);
    go_on(&mut b, &["m1", "m4", "m3"], |_| true, 102..104);
    b.wait(20);
    let (incidents, pages) = (b.incidents.len(), b.pages());
    b.find("m2");
    b.wait(50);
    assert_eq!((b.open().len(), b.incidents.len(), b.pages()), (1, incidents, pages), "{:?}", b.open());
}

#[test]
fn an_address_that_was_given_to_another_machine() {
    let mut b = Bench::new();
    let old = reading("gone", 0, &[("utilization_ratio", 0.0)]);
    b.feed_over(&address("m2"), old);
    b.lose("m2");
    b.find("m2");
    b.steps("multi", &NODES, 100);
    b.lose("m2");
    b.wait(190);
    assert_eq!(b.open(), [(Kind::Hang, Severity::Page, "multi", vec!["m2"])]);
}

#[test]
fn an_exporter_that_answers_at_another_address_makes_its_node_no_suspect() {
    let nodes = ["m1", "m2", "m3", "m4"];
    let (new, well) = ("192.0.2.99:1", |node| reading(node, 0, &[("utilization_ratio", 1.0)]));
    let is_suspect =
        |b: &Bench| b.incidents.iter().any(|i| i.kind == Kind::GpuFault && named(&i.suspects, "m3"));
    let moved = |restart: bool| {
        let mut b = Bench::with_run("multi", &nodes);
        nodes.iter().for_each(|node| b.feed(well(node)));
        b.lose("m3");
        b.find_at(new);
        b.feed_over(new, well("m3"));
        if restart {
            b.stop_for(10);
            b.lose("m3");
            nodes.iter().filter(|node| **node != "m3").for_each(|node| b.find(node));
            b.find_at(new);
        }
        b
    };
    let stands = |b: &mut Bench| {
        b.wait(5);
        b.feed(fell_off("m1"));
        b.wait(600);
    };
    for restart in [false, true] {
        let mut b = moved(restart);
        stands(&mut b);
        assert!(!is_suspect(&b), "restart: {restart}, {:#?}", b.incidents);
    }
    // It is lost at the new address too.
    let mut b = moved(false);
    b.answer(SourceInput::SourceDown { source: new, reason: "the connection broke" });
    stands(&mut b);
    assert!(is_suspect(&b), "{:#?}", b.incidents);
}

#[test]
fn a_collector_that_others_send_to_does_not_speak_for_a_host_that_died() {
    let mut b = standing();
    for node in ["m1", "m2"] {
        b.feed_over("192.0.2.99:1", reading(node, 0, &[("utilization_ratio", 1.0)]));
    }
    b.lose("m2");
    b.wait(190);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::Hang, Severity::Page, "multi", vec!["m2"])], 1));
}

fn named(suspects: &[Suspect], node: &str) -> bool {
    suspects.iter().any(|s| s.what().contains(node))
}
