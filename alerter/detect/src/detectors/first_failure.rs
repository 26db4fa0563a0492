//! Finds the rank that failed first when many ranks fail: the other failures mostly follow from it.
//!
//! A failure is a process that is gone, a `bye` with a non-zero code and its last words, or
//! torchelastic's `error.json`. They are put in the order of their own clocks. Failures whose text
//! shows that they only followed come after the others: the peers of a dead rank report a
//! connection that was reset, a collective that timed out, or the signal by which the launcher
//! ended them, and their report may arrive before that of the rank itself.
//!
//! The finding belongs to the incident of the dead ranks, and names the rank whose log to read. A
//! ticket by itself.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use crate::run::failures::failures;
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// The number of failures from which the first one is reported.
const MANY: usize = 2;
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The place that was reported as the first to fail, and its text.
    reported: Option<Box<(Target, String)>>,
}

impl ClockDetector for FirstFailure {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        if !c.enabled || self.reported.is_none() && f.deaths.is_empty() {
            return;
        }
        let all = failures(f);
        let over = f.deaths.is_empty() || f.ended.as_ref().is_some_and(|e| e.well());
        if over {
            if self.reported.take().is_some() {
                out.push(finding(
                    view,
                    Change::Clear,
                    Severity::Info,
                    clause!("the run goes on or was ended"),
                ));
            }
            return;
        }
        let Some(first) = all.first().filter(|_| all.len() >= MANY) else { return };
        let answer = (first.place.clone(), first.text.clone());
        if self.reported.as_deref() == Some(&answer) {
            return;
        }
        let why = clause!(
            "of {failed} ranks that failed, {first} was the first, at {at}: {text}",
            failed = all.len(),
            first = first.place.clone(),
            at = first.at,
            text = first.text.clone(),
        );
        let advice = clause!("read its log, the others followed");
        let why = Sentence::from(why).and(advice).naming(first.place.clone());
        let mut v = finding(view, Change::Raise, Severity::Ticket, why);
        v.value = all.len() as f64;
        v.suspects = vec![Suspect::new(
            first.place.clone(),
            Observation::FailedFirst { at: first.at, words: first.text.clone(), course: first.course },
        )];
        self.reported = Some(Box::new(answer));
        out.push(v);
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None
    }
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    Finding { score: 1.0, why: why.into(), ..view.finding(Kind::FirstFailure, "process", change, severity) }
}

#[cfg(test)]
mod tests {
    use stepwatch_model::Course;

    use crate::run::failures::course;

    #[test]
    fn those_that_followed_come_after_the_one_that_broke() {
        for (text, expected) in [
            ("exited with code 1: RuntimeError: CUDA error: an illegal memory access", Course::Broke),
            ("exited with code 1: NCCL communicator was aborted: Connection reset by peer", Course::Followed),
            ("exited with code -6: Watchdog caught collective operation timeout", Course::Followed),
            ("exited with code -15", Course::Followed),
        ] {
            assert_eq!(course(text), expected, "{text}");
        }
    }
}
