//! The signals of one report of a step.

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, names::metric};

use super::Derived;
use crate::sample::{Quanta, StepClass, StepSample};
use stepwatch_model::time::Ts;

pub(crate) const SIGNALS: usize = 9;

pub(super) const LOSS: usize = 0;
const GRAD_NORM: usize = 1;
const LR: usize = 2;
const LOSS_SCALE: usize = 3;
const SKIPPED: usize = 4;
const STEP_TIME: usize = 5;
const TOKENS: usize = 6;
const MFU: usize = 7;
const COMPUTED_MFU: usize = 8;

/// Signals that measure how fast the run is.
const SPEEDS: [usize; 3] = [STEP_TIME, TOKENS, MFU];

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Values {
    /// 0 for signals without a value.
    values: [f64; SIGNALS],
    quanta: [f64; SIGNALS],
    /// Bit `i` is set if the report has a value of signal `i`.
    present: u16,
    loss_missing: bool,
    /// The report has further metrics.
    #[serde(skip)]
    pub(crate) more: bool,
}

/// The units of the run's throughput and MFU: the best that it has reported so far. A droop is
/// measured against earlier values, so the unit must not change to a worse one.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Units {
    tokens: u8,
    mfu: u8,
}

/// The quality of an MFU by Stepwatch's own formula.
const COMPUTED: u8 = 3;

/// The signal of a metric, and the metric's quality: of two metrics of one signal, the one of
/// higher quality is used.
fn place(name: &str) -> Option<(usize, u8)> {
    Some(match name {
        metric::LOSS => (LOSS, 0),
        metric::GRAD_NORM => (GRAD_NORM, 0),
        metric::LR => (LR, 0),
        metric::LOSS_SCALE => (LOSS_SCALE, 0),
        metric::SKIPPED => (SKIPPED, 0),
        metric::STEP_TIME => (STEP_TIME, 0),
        metric::TOKENS_PER_SECOND => (TOKENS, 2),
        metric::TOKENS_PER_SECOND_PER_GPU => (TOKENS, 1),
        metric::MFU => (MFU, COMPUTED),
        metric::MFU_REPORTED => (MFU, 2),
        metric::TFLOPS_REPORTED => (MFU, 1),
        _ => return None,
    })
}

/// Whether a metric is a custom one.
pub(crate) fn is_own(name: &str) -> bool {
    !metric::ALL.contains(&name)
}

impl Values {
    pub(crate) fn from_event(e: &Event, units: &mut Units) -> Self {
        let loss_missing = e.missing.iter().any(|m| m == metric::LOSS);
        let mut v = Self { loss_missing, more: !e.t.is_empty(), ..Self::default() };
        for (name, x) in e.m.iter() {
            let Some((signal, goodness)) = place(name) else {
                v.more = true;
                continue;
            };
            if (signal, goodness) == (MFU, COMPUTED) {
                v.set(COMPUTED_MFU, x, 0.0);
            }
            let best = match signal {
                TOKENS => &mut units.tokens,
                MFU => &mut units.mfu,
                _ => &mut 0,
            };
            if goodness >= *best {
                *best = goodness;
                v.set(signal, x, e.q.get(name).unwrap_or(0.0));
            }
        }
        v.loss_missing &= !v.is_present(LOSS);
        v.more |= e.missing.iter().any(|name| is_own(name));
        // A gradient norm that is listed as missing was not finite: strict JSON writes NaN as
        // `null`.
        if e.missing.iter().any(|m| m == metric::GRAD_NORM) && !v.is_present(GRAD_NORM) {
            v.set(GRAD_NORM, f64::NAN, 0.0);
        }
        v
    }

    fn is_present(&self, signal: usize) -> bool {
        self.present >> signal & 1 == 1
    }

    fn get(&self, signal: usize) -> Option<f64> {
        self.is_present(signal).then_some(self.values[signal])
    }

