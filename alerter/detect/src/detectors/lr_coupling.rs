//! Detects a learning rate that is too high: the loss rises while the rate is at its height.
//!
//! * A ticket: the loss has been rising while the learning rate stands at its height (80 % of its
//!   maximum or more, after the warm-up). Over 32 blocks of 8 samples Kendall's S against time is
//!   above 4.5 of its standard deviation, `√(n(n−1)(2n+5)/18)`, and the rise from the first to the
//!   last quarter above `rise` and 3 times the median distance of neighbouring blocks (4·10⁻⁷ of
//!   independent normal losses). It ends when the rate has come down or the loss has.
//! * A suspect: where loss or gradients go wrong within 500 steps after the rate rose by half or
//!   more other than in the first warm-up (a schedule begun anew, a resume with another rate), the
//!   incident names the change.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::sample::StepSample;
use crate::stats::attempt::Attempts;
use crate::stats::block::{BLOCK, Blocks};
use crate::stats::latch::Latch;
use crate::stats::median::{Window, median};
use crate::stats::trend::Rising;
use stepwatch_model::{
    Cause, Change, Clause, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share of its maximum from which the rate counts as high: an engineering limit.
    pub high: f64,
    /// Rise of the loss in nats (relative for losses above 10): an engineering limit.
    pub rise: f64,
    /// Steps after a rise of the rate within which it is a suspect.
    pub suspect_for: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, high: 0.8, rise: 0.05, suspect_for: 500 }
    }
}

/// Blocks that a trend is judged over.
const BLOCKS: usize = 32;
/// Kendall's S that is one: 4.5 of `√(n(n−1)(2n+5)/18)`, its standard deviation without a trend;
/// 3·10⁻⁶ of a normal distribution lies above.
const TREND: i32 = 278;
/// A change of the rate by this factor is hardly ever planned in the middle of a run: an
/// engineering limit, because a rate has no noise.
const FACTOR: f64 = 1.5;
/// The number of samples over which such a change may be spread.
const WITHIN: usize = 16;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LrCoupling {
    latch: Latch,
    attempts: Attempts,
    rates: Window<WITHIN>,
    highest: f64,
    blocks: Blocks,
    losses: Rising<BLOCKS>,
    onset: i64,
    first: i64,
    /// The last rise of the rate: before, after, and its step.
    rose: Option<(f64, f64, i64)>,
}

impl LrCoupling {
    fn rate(&mut self, s: &StepSample, lr: f64, warming_up: bool) {
        let least = self.rates.least();
        // A rate that keeps rising is one rise, reported as it ends.
        if least > 0.0
            && lr > FACTOR * least
            && self.rates.last().is_some_and(|last| lr > last)
            && !warming_up
        {
            let from =
                self.rose.filter(|(_, to, at)| s.step - at <= WITHIN as i64 * s.interval.max(1) && *to <= lr);
            self.rose = Some((from.map_or(least, |(from, ..)| from.min(least)), lr, s.step));
        }
        self.rates.push(lr);
        self.highest = self.highest.max(lr);
    }

    fn finding(&self, value: f64, expected: f64, score: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::LrCoupling,
            signal: "loss",
            start_step: self.onset,
            value,
            expected,
            score,
            why: why.into(),
        }
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, lr: f64) {
        let trend = self.losses.kendall();
        // The loss does not rise, and has not come down from a rise.
        if trend < TREND && (trend > 0 || !self.latch.is_raised()) {
            return;
        }
        let losses: Vec<f64> = self.losses.window().iter().collect();
        let quarter = |part: &[f64]| median(&mut part.iter().map(|v| *v as f32).collect::<Vec<_>>());
        let (before, now) = (quarter(&losses[..BLOCKS / 4]), quarter(&losses[BLOCKS * 3 / 4..]));
        // The distance of neighbouring blocks, without the trend.
        let mut apart: Vec<f32> = losses.windows(2).map(|w| (w[1] - w[0]).abs() as f32).collect();
        let scale = median(&mut apart);
        let least =
            (c.rise * (before.abs() / 10.0).max(1.0)).max(3.0 * scale).max(PRINTED * step.sample.q.loss);
        let rise = now - before;
        if trend >= TREND && rise > least && self.latch.raise(Severity::Ticket) {
            self.onset = self.first;
            let why = clause!(
                "loss rose from {before} to {now} over {samples} samples while the learning rate stands at {learning_rate} \
                 (its height is {highest}): it may be too high for this model or data",
                before,
                now,
                samples = BLOCKS * BLOCK,
                learning_rate = lr,
                highest = self.highest,
            );
            step.raise(self.finding(now, before, f64::from(trend) / f64::from(TREND), why), Severity::Ticket);
        } else if trend <= 0 {
            self.settle(step, now, before, clause!("loss no longer rises"));
        }
    }

    fn settle(&mut self, step: &mut JudgedStep<'_>, now: f64, before: f64, why: Clause) {
        if self.latch.clear() {
            step.clear(self.finding(now, before, 0.0, why));
        }
    }

    fn begin_anew(&mut self) {
        self.blocks.clear();
        self.losses.clear();
    }

    /// Adds a change of the rate, as a suspect, to the findings that came after it.
    fn accuse(&self, c: &Config, step: &mut JudgedStep<'_>) {
        let is_lately = |at: i64| step.sample.step.saturating_sub(at) <= c.suspect_for;
        let Some((from, to, at)) = self.rose.filter(|(.., at)| is_lately(*at)) else { return };
        for v in
            step.out.iter_mut().filter(|v| v.change == Change::Raise && v.kind.cause() == Cause::Numerics)
        {
            let had = v.suspects.iter().any(|had| had.target == Target::LearningRate);
            if v.start_step >= at && !had {
                let (value, expected, before) = (to.into(), from.into(), v.start_step - at);
                let seen = Observation::RateChanged { step: at, value, expected, before };
                v.suspects.push(Suspect::new(Target::LearningRate, seen));
            }
        }
    }
}

