//! The run to which a fault of a node is attributed, and when the fault of a device that is not
//! there any more ends.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::{Bench, UUID, fell_off, gpu_lost, hw, link, reading, said, with, xid};

/// All ranks of a run end, one on each of these nodes.
fn bye(b: &mut Bench, run: &str, nodes: &[&str], code: i64) {
    for (rank, node) in nodes.iter().enumerate() {
        let e = Event { run: Some(run.into()), node: Some((*node).into()), ..Event::new(EventKind::Bye) };
        b.feed(Event { code: Some(code), rank: Some(rank as u32), ..e });
    }
}

/// A GPU of a node at work, at this share of its highest clock.
fn at_work(node: &str, index: u32, share: f64) -> Event {
    let max = 1.98e9;
    let m = [("sm_clock_hertz", share * max), ("sm_clock_max_hertz", max), ("utilization_ratio", 1.0)];
    reading(node, index, &m)
}

#[test]
fn the_run_that_lives_is_hit_and_not_the_one_that_failed_before_it() {
    let nodes = ["y1", "y2"];
    let mut b = Bench::with_run("llama-attempt1", &nodes);
    bye(&mut b, "llama-attempt1", &nodes, 1);
    b.wait(40);
    b.ack("ada");
    assert_eq!(b.pages(), 1);
    b.steps("llama-attempt2", &nodes, 20);
    b.feed(fell_off("y1"));
    let i = b.last();
    assert_eq!((i.kind, i.severity, i.run.as_str()), (Kind::GpuFault, Severity::Page, "llama-attempt2"));
    assert_eq!(b.pages(), 2, "{:#?}", b.timeline);
}

#[test]
fn where_nothing_has_run_for_minutes_it_is_a_ticket_and_what_killed_a_run_is_reported_with_it() {
    let mut b = Bench::with_run("llama", &["y1"]);
    bye(&mut b, "llama", &["y1"], 1);
    b.wait(60);
    b.feed(fell_off("y1"));
    let page = (Kind::GpuFault, Severity::Page, "llama", vec!["y1"]);
    assert_eq!((b.open(), b.pages()), (vec![page], 1), "the run died of it");
    let summary = &b.last().summary;
    assert!(
        summary.to_string().contains("no run uses the node now; 1 rank of run llama was there, which failed"),
        "{summary}"
    );

    let mut b = Bench::with_run("llama", &["y1"]);
    bye(&mut b, "llama", &["y1"], 1);
    b.wait(200);
    b.feed(fell_off("y1"));
    assert_eq!((b.last().severity, b.last().run.as_str()), (Severity::Ticket, ""), "{:#?}", b.last());
}

#[test]
fn a_run_that_stands_gives_way_to_the_one_that_moves() {
    let mut b = Bench::new();
    b.steps("a-stood-still", &["y1", "y2"], 30);
    b.wait(120);
    b.steps("moves", &["y1"], 30);
    b.feed(fell_off("y1"));
    let i = b.incidents.iter().find(|i| i.kind == Kind::GpuFault);
    assert_eq!(i.map(|i| i.run.as_str()), Some("moves"), "{:#?}", b.incidents);
}

#[test]
fn a_condition_that_could_not_be_received_is_not_over() {
    let mut b = Bench::new();
    let other = || reading("l1", 0, &[("utilization_ratio", 0.0)]);
    b.feed(gpu_lost("l1", true));
    b.wait(1800);
    // Nothing was received; exporters publish every ten minutes the conditions that hold.
    for _ in 0..12 {
        b.feed(other());
        b.wait(30);
    }
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Open)]);
    b.feed(with(gpu_lost("l1", true), &[("again", "true")]));
    assert_eq!(b.notifications.len(), 1, "{:#?}", b.timeline);
    // The node reports all the time, but this condition no more.
    for _ in 0..55 {
        b.feed(other());
        b.wait(30);
    }
    assert_eq!(b.summary(), [(Kind::GpuFault, Severity::Ticket, State::Resolved)]);
}

fn ethernet(node: &str, state: &str, level: &str) -> Event {
    let e = said(EventKind::Link, node, "eno2", level, &format!("Ethernet link eno2: {state}"));
    Event { code: Some(i64::from(state == "up")), ..with(e, &[("medium", "ethernet"), ("state", state)]) }
}

