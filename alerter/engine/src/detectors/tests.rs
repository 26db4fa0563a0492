//! What holds for all detectors together.

use proptest::prelude::*;

use super::testing::{healthy, judge, raised};
use crate::detector::{Detectors, DetectorsConfig};
use crate::sample::StepSample;

/// A run with one of everything.
fn eventful(seed: u64) -> Vec<StepSample> {
    let mut run = healthy(seed, 1500);
    run[300].grad_norm = Some(5.0);
    run[400..430].iter_mut().for_each(|s| s.loss = s.loss.map(|v| v + 1.0));
    run[600..].iter_mut().for_each(|s| s.step_time = s.step_time.map(|t| t * 1.1));
    run[900].step_time = Some(120.0);
    run[1000].loss = Some(f64::NAN);
    run[1200..].iter_mut().for_each(|s| s.attempt = 1);
    run[1300..1310].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 30.0));
    run
}

#[test]
fn healthy_runs_are_silent() {
    for seed in 0..50 {
        let verdicts = judge(&healthy(seed, 3000));
        assert!(verdicts.is_empty(), "{seed}: {verdicts:?}");
    }
}

#[test]
fn the_state_of_a_run_is_small_and_does_not_grow() {
    let mut detectors = Detectors::new(&DetectorsConfig::default());
    let mut out = Vec::new();
    eventful(1).iter().for_each(|s| detectors.step(s, &mut out));
    let bytes = postcard::to_stdvec(&detectors).unwrap().len();
    // Three series (loss, gradient norm, step time), settings included.
    assert!(bytes < 3 * 1024, "{bytes}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_snapshot_at_any_point_changes_nothing(seed: u64, at in 0usize..1500) {
        let run = eventful(seed);
        let straight = judge(&run);
        let mut detectors = Detectors::new(&DetectorsConfig::default());
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
