//! Tests of several sources of one run.

use crate::origin::Priority;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stepwatch_wire::names::hello;

use super::*;

fn source(via: Via, name: &str, priority: Priority) -> Origin {
    Origin::source(via, &name.into(), priority)
}

fn tensorboard() -> Origin {
    source(Via::Tail, "/runs/r/events.out.tfevents.1", Priority::File)
}

fn log() -> Origin {
    source(Via::Tail, "/logs/r.log", Priority::Log)
}

/// The metrics that were streamed of each step, in the order of their arrival.
fn streamed(b: &Bench) -> BTreeMap<i64, Vec<String>> {
    let mut all = BTreeMap::<i64, Vec<String>>::new();
    for e in b.out.iter().filter(|e| e.kind == Kind::Step) {
        let names = e.m.iter().map(|(n, _)| n.to_owned());
        all.entry(e.step.unwrap()).or_default().extend(names);
    }
    all
}

#[test]
fn what_each_source_adds_is_published_once() {
    let mut b = Bench::new();
    for step in 1..=30 {
        let ts = 1_700_000_000 + 10 * step;
        b.http(&format!(
            r#"{{"k":"step","run":"r","step":{step},"ts":{ts},"m":{{"loss":2.345,"step_time":10}}}}"#
        ));
        let line = format!(
            r#"{{"k":"step","run":"r","step":{step},"ts":{ts},"m":{{"loss":2.3,"lr":0.1,"step_time":9.9}}}}"#
        );
        b.from(&log(), &line);
        if step > 12 {
            let (late, ts) = (step - 12, ts - 120);
            let line = format!(
                r#"{{"k":"step","run":"r","step":{late},"ts":{ts},"m":{{"loss":2.345,"grad_norm":0.5,"mine":1}}}}"#
            );
            b.from(&tensorboard(), &line);
        }
    }
    for (step, names) in streamed(&b) {
        let want: &[&str] = if step <= 18 {
            &["loss", "step_time", "lr", "grad_norm", "mine"]
        } else {
            &["loss", "step_time", "lr"]
        };
        assert_eq!(names, want, "{step}");
    }
    assert_eq!(b.drops.get(Reason::Repeated), 30 * 2 + 18);
    let page = b.page();
    assert_eq!((page.get(&f::LOSS, &["r"]), page.get(&f::LEARNING_RATE, &["r"])), (Some(2.345), Some(0.1)));
    assert_eq!((page.get(&f::STEP, &["r"]), page.get(&f::STEPS, &["r"])), (Some(30.0), Some(30.0)));
    assert_eq!((page.get(&f::RESTARTS, &["r"]), page.get(&f::GRAD_NORM, &["r"])), (Some(0.0), Some(0.5)));
}

