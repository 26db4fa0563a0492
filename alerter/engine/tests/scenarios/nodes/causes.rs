//! The suspects of a faulty run: one node among its peers, what they share, or none.

use stepwatch_model::{Cause, Kind, Severity};
use stepwatch_wire::{Edge, Event, Kind as EventKind, Value};

use super::bench::{Bench, dead, fell_off, hw, link, reading, said, xid};

const NODES: [&str; 8] = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"];

/// What one node's part of a step is like.
#[derive(Clone, Copy)]
struct Part {
    compute: f64,
    data: f64,
    clock: f64,
}

/// Watts of a GPU at work, and of one that waits in a collective.
const WORKING: f64 = 600.0;
const WAITING: f64 = 170.0;
/// And of one that does neither for sure.
const IDLE: f64 = 400.0;

const WELL: Part = Part { compute: 1.8, data: 0.02, clock: 1.75e9 };

/// A fleet that steps every two seconds and reads its devices every ten.
struct Fleet {
    b: Bench,
    step: i64,
    symbol_errors: f64,
}

impl Fleet {
    fn new() -> Self {
        Self { b: Bench::new(), step: 0, symbol_errors: 0.0 }
    }

    fn run(&mut self, steps: i64, of: impl Fn(&str) -> Part, bad_port: Option<&str>) {
        for _ in 0..steps {
            self.step += 1;
            self.b.wait(2);
            let wobble = |i: usize| 1.0 + 0.002 * ((self.step as usize * 7 + i * 13) % 11) as f64;
            let slowest = NODES.iter().map(|n| of(n).compute + of(n).data).fold(0.0, f64::max);
            for (rank, node) in NODES.iter().enumerate() {
                let part = of(node);
                let mut e = Event::step("llama", self.step);
                (e.rank, e.attempt, e.node) = (Some(rank as u32), Some(0), Some((*node).to_owned()));
                e.m.set("loss", 2.0);
                e.m.set("step_time", (0.2 + slowest) * wobble(3));
                e.t.set("fwd_bwd", part.compute * wobble(rank));
                e.t.set("data", part.data);
                self.b.feed(e);
            }
            if self.step % 5 == 0 {
                self.read(&of, bad_port);
            }
        }
    }

    fn read(&mut self, of: &impl Fn(&str) -> Part, bad_port: Option<&str>) {
        self.symbol_errors += 200.0;
        for node in NODES {
            let m = [
                ("sm_clock_hertz", of(node).clock),
                ("sm_clock_max_hertz", 1.98e9),
                ("utilization_ratio", 1.0),
                ("power_watts", WORKING),
            ];
            self.b.feed(reading(node, 0, &m));
            let mut e =
                Event { node: Some(node.into()), name: Some("rdma".into()), ..Event::new(EventKind::Health) };
            for (key, value) in [("device", "mlx5_0"), ("port", "1")] {
                e.extra.insert(key.into(), Value::Text(value.into()));
            }
            e.m.set("symbol_errors", if bad_port == Some(node) { self.symbol_errors } else { 0.0 });
            self.b.feed(e);
        }
    }

    /// Nobody takes a step, and the GPUs draw so much.
    fn stand(&mut self, seconds: i64, watts: impl Fn(&str) -> f64) {
        for _ in 0..seconds / 10 {
            self.b.wait(10);
            for node in NODES {
                let m = [("utilization_ratio", 1.0), ("power_watts", watts(node))];
                self.b.feed(reading(node, 0, &m));
            }
        }
    }

    fn evaluates(&mut self) {
        for (rank, node) in NODES.iter().enumerate() {
            let mut e = Event::new(EventKind::Phase);
            (e.run, e.rank, e.node) = (Some("llama".into()), Some(rank as u32), Some((*node).to_owned()));
            (e.name, e.edge) = (Some("eval".into()), Some(Edge::Begin));
            self.b.feed(e);
        }
    }

    fn hang(&self) -> Option<Severity> {
        self.b.incidents.iter().find(|i| i.kind == Kind::Hang).map(|i| i.severity)
    }

    fn suspects(&self, kind: Kind) -> Vec<(String, String)> {
        let found = self.b.incidents.iter().find(|i| i.kind == kind && i.severity > Severity::Info);
        let i = found.unwrap_or_else(|| panic!("no {kind:?} in {:#?}", self.b.incidents));
        i.suspects.iter().map(|s| (s.what(), s.why())).collect()
    }
}

