//! Detects an exporter of the run that does not answer. Nothing is known of the run, which may be
//! healthy.
//!
//! A ticket after `ticket_after`; a page after `page_after` if no source of a run that was moving
//! is left. One incident a run, however many of its sources are lost. A source is named by its node
//! where that is known, because people know nodes better than addresses.

use serde::{Deserialize, Serialize};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{Lost, RunState};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    pub ticket_after: Span,
    pub page_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ticket_after: Span::secs(60), page_after: Span::secs(300) }
    }
}

/// A run that had not made a step for this long before its last source was lost does not page.
const ACTIVE: Span = Span::secs(3600);
/// The most suspects named one by one.
const NAMED: usize = 3;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SourceLost {
    raised: Option<Severity>,
}

impl SourceLost {
    fn due(c: &Config, f: &RunState) -> Option<(Ts, Option<Ts>)> {
        if !c.enabled || f.ended.is_some() {
            return None;
        }
        let since = f.lost.values().map(|l| f.away_since(l)).min()?;
        let last = f.lost.values().map(|l| f.away_since(l)).max()?;
        let blind = f.live.is_empty() && f.total_steps > 0 && (last - f.last_progress) < ACTIVE;
        Some((since + c.ticket_after, blind.then_some(last + c.page_after)))
    }
}

impl ClockDetector for SourceLost {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let severity = match Self::due(c, f) {
            Some((_, Some(page))) if now >= page => Some(Severity::Page),
            Some((ticket, _)) if now >= ticket => Some(Severity::Ticket),
            Some(_) => return,
            None => None,
        };
        match (severity, self.raised) {
            (Some(s), raised) if raised.is_none_or(|r| r < s) => {
                self.raised = Some(s);
                out.push(finding(view, Change::Raise, s, sentence(view)));
            }
            (None, Some(_)) => {
                self.raised = None;
                let mut v = finding(view, Change::Clear, Severity::Info, Sentence::default());
                v.why = match f.ended {
                    Some(_) => clause!("the run ended"),
                    None if f.live.is_empty() => {
                        // The source was removed from the configuration. The run is still not
                        // received.
                        (v.change, v.ts) = (Change::Lapse, f.last_heard);
                        clause!("no source of the run is watched any more")
                    }
                    None => clause!("every source answers again"),
                }
                .into();
                out.push(v);
            }
            _ => {}
        }
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        let (ticket, page) = Self::due(c, f)?;
        match self.raised {
            None => Some(ticket),
            Some(Severity::Page) => None,
            Some(_) => page,
        }
    }
}

fn sentence(view: RunAt<'_>) -> Sentence {
    let RunAt { now, run: f } = view;
    let Some((source, first)) = f.lost.iter().min_by_key(|(_, l)| l.since) else {
        return Sentence::default();
    };
    let name = name(source, first);
    let total = f.lost.len() + f.live.len();
    let (silent, reason) = (now - first.since, first.reason.clone());
    let mut why = Sentence::from(if f.lost.len() > 1 {
        clause!(
            "{lost} of {total} sources do not answer, {source} first, {silent} ago ({reason})",
            lost = f.lost.len(),
            total,
            source = name,
            silent,
            reason,
        )
    } else {
        clause!("{source} has not answered for {silent} ({reason})", source = name, silent, reason)
    });
    if f.live.is_empty() && f.total_steps > 0 {
        why.add(clause!("nothing else sees this run"));
    }
    if !f.dark().is_empty() {
        why.add(clause!("the run has not moved for {idle}", idle = now - f.last_progress));
    }
    why
}

fn name(source: &str, lost: &Lost) -> Clause {
    let source = Fact::text(source);
    match &lost.node {
        Some(node) => clause!("node {node} ({source})", node = node.clone(), source),
        None => clause!("{source}", source),
    }
}

fn suspect(source: &str, lost: &Lost) -> Suspect {
    match &lost.node {
        Some(node) => Suspect::new(
            Target::node(node),
            Observation::ExporterLost { source: source.to_owned(), reason: lost.reason.clone() },
        ),
        None => Suspect::new(
            Target::Source { source: source.to_owned() },
            Observation::SourceLost { reason: lost.reason.clone() },
        ),
    }
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    let lost = &view.run.lost;
    Finding {
        value: lost.len() as f64,
        score: lost.len() as f64,
        why: why.into(),
        suspects: lost.iter().take(NAMED).map(|(source, lost)| suspect(source, lost)).collect(),
        ..view.finding(Kind::SourceLost, "source", change, severity)
    }
}