#[test]
fn the_more_exact_source_corrects_the_page_and_not_the_stream() {
    let mut b = Bench::new();
    b.from(&log(), r#"{"k":"step","run":"r","step":7,"loss":2.3,"step_time":5}"#);
    let better = r#"{"k":"step","run":"r","step":7,"loss":2.345,"step_time":5.1}"#;
    assert_eq!(b.from(&tensorboard(), better), Outcome::Accepted);
    assert_eq!(streamed(&b)[&7], ["loss", "step_time"]);
    assert_eq!(b.page().get(&f::LOSS, &["r"]), Some(2.345));
    assert_eq!(b.page().get(&f::RANK_STEP_TIME, &["r", "0"]), Some(5.1));
    assert_eq!(b.from(&tensorboard(), better), Outcome::Dropped(Reason::Duplicate));
    // The log hid the NaN; the trainer reports it.
    b.from(&log(), r#"{"k":"step","run":"r","step":8,"loss":2.3}"#);
    b.http(r#"{"k":"step","run":"r","step":8,"loss":NaN,"grad_norm":0.5}"#);
    assert!(b.last().m.get("loss").is_some_and(f64::is_nan));
    assert_eq!(b.page().get(&f::NONFINITE, &["r", "loss", "value"]), Some(1.0));
}

#[test]
fn one_nan_that_every_source_reports_is_one() {
    let mut b = Bench::new();
    b.from(&log(), r#"{"k":"step","run":"r","step":7,"lr":1,"missing":["loss"]}"#);
    b.from(&tensorboard(), r#"{"k":"step","run":"r","step":7,"loss":NaN}"#);
    b.http(r#"{"k":"step","run":"r","step":7,"loss":NaN}"#);
    let page = b.page();
    let counts = ["value", "missing_field"].map(|how| page.get(&f::NONFINITE, &["r", "loss", how]).unwrap());
    assert_eq!(counts, [0.0, 1.0]);
    assert_eq!(b.out.len(), 1);
}

#[test]
fn time_is_made_up_only_where_nobody_measures_it() {
    let mut b = Bench::new();
    for step in [10, 20, 30, 40] {
        let ts = 1_700_000_000 + 3 * step;
        b.http(&format!(r#"{{"k":"step","run":"r","step":{step},"ts":{ts},"loss":2}}"#));
        if step >= 20 {
            b.from(&log(), &format!(r#"{{"k":"step","run":"r","step":{step},"ts":{ts},"step_time":2.9}}"#));
        }
    }
    let times: Vec<_> =
        b.out.iter().filter_map(|e| Some((e.step?, e.m.get("step_time")?, e.q.get("step_time")))).collect();
    assert_eq!(times, [(20, 3.0, Some(0.1)), (30, 2.9, None), (40, 2.9, None)]);
}

#[test]
fn a_file_that_is_opened_again_is_no_new_process() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"hello","run":"r","pid":42}"#);
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","step":7}"#);
    b.from(&tensorboard(), r#"{"k":"hello","run":"r","source":"tail","pid":7}"#);
    b.from(&tensorboard(), r#"{"k":"step","run":"r","step":8,"loss":2}"#);
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","step":8}"#);
    assert_eq!((b.last().attempt, b.page().get(&f::RESTARTS, &["r"])), (Some(0), Some(0.0)));
    b.now += 400.0;
    b.from(&tensorboard(), r#"{"k":"hello","run":"r","resumed":true}"#);
    b.from(&tensorboard(), r#"{"k":"step","run":"r","step":9,"loss":2}"#);
    assert_eq!(b.last().attempt, Some(1));
}

#[test]
fn a_restart_that_the_launcher_counted_is_one_although_the_log_goes_on_behind_its_last_step() {
    let mut b = Bench::new();
    let discover = || source(Via::Discover, "discover", Priority::Log);
    let greet = |restarts| format!(r#"{{"k":"hello","run":"r","rank":0,"{}":{restarts}}}"#, hello::RESTARTS);
    b.from(&discover(), &greet(0));
    for step in 1..=6 {
        b.from(&log(), &format!(r#"{{"k":"step","run":"r","step":{step},"loss":2}}"#));
    }
    b.from(&discover(), &greet(1));
    b.from(&log(), r#"{"k":"step","run":"r","step":7,"loss":2}"#);
    assert_eq!((b.last().attempt, b.page().get(&f::RESTARTS, &["r"])), (Some(1), Some(1.0)));
    // Another report of it is still the same restart.
    b.from(&discover(), &greet(1));
    b.from(&log(), r#"{"k":"step","run":"r","step":8,"loss":2}"#);
    assert_eq!((b.last().attempt, b.page().get(&f::RESTARTS, &["r"])), (Some(1), Some(1.0)));
}

#[test]
fn a_launcher_is_not_the_process_that_trains() {
    let mut b = Bench::new();
    b.from(&peer(1, 40), r#"{"k":"hello","run":"r","role":"launcher"}"#);
    b.from(&peer(2, 42), r#"{"k":"hello","run":"r"}"#);
    b.from(&peer(2, 42), r#"{"k":"step","run":"r","step":1}"#);
    b.from(&peer(1, 40), r#"{"k":"hello","run":"r","role":"launcher"}"#);
    b.from(&peer(2, 42), r#"{"k":"step","run":"r","step":2}"#);
    assert_eq!(b.training.processes()[0].pid, 42);
    let mut out = Vec::new();
    b.training.closed(b.now, 2, ProcessFate::Gone, &mut out);
    b.from(&peer(1, 40), r#"{"k":"bye","run":"r","role":"launcher","code":137,"text":"Killed"}"#);
    b.training.closed(b.now, 1, ProcessFate::Gone, &mut out);
    assert_eq!((b.last().code, out.len()), (Some(137), 1), "and the launcher says what became of it");
    assert_eq!(out[0].name.as_deref(), Some("rank_dead"));
    assert_eq!(b.page().get(&f::RESTARTS, &["r"]), Some(0.0));
}

#[test]
fn a_launcher_that_is_gone_is_distinguished_from_a_rank_that_is() {
    let mut b = Bench::new();
    b.from(&peer(1, 40), r#"{"k":"hello","run":"r","role":"launcher"}"#);
    b.from(&peer(2, 42), r#"{"k":"step","run":"r","step":1}"#);
    let mut out = Vec::new();
    b.training.closed(b.now, 1, ProcessFate::Gone, &mut out);
    assert_eq!((out.len(), out[0].name.as_deref(), out[0].step), (1, Some("launcher_dead"), Some(1)));
    assert_eq!(
        (b.page().get(&f::RANK_UP, &["r", "0"]), b.page().get(&f::RANK_DEATHS, &["r"])),
        (Some(1.0), Some(0.0))
    );
}

#[test]
fn a_log_that_ends_does_not_end_a_run_whose_process_is_there() {
    let mut b = Bench::new();
    b.from(&peer(1, 42), r#"{"k":"step","run":"r","step":1}"#);
    for ended in [r#"{"k":"bye","run":"r"}"#, r#"{"k":"bye","run":"r","code":0}"#] {
        assert_eq!(b.from(&log(), ended), Outcome::Dropped(Reason::Duplicate));
    }
    assert_eq!(b.from(&log(), r#"{"k":"bye","run":"r","code":1,"text":"CUDA error"}"#), Outcome::Accepted);
    b.from(&log(), r#"{"k":"step","run":"q","step":1}"#);
    assert_eq!(b.from(&log(), r#"{"k":"bye","run":"q"}"#), Outcome::Accepted);
    assert_eq!((b.last().code, b.last().extra["source"].as_str()), (None, Some("tail")));
}

#[test]
fn a_loss_that_stands_still_in_telemetry_is_missing() {
    let mut b = Bench::new();
    let otlp = source(Via::Otlp, "10.0.0.1", Priority::Telemetry);
    for step in 1..=40 {
        let loss = 2.0 - 0.01 * f64::from(step.min(20));
        b.from(&otlp, &format!(r#"{{"k":"step","run":"r","step":{step},"loss":{loss},"lr":1}}"#));
    }
    let missing = b.out.iter().filter(|e| !e.missing.is_empty()).count();
    assert_eq!((missing, b.page().get(&f::NONFINITE, &["r", "loss", "missing_field"])), (10, Some(10.0)));
}

/// A report: its source, and how many steps that is behind.
#[derive(Debug, Clone, Copy)]
struct Report {
    by: usize,
    behind: i64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Three sources at any pace, in sequence or mixed: nothing is published twice, nothing is
    /// lost, and no restart is invented.
    #[test]
    fn sources_add_up_in_any_order(
        reports in proptest::collection::vec((0usize..3, 0i64..4).prop_map(|(by, behind)| Report { by, behind }), 20..200),
    ) {
        let mut b = Bench::new();
        let origins = [Origin::Http(Principal::Exporter), tensorboard(), log()];
        let carries: [&[&str]; 3] = [&["loss", "lr"], &["loss", "grad_norm", "a"], &["loss", "lr", "b", "tokens"]];
        let mut next = [1i64; 3];
        let mut reported = BTreeSet::new();
        for (at, r) in reports.iter().enumerate() {
            let front = at as i64 / 3 + 1;
            // Each source reports its steps in order, some steps behind the newest.
            while next[r.by] <= front - r.behind {
                let step = next[r.by];
                next[r.by] += 1;
                let m: Vec<String> = carries[r.by].iter().map(|n| format!(r#""{n}":{step}.5"#)).collect();
                let ts = 1_700_000_000 + step;
                b.from(&origins[r.by], &format!(r#"{{"k":"step","run":"r","step":{step},"ts":{ts},"m":{{{}}}}}"#, m.join(",")));
                reported.extend(carries[r.by].iter().map(|n| (step, (*n).to_owned())));
            }
        }
        let mut seen = BTreeSet::new();
        for (step, names) in streamed(&b) {
            for name in names.into_iter().filter(|n| n != "step_time" && n != "tokens_per_second") {
                prop_assert!(seen.insert((step, name.clone())), "{step} {name} twice");
            }
        }
        prop_assert_eq!(seen, reported);
        prop_assert!(b.out.iter().all(|e| e.attempt == Some(0)));
        let furthest = next.iter().max().unwrap() - 1;
        if furthest > 0 {
            prop_assert_eq!(b.page().get(&f::STEP, &["r"]), Some(furthest as f64));
        }
    }
}
