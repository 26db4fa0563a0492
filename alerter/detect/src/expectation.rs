//! The values that the detectors expect of a signal, from their baselines. Also the evaluated
//! samples of the runs with these values, for charts.

use std::sync::Arc;

use crate::detector::shared::Source;
use crate::sample::StepSample;

/// The value that the detectors expect of a signal, and the band outside of which a value counts
/// towards an incident. In the unit of the signal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    pub expected: f64,
    pub low: f64,
    pub high: f64,
}

impl Expectation {
    /// The deviation of a value: 0 at the expected value, 1 at the edge of the band. `None` for a
    /// value that is not finite.
    pub fn score(&self, value: f64) -> Option<f64> {
        let away = value - self.expected;
        let room = if away < 0.0 { self.expected - self.low } else { self.high - self.expected };
        (value.is_finite() && room > 0.0).then(|| away.abs() / room)
    }
}

/// The present expectations about a run, as far as its detectors have learned it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expectations {
    pub loss: Option<Expectation>,
    pub grad_norm: Option<Expectation>,
    /// The expectation of the signal by which the speed is judged.
    pub speed: Option<(Source, Expectation)>,
}

/// A sample of a run that the detectors have judged.
#[derive(Debug, Clone)]
pub struct JudgedSample {
    pub run: Arc<str>,
    pub sample: StepSample,
    /// Set for every eighth sample, because expectations change slowly.
    pub expectations: Option<Expectations>,
}

/// The evaluated samples of a run that have not been taken yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    /// A consumer takes the samples.
    pub(crate) on: bool,
    run: Option<Arc<str>>,
    count: u32,
    pub(crate) samples: Vec<JudgedSample>,
}

/// One in this many samples has expectations.
const EVERY: u32 = 8;

impl Recording {
    /// Whether the next sample needs its expectations.
    pub(crate) fn wants_expectations(&self) -> bool {
        self.on && self.count.is_multiple_of(EVERY)
    }

    pub(crate) fn push(&mut self, run: &str, sample: &StepSample, expectations: Option<Expectations>) {
        self.count = self.count.wrapping_add(1);
        let run = Arc::clone(self.run.get_or_insert_with(|| run.into()));
        self.samples.push(JudgedSample { run, sample: sample.clone(), expectations });
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_model::time::Ts;
    use stepwatch_wire::Event;
    use stepwatch_wire::names::metric;

    use super::*;
    use crate::detectors::testing::Noise;
    use crate::{Input, Monitor};

    /// Feeds so many steps of a steady run.
    fn feed(monitor: &mut Monitor, steps: core::ops::Range<i64>) {
        let mut noise = Noise::new(3);
        for step in steps {
            let mut event = Event::step("r", step);
            event.m.set(metric::LOSS, 2.0 + 0.01 * noise.normal());
            event.m.set(metric::GRAD_NORM, 0.5 * (0.1 * noise.normal()).exp());
            event.m.set(metric::STEP_TIME, 4.0 + 0.02 * noise.normal());
            monitor.handle(Ts(step * 4000), Input::Event { source: "s", event: &event }, &mut Vec::new());
        }
    }

    #[test]
    fn a_run_that_is_known_has_an_expectation_of_each_signal() {
        let mut monitor = Monitor::default();
        feed(&mut monitor, 0..400);
        let e = monitor.run("r").unwrap().expectations();
        let near = |e: Option<Expectation>, value: f64| {
            let e = e.unwrap();
            assert!(e.low < value && value < e.high && (e.expected / value - 1.0).abs() < 0.1, "{e:?}");
            assert!(e.score(value).unwrap() < 1.0 && e.score(3.0 * value).unwrap() > 1.0, "{e:?}");
        };
        near(e.loss, 2.0);
        near(e.grad_norm, 0.5);
        let (source, speed) = e.speed.unwrap();
        assert_eq!(source, Source::StepTime);
        near(Some(speed), 4.0);
        assert_eq!(Expectation { expected: 1.0, low: 0.0, high: 2.0 }.score(f64::NAN), None);
    }

    #[test]
    fn samples_are_kept_for_who_takes_them_and_for_nobody_else() {
        let mut monitor = Monitor::default();
        feed(&mut monitor, 0..100);
        assert_eq!(monitor.take_judged().count(), 0);
        monitor.record_judged();
        feed(&mut monitor, 100..500);
        let judged: Vec<JudgedSample> = monitor.take_judged().collect();
        assert!(judged.iter().map(|j| j.sample.step).eq(100..500));
        assert!(judged.iter().all(|j| *j.run == *"r"));
        assert_eq!(judged.iter().filter(|j| j.expectations.is_some()).count(), 50);
        assert_eq!((monitor.take_judged().count(), monitor.dropped_judged()), (0, 0));
        feed(&mut monitor, 500..20_500);
        assert_eq!((monitor.take_judged().count(), monitor.dropped_judged()), (16_384, 3_616));
    }
}
