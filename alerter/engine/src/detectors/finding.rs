//! What a detector found, before it is known how loudly to say it.

use crate::sample::StepSample;
use crate::verdict::{Change, Kind, Severity, Verdict};

#[derive(Debug, Clone)]
pub struct Finding {
    pub kind: Kind,
    pub signal: &'static str,
    pub start_step: i64,
    pub value: f64,
    pub expected: f64,
    pub score: f64,
    pub why: String,
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
            signal: self.signal,
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

/// Three significant digits, as a person would write them: `0.24`, `145`, `2.35e9`.
pub fn num(v: f64) -> String {
    let a = v.abs();
    if !v.is_finite() || (a != 0.0 && !(1e-3..1e7).contains(&a)) {
        return if v.is_finite() { format!("{v:.2e}") } else { format!("{v}") };
    }
    let decimals = if a == 0.0 { 0 } else { (2 - a.log10().floor() as i32).max(0) as usize };
    let text = format!("{v:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (v, text) in [
            (0.242, "0.242"),
            (145.119, "145"),
            (2.0, "2"),
            (8.7898, "8.79"),
            (34_132.1, "34132"),
            (2.35e14, "2.35e14"),
            (5e-5, "5.00e-5"),
            (0.0, "0"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(num(v), text);
        }
    }
}
