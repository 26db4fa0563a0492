//! Detects an MFU above what hardware can reach: the model, the GPU or the tokens are declared
//! wrong.
//!
//! The best published training runs reach 60 %, and a matrix multiplication alone about 80. An MFU
//! that stays above 75 % is an error of accounting, mostly a GPU that is faster than the one in the
//! table, a number format that is not the one used, or tokens counted twice. What is computed by
//! it, a cost or a comparison, is wrong then; the training is not: a ticket, never a page.

use serde::{Deserialize, Serialize};

use crate::detector::draft::Draft;
use crate::detector::shared::Shared;
use crate::detector::{JudgedStep, StepDetector};
use crate::stats::latch::Latch;
use stepwatch_model::{Fact, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Highest MFU that is believed.
    pub ratio: f64,
    /// Samples in a row above it that raise, and at or below it that clear.
    pub samples: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ratio: 0.75, samples: 32 }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MfuImplausible {
    latch: Latch,
    /// Samples in a row on the other side.
    other: u32,
    onset: i64,
}

impl MfuImplausible {
    fn finding(&self, c: &Config, mfu: f64, why: impl Into<Sentence>) -> Draft {
        Draft {
            kind: Kind::MfuImplausible,
            signal: "mfu",
            start_step: self.onset,
            value: mfu,
            expected: c.ratio,
            score: mfu / c.ratio,
            why: why.into(),
        }
    }
}

impl StepDetector for MfuImplausible {
    type Config = Config;

    fn step(&mut self, c: &Config, step: &mut JudgedStep<'_>, _: &mut Shared) {
        let Some(mfu) = step.sample.computed_mfu.filter(|v| v.is_finite() && c.enabled) else { return };
        let above = mfu > c.ratio;
        if above == self.latch.is_raised() {
            self.other = 0;
            return;
        }
        if self.other == 0 && above {
            self.onset = step.sample.step;
        }
        self.other += 1;
        if self.other < c.samples {
            return;
        }
        self.other = 0;
        let now = Fact::percent(mfu, 1);
        if above && self.latch.raise(Severity::Ticket) {
            let why = clause!(
                "MFU has been above {limit} % for {samples} samples, {now} % now: no run reaches that, so the model, the GPU, \
                 its number format or the tokens are declared wrong",
                limit = Fact::percent(c.ratio, 0),
                samples = c.samples,
                now,
            );
            step.raise(self.finding(c, mfu, why), Severity::Ticket);
        } else if self.latch.clear() {
            step.clear(self.finding(c, mfu, clause!("MFU is {now} %, which can be", now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::{healthy, judge, open, raised};
    use crate::sample::StepSample;

    fn with_mfu(mfu: impl Fn(usize) -> Option<f64>) -> Vec<StepSample> {
        let mut run = healthy(5, 400);
        run.iter_mut().enumerate().for_each(|(i, s)| s.computed_mfu = mfu(i));
        run
    }

    #[test]
    fn an_mfu_that_cannot_be_is_a_ticket_until_it_can() {
        let findings = judge(&with_mfu(|i| Some(if (100..300).contains(&i) { 0.92 } else { 0.45 })));
        assert_eq!(raised(&findings), [(Kind::MfuImplausible, Severity::Ticket, 132)]);
        assert!(open(&findings).is_empty());
    }

    #[test]
    fn a_few_high_samples_and_numbers_that_are_not_ours_are_none_of_our_business() {
        let findings = judge(&with_mfu(|i| Some(if i % 20 < 10 { 0.8 } else { 0.45 })));
        assert!(findings.is_empty(), "{findings:?}");
        assert!(judge(&with_mfu(|i| Some(f64::NAN).filter(|_| i > 100))).is_empty());
        let mut reported = healthy(5, 400);
        reported.iter_mut().for_each(|s| s.mfu = Some(412.0));
        assert!(judge(&reported).is_empty(), "teraflops in its place");
    }
}