    pub(crate) fn loss(&self) -> Option<f64> {
        self.get(LOSS)
    }

    fn set(&mut self, signal: usize, value: f64, quantum: f64) {
        (self.values[signal], self.quanta[signal]) = (value, quantum);
        self.present |= 1 << signal;
    }

    pub(crate) fn has(&self, signal: usize) -> bool {
        self.is_present(signal) || signal == LOSS && self.loss_missing
    }

    /// The signals that it has.
    pub(crate) fn signals(&self) -> impl Iterator<Item = usize> {
        let mut left = self.present | u16::from(self.loss_missing) << LOSS;
        core::iter::from_fn(move || {
            let signal = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (signal < SIGNALS).then_some(signal)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.present == 0 && !self.loss_missing
    }

    pub(crate) fn set_step_time(&mut self, derived: Option<Derived>) {
        self.forget(STEP_TIME);
        self.quanta[STEP_TIME] = 0.0;
        if let Some(d) = derived {
            self.set(STEP_TIME, d.step_time, d.quantum);
        }
    }

    pub(crate) fn forget(&mut self, signal: usize) {
        self.values[signal] = 0.0;
        self.present &= !(1 << signal);
        self.loss_missing &= signal != LOSS;
    }

    /// The values without those that `other` has.
    pub(crate) fn without(mut self, other: &Self) -> Self {
        (0..SIGNALS).filter(|i| other.has(*i)).for_each(|i| self.forget(i));
        self
    }

    /// Copies values from `other` that are absent here; true if there were any.
    pub(crate) fn fill(&mut self, other: &Self) -> bool {
        let absent = other.present & !self.present;
        for i in (0..SIGNALS).filter(|i| absent >> i & 1 == 1) {
            self.set(i, other.values[i], other.quanta[i]);
        }
        let missing = (self.loss_missing || other.loss_missing) && !self.is_present(LOSS);
        let filled = absent != 0 || missing != self.loss_missing;
        self.loss_missing = missing;
        filled
    }

    pub(crate) fn leads(&self) -> bool {
        self.has(LOSS) || self.has(GRAD_NORM)
    }

    pub(crate) fn has_speed(&self) -> bool {
        SPEEDS.iter().any(|i| self.has(*i))
    }

    pub(crate) fn nonfinite(&self) -> bool {
        self.loss_missing || [LOSS, GRAD_NORM].iter().any(|i| !self.values[*i].is_finite())
    }

    /// Clears the missing loss, because another report of the same rank had it.
    pub(crate) fn has_its_loss(&mut self) {
        self.loss_missing = false;
    }

    /// The non-finite loss and gradient norm, and a missing loss: these are passed on from any
    /// rank.
    pub(crate) fn alarm(&self) -> Self {
        let mut alarm = Self { loss_missing: self.loss_missing, ..Self::default() };
        for i in [LOSS, GRAD_NORM] {
            if !self.values[i].is_finite() {
                alarm.set(i, self.values[i], 0.0);
            }
        }
        alarm
    }

    pub(crate) fn sample(&self, step: i64, ts: Ts, interval: i64) -> StepSample {
        let (v, q) = (|signal| self.get(signal), &self.quanta);
        StepSample {
            step,
            ts,
            attempt: 0,
            interval,
            adds: false,
            class: StepClass::Train,
            loss: v(LOSS),
            grad_norm: v(GRAD_NORM),
            lr: v(LR),
            loss_scale: v(LOSS_SCALE),
            skipped: v(SKIPPED),
            loss_missing: self.loss_missing,
            step_time: v(STEP_TIME),
            tokens_per_second: v(TOKENS),
            mfu: v(MFU),
            computed_mfu: v(COMPUTED_MFU),
            q: Quanta {
                loss: q[LOSS],
                grad_norm: q[GRAD_NORM],
                step_time: q[STEP_TIME],
                tokens_per_second: q[TOKENS],
                mfu: q[MFU],
            },
        }
    }
}
