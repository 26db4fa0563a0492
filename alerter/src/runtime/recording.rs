//! Records evaluated samples in the series.

use stepwatch_detect::JudgedSample;
use stepwatch_detect::detector::shared::Source;
use stepwatch_detect::sample::StepClass;
use stepwatch_model::time::Ts;
use stepwatch_wire::names::metric;

use super::Runtime;
use crate::series::{MarkKind, Recorded, SeriesTable, Value};

impl Runtime {
    /// Records the samples that were evaluated since the last call.
    pub(super) fn record_series(&mut self, now: Ts) {
        for judged in self.engine.take_judged() {
            record(&self.series, now, &judged);
        }
    }
}

/// Records one sample.
pub(crate) fn record(series: &SeriesTable, now: Ts, judged: &JudgedSample) {
    let (s, expected) = (&judged.sample, judged.expectations.unwrap_or_default());
    let speed = |source: Source| expected.speed.filter(|(of, _)| *of == source).map(|(_, e)| e);
    let signals = [
        (metric::LOSS, s.loss, expected.loss),
        (metric::GRAD_NORM, s.grad_norm, expected.grad_norm),
        (metric::LR, s.lr, None),
        (metric::LOSS_SCALE, s.loss_scale, None),
        (metric::STEP_TIME, s.step_time, speed(Source::StepTime)),
        (metric::TOKENS_PER_SECOND, s.tokens_per_second, speed(Source::Tokens)),
        (metric::MFU, s.mfu, speed(Source::Mfu)),
    ];
    let none = Value { signal: "", value: 0.0, expectation: None };
    let mut values = [none; 7];
    let mut n = 0;
    for (signal, value, expectation) in signals {
        if let Some(value) = value {
            values[n] = Value { signal, value, expectation };
            n += 1;
        }
    }
    let mark = match s.class {
        StepClass::Checkpoint => Some(MarkKind::Checkpoint),
        StepClass::Eval => Some(MarkKind::Evaluation),
        StepClass::Train | StepClass::First => None,
    };
    // A late signal belongs to a step that already has its mark.
    let mark = mark.filter(|_| !s.adds);
    let values = &values[..n];
    series.record(&Recorded {
        run: &judged.run,
        now,
        attempt: s.attempt,
        step: s.step,
        at: s.ts,
        mark,
        values,
    });
}