#[test]
fn an_ethernet_link_that_is_lost_wakes_nobody_while_the_run_goes_on() {
    let mut b = Bench::with_run("llama", &["e1", "e2"]);
    b.feed(ethernet("e1", "down", "warn"));
    b.steps("llama", &["e1", "e2"], 120);
    b.feed(ethernet("e1", "drop", "error"));
    b.steps("llama", &["e1", "e2"], 60);
    assert_eq!(b.summary(), [(Kind::LinkFault, Severity::Ticket, State::Open)]);
    // If the run needs it, the run stands still, and that incident gives the cause.
    b.wait(2000);
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:?}", b.open());
    assert!(b.last().suspects.iter().any(|s| s.what().contains("eno2")), "{:#?}", b.last().suspects);
    // A port of RoCE is what training uses.
    let mut b = Bench::with_run("llama", &["e1"]);
    b.feed(with(ethernet("e1", "drop", "error"), &[("medium", "roce")]));
    assert_eq!(b.last().severity, Severity::Page);
}

/// Eight GPUs at work for so many rounds; the first is slow, or has another UUID.
fn work(b: &mut Bench, rounds: usize, first: Option<f64>) {
    for _ in 0..rounds {
        let first = first.map_or_else(|| at_work("u1", 90, 0.9), |share| at_work("u1", 0, share));
        b.feed(first);
        (1..8).for_each(|index| b.feed(at_work("u1", index, 0.9)));
        b.wait(10);
    }
}

#[test]
fn a_slow_gpu_that_was_replaced_is_not_there_any_more() {
    let mut b = Bench::new();
    work(&mut b, 12, Some(0.5));
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Open)]);
    work(&mut b, 50, None);
    assert_eq!(b.summary()[0].2, State::Open, "it may come back");
    work(&mut b, 30, None);
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Resolved)]);
    assert!(
        b.timeline.iter().any(|t| t.contains("GPU 0 (GPU-u1-0) of u1 is not there any more")),
        "{:#?}",
        b.timeline
    );
}

#[test]
fn a_slow_gpu_that_goes_idle_is_no_faster_for_it() {
    let mut b = Bench::new();
    work(&mut b, 12, Some(0.5));
    for _ in 0..90 {
        (0..8).for_each(|index| b.feed(reading("u1", index, &[("utilization_ratio", 0.0)])));
        b.wait(10);
    }
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Open)]);
    work(&mut b, 20, Some(0.9));
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Resolved)]);
}

#[test]
fn memory_that_wore_out_goes_with_its_gpu() {
    let mut b = Bench::new();
    for rows in [3.0, 5.0] {
        b.feed(reading("u1", 0, &[("remapped_rows_correctable", rows)]));
        b.wait(10);
    }
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Open)]);
    for _ in 0..90 {
        b.feed(reading("u1", 1, &[("remapped_rows_correctable", 0.0)]));
        b.wait(10);
    }
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Resolved)]);
}

const PEERS: [&str; 3] = ["q1", "q2", "q3"];

/// The nodes' GPUs at work under a run; one of them may be slow, or have another UUID.
fn beside(b: &mut Bench, run: &str, rounds: usize, slow: Option<f64>) {
    for _ in 0..rounds {
        for node in PEERS {
            for index in 0..4 {
                let odd = node == "q1" && index == 2;
                let e = match slow {
                    Some(share) if odd => at_work(node, index, share),
                    None if odd => at_work(node, 92, 0.95),
                    _ => at_work(node, index, 0.95),
                };
                b.feed(e);
            }
        }
        b.steps(run, &PEERS, 5);
    }
}

#[test]
fn a_gpu_unlike_its_peers_is_so_while_it_has_peers() {
    let peer = |b: &Bench| b.incidents.iter().rfind(|i| i.kind == Kind::Peer).map(|i| i.state);
    let mut b = Bench::new();
    beside(&mut b, "run-q", 20, Some(0.88));
    assert_eq!(peer(&b), Some(State::Open), "{:?}", b.summary());
    bye(&mut b, "run-q", &PEERS, 0);
    for _ in 0..12 {
        PEERS.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 0.0)])));
        b.wait(10);
    }
    assert_eq!(peer(&b), Some(State::Resolved));
    beside(&mut b, "run-r", 60, None);
    let count = b.incidents.iter().filter(|i| i.kind == Kind::Peer).count();
    assert_eq!((peer(&b), count), (Some(State::Resolved), 1), "it was replaced: {:?}", b.summary());
}

#[test]
fn a_gpu_that_was_replaced_under_a_run_is_not_unlike_its_peers() {
    let mut b = Bench::new();
    beside(&mut b, "run-q", 20, Some(0.88));
    assert!(b.summary().contains(&(Kind::Peer, Severity::Ticket, State::Open)), "{:?}", b.summary());
    beside(&mut b, "run-q", 80, None);
    assert!(b.summary().iter().all(|s| s.2 == State::Resolved), "{:?}", b.summary());
}

