//! Nodes of one run that are set up differently.

use stepwatch_model::{Kind, Severity, Target};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind, Value};

use super::bench::Bench;

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// Publishes a setup in two parts, as one with many keys comes.
fn publish(b: &mut Bench, node: &str, run: Option<&str>, keys: &[(&str, &str)]) {
    let fingerprint: String = keys.iter().flat_map(|(_, v)| v.chars()).collect();
    let halves = keys.split_at(keys.len() / 2);
    for (part, keys) in [(1.0, halves.0), (2.0, halves.1)] {
        let mut e = Event {
            node: Some(node.into()),
            name: Some("config".into()),
            run: run.map(Into::into),
            ..Event::new(EventKind::Health)
        };
        e.extra.insert("fingerprint".into(), Value::Text(fingerprint.clone()));
        e.extra.insert("part".into(), Value::Number(part));
        e.extra.insert("parts".into(), Value::Number(2.0));
        for (key, value) in keys {
            e.extra.insert((*key).into(), Value::Text((*value).into()));
        }
        b.feed(e);
    }
}

fn setup(b: &mut Bench, node: &str, driver: &str, bios: &str) {
    publish(
        b,
        node,
        None,
        &[("driver", driver), ("bios_version", bios), ("nccl", "2.27.3"), ("kernel", "6.8")],
    );
}

#[test]
fn the_odd_one_out_is_named_with_both_values() {
    let mut b = Bench::new();
    // Exporters publish before the run is there.
    for node in NODES {
        setup(&mut b, node, if node == "n3" { "570.86.10" } else { "570.124.06" }, "1.2");
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)]);
    let i = b.last();
    let why =
        "n3 differs from the other nodes of the run (4 in all): driver is 570.86.10, elsewhere 570.124.06";
    assert_eq!((i.summary.to_string().as_str(), i.suspects[0].what().as_str()), (why, "node n3"));
    // Published again every ten minutes: nothing new.
    for node in NODES {
        setup(&mut b, node, if node == "n3" { "570.86.10" } else { "570.124.06" }, "1.2");
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.notifications.len(), 1);
    setup(&mut b, "n3", "570.124.06", "1.2");
    b.steps("llama", &NODES, 70);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Resolved)]);
}

#[test]
fn what_makes_no_difference_is_an_annotation() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in NODES {
        setup(&mut b, node, "570", if node == "n1" { "1.1" } else { "1.2" });
    }
    b.steps("llama", &NODES, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 1));
}

#[test]
fn the_run_sees_its_own_configuration_differently() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in NODES {
        let lr = if node == "n4" { "0.0003" } else { "0.0001" };
        publish(&mut b, node, Some("llama"), &[("lr", lr), ("seed", "1")]);
    }
    b.steps("llama", &NODES, 60);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)]);
    assert!(b.last().summary.to_string().contains("lr is 0.0003, elsewhere 0.0001"), "{}", b.last().summary);
}

#[test]
fn a_node_that_is_not_of_the_run_does_not_count() {
    let mut b = Bench::with_run("llama", &NODES);
    NODES.iter().for_each(|node| setup(&mut b, node, "570", "1"));
    setup(&mut b, "elsewhere", "550", "1");
    b.steps("llama", &NODES, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 0));
}

#[test]
fn what_names_every_node_is_no_difference_and_hides_none() {
    let nodes: Vec<String> = (0..20).map(|i| format!("d{i:02}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    for (odd, all) in [("d16", 20), ("d03", 6)] {
        let mut b = Bench::with_run("llama", &nodes[..all]);
        for node in &nodes[..all] {
            let nccl = if *node == odd { "2.26.2" } else { "2.27.3" };
            publish(
                &mut b,
                node,
                Some("llama"),
                &[("env.X_DAEMON", &format!("tcp://{node}:44131")), ("nccl", nccl)],
            );
        }
        b.steps("llama", &nodes[..all], 60);
        let why = format!(
            "{odd} differs from the other nodes of the run ({all} in all): nccl is 2.26.2, elsewhere 2.27.3"
        );
        assert_eq!(b.last().summary.to_string(), why);
        assert_eq!(b.last().suspects.len(), 1);
    }
    let mut b = Bench::with_run("llama", &nodes);
    nodes
        .iter()
        .for_each(|node| publish(&mut b, node, Some("llama"), &[("daemon", node), ("nccl", "2.27.3")]));
    b.steps("llama", &nodes, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 0));
}

