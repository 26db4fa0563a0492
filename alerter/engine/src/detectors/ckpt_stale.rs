//! Work at risk: no checkpoint for longer than this run usually goes without one, one that takes far too long, or one that failed.
//!
//! Expected interval: the median of the last 8 intervals between successes, once two are known. A ticket at 1.5 times that (plus the
//! usual duration), a page at 3 times; a save that runs 3 times its usual duration is a ticket. Deadlines are never shorter
//! than `floor`: losing a few minutes is not worth a word.

use serde::{Deserialize, Serialize};

use crate::detector::ClockDetector;
use crate::run::Facts;
use crate::time::{Span, Ts};
use crate::verdict::{Change, Kind, Severity, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    pub floor: Span,
    /// Multiples of the usual interval.
    pub ticket_at: f64,
    pub page_at: f64,
    /// Multiple of the usual duration of a save.
    pub slow_at: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, floor: Span::secs(300), ticket_at: 1.5, page_at: 3.0, slow_at: 3.0 }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CkptStale {
    config: Config,
    raised: Option<Severity>,
    /// The failure already told.
    failure_told: Option<Ts>,
}

impl CkptStale {
    pub fn configure(&mut self, config: &Config) {
        self.config = config.clone();
    }

    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), raised: None, failure_told: None }
    }

    /// When a checkpoint counts as late, and as dangerously late.
    fn due(&self, f: &Facts) -> Option<(Ts, Ts)> {
        let c = &f.checkpoints;
        // A run that stands still is told about by others; it has nothing new to save.
        if !self.config.enabled || f.ended.is_some() || f.live.is_empty() {
            return None;
        }
        let (last, interval) = (c.last_at?, c.usual_interval()?);
        let takes = c.usual_duration().unwrap_or(0.0);
        let at = |times: f64| last + Span::from_secs_f64(times * interval + takes).max(self.config.floor);
        Some((at(self.config.ticket_at), at(self.config.page_at)))
    }

    fn slow_at(&self, f: &Facts) -> Option<Ts> {
        let c = &f.checkpoints;
        let allowed = Span::from_secs_f64(self.config.slow_at * c.usual_duration()?).max(Span::secs(60));
        (self.config.enabled && f.ended.is_none()).then_some(c.in_progress? + allowed)
    }

    fn failure(&mut self, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        let Some((at, text)) = f.checkpoints.failure.as_ref().filter(|_| self.config.enabled) else { return };
        if self.failure_told != Some(*at) {
            self.failure_told = Some(*at);
            self.raised = self.raised.max(Some(Severity::Ticket));
            out.push(verdict(
                now,
                f,
                Change::Raise,
                Severity::Ticket,
                format!("a checkpoint failed: {text}{}", at_risk(now, f)),
            ));
        }
    }
}

impl ClockDetector for CkptStale {
    fn look(&mut self, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        self.failure(now, f, out);
        let severity = match (self.due(f), self.slow_at(f)) {
            (Some((_, page)), _) if now >= page => Some(Severity::Page),
            (Some((ticket, _)), _) if now >= ticket => Some(Severity::Ticket),
            (_, Some(slow)) if now >= slow => Some(Severity::Ticket),
            _ => None,
        };
        match (severity, self.raised) {
            (Some(s), raised) if raised.is_none_or(|r| r < s) => {
                self.raised = Some(s);
                out.push(verdict(now, f, Change::Raise, s, sentence(now, f)));
            }
            (None, Some(_))
                if f.checkpoints.failure.is_none() && (f.ended.is_some() || !f.live.is_empty()) =>
            {
                self.raised = None;
                out.push(verdict(now, f, Change::Clear, Severity::Info, "a checkpoint was written".into()));
            }
            _ => {}
        }
    }

    fn deadline(&self, f: &Facts) -> Option<Ts> {
        let late = self.due(f).and_then(|(ticket, page)| match self.raised {
            None => Some(ticket),
            Some(Severity::Page) => None,
            Some(_) => Some(page),
        });
        let slow = self.slow_at(f).filter(|_| self.raised.is_none());
        [late, slow].into_iter().flatten().min()
    }
}

fn sentence(now: Ts, f: &Facts) -> String {
    let c = &f.checkpoints;
    let usual = c
        .usual_interval()
        .map_or_else(String::new, |s| format!("; one is usual every {}", Span::from_secs_f64(s)));
    match c.in_progress {
        Some(since) => format!("a checkpoint has been running for {}{}{usual}", now - since, at_risk(now, f)),
        None => format!("no checkpoint{}{usual}", at_risk(now, f)),
    }
}

fn at_risk(now: Ts, f: &Facts) -> String {
    f.checkpoints.last_at.map_or_else(String::new, |last| format!("; {} of work would be lost", now - last))
}

fn verdict(now: Ts, f: &Facts, change: Change, severity: Severity, why: String) -> Verdict {
    let c = &f.checkpoints;
    let age = c.last_at.map_or(0.0, |last| (now - last).as_secs_f64());
    let expected = c.usual_interval().unwrap_or(0.0);
    Verdict {
        change,
        kind: Kind::CkptStale,
        severity,
        signal: "checkpoint_age",
        step: f.last_step.unwrap_or(0),
        ts: now,
        start_step: c.last_step.or(f.last_step).unwrap_or(0),
        value: age,
        expected,
        score: if expected > 0.0 { age / expected } else { 0.0 },
        why,
        suspects: Vec::new(),
    }
}
