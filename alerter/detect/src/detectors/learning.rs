//! Detects training that makes steps but does not learn.
//!
//! * `no_learning` (ticket): after 2,000 steps the smoothed loss is still above 98 % of the first
//!   one, and that one was near chance level (4 nats and more: guessing among 55 classes). A
//!   fine-tune starts far lower and may improve by little.
//! * `plateau` (ticket): of the fall that the loss had, 35 % or less is left, with a certainty of
//!   three standard errors ([`crate::stats::plateau`]), where it had been falling by 0.5 % or more
//!   while the number of samples doubled, and the learning rate is not below half of what it was
//!   then: with a schedule that ends, so does the fall. It ends when the loss falls by that share.
//! * `plateau` (note): the loss has not fallen by 0.5 % within the last half of the run's samples,
//!   after it had been falling. Compared at doubling counts, so a healthy power law, which falls by
//!   the same share every doubling, stays silent.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::rounding;
use crate::stats::attempt::Attempts;
use crate::stats::latch::Latch;
use crate::stats::plateau::{Fall, GROWTH, Pace};
use stepwatch_model::{Clause, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Steps by which something must have been learned.
    pub steps: i64,
    /// Share of the first loss that counts as learning: an engineering limit.
    pub share: f64,
    /// First losses below this may belong to a fine-tune.
    pub chance_level: f64,
    /// Share by which the loss must fall while the number of samples doubles: an engineering limit.
    pub plateau_share: f64,
    /// Share of the fall that may be left of it, and how certain that must be, in standard errors:
    /// 0.13 % of a normal distribution lie above 3.
    pub plateau_left: f64,
    pub plateau_sigmas: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            steps: 2000,
            share: 0.02,
            chance_level: 4.0,
            plateau_share: 0.005,
            plateau_left: 0.35,
            plateau_sigmas: 3.0,
        }
    }
}

/// Weight of a sample in the smoothed loss.
const RATE: f64 = 1.0 / 16.0;
/// Samples before the first comparison.
const FIRST_CHECK: u32 = 1024;
/// The number of windows between the earlier and the present fall.
const APART: usize = 5;
/// The least share of the earlier learning rate.
const SAME_LR: f64 = 0.5;
/// Smallest noise, relative to the level.
const FLOOR: f64 = 2e-4;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Learning {
    latch: Latch,
    first: Option<(f64, i64)>,
    smooth: f64,
    highest: f64,
    n: u32,
    check_at: u32,
    at_check: f64,
    checked: bool,
    fall: Fall,
    attempts: Attempts,
    lr: f64,
    /// At the ends of the last windows, newest last.
    lrs: [f32; APART],
    flat: Latch,
    /// The level at which it stopped.
    flat_at: f64,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            latch: Latch::default(),
            first: None,
            smooth: 0.0,
            highest: f64::NEG_INFINITY,
            n: 0,
            check_at: FIRST_CHECK,
            at_check: f64::INFINITY,
            checked: false,
            fall: Fall::default(),
            attempts: Attempts::default(),
            lr: 0.0,
            lrs: [0.0; APART],
            flat: Latch::default(),
            flat_at: 0.0,
        }
    }
}

impl Learning {
    fn finding(&self, kind: Kind, start_step: i64, expected: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind,
            signal: "loss",
            start_step,
            value: self.smooth,
            expected,
            score: self.smooth / expected,
            why: why.into(),
        }
    }

    fn judge_learning(&mut self, c: &Config, step: &mut JudgedStep<'_>, first: f64, first_step: i64) {
        let s = step.sample;
        let least = first * (1.0 - c.share);
        if !self.checked && s.step - first_step >= c.steps {
            self.checked = true;
            // A run that is first seen after its start has learned before.
            let fresh = first_step < c.steps;
            if fresh
                && first >= c.chance_level
                && self.smooth > least
                && first - least > PRINTED * s.q.loss
                && self.latch.raise(Severity::Ticket)
            {
                let steps = s.step - first_step;
                let why = clause!(
                    "loss is {now} after {steps} steps and began at {first}: nothing is being learned",
                    now = self.smooth,
                    steps,
                    first,
                );
                step.raise(self.finding(Kind::NoLearning, first_step, least, why), Severity::Ticket);
            }
        }
        let falling = self.smooth < least || self.smooth < self.highest * (1.0 - c.share);
        if self.latch.is_raised() && falling && self.latch.clear() {
            let why =
                clause!("loss is falling: {now} from {highest}", now = self.smooth, highest = self.highest);
            step.clear(self.finding(Kind::NoLearning, first_step, least, why));
        }
    }

    fn judge_plateau(&mut self, c: &Config, step: &mut JudgedStep<'_>) {
        if self.n < self.check_at {
            return;
        }
        // A loss that is printed more coarsely than what it should fall by cannot show that it
        // fell.
        if c.plateau_share * self.smooth < PRINTED * step.sample.q.loss {
            return;
        }
        let before = core::mem::replace(&mut self.at_check, self.smooth);
        self.check_at = self.check_at.saturating_mul(2);
        let expected = before * (1.0 - c.plateau_share);
        // A loss that never fell is judged as `no_learning`.
        let fell = before < self.highest * (1.0 - c.share);
        if before > 0.0 && fell && self.smooth > expected {
            let why = clause!(
                "loss went from {before} to {now} while the number of samples doubled to {samples}",
                before,
                now = self.smooth,
                samples = self.n,
            );
            step.note(self.finding(Kind::Plateau, step.sample.step, expected, why));
        }
    }

    fn judge_fall(&mut self, c: &Config, step: &mut JudgedStep<'_>, loss: f64) {
        let s = step.sample;
        if self.attempts.restarted(s.attempt) {
            self.fall.clear();
        }
        self.lr = s.lr.filter(|lr| lr.is_finite()).unwrap_or(self.lr);
        let floor = (FLOOR * loss.abs()).max(rounding(s.q.loss));
        let Some(pace) = self.fall.add(s.step, loss, floor) else { return };
        let then = f64::from(self.lrs.iter().copied().fold(0.0, f32::max));
        self.lrs.rotate_left(1);
        self.lrs[APART - 1] = self.lr as f32;
        // Of a window, where the share is of a doubling.
        let worth = c.plateau_share * pace.level.abs() * GROWTH.log2();
        let falls = pace.before > worth.max(PRINTED * s.q.loss) && self.lr >= SAME_LR * then;
        // A loss that rises is no plateau.
        let flat_now = pace.now > -c.plateau_left * pace.before;
        if falls
            && flat_now
            && pace.stopped(c.plateau_left) > c.plateau_sigmas
            && self.flat.raise(Severity::Ticket)
        {
            self.flat_at = pace.level;
            step.raise(self.plateau(c, &pace, flat(&pace, self.n)), Severity::Ticket);
        } else if pace.level < self.flat_at - worth && self.flat.clear() {
            let (now, before) = (pace.level, self.flat_at);
            step.clear(self.plateau(c, &pace, clause!("loss falls again: {now} from {before}", now, before)));
        }
    }

    fn plateau(&self, c: &Config, pace: &Pace, why: Clause) -> Draft {
        let mut f = self.finding(Kind::Plateau, 0, pace.level - pace.before, why);
        (f.value, f.score) = (pace.level, pace.stopped(c.plateau_left));
        f
    }
}

