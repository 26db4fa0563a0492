//! State that outlives the alerter: programs that are killed, and programs that are replaced.

use stepwatch_model::{Kind, Severity};
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, gpu_lost, reading};

const NODES: [&str; 3] = ["m1", "m2", "m3"];

#[test]
fn a_host_that_died_before_we_were_killed_is_a_page_as_soon() {
    let mut b = Bench::with_run("multi", &NODES);
    b.lose("m2");
    b.wait(60);
    assert_eq!(b.open(), [(Kind::SourceLost, Severity::Ticket, "multi", vec!["m2"])]);
    b.stop_for(20);
    b.lose("m2");
    b.find("m1");
    b.find("m3");
    b.wait(170);
    assert_eq!(b.pages(), 0, "it was seen for less than is usual");
    b.wait(15);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::Hang, Severity::Page, "multi", vec!["m2"])], 1));
}

#[test]
fn incidents_from_before_an_upgrade_end_unless_they_are_reported_again() {
    let mut b = Bench::with_run("llama", &["n1", "n2"]);
    b.feed(reading("spare", 0, &[("utilization_ratio", 0.0)]));
    b.feed(gpu_lost("spare", true));
    b.feed(gpu_lost("other", true));
    b.wait(660);
    let loud = || {
        [
            (Kind::GpuFault, Severity::Ticket, "", vec!["spare"]),
            (Kind::GpuFault, Severity::Ticket, "", vec!["other"]),
        ]
    };
    let open = b.open();
    assert!(loud().iter().all(|i| open.contains(i)) && open.len() == 3, "{open:?}");
    b.upgrade();
    // The run goes on, one of the GPUs is well, and the other is published when its turn comes.
    b.steps("llama", &["n1", "n2"], 280);
    b.feed(gpu_lost("other", true));
    b.feed(gpu_lost("spare", false));
    b.steps("llama", &["n1", "n2"], 280);
    assert_eq!(b.open(), loud()[1..]);
    b.feed(gpu_lost("other", false));
    b.wait(130);
    assert!(b.open().is_empty(), "{:?}", b.open());
}

#[test]
fn a_page_that_nobody_answered_before_an_upgrade_pages_no_more_once_it_is_over() {
    let mut b = Bench::with_run("llama", &["n1", "n2"]);
    b.steps_every(40, "llama", &["n1", "n2"], 90);
    b.wait(1200);
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:?}", b.open());
    b.upgrade();
    b.steps("llama", &["n1", "n2"], 2000);
    assert_eq!((b.open().len(), b.pages()), (0, 1), "{:?}", b.open());
    assert!(
        b.timeline.iter().any(|t| t.contains("unless it is reported again within 15m")),
        "{:#?}",
        b.timeline
    );
}

const TWO: [&str; 2] = ["n1", "n2"];

/// Its ranks live, and take no step.
fn beats(b: &mut Bench, times: u32) {
    for _ in 0..times {
        b.wait(10);
        for (rank, node) in (0..).zip(TWO) {
            let (run, node, rank) = (Some("llama".into()), Some(node.into()), Some(rank));
            b.feed(Event { run, node, rank, ..Event::new(EventKind::Hb) });
        }
    }
}

/// A hang that is acknowledged when the program is replaced.
fn replaced_under_a_hang() -> Bench {
    let mut b = Bench::with_run("llama", &TWO);
    b.steps("llama", &TWO, 900);
    beats(&mut b, 240);
    assert_eq!((b.open(), b.pages()), (vec![(Kind::Hang, Severity::Page, "llama", vec![])], 1));
    b.ack("ada");
    b.notifications.clear();
    b.upgrade();
    b
}

#[test]
fn a_run_that_stands_stands_after_an_upgrade_until_it_steps() {
    let mut b = replaced_under_a_hang();
    let reason = &b.notifications.last().unwrap().message.reason;
    let words = "what was known of llama is lost with the upgrade: it is taken to stand until a step is heard; look at the run";
    assert_eq!((reason.as_str(), b.pages()), (words, 0));
    beats(&mut b, 300);
    // Killed meanwhile, the program still waits for the same steps.
    b.stop_for(30);
    beats(&mut b, 300);
    assert_eq!(b.open(), [(Kind::Hang, Severity::Page, "llama", vec![])]);
    b.steps("llama", &TWO, 1);
    let reason = &b.notifications.last().unwrap().message.reason;
    assert!(
        reason.contains("llama is heard again: it is over unless it is reported again within 15m"),
        "{reason}"
    );
    b.steps("llama", &TWO, 460);
    assert!(b.open().is_empty(), "{:?}", b.open());
}

#[test]
fn a_run_that_stood_before_an_upgrade_may_end_or_never_be_heard_again() {
    let mut b = replaced_under_a_hang();
    b.wait(3600);
    assert_eq!(b.open().len(), 1);
    for (rank, node) in (0..).zip(TWO) {
        let (run, node, rank) = (Some("llama".into()), Some(node.into()), Some(rank));
        b.feed(Event { run, node, rank, code: Some(130), ..Event::new(EventKind::Bye) });
    }
    assert!(b.open().is_empty(), "{:?}", b.open());
    let mut b = replaced_under_a_hang();
    b.wait(8 * 86_400);
    assert!(b.open().is_empty(), "{:?}", b.open());
}
