//! Detects a loss that rises within the first 16 lines of a run that logs every 50th step or fewer,
//! where [`super::loss_spike`] still learns the usual loss. If every step is logged, the first 16
//! are seconds of a run, and vary widely.
//!
//! Nothing but the best loss so far is needed to see it: of single lines at first, of means of 3
//! from the eighth line on. A page has stood above that, in `lines` lines in a row, by 0.8 nats
//! ([`LossScale::nat`]) and by 2.5 times what neighbouring lines differ, and is not on its way
//! back: a run with noisy lines must rise further. A single line that is 0.8 nats and 8 times what
//! lines differed before it above the best is a ticket, from the tenth line on. A loss that is
//! below zero now and then has no best, and is not judged.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{LossScale, PRINTED, Shared};
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Rise above the best loss, in nats (see [`LossScale::nat`]): an engineering limit, the rise
    /// with which a single sample is a ticket in [`super::loss_spike`].
    pub rise: f64,
    /// Lines in a row: an engineering limit. The sigmas are in `MOVES`.
    pub lines: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, rise: 0.8, lines: 5 }
    }
}

/// Steps between two lines, at least.
const SPARSE: i64 = 50;
/// Share of the first rise that is left of one that is not on its way back: an engineering limit,
/// since the first rise is 9 sigmas.
const LEFT: f64 = 0.8;
/// The number of lines that are evaluated here, and the number from which the baseline of the loss
/// is known, so that `loss_spike` evaluates it.
const FIRST: u32 = 16;
const KNOWN: u32 = 64;
/// Lines before one alone is judged, and mean differences of neighbouring lines that it must be out
/// by. The mean difference of two independent normal values is 1.13 sigmas, so 8 are 9 sigmas of a
/// line.
const SINGLE: u32 = 10;
const SINGLE_MOVES: f64 = 8.0;
/// Mean differences that lines in a row must be out by: 2.8 sigmas of a line, above which 0.24 % of
/// a normal distribution lie.
const MOVES: f64 = 2.5;
/// Lines back near the best that end it.
const CALM: u32 = 3;

/// Lines of which the best is a mean, and from which line on.
const MEAN: usize = 3;
const MEANS: u32 = 8;

/// The state of an attempt until its baseline is known; `None` after that.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EarlyDivergence {
    start: Option<Box<Start>>,
    known: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Start {
    latch: Latch,
    n: u32,
    best: f64,
    best_step: i64,
    last: Window<MEAN>,
    /// Mean difference of neighbouring lines: of those that are not high, and of all but the first
    /// two, between which a loss falls most.
    moves: f64,
    differences: f64,
    /// Lines in a row above the best, the first of them, and its rise.
    high: u32,
    onset: i64,
    first_rise: f64,
    calm: u32,
}

impl Start {
    fn take(&mut self, c: &Config, step: &mut JudgedStep<'_>, loss: f64, scale: &LossScale) {
        self.n = self.n.saturating_add(1);
        let moved = self.last.iter().last().map_or(0.0, |last| (loss - last).abs());
        self.last.push(loss);
        if self.n == 1 {
            (self.best, self.best_step) = (loss, step.sample.step);
            return;
        }
        if self.n > 2 {
            self.differences += (moved - self.differences) / f64::from(self.n - 2);
        }
        let least = (c.rise * scale.nat(self.best)).max(PRINTED * step.sample.q.loss);
        let rise = loss - self.best;
        let high = rise > least.max(MOVES * self.differences);
        if !high {
            self.high = 0;
            // The upward jump is what must be detected, and is not usual.
            self.moves += (moved - self.moves) / f64::from(self.n.min(16));
        } else if self.high == 0 {
            (self.high, self.onset, self.first_rise) = (1, step.sample.step, rise);
        } else {
            self.high += 1;
        }
        if self.latch.is_raised() {
            self.follow(step, loss, high);
        }
        if high && self.n <= FIRST && step.sample.interval >= SPARSE {
            self.judge(c, step, loss, rise);
        }
        let level = if self.n < MEANS { loss } else { self.last.iter().sum::<f64>() / MEAN as f64 };
        if level < self.best || self.n == MEANS && self.high == 0 {
            (self.best, self.best_step) = (level, step.sample.step);
        }
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, loss: f64, rise: f64) {
        let lasts = self.high >= c.lines && rise > LEFT * self.first_rise;
        let jumps = self.n > SINGLE && rise > SINGLE_MOVES * self.moves;
        let severity = match (lasts, jumps) {
            (true, _) => Severity::Page,
            (false, true) => Severity::Ticket,
            _ => return,
        };
        if !self.latch.raise(severity) {
            return;
        }
        self.calm = 0;
        let why = Sentence::from(clause!(
            "loss {now} is {over} above the best so far, {best} at step {best_step}",
            now = loss,
            over = rise,
            best = self.best,
            best_step = Fact::Step(self.best_step),
        ));
        let why = why.and_perhaps(
            lasts.then(|| clause!("it has been above that for {lines} lines", lines = self.high)),
        );
        step.raise(self.finding(loss, why), severity);
    }