#[test]
fn a_healthy_fleet_is_silent() {
    let mut f = Fleet::new();
    f.run(600, |_| WELL, None);
    assert_eq!((f.b.summary(), f.b.notes()), (vec![], 0));
}

#[test]
fn the_node_whose_gpu_slowed_first_is_named_with_both_pieces_of_evidence() {
    let mut f = Fleet::new();
    f.run(200, |_| WELL, None);
    let slow = |node: &str| if node == "n5" { Part { compute: 2.4, clock: 1.3e9, ..WELL } } else { WELL };
    f.run(200, slow, None);
    let loud: Vec<_> = f.b.incidents.iter().filter(|i| i.severity > Severity::Info).collect();
    let speed = loud.iter().find(|i| i.run == "llama").unwrap_or_else(|| panic!("{loud:#?}"));
    let first = &speed.suspects[0];
    assert!(first.what().contains("n5"), "{:#?}", speed.suspects);
    let all: Vec<String> = speed.suspects.iter().map(|s| s.why()).collect();
    let all = all.join(" ");
    assert!(all.contains("times as long as the other 7 ranks") && all.contains("SM clock"), "{all}");
    assert!(speed.suspects.iter().all(|s| s.what().contains("n5")), "nobody else: {:#?}", speed.suspects);
}

#[test]
fn a_fleet_that_slows_as_one_has_no_culprit() {
    let mut f = Fleet::new();
    f.run(200, |_| WELL, None);
    f.run(300, |_| Part { compute: 2.3, ..WELL }, None);
    let kind = f.b.last().kind;
    let [(what, why)] = &f.suspects(kind)[..] else { panic!("{:?}", f.suspects(kind)) };
    assert_eq!(what, "no single node");
    assert!(why.contains("none of 8 ranks and 8 GPUs and ports stands out"), "{why}");
}

#[test]
fn a_loader_that_everybody_waits_for_is_named() {
    let mut f = Fleet::new();
    f.run(200, |_| WELL, None);
    f.run(300, |_| Part { data: 0.9, ..WELL }, None);
    let kind = f.b.last().kind;
    assert_eq!(f.suspects(kind)[0].0, "data loading", "{:?}", f.suspects(kind));
}

#[test]
fn a_port_with_errors_is_a_ticket_before_anything_breaks() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    f.run(100, |_| WELL, Some("n2"));
    let loud = f.b.summary();
    assert_eq!(loud.len(), 1, "{loud:?}");
    assert_eq!((loud[0].0, loud[0].1), (Kind::Peer, Severity::Ticket));
    assert_eq!(f.suspects(Kind::Peer)[0].0, "node n2, mlx5_0/1");
}

#[test]
fn the_gpu_that_fell_off_comes_before_those_that_died_of_it() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    f.b.feed(fell_off("n6"));
    for (rank, node) in [(1, "n1"), (6, "n6"), (2, "n2"), (3, "n3")] {
        f.b.feed(dead("llama", rank, node));
    }
    f.b.wait(120);
    let suspects = &f.b.last().suspects;
    assert!(suspects[0].what().contains("n6"), "{suspects:#?}");
}

#[test]
fn storage_that_all_nodes_wait_for_is_one_suspect() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    for node in ["n0", "n1", "n2", "n4", "n5"] {
        f.b.feed(hw(node, "mount_stuck", true, "error", "/data does not answer", &[("mount", "/data")]));
    }
    f.b.wait(900);
    let stands = f.b.incidents.iter().rfind(|i| i.suspects.iter().any(|s| s.what().starts_with("storage")));
    let suspects = &stands.unwrap_or_else(|| panic!("{:#?}", f.b.incidents)).suspects;
    assert!(suspects[0].what().starts_with("storage that the nodes share"), "{suspects:#?}");
}

#[test]
fn ras_names_the_rank_that_did_not_join() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    let mut e = said(EventKind::Hw, "n0", "ras_stuck", "warn", "rank 3 did not join an AllReduce for 60 s");
    e.code = Some(1);
    e.extra.insert("ranks".into(), Value::List(vec![Value::Number(3.0)]));
    e.extra.insert("hosts".into(), Value::List(vec![Value::Text("n3".into())]));
    f.b.feed(e);
    f.b.wait(1200);
    let hang = f.suspects(Kind::Hang);
    assert_eq!(hang[0].0, "rank 3 on n3", "{hang:?}");
}

