//! A page falls to a ticket when the fault that made it a page is over, whatever other faults its
//! node has, and the next such fault pages again.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::Action;
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, UUID, fell_off, gpu_lost, hw, link, said, with, xid};

const NODES: [&str; 2] = ["n1", "n2"];
const OTHER: &str = "GPU-55555555-0000-0000-0000-000000000005";

fn published_again(e: Event) -> Event {
    with(e, &[("again", "true")])
}

fn to_remap(gpu: &str) -> Event {
    let extra = [("gpu", gpu), ("action", "drain_reset")];
    hw("n1", "row_remap_pending", true, "warn", "a row is to be remapped", &extra)
}

fn reset(gpu: &str) -> Event {
    let mut e = hw("n1", "gpu_reset", true, "info", "the GPU was reset", &[("gpu", gpu)]);
    e.extra.insert("once".into(), Value::Bool(true));
    e
}

/// The run goes on for so many times five minutes, and the condition that stands is published again
/// each time.
fn goes_on(b: &mut Bench, times: usize, stands: &Event) {
    for _ in 0..times {
        b.steps("llama", &NODES, 150);
        b.feed(published_again(stands.clone()));
    }
}

/// Notifications since `from`.
fn since(b: &Bench, from: usize) -> Vec<(Action, bool)> {
    b.notifications[from..].iter().map(|n| (n.action, n.page)).collect()
}

#[test]
fn a_gpu_that_fails_again_pages_though_another_waits_for_its_reset() {
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(to_remap(OTHER));
    goes_on(&mut b, 2, &to_remap(OTHER));
    b.feed(fell_off("n1"));
    b.wait(100);
    b.ack("ada");
    b.steps("llama", &NODES, 300);
    let before = b.notifications.len();
    b.feed(reset(UUID));
    b.steps("llama", &NODES, 20);
    assert_eq!(since(&b, before), [], "it may come back");
    goes_on(&mut b, 10, &to_remap(OTHER));
    assert_eq!(since(&b, before), [(Action::Resolve, true), (Action::Trigger, false)]);
    assert_eq!(b.open(), [(Kind::GpuFault, Severity::Ticket, "llama", vec!["n1"])]);
    let i = b.last();
    let words = format!(": a row is to be remapped ({OTHER}), on n1; run llama has 1 rank there");
    assert!(
        i.summary.to_string().starts_with("left of incident ") && i.summary.to_string().contains(&words),
        "{}",
        i.summary
    );
    assert_eq!(i.suspects.len(), 1, "{:#?}", i.suspects);
    assert!(i.suspects[0].what().contains(OTHER), "{:#?}", i.suspects);
    goes_on(&mut b, 100, &to_remap(OTHER));
    let pages = b.pages();
    b.feed(fell_off("n1"));
    assert_eq!((b.pages(), b.last().state), (pages + 1, State::Open), "{:#?}", b.timeline);
}

#[test]
fn a_port_that_goes_down_again_pages_though_another_makes_errors() {
    let errors = || {
        let e = said(EventKind::Link, "n1", "mlx5_3/1", "warn", "mlx5_3/1: symbol errors");
        Event { code: Some(0), ..with(e, &[("medium", "infiniband"), ("state", "errors")]) }
    };
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(errors());
    b.steps("llama", &NODES, 20);
    b.feed(link("n1", "mlx5_0/1", false));
    b.steps("llama", &NODES, 20);
    assert_eq!(b.pages(), 1);
    b.ack("ada");
    // It comes and goes: the person who acknowledged it has seen it.
    let before = b.notifications.len();
    b.feed(link("n1", "mlx5_0/1", true));
    b.steps("llama", &NODES, 10);
    b.feed(link("n1", "mlx5_0/1", false));
    b.steps("llama", &NODES, 10);
    assert_eq!((b.pages(), since(&b, before)), (1, vec![(Action::Update, true)]), "{:#?}", b.timeline);
    b.feed(link("n1", "mlx5_0/1", true));
    goes_on(&mut b, 24, &errors());
    assert_eq!(b.open(), [(Kind::LinkFault, Severity::Ticket, "llama", vec!["n1"])]);
    b.feed(link("n1", "mlx5_0/1", false));
    b.steps("llama", &NODES, 10);
    assert_eq!((b.pages(), b.last().state), (2, State::Open), "{:#?}", b.timeline);
}

