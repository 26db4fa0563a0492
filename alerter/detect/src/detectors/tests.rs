//! Tests of all detectors together.

use proptest::prelude::*;

use super::testing::{Noise, healthy, judge, pages, raised};
use crate::detectors::Detectors;
use crate::sample::{Quanta, StepSample};
use stepwatch_model::{Kind, Severity};

/// A run with several faults.
fn eventful(seed: u64) -> Vec<StepSample> {
    let mut run = healthy(seed, 1500);
    run[300].grad_norm = Some(5.0);
    run[400..430].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 1.0));
    run[600..].iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * 1.12));
    run[900].step_time = Some(120.0);
    run[1000].loss = Some(f64::NAN);
    run[1200..].iter_mut().for_each(|s| s.attempt = 1);
    run[1300..1310].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 30.0));
    run
}

#[test]
fn healthy_runs_are_silent() {
    for seed in 0..50 {
        let findings = judge(&healthy(seed, 3000));
        assert!(findings.is_empty(), "{seed}: {findings:?}");
    }
}

/// Signals of a run that are judged: loss, gradient norm, learning rate, step time, tokens per
/// second, MFU.
const SERIES: usize = 6;

/// Bytes of a series in the detectors, with all state of its run, and in its stored form. A
/// detector that needs more, for a reason, raises the bound.
const IN_DETECTORS: usize = 512;
const IN_RUN: usize = 1056;
const STORED: usize = 448;

#[test]
fn a_series_is_no_larger_than_it_may_be() {
    let sizes = Detectors::sizes();
    let table: Vec<String> = sizes.iter().map(|(name, bytes)| format!("{bytes:>6} {name}")).collect();
    let table = table.join("\n");
    let detectors = size_of::<Detectors>() / SERIES;
    assert!(detectors <= IN_DETECTORS, "{detectors} bytes a series in the detectors:\n{table}");
    let run = size_of::<crate::Run>() / SERIES;
    assert!(
        run <= IN_RUN,
        "{run} bytes a series in the run, of which in its detectors {detectors}:\n{table}"
    );
}

#[test]
fn what_is_stored_of_a_series_is_small_and_does_not_grow() {
    let mut detectors = Detectors::default();
    for seed in 1..8 {
        eventful(seed).iter().for_each(|s| detectors.step(s, &mut Vec::new()));
        let stored = postcard::to_stdvec(&detectors).unwrap().len() / SERIES;
        assert!(stored <= STORED, "{stored} bytes a series after {seed} runs");
    }
}

/// A run with all signals.
fn full(seed: u64, n: i64) -> Vec<StepSample> {
    let mut run = healthy(seed, n);
    for s in &mut run {
        s.tokens_per_second = s.step_time.map(|t| 4e6 / t);
        s.mfu = s.step_time.map(|t| 0.9 / t);
        (s.loss_scale, s.skipped) = (Some(65536.0), Some(0.0));
    }
    run
}

/// One fault of each kind that a detector of steps finds; none is a consequence of another fault of
/// the list.
fn faults(seed: u64) -> Vec<StepSample> {
    let mut noise = Noise::new(seed ^ 0xfa17);
    let mut run = full(seed, 6000);
    let times = |v: Option<f64>, factor: f64| v.map(|v| v * factor);
    run[400..406].iter_mut().for_each(|s| s.grad_norm = times(s.grad_norm, 20.0));
    run[700..730].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 1.0));
    run[1036].step_time = Some(200.0);
    for s in &mut run[1300..1660] {
        let slow = if noise.uniform() < 0.4 { 1.7 } else { 1.0 };
        s.step_time = times(s.step_time, slow);
    }
    run[2000..2400].iter_mut().for_each(|s| s.step_time = times(s.step_time, 1.12));
    (0..12).for_each(|i| run[2800 + 20 * i].grad_norm = Some(2.0));
    run[3600..].iter_mut().for_each(|s| s.grad_norm = times(s.grad_norm, 8.0));
    run[5800..].iter_mut().for_each(|s| s.loss = Some(f64::NAN));
    run
}

