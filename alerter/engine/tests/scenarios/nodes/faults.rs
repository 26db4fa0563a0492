//! Faults of GPUs and hosts, by themselves and under a run.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::effect::Action;
use stepwatch_respond::incident::State;
use stepwatch_respond::message::Message;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, UUID, fell_off, gpu_lost, hw, said, with, xid};

/// A health sample with the UUID and PCI address of a GPU.
fn index(b: &mut Bench, node: &str) {
    let mut e = with(said(EventKind::Health, node, "gpu", "info", ""), &[("gpu", UUID)]);
    e.extra.insert("index".into(), Value::Number(3.0));
    b.feed(e);
}

#[test]
fn a_gpu_that_fell_off_the_bus_under_a_run_is_one_page_with_all_that_helps() {
    let mut b = Bench::with_run("llama", &["gpu-7", "gpu-8"]);
    index(&mut b, "gpu-7");
    b.feed(fell_off("gpu-7"));
    for _ in 0..8 {
        b.feed(xid("gpu-7", 45, "info", "none", "preemptive cleanup, due to previous errors"));
    }
    b.feed(gpu_lost("gpu-7", true));
    b.wait(300);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    assert_eq!((b.pages(), b.notes()), (1, 0));
    let i = b.last();
    assert_eq!((i.run.as_str(), &i.nodes[..]), ("llama", &["gpu-7".to_owned()][..]));
    let m = &b.notifications[0].message;
    assert_eq!(m.title, "PAGE llama on gpu-7: GPU fault at step 100");
    for part in [
        &format!("XID 79 on GPU 3 ({UUID}) of gpu-7: GPU has fallen off the bus"),
        "run llama has 1 rank there, at step 100",
        "drain gpu-7 and reboot it",
    ] {
        assert!(m.summary.contains(part), "{part:?} not in {:?}", m.summary);
    }
    assert_eq!(i.suspects[0].what(), format!("node gpu-7, GPU 3 ({UUID})"));
}

#[test]
fn on_an_idle_node_it_is_a_ticket_and_a_run_that_comes_later_does_not_make_it_a_page() {
    let mut b = Bench::new();
    b.feed(fell_off("gpu-7"));
    b.feed(gpu_lost("gpu-7", true));
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Open)]);
    let m = &b.notifications[0].message;
    assert_eq!((m.title.as_str(), m.run.as_str()), ("TICKET gpu-7: GPU fault", ""));
    assert!(m.summary.contains("no run uses the node"), "{}", m.summary);
    assert!(m.facts.iter().all(|f| f.label != "Cost" && f.label != "Since step"), "{:?}", m.facts);
    b.steps("llama", &["gpu-7"], 30);
    b.wait(10);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Open)]);
}

#[test]
fn an_application_that_breaks_itself_is_nobodys_ticket_until_the_gpu_is_the_only_thing_in_common() {
    let mut b = Bench::with_run("a", &["gpu-7"]);
    let fault = |level| xid("gpu-7", 31, level, "restart_app", "MMU fault");
    for _ in 0..50 {
        b.feed(fault("error"));
        b.wait(1);
    }
    b.feed(xid("gpu-7", 43, "warn", "none", "GPU stopped processing"));
    assert_eq!((b.summary(), b.notes()), (vec![], 2));
    for (run, nth) in [("b", 2), ("c", 3)] {
        let mut bye =
            Event { run: Some(if nth == 2 { "a" } else { "b" }.into()), ..Event::new(EventKind::Bye) };
        (bye.code, bye.node) = (Some(0), Some("gpu-7".into()));
        b.feed(bye);
        b.steps(run, &["gpu-7"], 20);
        b.feed(fault("info"));
    }
    assert_eq!(b.summary(), [], "other GPUs of the run may yet do the same");
    b.wait(61);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Open)]);
}

/// The same of another GPU.
fn of_another(e: Event) -> Event {
    with(e, &[("gpu", "GPU-other"), ("pci", "0000:9d:00.0")])
}

/// Messages about faults, in order.
fn news(b: &Bench) -> Vec<&Message> {
    let troubles = b.notifications.iter().filter(|n| matches!(n.action, Action::Trigger | Action::Update));
    troubles.map(|n| &n.message).collect()
}

#[test]
fn a_second_gpu_pages_though_the_first_is_acknowledged() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(fell_off("gpu-7"));
    b.feed(gpu_lost("gpu-7", true));
    assert_eq!((b.pages(), news(&b).len()), (1, 1));
    b.ack("sam");
    b.feed(of_another(fell_off("gpu-7")));
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)], "sam did not acknowledge it");
    assert_eq!((b.pages(), news(&b).len()), (2, 2));
    let m = news(&b)[1];
    assert!(m.reason.contains("after it was acknowledged: XID 79 on GPU-other of gpu-7"), "{}", m.reason);
    assert!(m.summary.starts_with("XID 79 on GPU-other"), "{}", m.summary);
    // Consequences of that fault are no news.
    b.ack("sam");
    b.feed(of_another(gpu_lost("gpu-7", true)));
    assert_eq!((b.summary()[0].2, news(&b).len()), (State::Acknowledged, 2));
}

