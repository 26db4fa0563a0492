//! Detects a process of the run that is gone: it closed its socket without a `bye`, or sent one
//! with a non-zero code.
//!
//! The other ranks will wait for it in the next collective, up to the library's own timeout (30
//! minutes and more), so this is the earliest sign of a stopped run. A launcher may restart the job
//! by itself: it is a ticket at once, and a page when the run has not moved for `page_after`.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use crate::run::failures::{Failure, failures};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Fact, Finding, Kind, Sentence, Severity, Suspect, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long the run may stand still after a death before it pages: the time a launcher gets to
    /// restart it.
    pub page_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, page_after: Span::secs(30) }
    }
}

/// The most ranks named one by one.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankDead {
    raised: Option<Severity>,
}

impl RankDead {
    fn page_at(c: &Config, f: &RunState) -> Option<Ts> {
        let first = f.deaths.values().map(|d| d.at).min()?;
        Some(first.max(f.last_progress).max(f.live_since) + c.page_after)
    }
}

impl ClockDetector for RankDead {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let RunAt { now, run: f } = view;
        let stopped = f.ended.as_ref().is_some_and(|e| e.well());
        if self.raised.is_some() && (f.deaths.is_empty() || stopped) {
            self.raised = None;
            let why = if stopped { clause!("the run was ended") } else { clause!("the run goes on") };
            out.push(finding(view, Change::Clear, Severity::Info, why));
        }
        let Some(page_at) = Self::page_at(c, f).filter(|_| !stopped) else { return };
        let severity = if now >= page_at { Severity::Page } else { Severity::Ticket };
        if self.raised.is_some_and(|had| had >= severity) {
            return;
        }
        self.raised = Some(severity);
        let mut v = finding(view, Change::Raise, severity, sentence(view));
        v.suspects = first_deaths(f);
        out.push(v);
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        match &self.raised {
            Some(had) if *had < Severity::Page => Self::page_at(c, f),
            _ => None,
        }
    }
}

fn sentence(view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let failures = failures(f);
    let Some(first) = failures.first() else { return Sentence::default() };
    let known = f.ranks.len().max(f.deaths.len());
    let (idle, text) = (now - f.last_progress, first.text.clone());
    let at = f
        .last_step
        .map(|s| clause!("the run stands at step {step} since {idle}", step = Fact::Step(s), idle));
    let rank = first.place.clone();
    let what = if f.deaths.len() > 1 {
        let dead = f.deaths.len();
        clause!("{dead} of {known} ranks died, {rank} first: {text}", dead, known, rank, text)
    } else {
        clause!("{rank} died: {text}", rank, text)
    };
    Sentence::from(what).and_perhaps(at).naming(first.place.clone())
}

fn first_deaths(f: &RunState) -> Vec<Suspect> {
    failures(f).into_iter().take(NAMED).map(Failure::died).collect()
}

/// A note that the run ended without a report of its end.
pub(crate) fn silent_end(view: RunAt<'_>, why: impl Into<Sentence>) -> Finding {
    finding(view, Change::Note, Severity::Info, why)
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    let dead = view.run.deaths.len() as f64;
    let why = why.into();
    Finding { value: dead, score: dead, why, ..view.finding(Kind::RankDead, "process", change, severity) }
}
