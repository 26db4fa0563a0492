//! The result of a detector before its severity is known.

use crate::sample::StepSample;
use stepwatch_model::{Change, Finding, Kind, Sentence, Severity};

#[derive(Debug, Clone)]
pub struct Draft {
    pub kind: Kind,
    pub signal: &'static str,
    pub start_step: i64,
    pub value: f64,
    pub expected: f64,
    pub score: f64,
    pub why: Sentence,
}

impl Draft {
    pub(crate) fn finding(self, s: &StepSample, change: Change, severity: Severity) -> Finding {
        Finding {
            change,
            kind: self.kind,
            severity,
            signal: self.signal.into(),
            step: s.step,
            ts: s.ts,
            start_step: self.start_step,
            value: self.value,
            expected: self.expected,
            score: self.score,
            why: self.why,
            suspects: Vec::new(),
        }
    }
}

/// A value, and the expected one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) expected: f64,
}