#[test]
fn a_worse_fault_on_an_idle_node_is_notified_and_comes_first() {
    let mut b = Bench::new();
    let remapped = xid("gpu-7", 63, "warn", "drain_reset", "Row remapped");
    b.feed(of_another(remapped));
    b.feed(of_another(xid("gpu-7", 94, "warn", "reset_gpu", "Contained")));
    assert_eq!((b.summary(), news(&b).len()), (vec![(Kind::GpuFault, Severity::Ticket, State::Open)], 1));
    b.feed(fell_off("gpu-7"));
    assert_eq!((b.summary()[0].1, news(&b).len()), (Severity::Ticket, 2));
    let m = news(&b)[1];
    assert!(m.reason.starts_with("also XID 79 on"), "{}", m.reason);
    assert!(m.summary.starts_with("XID 79 on") && m.summary.contains("also XID 63"), "{}", m.summary);
    assert!(m.summary.ends_with("; drain gpu-7 and reboot it."), "{}", m.summary);
}

#[test]
fn what_was_closed_by_hand_is_not_another_gpu() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(gpu_lost("gpu-7", true));
    b.resolve("sam");
    b.feed(fell_off("gpu-7"));
    assert_eq!(b.pages(), 1, "sam knows of this one");
    b.feed(of_another(gpu_lost("gpu-7", true)));
    assert_eq!(b.pages(), 2);
}

#[test]
fn a_condition_that_ends_resolves_and_takes_its_xids_along() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(fell_off("gpu-7"));
    b.feed(gpu_lost("gpu-7", true));
    b.steps("llama", &["gpu-7"], 10);
    b.feed(gpu_lost("gpu-7", false));
    b.steps("llama", &["gpu-7"], 20);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)], "held for a minute");
    b.steps("llama", &["gpu-7"], 20);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Resolved)]);
}

#[test]
fn a_condition_published_again_is_notified_once_also_by_an_alerter_that_starts_late() {
    let mut b = Bench::new();
    let stuck =
        |again: &[(&str, &str)]| hw("gpu-7", "mount_stuck", true, "warn", "/data does not answer", again);
    b.feed(stuck(&[("mount", "/data"), ("again", "true")]));
    assert_eq!(b.summary(), [(Kind::NodeFault, Severity::Ticket, State::Open)]);
    for _ in 0..20 {
        b.wait(600);
        b.feed(stuck(&[("mount", "/data"), ("again", "true")]));
    }
    assert_eq!((b.summary().len(), b.notifications.len()), (1, 1));
    assert!(
        b.last().summary.to_string().starts_with("/data does not answer, on gpu-7; no run uses"),
        "{}",
        b.last().summary
    );
}

#[test]
fn a_condition_that_is_not_published_any_more_is_over() {
    let mut b = Bench::new();
    b.feed(hw("gpu-7", "clock_unsynced", true, "warn", "the clock is not synchronised", &[]));
    // The exporter falls silent: the condition of the clock stays as it was.
    b.wait(4000);
    assert_eq!(b.summary()[0].2, State::Open);
    for _ in 0..4 {
        b.feed(hw("gpu-7", "hung_task", true, "info", "", &[("once", "true")]));
        b.wait(600);
    }
    assert_eq!(b.summary()[0].2, State::Resolved);

    let mut b = Bench::new();
    b.feed(gpu_lost("gpu-7", true));
    b.wait(60);
    // The node was rebooted, and its exporter finds nothing amiss.
    b.reboot("b");
    for _ in 0..5 {
        index(&mut b, "gpu-7");
        b.wait(120);
    }
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Resolved)]);
}

#[test]
fn an_error_of_the_host_pages_when_it_has_held_under_a_run() {
    let stuck = |holds| {
        hw("gpu-7", "filesystem_readonly", holds, "error", "/scratch is read-only", &[("device", "sda1")])
    };
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(stuck(true));
    b.wait(8);
    b.feed(stuck(false));
    b.steps("llama", &["gpu-7"], 60);
    assert_eq!(b.summary(), [(Kind::NodeFault, Severity::Ticket, State::Resolved)]);
    b.feed(stuck(true));
    b.wait(16);
    assert_eq!(b.summary()[1], (Kind::NodeFault, Severity::Page, State::Open));
}

