//! What is known outlives us: programs that are killed, and programs that are replaced.

use stepwatch_engine::verdict::{Kind, Severity};

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
fn what_was_told_before_an_upgrade_ends_unless_it_is_told_again() {
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
    // The run goes on, one of the GPUs is well, and the other is told of when its turn comes.
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
fn a_page_that_nobody_answered_before_an_upgrade_rings_no_more_once_it_is_over() {
    let mut b = Bench::with_run("llama", &["n1", "n2"]);
    b.steps_every(40, "llama", &["n1", "n2"], 90);
    b.wait(1200);
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:?}", b.open());
    b.upgrade();
    b.steps("llama", &["n1", "n2"], 2000);
    assert_eq!((b.open().len(), b.pages()), (0, 1), "{:?}", b.open());
    assert!(b.timeline.iter().any(|t| t.contains("unless it is told again within 15m")), "{:#?}", b.timeline);
}