fn flat(pace: &Pace, samples: u32) -> Clause {
    clause!(
        "loss has stopped falling: {change} over the last third of {samples} samples, and {change_before} over as large a \
         part before",
        change = -2.0 * pace.now,
        samples,
        change_before = -2.0 * pace.before,
    )
}

impl StepDetector for Learning {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        if !c.enabled || s.interval == 0 {
            return;
        }
        let (first, first_step) = *self.first.get_or_insert((loss, s.step));
        self.n = self.n.saturating_add(1);
        self.smooth +=
            (loss - if self.n == 1 { 0.0 } else { self.smooth }) * RATE.max(1.0 / f64::from(self.n));
        self.highest = self.highest.max(self.smooth);
        self.judge_learning(c, step, first, first_step);
        self.judge_plateau(c, step);
        // A spike is no part of a curve that falls.
        if !shared.coupling.loss_is_hot(s.step) {
            self.judge_fall(c, step, loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, open, raised};
    use crate::sample::StepSample;
    use stepwatch_model::Change;

    fn with_loss(n: i64, loss: impl Fn(f64) -> f64) -> Vec<StepSample> {
        let mut noise = Noise::new(71);
        let mut run = healthy(71, n);
        run.iter_mut().for_each(|s| s.loss = Some(loss(s.step as f64) + 0.01 * noise.normal()));
        run
    }

    #[test]
    fn a_loss_at_chance_level_is_a_ticket_until_it_falls() {
        let run = with_loss(5000, |step| if step < 3000.0 { 6.9 } else { 6.9 - (step - 3000.0) * 1e-3 });
        let findings = judge(&run);
        assert_eq!(raised(&findings), [(Kind::NoLearning, Severity::Ticket, 2001)]);
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn a_fine_tune_that_gains_little_is_fine() {
        assert!(raised(&judge(&with_loss(3000, |_| 1.9))).is_empty());
    }

    #[test]
    fn a_plateau_is_noted_and_a_power_law_is_not() {
        let changes = |run: &[StepSample]| {
            let findings = judge(run).into_iter().filter(|v| v.kind == Kind::Plateau);
            findings.map(|v| v.change).collect::<Vec<_>>()
        };
        let converged = changes(&with_loss(5000, |step| 2.0 + 8.0 * (-step / 200.0).exp()));
        assert!(converged.contains(&Change::Note) && converged.contains(&Change::Raise), "{converged:?}");
        assert!(changes(&with_loss(5000, |step| 1.7 + 8.0 * step.powf(-0.3))).is_empty());
    }

    #[test]
    fn a_fall_that_stops_is_a_ticket_until_it_goes_on() {
        let power = |step: f64| 1.7 + 8.0 * step.powf(-0.3);
        let run = with_loss(9000, |step| power(if step > 4000.0 { step - 2500.0 } else { step.min(1500.0) }));
        let findings = judge(&run);
        let found = raised(&findings);
        assert!(matches!(found[..], [(Kind::Plateau, Severity::Ticket, 1600..3500)]), "{found:?}");
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn a_fall_that_ends_with_the_schedule_is_none() {
        let mut run = with_loss(5000, |step| 1.7 + 8.0 * step.min(1500.0).powf(-0.3));
        run.iter_mut().filter(|s| s.step > 1500).for_each(|s| s.lr = Some(1e-5));
        assert!(raised(&judge(&run)).is_empty());
    }
}
