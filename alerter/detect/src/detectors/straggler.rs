//! Detects a rank that computes longer than its peers, and the other reasons for which a step waits
//! for its slowest rank.
//!
//! [`crate::run::rank_compute_time`] compares ranks of one pipeline stage by the time that they
//! compute. Three pictures are distinguished, as in "Understanding stragglers in large model
//! training" (OSDI 2025):
//! * *persistent*: one rank is slow in 5 of its last 8 steps, by more than 10 % and 6 sigmas in
//!   each and on average: its host or GPU. 5 % are enough where it lasts for 32 steps, and 2 %
//!   where it has not always been so: chips of one kind differ by that, but do not begin to. Such a
//!   rise must be 6 times the spread of those of its peers, and must make it slower than the
//!   slowest has always been: less does not slow the run. A few ranks only: where a quarter are
//!   slow, the work is uneven.
//! * *rotating*: each step loses 10 % to its slowest rank, or 2 % more than it used to, and that is
//!   another one each time (normalised entropy of who was slowest above 0.6, the same one twice
//!   running in less than a fifth). Pauses of about one length on ranks that are otherwise alike
//!   are garbage collection; times that are spread over all ranks are sequences of uneven length.
//! * *stage*: the ranks of one stage agree with each other and take longer than those of the other
//!   stages: the partitioning.
//!
//! One slow rank is a ticket, and a page when it has held for `page_after`: every GPU of the job
//! waits for it in every step. It pages from a cost on that is worth waking a person: 10 %, or 4 %
//! that the steps have come to wait for it in the middle of the run, as a droop of that size does.
//! The other pictures are for the researcher to change, and tickets at most.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use crate::run::rank_compute_time::SEEN;
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause};

pub use config::Config;
use picture::{HYSTERESIS, Rotation, persistent, rotating};
pub(crate) use words::suspect;
use words::{no_host, slowest, split, who, worst};

mod config;
mod picture;
#[cfg(test)]
mod tests;
mod words;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Straggler {
    /// The number of steps that were evaluated.
    judged: u64,
    named: BTreeSet<u32>,
    reported: Option<Reported>,
    /// A slow stage was reported. It is reported once: the partitioning does not change.
    staged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Reported {
    picture: Picture,
    severity: Severity,
    since: Ts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Picture {
    Stage,
    Rotating,
    Uneven,
    Persistent,
}

impl Straggler {
    fn judge(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let (f, s) = (view.run, &view.run.compute_times);
        let slow = persistent(c, s, &self.named);
        let few = slow.len() <= (s.members.len() / 4).max(1);
        if !slow.is_empty() {
            let picture = if few { Picture::Persistent } else { Picture::Uneven };
            let news = slow.iter().any(|rank| !self.named.contains(rank));
            self.named = slow;
            if news || self.reported.is_none_or(|t| t.picture < picture) {
                let why = if few { who(f, &self.named) } else { split(s, &self.named).into() };
                out.push(self.report(c, view, picture, why));
            }
            return;
        }
        self.named.clear();
        if let Some(rotation) = rotating(c, s, self.rotates()) {
            if !self.rotates() {
                out.push(self.report(c, view, Picture::Rotating, rotation.words(s)));
            }
            return;
        }
        let still = 1.0 + HYSTERESIS * (c.stage - 1.0);
        let staged = self.reported.is_some_and(|t| t.picture == Picture::Stage);
        if staged && s.longest_stage().is_some_and(|(_, ratio)| ratio > still) {
            return;
        }
        if self.reported.take().is_some() {
            let mut v = finding(view, Change::Clear, Severity::Info);
            v.why = clause!("the ranks compute equally long again").into();
            out.push(v);
        }
        self.stage(c, view, out);
    }

    fn stage(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let full = f.compute_times.groups.values().all(|g| g.peak.len() >= SEEN);
        let longest = f.compute_times.longest_stage().filter(|_| full && !self.staged);
        let Some((stage, ratio)) = longest.filter(|(_, ratio)| *ratio > 1.10) else { return };
        self.staged = true;
        let severity = if ratio > c.stage { Severity::Ticket } else { Severity::Info };
        let change = if severity == Severity::Info { Change::Note } else { Change::Raise };
        let mut v = finding(view, change, severity);
        (v.value, v.score) = (ratio, ratio);
        let seen = Observation::StageSlower { stage, value: ratio.into() };
        v.why = Sentence::from(&seen);
        v.suspects = vec![Suspect::new(Target::Stage { stage }, seen)];
        out.push(v);
        if change == Change::Raise {
            self.reported = Some(Reported { picture: Picture::Stage, severity, since: now });
        }
    }

    fn report(&mut self, c: &Config, view: RunAt<'_>, picture: Picture, why: Sentence) -> Finding {
        let RunAt { now, run: f } = view;
        let had = self.reported.filter(|t| t.picture == picture);
        let since = had.map_or(now, |t| t.since);
        let page = picture == Picture::Persistent && now >= since + c.page_after && self.is_costly(c, f);
        let severity = if page { Severity::Page } else { Severity::Ticket };
        self.reported =
            Some(Reported { picture, severity: had.map_or(severity, |t| t.severity.max(severity)), since });
        let mut v = finding(view, Change::Raise, severity);
        v.why = why;
        v.suspects = match picture {
            Picture::Persistent => slowest(f, &self.named),
            Picture::Uneven => vec![no_host(Observation::UnevenWork)],
            Picture::Rotating => vec![no_host(Observation::SlowestRotates)],
            Picture::Stage => Vec::new(),
        };
        if let Some((_, worst)) = worst(f, &self.named) {
            v.value = f64::from(worst.excess).exp();
            v.score = worst.drift.level();
            v.start_step = worst.onset().min(v.step);
        } else if let Some(Rotation { lost, .. }) = rotating(c, &f.compute_times, self.rotates()) {
            (v.value, v.score) = (1.0 + lost, lost / c.rotating);
        }
        v
    }

    fn is_costly(&self, c: &Config, f: &RunState) -> bool {
        let worst = worst(f, &self.named).map(|(_, m)| m);
        worst.is_some_and(|m| {
            f.compute_times.groups.get(&m.stage).is_some_and(|g| picture::is_costly(c, m, g))
        })
    }

    /// Whether rotation of the slowest rank was reported.
    fn rotates(&self) -> bool {
        self.reported.is_some_and(|t| t.picture == Picture::Rotating)
    }
}

impl ClockDetector for Straggler {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        if !c.enabled || f.ended.is_some() {
            return;
        }
        if self.judged != f.compute_times.judged {
            if f.compute_times.members.is_empty() && self.reported.is_none() {
                return;
            }
            self.judged = f.compute_times.judged;
            self.judge(c, view, out);
        }
        let due = self.deadline(c, f).is_some_and(|at| at <= now);
        if due && self.is_costly(c, f) {
            out.push(self.report(c, view, Picture::Persistent, who(f, &self.named)));
        }
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        let reported =
            self.reported.filter(|t| t.picture == Picture::Persistent && t.severity < Severity::Page)?;
        (c.enabled && f.ended.is_none() && self.is_costly(c, f)).then(|| reported.since + c.page_after)
    }
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity) -> Finding {
    let step = view.run.compute_times.last.or(view.run.last_step).unwrap_or(0);
    Finding {
        step,
        start_step: step,
        value: 1.0,
        expected: 1.0,
        ..view.finding(Kind::Straggler, "compute_time", change, severity)
    }
}