const FOUND: [Kind; 8] = [
    Kind::GradSpike,
    Kind::LossSpike,
    Kind::Stall,
    Kind::StepTimeJitter,
    Kind::ThroughputDrop,
    Kind::GradInstability,
    Kind::GradLevelShift,
    Kind::Nonfinite,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_kind_of_fault_is_found_whatever_the_units(seed: u64, grad in -30i32..30, speed in 0i32..5) {
        let plain = faults(seed);
        let found = raised(&judge(&plain));
        for kind in FOUND {
            prop_assert!(found.iter().any(|(k, ..)| *k == kind), "{kind:?} is not in {found:?}");
        }
        let mut scaled = plain;
        for s in &mut scaled {
            // Powers of two change no digit. A stall is found by the seconds lost, so seconds are
            // not scaled.
            s.grad_norm = s.grad_norm.map(|v| v * f64::from(grad).exp2());
            s.tokens_per_second = s.tokens_per_second.map(|v| v * f64::from(speed).exp2());
            s.mfu = s.mfu.map(|v| v * f64::from(speed).exp2());
        }
        prop_assert_eq!(raised(&judge(&scaled)), found);
    }

    #[test]
    fn one_bad_number_in_any_signal_pages_nobody(
        seed: u64, at in 100usize..1100, signal in 0usize..7, exponent in -12.0f64..12.0,
    ) {
        let mut run = full(seed, 1200);
        let factor = exponent.exp2();
        let s = &mut run[at];
        let signals = [
            &mut s.loss, &mut s.grad_norm, &mut s.lr, &mut s.step_time, &mut s.tokens_per_second, &mut s.mfu, &mut s.skipped,
        ];
        for (i, v) in signals.into_iter().enumerate() {
            *v = v.map(|v| if i == signal { if v == 0.0 { 1.0 } else { v * factor } } else { v });
        }
        let findings = judge(&run);
        prop_assert!(pages(&findings).is_empty(), "{findings:?}");
    }

    #[test]
    fn no_number_that_is_none_enters_a_baseline(seed: u64, at in proptest::collection::vec(60usize..390, 1..60), which: u8) {
        let mut poisoned = faults(seed);
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        for at in at {
            let s = &mut poisoned[at];
            let signals = [&mut s.grad_norm, &mut s.lr, &mut s.step_time, &mut s.tokens_per_second, &mut s.mfu, &mut s.loss_scale, &mut s.skipped];
            for (i, v) in signals.into_iter().enumerate().filter(|(i, _)| which >> i & 1 == 1) {
                *v = Some(bad[(at + i) % bad.len()]);
            }
        }
        let found = raised(&judge(&poisoned));
        for kind in FOUND {
            prop_assert!(found.iter().any(|(k, _, step)| *k == kind && *step > 400), "{kind:?} is not in {found:?}");
        }
    }

    #[test]
    fn printing_fewer_digits_makes_no_alarms(seed: u64, digits in 1i32..4) {
        let mut run = full(seed, 3000);
        let quantum = 10f64.powi(-digits);
        let print = |v: &mut Option<f64>| *v = v.map(|v| (v / quantum).round() * quantum);
        for s in &mut run {
            print(&mut s.loss);
            print(&mut s.step_time);
            print(&mut s.grad_norm);
            s.q = Quanta { loss: quantum, step_time: quantum, grad_norm: quantum, ..Quanta::default() };
        }
        let found = raised(&judge(&run));
        prop_assert!(found.iter().all(|(_, severity, _)| *severity < Severity::Ticket), "{found:?}");
    }

    #[test]
    fn a_snapshot_at_any_point_changes_nothing(seed: u64, at in 0usize..1500) {
        let run = eventful(seed);
        let straight = judge(&run);
        let mut detectors = Detectors::default();
        let mut out = Vec::new();
        run[..at].iter().for_each(|s| detectors.step(s, &mut out));
        let bytes = postcard::to_stdvec(&detectors).unwrap();
        let mut detectors: Detectors = postcard::from_bytes(&bytes).unwrap();
        run[at..].iter().for_each(|s| detectors.step(s, &mut out));
        prop_assert_eq!(format!("{out:?}"), format!("{straight:?}"));
    }

    #[test]
    fn any_numbers_are_survived(values in proptest::collection::vec((any::<f64>(), any::<f64>(), any::<f64>(), any::<i64>()), 0..200)) {
        let samples: Vec<StepSample> = values
            .into_iter()
            .map(|(loss, grad, time, step)| StepSample {
                step: step / 4,
                interval: step.rem_euclid(3),
                loss: Some(loss),
                grad_norm: Some(grad),
                step_time: Some(time),
                ..StepSample::default()
            })
            .collect();
        for v in judge(&samples) {
            prop_assert!(!v.why.is_empty());
        }
    }

    #[test]
    fn order_of_magnitude_of_the_interval_does_not_hide_a_divergence(every in 1i64..500) {
        let mut run = healthy(7, 600);
        for s in &mut run {
            (s.step, s.interval) = (s.step * every, every);
        }
        run[400..].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 1.0));
        prop_assert!(!raised(&judge(&run)).is_empty());
    }
}