#[test]
fn a_first_evaluation_in_which_nobody_computes_is_a_page_after_five_minutes() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    f.evaluates();
    f.stand(300, |_| WAITING);
    assert_eq!(f.hang(), None, "somebody may be scoring alone");
    f.stand(60, |_| WAITING);
    assert_eq!(f.hang(), Some(Severity::Page));
    let hang = f.b.incidents.iter().find(|i| i.kind == Kind::Hang);
    let why = &hang.unwrap_or_else(|| panic!("no hang")).summary;
    assert!(
        why.to_string().contains("in phase eval")
            && why.to_string().contains("was allowed while all GPUs wait"),
        "{why}"
    );
    assert!(why.to_string().contains("8 of 8 GPUs spin in a collective"), "{why}");
}

#[test]
fn a_first_evaluation_in_which_one_gpu_computes_keeps_its_half_hour() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    f.evaluates();
    f.stand(1780, |node| if node == "n0" { WORKING } else { WAITING });
    assert_eq!(f.hang(), None);
    f.stand(40, |node| if node == "n0" { WORKING } else { WAITING });
    assert_eq!(f.hang(), Some(Severity::Page));
}

#[test]
fn what_the_gpus_do_decides_how_long_a_run_that_declares_nothing_may_be_silent() {
    for (watts, severity) in [(WAITING, Severity::Page), (WORKING, Severity::Ticket)] {
        let mut f = Fleet::new();
        f.step = 2000; // it was resumed, and may be about to evaluate
        f.run(100, |_| WELL, None);
        f.stand(650, |_| watts);
        assert_eq!(f.hang(), Some(severity), "at {watts} W");
    }
}

/// A log with every step at first and then one in 1,500, of a run that declares nothing.
#[test]
fn a_log_that_leaves_out_1500_steps_pages_nobody_while_the_gpus_compute() {
    let silent_for = |seconds: i64, then: i64, watts: f64| {
        let mut f = Fleet::new();
        f.run(300, |_| WELL, None);
        f.stand(seconds, |_| WORKING);
        f.stand(then, |_| watts);
        f
    };
    let mut f = silent_for(3000, 0, WORKING);
    assert!(f.hang() < Some(Severity::Page), "1,500 steps of 2 s: {:?}", f.hang());
    f.step += 1499;
    f.run(1, |_| WELL, None);
    for _ in 0..4 {
        f.stand(2990, |_| WORKING);
        f.step += 1499;
        f.run(1, |_| WELL, None);
    }
    assert!(f.hang() < Some(Severity::Page), "nor later: {:?}", f.hang());
    assert_eq!(silent_for(5200, 0, WORKING).hang(), Some(Severity::Page), "longer than 2,000 steps");
    assert!(silent_for(2000, 400, IDLE).hang() < Some(Severity::Page));
    assert_eq!(silent_for(2000, 700, IDLE).hang(), Some(Severity::Page), "they stopped ten minutes ago");
    assert_eq!(silent_for(2000, 300, WAITING).hang(), Some(Severity::Page), "they wait in a collective");
}

#[test]
fn one_loader_that_all_wait_for_is_of_its_rank() {
    let mut f = Fleet::new();
    f.run(200, |_| WELL, None);
    f.run(200, |node| if node == "n4" { Part { data: 0.9, ..WELL } } else { WELL }, None);
    let kind = f.b.last().kind;
    let suspects = f.suspects(kind);
    assert!(suspects[0].0.contains("n4") && suspects[0].1.contains("waits for data"), "{suspects:?}");
}

#[test]
fn ports_that_go_down_at_once_share_a_switch() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    for node in ["n1", "n2", "n3"] {
        f.b.feed(link(node, "mlx5_0", false));
    }
    f.b.wait(120);
    let suspects = &f.b.last().suspects;
    assert!(suspects[0].what().starts_with("switch or cable"), "{suspects:#?}");
}

#[test]
fn the_first_to_fail_is_named_and_not_those_that_followed() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    let bye = |rank: u32, node: &str, text: &str| Event {
        run: Some("llama".into()),
        rank: Some(rank),
        node: Some(node.into()),
        code: Some(1),
        text: Some(text.into()),
        ..Event::new(EventKind::Bye)
    };
    for (rank, node) in [(0, "n0"), (1, "n1"), (2, "n2")] {
        f.b.feed(bye(rank, node, "NCCL error: remote process exited or there was a network error"));
    }
    f.b.feed(bye(5, "n5", "KeyError: 'input_ids'"));
    // Long before that: it explains nothing, and comes late.
    f.b.feed(xid("n7", 43, "info", "restart_app", "GPU stopped processing"));
    f.b.wait(60);
    let i = f.b.last();
    assert!(i.suspects[0].what().starts_with("rank 5 on n5"), "{:#?}", i.suspects);
    assert!(i.summary.to_string().contains("KeyError"), "{}", i.summary);
}

