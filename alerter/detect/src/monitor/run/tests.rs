//! The same run reported by one source, or by several that each report a part at their own pace.

mod accounts;
mod stages;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::detectors::testing::healthy;
use stepwatch_model::{Change, Kind, Severity};
use stepwatch_wire::CkptPhase;

const START: i64 = 1_795_227_416_000;

/// A run with one fault of each kind, far enough apart that no signal explains another.
fn eventful(seed: u64) -> Vec<StepSample> {
    let mut run = healthy(seed, 1600);
    run[300..330].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 1.0));
    run[500..506].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 40.0));
    run[700..900].iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * 1.2));
    run[1036].step_time = Some(90.0);
    run[1200].loss = Some(f64::NAN);
    run[1400..1402].iter_mut().for_each(|s| s.grad_norm = Some(f64::INFINITY));
    run
}

/// The report of a sample by a source that has only `signals`.
fn report(s: &StepSample, signals: &[&str]) -> Event {
    let mut e = Event::step("r", s.step);
    (e.rank, e.attempt, e.ts) = (Some(0), Some(s.attempt), Some((START + s.ts.0) as f64 / 1000.0));
    for (name, value) in
        [("loss", s.loss), ("grad_norm", s.grad_norm), ("lr", s.lr), ("step_time", s.step_time)]
    {
        if let Some(v) = value.filter(|_| signals.contains(&name)) {
            e.m.set(name, v);
        }
    }
    e
}

type Said = BTreeMap<Kind, Vec<(Change, Severity, i64, i64)>>;

/// Every finding by kind, in the order of its steps.
fn judge(events: impl IntoIterator<Item = Event>) -> (Said, Run) {
    let mut run = Run::new("r", Ts(START), &Arc::default());
    let mut out = Vec::new();
    let mut now = Ts(START);
    for e in events {
        now = now.max(Ts::from_secs_f64(e.ts.unwrap()));
        run.event(now, "n:1", &e, &mut out);
    }
    let mut said = Said::new();
    for v in out {
        said.entry(v.kind).or_default().push((v.change, v.severity, v.step, v.start_step));
    }
    (said, run)
}

#[test]
fn a_gradient_norm_that_is_missing_is_not_finite() {
    let run = healthy(3, 100);
    let (said, _) = judge(run.iter().map(|s| {
        let mut e = report(s, &["loss", "grad_norm", "lr"]);
        if s.step > 80 {
            e.m.remove("grad_norm");
            e.missing.push("grad_norm".to_owned());
        }
        e
    }));
    let raised: Vec<_> = said[&Kind::Nonfinite].iter().map(|(c, s, step, _)| (*c, *s, *step)).collect();
    assert_eq!(raised, [(Change::Raise, Severity::Page, 82)], "the second of them");
}

const ALL: &[&str] = &["loss", "grad_norm", "lr", "step_time"];

#[test]
fn an_eventful_run_says_something_of_every_signal() {
    let (said, run) = judge(eventful(1).iter().map(|s| report(s, ALL)));
    let kinds: Vec<Kind> = said.keys().copied().collect();
    for kind in [Kind::Nonfinite, Kind::GradSpike, Kind::LossSpike, Kind::Stall, Kind::ThroughputDrop] {
        assert!(kinds.contains(&kind), "{kind:?} of {kinds:?}");
    }
    assert_eq!((run.counters.steps, run.counters.duplicates), (1600, 0));
}

#[test]
fn a_log_every_ten_steps_beside_a_client_confuses_no_pace() {
    let run = healthy(3, 600);
    let events = run.iter().flat_map(|s| {
        let log = (s.step % 10 == 0).then(|| report(s, &["loss", "grad_norm", "step_time"]));
        [report(s, &["loss", "step_time"])].into_iter().chain(log)
    });
    let (said, run) = judge(events);
    assert!(said.is_empty(), "{said:?}");
    assert_eq!((run.state.interval, run.counters.steps, run.counters.duplicates), (1, 600, 0));
    assert!(run.state.pace.quantile(0.5).is_some_and(|p| (1.9..2.6).contains(&p)));
    // The checkpoint's clock counts the run's time once.
    assert!((run.state.checkpoints.work - 1198.0).abs() < 1.0, "{}", run.state.checkpoints.work);
}

#[test]
fn lines_out_of_order_are_no_restart_and_a_rewind_is() {
    let feed = |order: &[i64]| {
        let run = healthy(4, 700);
        let unnumbered = |step: &i64| {
            let mut e = report(&run[(*step - 1) as usize], ALL);
            e.attempt = None;
            e
        };
        judge(order.iter().map(unnumbered)).1
    };
    let mut order: Vec<i64> = (1..=699).collect();
    for (i, three) in order.chunks_exact_mut(3).enumerate() {
        three.rotate_left(i % 3);
        three[1..].rotate_left(i % 2);
    }
    assert_eq!(feed(&order).state.attempt, 0);
    let sparse: Vec<i64> = order.iter().filter(|step| **step % 7 == 0).copied().collect();
    assert_eq!(feed(&sparse).state.attempt, 0, "nor where there is room between all lines");
    for back in [1, 2, 3, 20] {
        let rewound: Vec<i64> = (1..=300).chain(301 - back..=600).collect();
        assert_eq!(feed(&rewound).state.attempt, u32::from(back > 1), "back by {back}");
    }
}

