//! Detects a step that takes many times the usual one, for no reason that the trainer declared.
//!
//! A stall is a step of at least 3 times the usual one that loses 15 s or more: a ticket. A line
//! that covers several steps has their mean, and loses that many times as much. A line of more than
//! 10 steps does not count, because it may contain an evaluation. Nor does a declared checkpoint or
//! evaluation, the first step of an attempt, or a pause that returns at a fixed gap
//! ([`crate::stats::season`]) or at a round step.
//!
//! Three stalls of equal length (within 2 %) are the signature of a fixed timeout that is waited
//! out and retried: the length names the timeout to look for, in storage, the collective library or
//! the data loader.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::{PAUSE, Shared, Source, Timing};
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::attempt::Attempts;
use crate::stats::latch::Latch;
use crate::stats::median::Window;
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Times the usual step: an engineering limit.
    pub ratio: f64,
    /// Seconds lost: an engineering limit.
    pub lost_seconds: f64,
    /// Samples of usual length that end the incident.
    pub clear_after: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ratio: 3.0, lost_seconds: 15.0, clear_after: 8 }
    }
}

/// The number of stalls whose lengths are compared.
const KEPT: usize = 8;
/// Stalls of equal length that make a signature, and how equal. Of lengths that are spread evenly,
/// in logarithms, over a factor of ten, a stall has two equals among the 8 before it with a chance
/// of 0.8 %.
const EQUAL: usize = 3;
const TOLERANCE: f64 = 0.02;
/// The most steps of a line that counts.
const COUNTED: i64 = 10;
/// The number of samples of an attempt after which a long step is news.
const SETTLED: u32 = 10;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stall {
    latch: Latch,
    lengths: Window<KEPT>,
    usual_for: u32,
    samples: u32,
    attempts: Attempts,
    onset: i64,
}

impl Stall {
    /// The number of earlier stalls of this length.
    fn equal(&self, seconds: f64) -> usize {
        self.lengths.iter().filter(|l| (l / seconds - 1.0).abs() < TOLERANCE).count()
    }

    fn stalled(&mut self, step: &mut JudgedStep<'_>, seconds: f64, usual: f64) {
        let s = step.sample;
        let equal = self.equal(seconds) + 1;
        self.lengths.push(seconds);
        let mut why = Sentence::from(clause!(
            "step {step} took {took_seconds} s, {times}x the usual {usual_seconds} s",
            step = Fact::Step(s.step),
            took_seconds = seconds,
            times = seconds / usual,
            usual_seconds = usual,
        ));
        if equal >= EQUAL {
            why.add(clause!(
                "{equal} of the last stalls were equally long, which is how a timeout of about {timeout_seconds} s looks: \
                 check storage, NCCL and data loader timeouts near it",
                equal,
                timeout_seconds = seconds,
            ));
        }
        if !self.latch.is_raised() {
            self.onset = s.step;
        }
        let news = self.latch.raise(Severity::Ticket);
        let finding = self.finding(seconds, usual, why);
        if news || equal == EQUAL {
            step.raise(finding, Severity::Ticket);
        }
    }

    fn finding(&self, seconds: f64, usual: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::Stall,
            signal: "step_time",
            start_step: self.onset,
            value: seconds,
            expected: usual,
            score: seconds / usual,
            why: why.into(),
        }
    }

    fn settle(&mut self, c: &Config, step: &mut JudgedStep<'_>, seconds: f64, usual: f64) {
        if self.usual_for >= c.clear_after && self.latch.clear() {
            let why = clause!("steps take {now_seconds} s again", now_seconds = seconds);
            step.clear(self.finding(seconds, usual, why));
        }
    }

    fn judge(&mut self, c: &Config, step: &mut JudgedStep<'_>, t: Timing) {
        let Some(ratio) = t.ratio else { return };
        self.usual_for = if ratio < PAUSE { self.usual_for.saturating_add(1) } else { 0 };
        let seconds = t.seconds;
        let usual = seconds / ratio;
        let interval = step.sample.interval.max(1);
        let steps = if interval > COUNTED { 1.0 } else { interval as f64 };
        let long = ratio >= c.ratio && (seconds - usual) * steps >= c.lost_seconds;
        if long && !t.expected_pause && self.samples >= SETTLED {
            self.stalled(step, seconds, usual);
        }
        self.settle(c, step, seconds, usual);
    }
}

impl StepDetector for Stall {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, shared: &mut Shared) {
        let Some(timing) = shared.speed.now else { return };
        if self.attempts.restarted(step.sample.attempt) {
            self.samples = 0;
        }
        self.samples = self.samples.saturating_add(1);
        if c.enabled && shared.speed.source() == Source::StepTime {
            self.judge(c, step, timing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, raised};
    use crate::sample::{StepClass, StepSample};

    fn stalled(at: &[(i64, f64)]) -> Vec<StepSample> {
        let mut run = healthy(91, 1500);
        for (step, seconds) in at {
            run[*step as usize - 1].step_time = Some(*seconds);
        }
        run
    }

    #[test]
    fn a_stall_is_a_ticket_and_over_soon() {
        let findings = judge(&stalled(&[(371, 210.0)]));
        assert_eq!(raised(&findings), [(Kind::Stall, Severity::Ticket, 371)]);
        assert!(open(&findings).is_empty());
        assert!(raised(&judge(&stalled(&[(371, 12.0)]))).is_empty(), "ten seconds lost are nobody's ticket");
    }

    #[test]
    fn equal_stalls_name_the_timeout() {
        let findings = judge(&stalled(&[(340, 189.6), (410, 189.1), (671, 188.7)]));
        let last = findings.iter().rfind(|v| v.severity == Severity::Ticket).unwrap();
        assert!(last.why.to_string().contains("how a timeout of about 188.7 s looks"), "{}", last.why);
    }

    #[test]
    fn checkpoints_are_no_stalls() {
        let round: Vec<_> = (1..6).map(|i| (250 * i, 60.0)).collect();
        assert!(raised(&judge(&stalled(&round))).is_empty(), "at round steps");
        let periodic: Vec<_> = (1..10).map(|i| (37 + 140 * i, 60.0)).collect();
        let found = raised(&judge(&stalled(&periodic)));
        assert_eq!(found.len(), 3, "the fourth is expected: {found:?}");
        let mut declared = stalled(&[(371, 210.0)]);
        declared[370].class = StepClass::Checkpoint;
        assert!(raised(&judge(&declared)).is_empty());
    }
}
