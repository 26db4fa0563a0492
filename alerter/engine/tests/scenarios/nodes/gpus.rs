//! GPUs that are slower than their peers, and memory that wears out.

use stepwatch_model::{Kind, Severity};
use stepwatch_respond::incident::State;
use stepwatch_wire::{Event, Kind as EventKind};

use super::bench::{Bench, reading, said, with};

const MAX: f64 = 1.98e9;

/// One round of readings of eight GPUs, one of which runs at its own share of the clock.
fn round(b: &mut Bench, node: &str, all: f64, slow: Option<(u32, f64)>, more: &[(&str, f64)]) {
    for index in 0..8 {
        let share = slow.filter(|(i, _)| *i == index).map_or(all, |(_, share)| share);
        let mut m = vec![
            ("sm_clock_hertz", share * MAX),
            ("sm_clock_max_hertz", MAX),
            ("utilization_ratio", 0.99),
            ("power_watts", 690.0),
            ("power_limit_watts", 700.0),
            ("temperature_celsius", 64.0 + f64::from(index)),
        ];
        if slow.is_some_and(|(i, _)| i == index) {
            m.extend_from_slice(more);
        }
        b.feed(reading(node, index, &m));
    }
    b.wait(10);
}

#[test]
fn one_slow_gpu_is_named_with_its_reason_and_is_over_when_it_is_fast_again() {
    let mut b = Bench::with_run("llama", &["n1"]);
    for _ in 0..60 {
        round(&mut b, "n1", 0.88, None, &[]);
        b.steps("llama", &["n1"], 1);
    }
    assert_eq!((b.summary(), b.notes()), (vec![], 0));
    let hot = [("throttle_hw_thermal_slowdown", 1.0), ("throttle_gpu_idle", 1.0)];
    for nth in 1..=20 {
        round(&mut b, "n1", 0.88, Some((3, 0.55)), &hot);
        b.steps("llama", &["n1"], 1);
        assert_eq!(b.summary().len(), usize::from(nth >= 6), "{nth}");
    }
    let i = b.last();
    assert_eq!(
        (i.kind, i.severity, i.nodes[0].as_str(), i.run.as_str()),
        (Kind::Throttle, Severity::Ticket, "n1", "llama")
    );
    let start = "GPU 3 (GPU-n1-3) of n1 is slow: SM clock 1.089 GHz, its peers under load 1.742 GHz (62 %); \
                 held down by hw thermal slowdown, 67 °C, 690 of 700 W; run llama has 1 rank there";
    assert!(i.summary.to_string().starts_with(start), "{}", i.summary);
    for _ in 0..20 {
        round(&mut b, "n1", 0.88, None, &[]);
        b.steps("llama", &["n1"], 1);
    }
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Resolved)]);
}

#[test]
fn a_node_that_is_slow_as_a_whole_shows_beside_the_others_of_its_run() {
    let nodes = ["n1", "n2", "n3", "n4"];
    let mut b = Bench::with_run("llama", &nodes);
    for _ in 0..20 {
        for node in nodes {
            let share = if node == "n2" { 0.6 } else { 0.88 };
            for index in 0..8 {
                let m = [
                    ("sm_clock_hertz", share * MAX),
                    ("sm_clock_max_hertz", MAX),
                    ("utilization_ratio", 1.0),
                    ("throttle_hw_power_brake_slowdown", f64::from(u8::from(node == "n2"))),
                ];
                b.feed(reading(node, index, &m));
            }
        }
        b.steps("llama", &nodes, 5);
    }
    assert_eq!(b.summary(), [(Kind::Throttle, Severity::Ticket, State::Open)]);
    assert_eq!(b.last().nodes, ["n2"]);
}

#[test]
fn gpus_without_work_are_not_slow() {
    let mut b = Bench::new();
    for _ in 0..60 {
        for index in 0..8 {
            let busy = if index < 4 { 1.0 } else { 0.0 };
            let share = if index < 4 { 0.9 } else { 0.1 };
            let m =
                [("sm_clock_hertz", share * MAX), ("sm_clock_max_hertz", MAX), ("utilization_ratio", busy)];
            b.feed(reading("n1", index, &m));
        }
        b.wait(10);
    }
    assert_eq!(b.summary(), []);
}