#[test]
fn what_comes_two_minutes_late_is_still_a_page() {
    let mut run = healthy(5, 900);
    run[600..610].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 60.0));
    let late = |i: usize| i.checked_sub(60).map(|i| report(&run[i], &["grad_norm", "loss"]));
    let events = (0..900).flat_map(|i| [Some(report(&run[i], &["loss", "lr"])), late(i)]).flatten();
    let (said, _) = judge(events);
    let page = said[&Kind::GradSpike].iter().find(|v| v.1 == Severity::Page).unwrap();
    assert!((600..605).contains(&page.2), "{page:?}");
    assert!(!said.contains_key(&Kind::LossSpike));
}

#[test]
fn a_restart_is_seen_by_every_signal_when_it_comes() {
    let mut run = eventful(9);
    run.truncate(700);
    let mut again = healthy(10, 500);
    for s in &mut again {
        (s.step, s.attempt, s.ts) = (s.step + 600, 1, Ts(s.ts.0 + 1_500_000));
    }
    let both: Vec<_> = run.iter().chain(&again).collect();
    let (together, _) = judge(both.iter().map(|s| report(s, ALL)));
    let apart =
        both.iter().flat_map(|s| [report(s, &["loss"]), report(s, &["grad_norm", "lr", "step_time"])]);
    assert_eq!(judge(apart).0, together);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Split over two sources, of which either may be a few steps behind, the run is judged as if
    /// one had reported it all.
    #[test]
    fn two_sources_are_judged_as_one(
        seed in 0u64..1000, lags in proptest::collection::vec(0usize..5, 1600), loss_first: bool, speed_by: bool,
    ) {
        let run = eventful(seed);
        let (together, _) = judge(run.iter().map(|s| report(s, ALL)));
        let mut parts: [Vec<&str>; 2] = [vec!["loss"], vec!["grad_norm", "lr"]];
        parts[usize::from(speed_by)].push("step_time");
        if !loss_first {
            parts.reverse();
        }
        // The first source is at step `i`, the second up to `lags[i]` behind.
        let mut next = 0;
        let mut events = Vec::new();
        for (i, s) in run.iter().enumerate() {
            events.push(report(s, &parts[0]));
            while next + lags[i] <= i {
                events.push(report(&run[next], &parts[1]));
                next += 1;
            }
        }
        events.extend(run[next..].iter().map(|s| report(s, &parts[1])));
        let (apart, split) = judge(events);
        prop_assert_eq!(split.counters.duplicates, 0);
        for (kind, said) in together.iter().filter(|(k, _)| **k != Kind::Nonfinite) {
            prop_assert_eq!(apart.get(kind), Some(said), "{:?}", kind);
        }
        // One latch for loss and gradient: what was raised is the same, the end is counted in
        // samples of either.
        let raised = |s: &Said| s[&Kind::Nonfinite].iter().filter(|v| v.0 == Change::Raise).map(|v| v.2).collect::<Vec<_>>();
        prop_assert_eq!(raised(&apart), raised(&together));
        prop_assert_eq!(apart.len(), together.len());
    }
}

fn saved(step: i64, at: Option<i64>) -> Event {
    let ts = at.map(|at| at as f64 / 1000.0);
    Event {
        run: Some("r".into()),
        step: Some(step),
        ts,
        ckpt: Some(CkptPhase::End),
        ..Event::new(EventKind::Ckpt)
    }
}

#[test]
fn a_checkpoint_reported_again_saves_no_further_work() {
    let run = healthy(3, 600);
    let events = run.iter().flat_map(|s| {
        let saves = match s.step {
            // The log reports it at once, and the watcher of the disk after it was restarted.
            200 => Some(saved(200, Some(START + run[199].ts.0))),
            500 => Some(saved(200, Some(START + run[200].ts.0))),
            _ => None,
        };
        [report(s, ALL)].into_iter().chain(saves)
    });
    let (_, run) = judge(events);
    let c = &run.state.checkpoints;
    assert_eq!((c.last_step, c.intervals.len()), (Some(200), 0));
    assert!((c.work - 798.0).abs() < 10.0, "{}", c.work);
}

#[test]
fn a_checkpoint_found_on_disk_is_known_with_its_age() {
    let run = healthy(3, 300);
    let old = START - 3_600_000;
    let events = [report(&run[0], ALL), saved(9_000, Some(old))]
        .into_iter()
        .chain(run[1..].iter().map(|s| report(s, ALL)));
    let (_, run) = judge(events);
    let c = &run.state.checkpoints;
    assert_eq!((c.last_step, c.last_at), (Some(9_000), Some(Ts(old))));
    assert!(c.work > 500.0, "nothing of this attempt is saved: {}", c.work);
}