#[test]
fn of_two_nodes_neither_is_taken_for_the_wrong_one() {
    let mut b = Bench::with_run("llama", &NODES[..2]);
    for (node, nccl) in [("n1", "2.27.3"), ("n2", "2.26.2")] {
        let keys = [("hostname", node), ("nccl", nccl)];
        publish(&mut b, node, Some("llama"), &keys);
    }
    b.steps("llama", &NODES[..2], 60);
    let i = b.last();
    let summary = i.summary.to_string();
    assert!(summary.starts_with("the 2 nodes of the run are set up differently: nccl is 2."), "{summary}");
    assert!(
        summary.contains("2.27.3 on n1") && summary.contains("2.26.2 on n2") && !summary.contains("hostname"),
        "{summary}"
    );
    assert_eq!(i.suspects.len(), 2, "{:?}", i.suspects);
}

#[test]
fn what_a_rank_has_of_its_own_and_what_is_not_loaded_yet_are_no_difference() {
    let mut b = Bench::with_run("llama", &NODES);
    for (i, node) in NODES.into_iter().enumerate() {
        let cores = if i == 0 { "(differs by rank)" } else { "8" };
        let mut keys = vec![("env.OMP_NUM_THREADS", cores), ("torch", "2.9.0")];
        if i > 1 {
            keys.push(("nccl", "2.27.3"));
        }
        publish(&mut b, node, Some("llama"), &keys);
    }
    b.steps("llama", &NODES, 60);
    assert_eq!((b.summary(), b.notes()), (vec![], 0));
    publish(
        &mut b,
        "n2",
        Some("llama"),
        &[("env.OMP_NUM_THREADS", "8"), ("nccl", "2.26.2"), ("torch", "2.9.0")],
    );
    b.steps("llama", &NODES, 60);
    let why = "n2 differs from the other nodes of the run (4 in all): nccl is 2.26.2, elsewhere 2.27.3";
    assert_eq!(b.last().summary, why);
}

fn loaded(net: Option<&str>) -> Vec<(&str, &str)> {
    [("torch", "2.9.0"), ("nccl", "2.27.3")].into_iter().chain(net.map(|net| ("nccl_net", net))).collect()
}

#[test]
fn a_node_without_the_plugin_of_its_network_is_named_once_the_run_has_stepped_for_long() {
    let mut b = Bench::with_run("llama", &NODES);
    for node in NODES {
        publish(&mut b, node, Some("llama"), &loaded((node != "n3").then_some("1.17")));
    }
    b.steps("llama", &NODES, 550);
    assert_eq!((b.summary(), b.notes()), (vec![], 0), "its exporter may look for it again");
    b.steps("llama", &NODES, 100);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)]);
    let why = "n3 differs from the other nodes of the run (4 in all): nccl_net is not loaded, elsewhere 1.17";
    assert_eq!(
        (b.last().summary.to_string().as_str(), b.last().suspects[0].what().as_str()),
        (why, "node n3")
    );
    // Restarted: it is loaded later than the rest, which is no end and no beginning.
    NODES.iter().for_each(|node| publish(&mut b, node, Some("llama"), &loaded(None)));
    b.steps("llama", &NODES, 60);
    for node in NODES {
        publish(&mut b, node, Some("llama"), &loaded((node != "n3").then_some("1.17")));
    }
    b.steps("llama", &NODES, 700);
    assert_eq!((b.summary().len(), b.notifications.len()), (1, 1), "{:?}", b.timeline);
    publish(&mut b, "n3", Some("llama"), &loaded(Some("1.17")));
    b.steps("llama", &NODES, 100);
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Resolved)]);
}