#[test]
fn a_file_server_may_fail_over_before_it_pages() {
    for (name, text, key, of) in [
        ("mount_stuck", "/home does not answer", "mount", "/home"),
        ("lustre_unhealthy", "no connection to Lustre target lus-OST0003 (DISCONN)", "device", "lus-OST0003"),
    ] {
        let stuck = |holds| hw("gpu-7", name, holds, "error", text, &[(key, of)]);
        let mut b = Bench::with_run("llama", &["gpu-7"]);
        b.feed(stuck(true));
        b.steps("llama", &["gpu-7"], 90);
        b.feed(stuck(false));
        b.steps("llama", &["gpu-7"], 60);
        assert_eq!(b.summary(), [(Kind::NodeFault, Severity::Ticket, State::Resolved)], "{name}");
        b.feed(stuck(true));
        b.steps("llama", &["gpu-7"], 301);
        assert_eq!(b.summary()[1], (Kind::NodeFault, Severity::Page, State::Open), "{name}");
    }
}

#[test]
fn a_reset_makes_the_xids_of_its_gpu_history() {
    let reset =
        |gpu| hw("gpu-7", "gpu_reset", true, "info", "the GPU was reset", &[("gpu", gpu), ("once", "true")]);
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(fell_off("gpu-7"));
    b.feed(reset("GPU-another"));
    b.steps("llama", &["gpu-7"], 60);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    b.feed(reset(UUID));
    b.steps("llama", &["gpu-7"], 60);
    assert_eq!(b.summary()[0], (Kind::GpuFault, Severity::Page, State::Resolved));
}

#[test]
fn an_xid_that_came_after_the_reset_stays_when_the_reset_is_reported() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    let reset = |at: f64| Event {
        ts: Some(at),
        ..hw("gpu-7", "gpu_reset", true, "info", "the GPU was reset", &[("gpu", UUID), ("once", "true")])
    };
    let before = b.now.as_secs_f64();
    b.steps("llama", &["gpu-7"], 20);
    b.feed(Event { ts: Some(before + 5.0), ..fell_off("gpu-7") });
    b.feed(reset(before));
    b.steps("llama", &["gpu-7"], 60);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Open)]);
    b.feed(reset(before + 6.0));
    b.steps("llama", &["gpu-7"], 60);
    assert_eq!(b.summary()[0], (Kind::GpuFault, Severity::Page, State::Resolved));
}

#[test]
fn an_xid_of_an_hour_ago_waits_for_the_end_of_the_backlog() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    let mut old = fell_off("gpu-7");
    old.ts = Some(b.now.as_secs_f64() - 3600.0);
    b.feed(old);
    assert_eq!((b.summary().len(), b.notifications.len()), (1, 0));
    b.wait(11);
    assert_eq!(b.pages(), 1, "it still counts");
}

#[test]
fn a_node_is_forgotten_with_its_incidents() {
    let mut b = Bench::new();
    b.feed(gpu_lost("gpu-7", true));
    b.wait(8 * 86_400);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Resolved)]);
    assert_eq!(b.engine.nodes().count(), 0);
    assert!(!b.parts.contains_key("node/gpu-7"));
}

#[test]
fn a_restart_in_between_changes_nothing() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(fell_off("gpu-7"));
    b.restart();
    b.feed(xid("gpu-7", 45, "info", "none", "cleanup"));
    b.feed(gpu_lost("gpu-7", true));
    b.restart();
    b.wait(60);
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::GpuFault, Severity::Page, State::Open)], 1));
}

#[test]
fn an_address_in_the_kernel_log_is_the_gpu_that_the_driver_named() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    let mut e =
        with(said(EventKind::Health, "gpu-7", "gpu", "info", ""), &[("gpu", UUID), ("pci", "0000:1b:00.0")]);
    e.extra.insert("index".into(), Value::Number(3.0));
    b.feed(e);
    let once = [("pci", "0000:1b:00.0"), ("once", "true")];
    b.feed(hw("gpu-7", "gpu_lost", true, "error", "the GPU has fallen off the bus: 0000:1b:00.0", &once));
    assert!(
        b.last().summary.to_string().starts_with("the GPU has fallen off the bus: 0000:1b:00.0 (GPU-2f3c"),
        "{}",
        b.last().summary
    );
    // The driver reports it too, and that lasts.
    b.feed(gpu_lost("gpu-7", true));
    b.wait(590);
    b.feed(gpu_lost("gpu-7", true));
    b.wait(900);
    assert_eq!((b.summary(), b.pages()), (vec![(Kind::GpuFault, Severity::Page, State::Open)], 1));
    b.feed(gpu_lost("gpu-7", false));
    b.steps("llama", &["gpu-7"], 40);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Page, State::Resolved)]);
}

#[test]
fn an_xid_under_a_run_that_repairs_itself_is_over_when_no_more_is_heard_of_it() {
    let mut b = Bench::with_run("llama", &["gpu-7"]);
    b.feed(xid("gpu-7", 94, "warn", "restart_app", "Contained ECC error"));
    b.steps("llama", &["gpu-7"], 299);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Open)]);
    b.steps("llama", &["gpu-7"], 40);
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Resolved)]);
}