#[test]
fn what_has_long_been_so_is_not_the_reason() {
    let mut f = Fleet::new();
    f.b.feed(hw(
        "n3",
        "clock_unsynchronised",
        true,
        "warn",
        "the clock has not been synchronised for 1h",
        &[],
    ));
    f.run(600, |_| WELL, None);
    f.run(300, |_| Part { compute: 2.3, ..WELL }, None);
    let i = f.b.incidents.iter().find(|i| i.run == "llama" && i.cause == Cause::Speed);
    let suspects = &i.unwrap_or_else(|| panic!("{:#?}", f.b.incidents)).suspects;
    assert_eq!(suspects[0].what(), "no single node", "{suspects:#?}");
}

#[test]
fn a_host_that_is_gone_comes_before_those_whose_collective_broke() {
    let mut f = Fleet::new();
    f.run(100, |_| WELL, None);
    f.b.wait(5);
    for (rank, node) in NODES.iter().enumerate().filter(|(_, node)| **node != "n3") {
        f.b.feed(dead("llama", rank as u32, node));
    }
    f.b.wait(60);
    let suspects = &f.b.last().suspects;
    assert_eq!(suspects[0].what(), "node n3", "{suspects:#?}");
}

/// Every GPU clocks lower from now on, and the nodes report it, seconds after each other, as they
/// are read.
fn slowed_down(f: &mut Fleet, nodes: &[&str], reason: &str) {
    let uuid = |node: &str| format!("GPU-{node}-0");
    let slow =
        |node: &str| if nodes.contains(&node) { Part { compute: 3.9, clock: 0.8e9, ..WELL } } else { WELL };
    f.run(7, slow, None);
    for node in nodes {
        f.b.wait(2);
        let text =
            format!("GPU 0 is slowed down to 0.80 GHz by its hardware at 40 °C: hw_slowdown, {reason}");
        f.b.feed(hw(
            node,
            "gpu_throttled",
            true,
            "warn",
            &text,
            &[("gpu", &uuid(node)), ("reason", &format!("hw_slowdown,{reason}"))],
        ));
    }
    f.run(60, slow, None);
}

#[test]
fn power_that_many_nodes_lack_accuses_none_of_them() {
    for reason in ["hw_power_brake_slowdown", "hw_thermal_slowdown"] {
        let mut f = Fleet::new();
        f.run(200, |_| WELL, None);
        slowed_down(&mut f, &NODES, reason);
        let i = f.b.incidents.iter().find(|i| i.cause == Cause::Speed || i.kind == Kind::ThroughputDrop);
        let i = i.unwrap_or_else(|| panic!("{:#?}", f.b.incidents));
        assert_eq!(i.suspects[0].what(), "power or cooling that the nodes share", "{:#?}", i.suspects);
        assert!(i.suspects[0].why().contains("8 of 8 nodes have it alike"), "{}", i.suspects[0].why());
        let m = &f.b.notifications.last().unwrap().message;
        let advice = m.details.advice.as_deref().unwrap_or_default();
        assert!(advice.starts_with("look at the power or cooling that the nodes share"), "{advice}");
        let whys = f.b.incidents.iter().flat_map(|i| &i.suspects).map(|s| s.why());
        assert!(!whys.clone().any(|why| why.contains("SM clock")), "{:#?}", whys.collect::<Vec<_>>());
    }
}

#[test]
fn one_node_of_many_that_lacks_power_is_named() {
    let mut f = Fleet::new();
    f.run(200, |_| WELL, None);
    slowed_down(&mut f, &["n5"], "hw_power_brake_slowdown");
    let i = f.b.incidents.iter().find(|i| i.run == "llama").unwrap_or_else(|| panic!("{:#?}", f.b.incidents));
    assert!(i.suspects[0].what().contains("n5"), "{:#?}", i.suspects);
    let whys: Vec<String> = i.suspects.iter().map(|s| s.why()).collect();
    assert!(whys.join(" ").contains("SM clock 0.8 GHz, its peers 1.75 GHz"), "{whys:#?}");
}
