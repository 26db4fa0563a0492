//! Detects work at risk: no checkpoint for more work than this run usually does between two, or a
//! checkpoint that failed.
//!
//! Work is the run's own time while it moves (`run::Checkpoints`): a queue, a pause or a clock that
//! differs from ours adds none. What is usual is the median of the last 8 intervals, once two are
//! known. A ticket at 1.5 times that (plus the usual duration), a page at 3 times. No ticket before
//! `floor`, no page before twice of it: losing a few minutes of work costs little.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::RunState;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Change, Clause, Finding, Kind, Sentence, Severity, clause};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    pub floor: Span,
    /// Multiples of the usual interval: engineering limits.
    pub ticket_at: f64,
    pub page_at: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, floor: Span::secs(300), ticket_at: 1.5, page_at: 3.0 }
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CkptStale {
    raised: Option<Severity>,
    /// Time of the failed checkpoint that was reported last.
    failure_reported: Option<Ts>,
}

impl CkptStale {
    /// Seconds of work without a checkpoint that make a ticket, and a page.
    fn due(c: &Config, f: &RunState) -> Option<(f64, f64)> {
        let k = &f.checkpoints;
        k.last_at?;
        let interval = k.usual_interval()?;
        let takes = k.usual_duration().unwrap_or(0.0);
        let floor = c.floor.as_secs_f64();
        let at = |times: f64, floor: f64| (times * interval + takes).max(floor);
        Some((at(c.ticket_at, floor), at(c.page_at, 2.0 * floor)))
    }

    fn clear(&mut self, view: RunAt<'_>, why: Clause, out: &mut Vec<Finding>) {
        if self.raised.take().is_some() {
            out.push(finding(view, Change::Clear, Severity::Info, why));
        }
    }

    fn failure(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let f = view.run;
        let Some((at, text)) = f.checkpoints.failure.as_ref().filter(|_| c.enabled) else { return };
        if self.failure_reported != Some(*at) {
            self.failure_reported = Some(*at);
            self.raised = self.raised.max(Some(Severity::Ticket));
            let why = Sentence::from(clause!("a checkpoint failed: {text}", text = text.clone()))
                .and_perhaps(at_risk(f));
            out.push(finding(view, Change::Raise, Severity::Ticket, why));
        }
    }
}

impl ClockDetector for CkptStale {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.run;
        if f.ended.is_some() {
            self.clear(view, clause!("the run ended"), out);
            return;
        }
        self.failure(c, view, out);
        let work = f.checkpoints.work;
        let severity = match Self::due(c, f) {
            Some((_, page)) if work >= page => Some(Severity::Page),
            Some((ticket, _)) if work >= ticket => Some(Severity::Ticket),
            _ => None,
        };
        match severity {
            Some(s) if self.raised.is_none_or(|had| had < s) => {
                self.raised = Some(s);
                out.push(finding(view, Change::Raise, s, sentence(view)));
            }
            None if f.checkpoints.failure.is_none() => {
                self.clear(view, clause!("a checkpoint was written"), out);
            }
            _ => {}
        }
    }

    fn deadline(&self, _: &Config, _: &RunState) -> Option<Ts> {
        None // work passes with the steps, which make it look
    }
}

fn sentence(view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let c = &f.checkpoints;
    let what = match c.in_progress {
        Some(since) => clause!("a checkpoint has been running for {runs}", runs = now - since),
        None => clause!("no checkpoint"),
    };
    let usual =
        c.usual_interval().map(|s| clause!("one is usual every {every}", every = Span::from_secs_f64(s)));
    Sentence::from(what).and_perhaps(at_risk(f)).and_perhaps(usual)
}

fn at_risk(f: &RunState) -> Option<Clause> {
    let c = &f.checkpoints;
    c.last_at.map(|_| clause!("{at_risk} of work would be lost", at_risk = Span::from_secs_f64(c.work)))
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    let (f, c) = (view.run, &view.run.checkpoints);
    let expected = c.usual_interval().unwrap_or(0.0);
    Finding {
        start_step: c.last_step.or(f.last_step).unwrap_or(0),
        value: c.work,
        expected,
        score: if expected > 0.0 { c.work / expected } else { 0.0 },
        why: why.into(),
        ..view.finding(Kind::CkptStale, "unsaved_work", change, severity)
    }
}