#[test]
fn a_library_is_not_missed_before_the_first_step_or_where_none_can_be_seen() {
    let mut b = Bench::new();
    for (rank, node) in (0..).zip(NODES) {
        let (run, node, rank) = (Some("llama".into()), Some(node.into()), Some(rank));
        b.feed(Event { run, node, rank, ..Event::new(EventKind::Hello) });
    }
    for node in NODES {
        publish(&mut b, node, Some("llama"), &loaded((node != "n3").then_some("1.17")));
    }
    b.wait(1700);
    b.steps("llama", &NODES, 300);
    publish(&mut b, "n3", Some("llama"), &loaded(Some("1.17")));
    publish(&mut b, "n4", Some("llama"), &[("env.OMP_NUM_THREADS", "(differs by rank)")]);
    b.steps("llama", &NODES, 1500);
    assert!(b.incidents.iter().all(|i| i.kind != Kind::ConfigDrift), "{:?}", b.incidents);
}

/// One step of a run with a rank on each node, two seconds after the last one.
fn timed(b: &mut Bench, run: &str, attempt: u32, step: i64, ranks: &[(&str, f64)], seconds: f64) {
    b.wait(2);
    for (rank, (node, compute)) in (0..).zip(ranks) {
        let mut e = Event::step(run, step);
        (e.rank, e.attempt, e.node) = (Some(rank), Some(attempt), Some((*node).to_owned()));
        e.m.set("loss", 2.0 + 0.01 * (step % 7) as f64);
        e.m.set("step_time", seconds * (1.0 + 0.001 * (step % 5) as f64));
        e.t.set("fwd_bwd", *compute);
        b.feed(e);
    }
}

fn over(b: &mut Bench, run: &str) {
    b.feed(Event {
        run: Some(run.into()),
        node: Some("n1".into()),
        rank: Some(0),
        code: Some(0),
        ..Event::new(EventKind::Bye)
    });
}

fn setting(key: &str) -> Target {
    Target::Setting { key: key.into() }
}

#[test]
fn a_variable_that_a_slow_run_has_and_the_last_good_one_had_not_is_the_first_suspect() {
    let mut b = Bench::new();
    let start = |b: &mut Bench, run: &str, seconds: f64, keys: &[(&str, &str)]| {
        for step in 1..=600 {
            timed(b, run, 0, step, &[("n1", 1.0)], seconds);
            if step == 1 {
                publish(b, "n1", Some(run), keys);
            }
        }
        over(b, run);
    };
    let script = ("file.train.py", "4f9a1c2b77aa 18 bytes");
    start(&mut b, "llama-1", 2.0, &[("env.NCCL_ALGO", "Ring"), script]);
    assert_eq!(b.summary(), vec![]);
    start(&mut b, "llama-2", 2.3, &[("env.NCCL_ALGO", "Ring"), ("env.NCCL_P2P_DISABLE", "1"), script]);
    let slow =
        b.incidents.iter().find(|i| i.kind == Kind::SlowStart).unwrap_or_else(|| panic!("{:?}", b.summary()));
    assert_eq!(slow.suspects[0].target, setting("env.NCCL_P2P_DISABLE"), "{:?}", slow.suspects);
    let why = "env.NCCL_P2P_DISABLE is 1, and was not set in llama-1, the last good run";
    assert_eq!(slow.suspects[0].why(), why);
    let note =
        b.incidents.iter().find(|i| i.kind == Kind::ConfigDrift).map(|i| (i.severity, i.summary.to_string()));
    assert_eq!(note, Some((Severity::Info, format!("set up differently: {why}"))));
    // A week later it is still what differs: a slow run is not the last good one.
    start(&mut b, "llama-3", 2.3, &[("env.NCCL_ALGO", "Ring"), ("env.NCCL_P2P_DISABLE", "1"), script]);
    let slow = b.incidents.iter().rfind(|i| i.kind == Kind::SlowStart && i.run == "llama-3");
    let slow = slow.unwrap_or_else(|| panic!("{:?}", b.summary()));
    assert_eq!(slow.suspects[0].why(), why);
}

