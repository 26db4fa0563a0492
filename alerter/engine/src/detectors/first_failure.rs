//! When many ranks fail, the one that failed first: the others mostly follow from it.
//!
//! A failure is a process that is gone, a `bye` with a non-zero code and its last words, or torchelastic's `error.json`. They are put in
//! the order of their own clocks. What says that it only followed comes after what does not: the peers of a dead rank report a
//! connection that was reset, a collective that timed out, or the signal by which the launcher ended them, and their word may arrive
//! before that of the rank itself.
//!
//! It belongs to the incident of the dead ranks, and says in it whose log to read. A ticket by itself.

use serde::{Deserialize, Serialize};

use super::straggler::at;
use crate::detector::ClockDetector;
use crate::run::{Facts, Topic};
use crate::time::Ts;
use crate::verdict::{Change, Kind, Severity, Suspect, Verdict};

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

/// Failures that make it a question which was first.
const MANY: usize = 2;
/// How the words of those that only followed read, in lower case.
const FOLLOWED: [&str; 12] = [
    "connection reset",
    "connection closed",
    "broken pipe",
    "watchdog",
    "timed out",
    "timeout",
    "remote process exited",
    "sigterm",
    "code -15",
    "signal 15",
    "peer closed",
    "aborted by",
];
/// Words that say nothing at all.
const WORDLESS: &str = "closed its socket";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FirstFailure {
    /// Who was named, and why.
    told: Option<(String, String)>,
}

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) place: String,
    pub(crate) at: Ts,
    pub(crate) text: String,
}

/// It broke by itself, as far as its words tell: 0; it says nothing: 1; it followed another: 2.
pub(crate) fn follows(words: &str) -> u8 {
    let text = words.to_lowercase();
    if FOLLOWED.iter().any(|word| text.contains(word)) { 2 } else { u8::from(text.contains(WORDLESS)) }
}

impl Failure {
    fn rank(&self) -> u8 {
        follows(&self.text)
    }
}

/// Every failure since the run last moved, the first first.
pub(crate) fn failures(f: &Facts) -> Vec<Failure> {
    let mut all: Vec<Failure> = Vec::new();
    for (rank, d) in &f.deaths {
        all.push(Failure { place: at(f, *rank), at: d.when, text: d.text.clone() });
    }
    for r in f.reports.of(Topic::TorchelasticError).filter(|r| r.at >= f.last_progress) {
        let place = r.rank.map_or_else(|| r.place(), |rank| at(f, rank));
        match all.iter_mut().find(|had| had.place == place) {
            // The exception says more than the exit code.
            Some(had) => {
                had.at = had.at.min(r.when);
                had.text.clone_from(&r.text);
            }
            None => all.push(Failure { place, at: r.when, text: r.text.clone() }),
        }
    }
    all.sort_by(|a, b| (a.rank(), a.at, &a.place).cmp(&(b.rank(), b.at, &b.place)));
    // What says nothing but came well before everything else is the one that broke: it had no time for words.
    if let Some(silent) = all.iter().position(|x| x.rank() == 1) {
        let others = all.iter().enumerate().filter(|(i, _)| *i != silent).map(|(_, x)| x.at).min();
        if others.is_some_and(|at| all[silent].at < at) {
            let first = all.remove(silent);
            all.insert(0, first);
        }
    }
    all
}

impl ClockDetector for FirstFailure {
    type Config = Config;

    fn look(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        if !c.enabled || self.told.is_none() && f.deaths.is_empty() {
            return;
        }
        let all = failures(f);
        let over = f.deaths.is_empty() || f.ended.as_ref().is_some_and(|e| e.well());
        if over {
            if self.told.take().is_some() {
                out.push(verdict(
                    now,
                    f,
                    Change::Clear,
                    Severity::Info,
                    "the run goes on or was ended".into(),
                ));
            }
            return;
        }
        let Some(first) = all.first().filter(|_| all.len() >= MANY) else { return };
        let answer = (first.place.clone(), first.text.clone());
        if self.told.as_ref() == Some(&answer) {
            return;
        }
        let why = format!(
            "of {} ranks that failed, {} was the first, at {}: {}; read its log, the others followed",
            all.len(),
            first.place,
            first.at,
            first.text
        );
        let mut v = verdict(now, f, Change::Raise, Severity::Ticket, why);
        v.value = all.len() as f64;
        v.suspects = vec![Suspect {
            what: first.place.clone(),
            why: format!("failed first, at {}: {}", first.at, first.text),
        }];
        self.told = Some(answer);
        out.push(v);
    }

    fn deadline(&self, _: &Config, _: &Facts) -> Option<Ts> {
        None
    }
}

fn verdict(now: Ts, f: &Facts, change: Change, severity: Severity, why: String) -> Verdict {
    let step = f.last_step.unwrap_or(0);
    Verdict {
        change,
        kind: Kind::FirstFailure,
        severity,
        signal: "process".into(),
        step,
        ts: now,
        start_step: step,
        value: 0.0,
        expected: 0.0,
        score: 1.0,
        why,
        suspects: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_followed_come_after_the_one_that_broke() {
        let failure = |at, text: &str| Failure { place: String::new(), at: Ts(at), text: text.into() };
        for (text, rank) in [
            ("exited with code 1: RuntimeError: CUDA error: an illegal memory access", 0),
            ("process 42 closed its socket", 1),
            ("exited with code 1: NCCL communicator was aborted: Connection reset by peer", 2),
            ("exited with code -6: Watchdog caught collective operation timeout", 2),
            ("exited with code -15", 2),
        ] {
            assert_eq!(failure(0, text).rank(), rank, "{text}");
        }
    }
}