#[test]
fn corrected_errors_are_compared_with_the_gpus_own_past() {
    let mut b = Bench::new();
    let mut errors = [0.0; 2];
    let mut hours = |b: &mut Bench, n: i64, rates: [f64; 2]| {
        for _ in 0..n * 60 {
            for (index, rate) in rates.iter().enumerate() {
                errors[index] += rate / 60.0;
                b.feed(reading("n1", index as u32, &[("ecc_corrected", errors[index])]));
            }
            b.wait(60);
        }
    };
    // A GPU that has always had its 50 an hour is what it is.
    hours(&mut b, 72, [0.0, 50.0]);
    assert_eq!(b.summary(), []);
    hours(&mut b, 3, [90.0, 60.0]);
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Open)]);
    let i = b.last();
    assert!(
        i.summary.to_string().starts_with(
            "GPU 0 (GPU-n1-0) of n1: 60 corrected memory errors within an hour, usually hardly any"
        ),
        "{}",
        i.summary
    );
    assert!(i.summary.to_string().contains("drain n1 at the next checkpoint"), "{}", i.summary);
    hours(&mut b, 30, [0.0, 50.0]);
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Resolved)]);
    // The driver is loaded anew: counters start from nothing, and nothing happened.
    b.feed(reading("n1", 1, &[("ecc_corrected", 0.0)]));
    b.feed(reading("n1", 1, &[("ecc_corrected", 1.0)]));
    assert_eq!(b.summary().len(), 1);
}

#[test]
fn rows_that_were_remapped_are_a_ticket_and_never_a_page() {
    let mut b = Bench::with_run("llama", &["n1"]);
    for rows in [3.0, 3.0, 4.0, 5.0] {
        b.feed(reading("n1", 0, &[("remapped_rows_correctable", rows)]));
        b.steps("llama", &["n1"], 5);
    }
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Open)]);
    let mut one = Bench::with_run("llama", &["n1"]);
    for rows in [3.0, 4.0] {
        one.feed(reading("n1", 0, &[("remapped_rows_uncorrectable", rows)]));
        one.steps("llama", &["n1"], 5);
    }
    let why = &one.last().summary;
    assert!(why.to_string().contains("1 row with uncorrectable errors was remapped today"), "{why}");
    for rows in 6..20 {
        b.feed(reading(
            "n1",
            0,
            &[
                ("remapped_rows_correctable", f64::from(rows)),
                ("remapped_rows_uncorrectable", f64::from(rows)),
            ],
        ));
        b.steps("llama", &["n1"], 5);
    }
    assert_eq!(b.summary(), [(Kind::EccTrend, Severity::Ticket, State::Open)]);
}

#[test]
fn a_word_in_passing_does_not_take_the_place_of_what_broke() {
    let mut b = Bench::with_run("llama", &["n1"]);
    b.feed(reading("n1", 0, &[("remapped_rows_uncorrectable", 0.0)]));
    let text = "XID 48 (double bit error) of GPU 0000:1b:00.0: drain the node";
    let e = with(
        said(EventKind::Xid, "n1", "xid", "error", text),
        &[
            ("gpu", "GPU-n1-0"),
            ("action", "reset_gpu"),
            ("known_as", "double bit error"),
            ("hint", "drain the node"),
        ],
    );
    b.feed(Event { code: Some(48), ..e });
    b.wait(10);
    b.feed(reading("n1", 0, &[("remapped_rows_uncorrectable", 1.0)]));
    let i = b.last();
    assert_eq!((i.kind, i.severity, i.suspects.len()), (Kind::GpuFault, Severity::Page, 1), "{i:#?}");
    let why = "XID 48, double bit error: drain the node; 1 row with uncorrectable errors was remapped today";
    assert_eq!(i.suspects[0].why(), why);
}