#[test]
fn another_attention_backend_explains_numbers_and_what_explains_nothing_comes_last() {
    let mut b = Bench::new();
    let keys = |attention, other| {
        [("env.NVTE_FLASH_ATTN", attention), ("arg.frobnicate", other), ("arg.output-dir", other)]
    };
    for step in 1..=300 {
        timed(&mut b, "llama", 0, step, &[("n1", 1.0)], 2.0);
        if step == 1 {
            publish(&mut b, "n1", Some("llama"), &keys("1", "a"));
        }
    }
    for step in 301..=400 {
        timed(&mut b, "llama", 1, step, &[("n1", 1.0)], 2.0);
        if step == 310 {
            publish(&mut b, "n1", Some("llama"), &keys("0", "b"));
        }
    }
    assert_eq!(b.summary(), vec![]);
    let why = "env.NVTE_FLASH_ATTN is 0, and was 1 in attempt 0 of this run, the last good one";
    let note = b.incidents.iter().find(|i| i.kind == Kind::ConfigDrift).map(|i| i.summary.to_string());
    let also = "arg.frobnicate is b, and was a in attempt 0 of this run, the last good one";
    assert_eq!(note, Some(format!("set up differently: {why}; {also}")));
    b.wait(2);
    let mut e = Event::step("llama", 401);
    (e.rank, e.attempt, e.node) = (Some(0), Some(1), Some("n1".into()));
    e.m.set("loss", f64::NAN);
    b.feed(e);
    let i = b.last();
    assert_eq!(i.kind, Kind::Nonfinite);
    assert_eq!((&i.suspects[0].target, i.suspects[0].why().as_str()), (&setting("env.NVTE_FLASH_ATTN"), why));
    let last = i.suspects.last().map(|s| (&s.target, s.why()));
    let also = "also different from attempt 0 of this run, the last good one: arg.frobnicate is b, and was a";
    assert_eq!(last, Some((&Target::Setup, also.to_owned())));
}

#[test]
fn half_of_the_nodes_with_another_driver_compute_longer_and_the_figures_say_so() {
    let mut b = Bench::new();
    for node in NODES {
        let driver = if node < "n3" { "570.124.06" } else { "570.86.10" };
        setup(&mut b, node, driver, "1.2");
    }
    for step in 1..=60 {
        timed(&mut b, "llama", 0, step, &[("n1", 1.0), ("n2", 1.01), ("n3", 1.3), ("n4", 1.31)], 2.0);
    }
    assert_eq!(b.summary(), [(Kind::ConfigDrift, Severity::Ticket, State::Open)], "not also a straggler");
    let i = b.incidents.iter().find(|i| i.kind == Kind::ConfigDrift);
    assert_eq!(i.map(|i| &i.suspects[0].target), Some(&setting("driver")));
    let summary = i.map(|i| i.summary.to_string()).unwrap_or_default();
    assert!(summary.starts_with("the 4 nodes of the run are set up differently: driver is "), "{summary}");
    let figures = "driver is 570.86.10 on 2 nodes, whose ranks compute 1.";
    assert!(
        summary.contains(figures) && summary.contains("on the 2 nodes with 570.124.06 they"),
        "{summary}"
    );
}

#[test]
fn nodes_that_differ_and_compute_alike_are_not_compared() {
    let mut b = Bench::new();
    for node in NODES {
        let driver = if node < "n3" { "570.124.06" } else { "570.86.10" };
        setup(&mut b, node, driver, "1.2");
    }
    for step in 1..=60 {
        timed(&mut b, "llama", 0, step, &[("n1", 1.0), ("n2", 1.2), ("n3", 1.01), ("n4", 1.19)], 2.0);
    }
    let i = b.incidents.iter().find(|i| i.kind == Kind::ConfigDrift);
    let summary = i.map(|i| i.summary.to_string()).unwrap_or_default();
    assert!(summary.contains("driver is") && !summary.contains("compute"), "{summary}");
}