#[test]
fn a_mount_that_hangs_again_pages_though_the_clock_is_off() {
    let clock = || hw("n1", "clock_unsynchronised", true, "warn", "the clock is not synchronised", &[]);
    let mount =
        |holds| hw("n1", "mount_stuck", holds, "error", "/data does not answer", &[("mount", "/data")]);
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(clock());
    goes_on(&mut b, 3, &clock());
    b.feed(mount(true));
    goes_on(&mut b, 2, &clock());
    assert_eq!(b.pages(), 1);
    b.ack("ada");
    b.feed(mount(false));
    goes_on(&mut b, 20, &clock());
    assert_eq!(b.open(), [(Kind::NodeFault, Severity::Ticket, "llama", vec!["n1"])]);
    assert!(
        b.last().summary.to_string().contains("the clock is not synchronised, on n1"),
        "{}",
        b.last().summary
    );
    b.feed(mount(true));
    goes_on(&mut b, 2, &clock());
    assert_eq!((b.pages(), b.last().state), (2, State::Open), "{:#?}", b.timeline);
}

#[test]
fn what_was_closed_by_hand_is_notified_again_when_it_comes_again() {
    for gpu in [OTHER, UUID] {
        let mut b = Bench::with_run("llama", &NODES);
        b.feed(to_remap(gpu));
        b.steps("llama", &NODES, 100);
        b.feed(gpu_lost("n1", true));
        b.resolve("ada");
        b.steps("llama", &NODES, 10);
        b.feed(gpu_lost("n1", false));
        // For less than the ten minutes after which what still fires is back.
        goes_on(&mut b, 1, &to_remap(gpu));
        assert_eq!((b.pages(), b.open()), (1, vec![]), "ada knows of the row");
        b.feed(gpu_lost("n1", true));
        assert_eq!(b.pages(), 2, "{gpu}: {:#?}", b.timeline);
    }
}

#[test]
fn nobody_is_called_for_what_is_a_ticket_by_now() {
    // The warning may come before the page or while that is about to resolve.
    for late in [false, true] {
        let mut b = Bench::with_run("llama", &NODES);
        if !late {
            b.feed(to_remap(OTHER));
        }
        b.feed(gpu_lost("n1", true));
        b.steps("llama", &NODES, 10);
        b.feed(gpu_lost("n1", false));
        if late {
            b.steps("llama", &NODES, 10);
            b.feed(to_remap(OTHER));
        }
        goes_on(&mut b, 24, &to_remap(OTHER));
        assert_eq!(b.pages(), 1, "late: {late}: {:#?}", b.timeline);
        assert_eq!(b.open(), [(Kind::GpuFault, Severity::Ticket, "llama", vec!["n1"])], "late: {late}");
    }
}

#[test]
fn a_further_ticket_is_notified_when_the_page_is_over() {
    let third = "GPU-66666666-0000-0000-0000-000000000006";
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(gpu_lost("n1", true));
    b.ack("ada");
    b.feed(to_remap(OTHER));
    b.steps("llama", &NODES, 50);
    b.feed(gpu_lost("n1", false));
    b.steps("llama", &NODES, 50);
    let before = b.notifications.len();
    b.feed(to_remap(third));
    assert_eq!(since(&b, before), [(Action::Update, false)], "{:#?}", b.timeline);
    let m = &b.notifications.last().unwrap().message;
    assert!(m.reason.contains(third), "{}", m.reason);
}

#[test]
fn a_gpu_whose_fault_becomes_a_page_pages_beside_a_port_acknowledged() {
    let failed = || xid("n1", 95, "error", "reset_gpu", "Uncontained ECC error");
    let mut b = Bench::new();
    b.feed(failed());
    b.wait(60);
    b.steps("llama", &NODES, 100);
    assert_eq!(b.last().severity, Severity::Ticket);
    b.feed(link("n1", "mlx5_0/1", false));
    b.steps("llama", &NODES, 20);
    b.ack("ada");
    assert_eq!(b.pages(), 1);
    b.feed(failed());
    // It began long ago: the first word waits whether it is over by now.
    b.wait(11);
    assert_eq!((b.pages(), b.last().state), (2, State::Open), "{:#?}", b.timeline);
    let m = &b.notifications.last().unwrap().message;
    assert!(m.summary.starts_with("XID 95 on"), "{}", m.summary);
}

#[test]
fn a_gpu_that_fails_under_a_run_pages_though_its_host_is_acknowledged() {
    let read_only =
        || hw("n1", "filesystem_readonly", true, "error", "/scratch is read-only", &[("device", "sda1")]);
    let mut b = Bench::with_run("llama", &NODES);
    b.feed(read_only());
    b.steps("llama", &NODES, 20);
    b.ack("ada");
    goes_on(&mut b, 3, &read_only());
    b.feed(xid("n1", 95, "error", "reset_gpu", "Uncontained ECC error"));
    b.steps("llama", &NODES, 20);
    assert_eq!((b.pages(), b.open().len()), (2, 2), "{:#?}", b.incidents);
}