#[test]
fn a_gpu_pages_though_a_port_of_its_node_is_acknowledged() {
    let mut b = Bench::with_run("run-k", &["k1", "k2"]);
    b.feed(link("k1", "mlx5_0/1", false));
    b.steps("run-k", &["k1", "k2"], 10);
    assert_eq!(b.last().severity, Severity::Page);
    b.ack("ada");
    b.steps("run-k", &["k1", "k2"], 3);
    b.feed(fell_off("k1"));
    assert_eq!((b.open().len(), b.pages(), b.last().state), (1, 2, State::Open), "{:#?}", b.timeline);
    let m = &b.notifications.last().unwrap().message;
    assert!(m.reason.contains("after it was acknowledged: XID 79 on"), "{}", m.reason);
    let advice = m.details.advice.as_deref().unwrap_or_default();
    assert!(advice.starts_with("drain k1 and reboot it"), "{advice}");
    // The links of a GPU that is known to be faulty are part of its fault.
    let mut b = Bench::with_run("run-k", &["k1", "k2"]);
    b.feed(fell_off("k1"));
    b.ack("ada");
    let e = said(EventKind::Link, "k1", &format!("{UUID}/nvlink3"), "error", "NVLink 3 is down");
    b.feed(Event { code: Some(0), ..with(e, &[("medium", "nvlink"), ("state", "drop"), ("gpu", UUID)]) });
    b.steps("run-k", &["k1", "k2"], 10);
    assert_eq!((b.open().len(), b.pages()), (1, 1), "{:#?}", b.timeline);
}

#[test]
fn a_port_of_an_idle_node_is_notified_beside_its_gpu() {
    let mut b = Bench::new();
    b.feed(fell_off("k1"));
    b.feed(link("k1", "mlx5_0/1", false));
    let reasons: Vec<&str> = b.notifications.iter().map(|n| n.message.reason.as_str()).collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons[1].starts_with("also InfiniBand port mlx5_0/1 went down"), "{reasons:?}");
    // A GPU that is known to be faulty is no other device when it is slowed down.
    b.feed(hw("k1", "gpu_throttled", true, "warn", "GPU 0 is slowed down", &[("gpu", UUID)]));
    assert_eq!(b.notifications.len(), 2);
}

fn fault_of(node: &str, gpu: &str) -> Event {
    with(xid(node, 31, "info", "restart_app", "MMU fault"), &[("gpu", gpu)])
}

#[test]
fn a_bug_of_a_program_makes_no_gpu_suspect() {
    let nodes = ["n1", "n2"];
    for (gpu, node) in [("GPU-b", "n1"), ("GPU-c", "n2")] {
        let mut b = Bench::new();
        for run in ["a", "b", "c", "d"] {
            b.steps(run, &nodes, 20);
            b.feed(fault_of("n1", "GPU-a"));
            b.wait(3);
            b.feed(fault_of(node, gpu));
            bye(&mut b, run, &nodes, 1);
            for _ in 0..12 {
                nodes.iter().for_each(|node| b.feed(reading(node, 0, &[("utilization_ratio", 0.0)])));
                b.wait(10);
            }
        }
        assert!(b.summary().iter().all(|s| s.0 != Kind::GpuFault), "{gpu}: {:?}", b.summary());
    }
}

#[test]
fn a_gpu_on_which_several_runs_failed_is_to_be_tested() {
    let mut b = Bench::new();
    for run in ["a", "b", "c"] {
        b.steps(run, &["n1"], 20);
        b.feed(fault_of("n1", "GPU-a"));
        bye(&mut b, run, &["n1"], 0);
        b.wait(61);
    }
    let i = b.incidents.iter().find(|i| i.kind == Kind::GpuFault && i.severity > Severity::Info);
    let i = i.unwrap_or_else(|| panic!("{:#?}", b.incidents));
    assert!(
        i.summary.to_string().ends_with("3 runs failed on it within a day: test the GPU"),
        "{}",
        i.summary
    );
}

#[test]
fn a_reset_is_no_part_of_what_ails_the_node() {
    let mut b = Bench::new();
    let mut reset = hw("n1", "gpu_reset", true, "info", "the GPU was reset", &[("gpu", UUID)]);
    reset.extra.insert("once".into(), Value::Bool(true));
    b.feed(reset);
    b.feed(hw("n1", "filesystem_readonly", true, "error", "/scratch is read-only", &[("device", "sda1")]));
    let i = b.last();
    assert!(!i.summary.to_string().contains("reset"), "{}", i.summary);
    assert_eq!(i.suspects.len(), 1, "{:#?}", i.suspects);
}