    /// Ends the incident when the loss is back, or when its level is known: other detectors handle
    /// a later rise.
    fn follow(&mut self, step: &mut JudgedStep<'_>, loss: f64, high: bool) {
        self.calm = if high { 0 } else { self.calm + 1 };
        let back = self.calm >= CALM;
        if (back || self.n >= KNOWN) && self.latch.clear() {
            let what =
                if back { "loss is back at" } else { "loss stays where it is, taken as the new level:" };
            step.clear(self.finding(loss, clause!("{what} {now}", what, now = loss)));
        }
    }

    fn finding(&self, loss: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::Divergence,
            signal: "loss",
            start_step: self.onset,
            value: loss,
            expected: self.best,
            score: (loss - self.best) / self.differences.max(f64::MIN_POSITIVE),
            why: why.into(),
        }
    }
}

impl StepDetector for EarlyDivergence {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let Some(loss) = s.loss.filter(|v| v.is_finite()) else { return };
        if !c.enabled || s.interval == 0 || shared.loss.is_signed() {
            return;
        }
        if shared.restarted {
            self.known = false;
            if let Some(mut start) = self.start.take() {
                if start.latch.clear() {
                    step.clear(start.finding(loss, clause!("the run restarted")));
                }
            }
        }
        if self.known {
            return;
        }
        let start = self.start.get_or_insert_default();
        start.take(c, step, loss, &shared.loss);
        if start.n >= KNOWN && !start.latch.is_raised() {
            (self.start, self.known) = (None, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, judge, open, raised};
    use crate::sample::StepSample;

    /// Lines of 200 steps each.
    fn sparse(losses: &[f64]) -> Vec<StepSample> {
        let line = |(i, loss): (usize, &f64)| StepSample {
            step: 200 * i as i64,
            ts: stepwatch_model::time::Ts(100_000 * i as i64),
            interval: 200,
            loss: Some(*loss),
            ..StepSample::default()
        };
        losses.iter().enumerate().map(line).collect()
    }

    #[test]
    fn a_rise_in_the_second_line_that_stays_pages_and_ends() {
        let mut losses = vec![9.25, 3.0];
        losses.extend([4.47, 3.99, 4.41, 4.55, 4.43, 4.62, 4.73, 4.54, 4.99, 4.65]);
        losses.extend([3.4, 3.1, 2.9, 2.8]);
        let findings = judge(&sparse(&losses));
        assert_eq!(raised(&findings), [(Kind::Divergence, Severity::Page, 2000)]);
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn one_line_far_above_a_quiet_start_is_a_ticket() {
        let mut losses: Vec<f64> = (0..14).map(|i| 2.0 + 4.0 / f64::from(i + 1)).collect();
        losses.push(6.5);
        losses.extend([2.2; 8]);
        let findings = judge(&sparse(&losses));
        assert_eq!(raised(&findings), [(Kind::Divergence, Severity::Ticket, 2800)]);
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn noisy_lines_of_a_small_batch_are_silent() {
        for seed in 0..50 {
            let mut noise = Noise::new(seed);
            let losses: Vec<f64> = (0..64).map(|_| 1.4 + 0.4 * noise.normal()).collect();
            let found = raised(&judge(&sparse(&losses)));
            assert!(found.iter().all(|(k, ..)| *k != Kind::Divergence), "{seed}: {found:?}");
        }
    }

    #[test]
    fn a_loss_of_either_sign_is_not_judged() {
        let losses: Vec<f64> = (0..40).map(|i| if i < 8 { -2.0 } else { 0.5 }).collect();
        assert!(raised(&judge(&sparse(&losses))).iter().all(|(k, ..)| *k != Kind::Divergence));
    }
}
