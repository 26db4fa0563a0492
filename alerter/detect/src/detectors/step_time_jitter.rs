//! Detects bursts of slow steps: the usual step is unchanged, but so many are slow that time is
//! lost.
//!
//! The loss of a step is its excess over the usual one, between 0 and 1. A fast mean of it (64
//! samples) against the run's own slow one (2,000 samples, which learns ten times slower from a
//! burst): a burst is when the fast one is above 5 % and above three times the slow one, with 10
//! slow steps among the last 64. It is a ticket when it has cost `ticket_lost`, a page when it has
//! cost `page_lost`: with short steps many of them are only a moment.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PAUSE, PRINTED, Shared, Source};
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::hit_window::HitWindow;
use crate::stats::latch::Latch;
use stepwatch_model::time::Span;
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share of the time lost: an engineering limit.
    pub cost: f64,
    /// Times the run's usual loss: an engineering limit.
    pub ratio: f64,
    /// Share above the usual step that makes a step slow, and how many of the last 64 must be.
    /// Where one step in 20 is slow, independently, 0.12 % of the windows hold 10 slow ones; the
    /// `ratio` is there for runs in which more are.
    pub slow: f64,
    pub slow_steps: u32,
    /// How much of the run's time it must have cost.
    pub ticket_lost: Span,
    pub page_lost: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            cost: 0.05,
            ratio: 3.0,
            slow: 0.10,
            slow_steps: 10,
            ticket_lost: Span::secs(60),
            page_lost: Span::secs(600),
        }
    }
}

/// Window in which slow steps are counted, in samples.
const WINDOW: u32 = 64;
/// Weight of a sample in the mean loss of now, and in the usual one.
const FAST: f64 = 1.0 / 64.0;
const SLOW: f64 = 1.0 / 2000.0;
/// Samples before the first judgement.
const SETTLED: u32 = 64;
/// Times the usual step that a slow one loses at most: what is longer is a stall.
const MOST: f64 = 4.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StepTimeJitter {
    latch: Latch,
    slow_votes: HitWindow,
    fast: f64,
    slow: f64,
    n: u32,
    onset: i64,
    /// Seconds lost since the burst began.
    lost: f64,
}

impl StepTimeJitter {
    fn finding(&self, usual: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::StepTimeJitter,
            signal: "step_time",
            start_step: self.onset,
            value: usual * (1.0 + self.fast),
            expected: usual * (1.0 + self.slow),
            score: self.fast / self.slow.max(1e-3),
            why: why.into(),
        }
    }
}

impl StepDetector for StepTimeJitter {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let s = step.sample;
        let enabled = c.enabled && shared.speed.source() == Source::StepTime;
        let Some(timing) = shared.speed.now.filter(|_| enabled) else { return };
        let Some(ratio) = timing.ratio.filter(|_| !timing.expected_pause) else { return };
        let excess = (ratio - 1.0).clamp(0.0, 2.0 * (PAUSE - 1.0));
        let slow = excess > c.slow.max(PRINTED * timing.grain);
        if slow && self.slow_votes.count_last(WINDOW) == 0 && !self.latch.is_raised() {
            self.onset = s.step;
        }
        self.slow_votes.push(slow);
        self.n = self.n.saturating_add(1);
        self.fast += (excess - self.fast) * FAST;
        let burst = self.fast > c.cost && self.fast > 0.5 * c.ratio * self.slow;
        let weight = if burst && self.n > SETTLED { 0.1 } else { 1.0 };
        self.slow += weight * (excess - self.slow) * SLOW.max(1.0 / f64::from(self.n));
        if self.n < SETTLED {
            return;
        }
        let usual = timing.seconds / ratio;
        let many = self.slow_votes.count_last(WINDOW) >= c.slow_steps;
        let bad = many && self.fast > c.cost && self.fast > c.ratio * self.slow;
        // The rest of a burst after its last slow steps belongs to it.
        let lasts = bad || self.latch.is_raised() || self.lost > 0.0 && self.fast > 0.4 * c.cost;
        let seconds = (ratio - 1.0).min(MOST) * usual * s.interval as f64;
        self.lost = if lasts { self.lost + seconds.max(0.0) } else { 0.0 };
        let severity = match self.lost {
            lost if !bad || lost < c.ticket_lost.as_secs_f64() => None,
            lost if lost < c.page_lost.as_secs_f64() => Some(Severity::Ticket),
            _ => Some(Severity::Page),
        };
        if let Some(severity) = severity {
            if self.latch.raise(severity) {
                let why = clause!(
                    "{slow} of the last {window} steps were slow and cost {cost} % of the time",
                    slow = self.slow_votes.count_last(WINDOW),
                    window = WINDOW,
                    cost = Fact::percent(self.fast, 0),
                );
                let still = clause!("the usual step is still {usual_seconds} s", usual_seconds = usual);
                let lost_seconds = Fact::decimal(self.lost, 0);
                let lost = clause!("{lost_seconds} s of the run lost so far", lost_seconds);
                let why = Sentence::from(why).and(still).and(lost);
                step.raise(self.finding(usual, why), severity);
            }
        } else if self.fast < 0.4 * c.cost && self.latch.clear() {
            let why = clause!("step times are steady again");
            step.clear(self.finding(usual, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{Noise, healthy, judge, open, raised};

    #[test]
    fn a_burst_of_slow_steps_is_a_ticket_and_ends() {
        let mut noise = Noise::new(111);
        let mut run = healthy(111, 2000);
        for s in &mut run[1000..1240] {
            let factor = if noise.uniform() < 0.4 { 1.7 } else { 1.0 };
            s.step_time = s.step_time.map(|t| t * factor);
        }
        let findings = judge(&run);
        let found = raised(&findings);
        assert!(
            found
                .iter()
                .any(|(k, s, step)| *k == Kind::StepTimeJitter && *s == Severity::Ticket && *step < 1200),
            "{found:?}"
        );
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn slow_steps_that_this_run_always_had_are_not_a_burst() {
        let mut run = healthy(112, 3000);
        for s in run.iter_mut().filter(|s| s.step % 7 == 0) {
            s.step_time = s.step_time.map(|t| t * 1.4);
        }
        let found = raised(&judge(&run));
        assert!(found.iter().all(|(k, ..)| *k != Kind::StepTimeJitter), "{found:?}");
    }
}