impl StepDetector for LrCoupling {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        if !c.enabled || s.interval == 0 {
            return;
        }
        // The rate of a new attempt is compared with that of the last, so that a resume with
        // another rate is reported.
        let restarted = self.attempts.restarted(s.attempt);
        if restarted {
            self.begin_anew();
            self.settle(step, f64::NAN, f64::NAN, clause!("the run restarted"));
        }
        if let Some(lr) = s.lr.filter(|lr| lr.is_finite() && *lr >= 0.0) {
            let first_warm_up = shared.schedule.warming_up() && s.attempt == 0;
            self.rate(s, lr, first_warm_up);
        }
        if !step.out.is_empty() {
            self.accuse(c, step);
        }
        let (Some(loss), Some(lr)) = (s.loss.filter(|v| v.is_finite()), self.rates.last()) else {
            return;
        };
        if shared.schedule.warming_up() || lr < c.high * self.highest {
            self.begin_anew();
            return self.settle(step, loss, f64::NAN, clause!("the learning rate has come down"));
        }
        if let Some(block) = self.blocks.add(s.step, loss) {
            if self.losses.window().is_empty() {
                self.first = block.first;
            }
            self.losses.push(block.median);
            if self.losses.window().is_full() {
                self.judge(c, step, lr);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, raised};

    #[test]
    fn a_loss_that_creeps_up_at_the_height_of_the_rate_is_a_ticket_until_the_rate_falls() {
        let mut run = healthy(11, 3000);
        for s in &mut run {
            let creep = 4e-4 * (s.step - 1200).clamp(0, 600) as f64;
            let decayed = s.step > 2200;
            s.loss = Some(2.4 + creep + 0.002 * (s.step as f64 * 1.3).sin());
            s.lr = s.lr.map(|lr| if decayed { 0.3 * lr } else { lr });
        }
        let findings = judge(&run);
        let found: Vec<_> = raised(&findings).into_iter().filter(|f| f.0 == Kind::LrCoupling).collect();
        assert_eq!(found.len(), 1, "{findings:?}");
        assert!(found[0].1 == Severity::Ticket && (1300..1700).contains(&found[0].2), "{found:?}");
        assert!(!open(&findings).contains(&Kind::LrCoupling));
    }

    #[test]
    fn a_rate_that_jumped_is_a_suspect_of_what_follows() {
        let mut run = healthy(12, 1500);
        for s in &mut run[900..] {
            s.lr = Some(3e-3);
        }
        run[960..990].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 30.0));
        let findings = judge(&run);
        let page =
            findings.iter().find(|v| v.kind == Kind::GradSpike && v.severity == Severity::Page).unwrap();
        let lr = page.suspects.iter().find(|s| s.what() == "the learning rate").unwrap();
        assert_eq!(lr.why(), "it went from 3.00e-4 to 0.003 at step 901, 60 steps before");
        let mut calm = healthy(12, 1500);
        calm[960..990].iter_mut().for_each(|s| s.grad_norm = s.grad_norm.map(|g| g * 30.0));
        assert!(judge(&calm).iter().all(|v| v.suspects.is_empty()), "no change, no suspect");
    }
}
