//! Training that runs and does not learn.
//!
//! * `no_learning` (ticket): after 2,000 steps the smoothed loss is still above 98 % of the first one, and that one was near chance
//!   level (4 nats and more: guessing among 55 classes). A fine-tune starts far lower and may improve by little.
//! * `plateau` (note): the loss has not fallen by 0.5 % within the last half of the run's samples, after it had been falling.
//!   Compared at doubling counts, so a healthy power law, which falls by the same share every doubling, stays silent.

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::shared::{PRINTED, Shared};
use crate::detector::StepDetector;
use crate::message::number;
use crate::sample::StepSample;
use crate::stats::latch::Latch;
use crate::verdict::{Kind, Severity, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Steps by which something must have been learned.
    pub steps: i64,
    /// Share of the first loss that counts as learning.
    pub share: f64,
    /// First losses below this may belong to a fine-tune.
    pub chance_level: f64,
    /// Share by which the loss must fall while the number of samples doubles.
    pub plateau_share: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, steps: 2000, share: 0.02, chance_level: 4.0, plateau_share: 0.005 }
    }
}

const RATE: f64 = 1.0 / 16.0;
/// Samples before the first comparison.
const FIRST_CHECK: u32 = 1024;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Learning {
    config: Config,
    latch: Latch,
    first: Option<(f64, i64)>,
    smooth: f64,
    highest: f64,
    n: u32,
    check_at: u32,
    at_check: f64,
    checked: bool,
}

impl Learning {
    pub fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            latch: Latch::default(),
            first: None,
            smooth: 0.0,
            highest: f64::NEG_INFINITY,
            n: 0,
            check_at: FIRST_CHECK,
            at_check: f64::INFINITY,
            checked: false,
        }
    }

    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    fn finding(&self, kind: Kind, start_step: i64, expected: f64, why: String) -> Finding {
        Finding {
            kind,
            signal: "loss",
            start_step,
            value: self.smooth,
            expected,
            score: self.smooth / expected,
            why,
        }
    }

    fn judge_learning(&mut self, s: &StepSample, first: f64, first_step: i64, out: &mut Vec<Verdict>) {
        let least = first * (1.0 - self.config.share);
        if !self.checked && s.step - first_step >= self.config.steps {
            self.checked = true;
            // A run first seen in its middle has learned what it could before.
            let fresh = first_step < self.config.steps;
            if fresh
                && first >= self.config.chance_level
                && self.smooth > least
                && first - least > PRINTED * s.q.loss
                && self.latch.raise(Severity::Ticket)
            {
                let steps = s.step - first_step;
                let why = format!(
                    "loss is {} after {steps} steps and began at {}: nothing is being learned",
                    number(self.smooth),
                    number(first)
                );
                out.push(self.finding(Kind::NoLearning, first_step, least, why).raise(s, Severity::Ticket));
            }
        }
        let falling = self.smooth < least || self.smooth < self.highest * (1.0 - self.config.share);
        if self.latch.is_raised() && falling && self.latch.clear() {
            let why = format!("loss is falling: {} from {}", number(self.smooth), number(self.highest));
            out.push(self.finding(Kind::NoLearning, first_step, least, why).clear(s));
        }
    }

    fn judge_plateau(&mut self, s: &StepSample, out: &mut Vec<Verdict>) {
        if self.n < self.check_at {
            return;
        }
        // A loss that is printed more coarsely than what it should fall by cannot show that it fell.
        if self.config.plateau_share * self.smooth < PRINTED * s.q.loss {
            return;
        }
        let before = core::mem::replace(&mut self.at_check, self.smooth);
        self.check_at = self.check_at.saturating_mul(2);
        let expected = before * (1.0 - self.config.plateau_share);
        // A loss that never fell is another matter.
        let fell = before < self.highest * (1.0 - self.config.share);
        if before > 0.0 && fell && self.smooth > expected {
            let why = format!(
                "loss went from {} to {} while the number of samples doubled to {}",
                number(before),
                number(self.smooth),
                self.n
            );
            out.push(self.finding(Kind::Plateau, s.step, expected, why).note(s));
        }
    }
}

impl StepDetector for Learning {
    fn step(&mut self, s: &StepSample, _: &mut Shared, out: &mut Vec<Verdict>) {
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        if !self.config.enabled || s.interval == 0 {
            return;
        }
        let (first, first_step) = *self.first.get_or_insert((loss, s.step));
        self.n = self.n.saturating_add(1);
        self.smooth +=
            (loss - if self.n == 1 { 0.0 } else { self.smooth }) * RATE.max(1.0 / f64::from(self.n));
        self.highest = self.highest.max(self.smooth);
        self.judge_learning(s, first, first_step, out);
        self.judge_plateau(s, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, open, raised};

    fn with_loss(n: i64, loss: impl Fn(f64) -> f64) -> Vec<StepSample> {
        let mut noise = Noise::new(71);
        let mut run = healthy(71, n);
        run.iter_mut().for_each(|s| s.loss = Some(loss(s.step as f64) + 0.01 * noise.normal()));
        run
    }

    #[test]
    fn a_loss_at_chance_level_is_a_ticket_until_it_falls() {
        let run = with_loss(5000, |step| if step < 3000.0 { 6.9 } else { 6.9 - (step - 3000.0) * 1e-3 });
        let verdicts = judge(&run);
        assert_eq!(raised(&verdicts), [(Kind::NoLearning, Severity::Ticket, 2001)]);
        assert!(open(&verdicts).is_empty());
    }

    #[test]
    fn a_fine_tune_that_gains_little_is_fine() {
        assert!(raised(&judge(&with_loss(3000, |_| 1.9))).is_empty());
    }

    #[test]
    fn a_plateau_is_noted_and_a_power_law_is_not() {
        let notes = |run: &[StepSample]| judge(run).iter().filter(|v| v.kind == Kind::Plateau).count();
        assert_eq!(notes(&with_loss(5000, |step| 2.0 + 8.0 * (-step / 200.0).exp())), 1);
        assert_eq!(notes(&with_loss(5000, |step| 1.7 + 8.0 * step.powf(-0.3))), 0);
    }
}
