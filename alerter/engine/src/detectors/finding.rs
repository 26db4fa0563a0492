//! What a detector found, before it is known how loudly to say it.

use crate::sample::StepSample;
use crate::verdict::{Change, Kind, Sentence, Severity, Verdict};

#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: Kind,
    pub signal: &'static str,
    pub start_step: i64,
    pub value: f64,
    pub expected: f64,
    pub score: f64,
    pub why: Sentence,
}

impl Finding {
    pub fn raise(self, s: &StepSample, severity: Severity) -> Verdict {
        self.verdict(s, Change::Raise, severity)
    }

    pub fn clear(self, s: &StepSample) -> Verdict {
        self.verdict(s, Change::Clear, Severity::Info)
    }

    pub fn note(self, s: &StepSample) -> Verdict {
        self.verdict(s, Change::Note, Severity::Info)
    }

    fn verdict(self, s: &StepSample, change: Change, severity: Severity) -> Verdict {
        Verdict {
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
