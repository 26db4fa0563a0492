//! Detects a gradient norm that has moved to another level and stays there, without a spike.
//!
//! Two bounded-influence levels of ln(grad norm), one that forgets in 32 samples and one in 2,000;
//! a ticket when they are a factor of 4, and one sigma of a single sample, apart. A run may drift
//! by a factor of two or three in its lifetime; a factor of four within a fraction of it is what
//! weight growth, a broken data shard or a too high learning rate look like.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::rounding;
use crate::stats::latch::Latch;
use crate::stats::robust::Robust;
use stepwatch_model::{Kind, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Times the long-term level that raise, and that end it: engineering limits, because a healthy
    /// run drifts by two or three.
    pub ratio: f64,
    pub clear_ratio: f64,
    /// Sigmas of a single sample, at least, so that a norm which scatters by as much is not judged
    /// by `ratio` alone. It is no quantile: the level is a mean of about 32 samples.
    pub sigmas: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ratio: 4.0, clear_ratio: 2.0, sigmas: 1.0 }
    }
}

/// Weight of a sample in the level of now, and in the long-term one.
const FAST: f64 = 1.0 / 32.0;
const SLOW: f64 = 1.0 / 2000.0;
/// Smallest scale: norms are printed with two or three digits.
const FLOOR: f64 = 0.02;
/// Samples that start a level, and that make the long-term one.
const WARM: usize = 16;
const SETTLED: u32 = 100;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GradLevelShift {
    latch: Latch,
    fast: Robust<WARM>,
    slow: f64,
    n: u32,
    onset: i64,
}

impl GradLevelShift {
    fn finding(&self, verb: &'static str) -> Draft {
        let (level, usual) = (self.fast.location(), self.slow);
        Draft {
            kind: Kind::GradLevelShift,
            signal: "grad_norm",
            start_step: self.onset,
            value: level.exp(),
            expected: usual.exp(),
            score: (level - usual) / self.fast.scale(),
            why: clause!(
                "grad norm {verb} {now}, {times}x its long-term level of {usual}",
                verb,
                now = level.exp(),
                times = (level - usual).exp(),
                usual = usual.exp(),
            )
            .into(),
        }
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>) {
        let apart = self.fast.location() - self.slow;
        // Most norms are not above their long-term level.
        if apart <= 0.0 || apart < 0.5 * c.ratio.ln() {
            self.onset = step.sample.step;
        }
        let printed = || self.fast.location().exp() - self.slow.exp() > PRINTED * step.sample.q.grad_norm;
        let far = apart > c.sigmas * self.fast.scale() && apart > c.ratio.ln() && printed();
        if far && self.latch.raise(Severity::Ticket) {
            step.raise(self.finding("has settled at"), Severity::Ticket);
        } else if self.latch.is_raised() && apart < c.clear_ratio.ln() && self.latch.clear() {
            step.clear(self.finding("is at"));
        }
    }
}

impl StepDetector for GradLevelShift {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let Some(norm) = s.grad_norm.filter(|g| g.is_finite() && *g > 0.0) else { return };
        if !c.enabled || s.interval == 0 || shared.schedule.warming_up() {
            return;
        }
        self.fast.update(shared.log_norm, FAST, FLOOR.max(rounding(s.q.grad_norm) / norm));
        if !self.fast.is_warm() {
            return;
        }
        self.n = self.n.saturating_add(1);
        self.slow += (self.fast.location() - self.slow) * SLOW.max(1.0 / f64::from(self.n));
        if self.n >= SETTLED {
            self.judge(c, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, raised};

    fn drifted(factor: f64) -> Vec<(Kind, Severity, i64)> {
        let mut run = healthy(41, 3000);
        for (i, s) in run.iter_mut().enumerate() {
            let share = ((i as f64 - 1500.0) / 500.0).clamp(0.0, 1.0);
            s.grad_norm = s.grad_norm.map(|g| g * factor.powf(share));
        }
        raised(&judge(&run))
    }

    #[test]
    fn a_factor_of_eight_is_a_ticket_and_of_two_nothing() {
        let found = drifted(8.0);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1), (Kind::GradLevelShift, Severity::Ticket));
        assert!(drifted(2.0).is_empty());
    }
}
