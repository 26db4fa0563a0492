//! What an incident takes over from the verdicts that make it.

use super::book::{Incident, MAX_SUSPECTS, Party};
use super::labels::ALERTNAME;
use super::{IncidentRecord, Scope, State};
use crate::message::RunSummary;
use crate::node::words;
use crate::time::Ts;
use crate::verdict::{Kind, Suspect, Verdict};

impl Incident {
    /// Takes in whom a verdict is about.
    pub(super) fn meet(&mut self, now: Ts, party: &Party) {
        self.learn(&party.run);
        if party.is_node() {
            self.node_at = Some(now);
        }
        for node in party.sick() {
            if self.record.nodes.len() < MAX_SUSPECTS && !self.record.nodes.contains(&node) {
                self.record.nodes.push(node);
            }
        }
    }

    /// A node that is used by several runs hits one of them in its incident; the others have theirs.
    pub(super) fn learn(&mut self, run: &RunSummary) {
        if self.record.run.is_empty() || self.record.run == run.name {
            self.record.run.clone_from(&run.name);
            let labels = core::mem::replace(&mut self.summary, run.clone()).labels;
            // Those of an alert that joined stay until it says otherwise.
            if !run.labels.contains_key(ALERTNAME) {
                for (name, value) in labels {
                    self.summary.labels.entry(name).or_insert(value);
                }
            }
        }
    }

    /// The nodes whose links are in it.
    pub(super) fn links(&self) -> Vec<String> {
        let nodes = self.raised.keys().filter(|(_, kind)| *kind == Kind::LinkFault);
        nodes
            .filter(|(s, _)| matches!(s.scope, Scope::Node(_)))
            .map(|(s, _)| s.scope.name().to_owned())
            .collect()
    }

    /// Drops what `scope` raised; whether something else holds it open.
    pub(super) fn outlives(&mut self, scope: &Scope) -> bool {
        let others = self.raised.keys().any(|(s, _)| s.scope != *scope);
        if others {
            self.raised.retain(|(s, _), _| s.scope != *scope);
        }
        others
    }
}

impl IncidentRecord {
    /// Whoever took it did not take this.
    pub(super) fn reopen(&mut self) {
        self.state = State::Open;
        (self.acked_by, self.acked_at) = (None, None);
    }

    /// Takes over what the leading verdict says. The onset stays the earliest.
    pub(super) fn follow(&mut self, v: &Verdict, links: &[&str]) {
        if v.severity > self.severity {
            self.severity = v.severity;
            self.detected_step = v.step;
        }
        (self.kind, self.cause) = (v.kind, v.kind.cause());
        self.start_step = self.start_step.min(v.start_step);
        // What was usual before the sickness began says more than the last number before the NaN.
        if v.value.is_finite() || v.signal != self.signal {
            self.expected = v.expected;
        }
        self.signal = v.signal.clone().into_owned();
        (self.value, self.score) = (v.value, v.score);
        self.summary = self.fabric(v, links).unwrap_or_else(|| v.why.clone());
        self.end_step = None;
    }

    /// Whoever is suspected stays so, whichever kind names the incident. What was weighed with all that is known of the run, or leads
    /// the incident, knows most: whom it suspects comes first. A word in passing comes last.
    pub(super) fn suspect(&mut self, v: &Verdict, first: bool) {
        self.suspects.retain(|had| !v.suspects.iter().any(|s| s.what == had.what));
        let at = if first { 0 } else { self.suspects.len() };
        self.suspects.splice(at..at, v.suspects.iter().cloned());
        self.suspects.truncate(MAX_SUSPECTS);
    }

    /// Links of one medium on several nodes: what they share is to blame.
    fn fabric(&self, v: &Verdict, links: &[&str]) -> Option<String> {
        let (_, medium) = v.suspects.first()?.what.rsplit_once(' ')?;
        let alike = self.suspects.iter().filter(|s| s.what.ends_with(medium)).count();
        (v.kind == Kind::LinkFault && links.len() > 1 && alike > 1).then(|| {
            let (n, names) = (links.len(), links.join(", "));
            format!("links of {n} nodes ({names}): look at the switch or cable that they share; {}", v.why)
        })
    }

    /// The thing that the links of these nodes share is the first suspect.
    pub(super) fn suspect_fabric(&mut self, v: &Verdict, links: &[&str]) {
        let Some(why) = self.fabric(v, links).filter(|_| self.kind == Kind::LinkFault) else { return };
        self.suspects.retain(|had| had.what != words::SWITCH);
        self.suspects.insert(0, Suspect { what: words::SWITCH.into(), why });
        self.suspects.truncate(MAX_SUSPECTS);
    }
}

/// Which of two kinds of one severity names the incident: where a sickness leads, not where it began; but what broke, not who waits
/// for it.
pub(super) fn worse(kind: Kind) -> u8 {
    match kind {
        Kind::GpuFault => 9,
        Kind::LinkFault => 8,
        Kind::NodeFault => 7,
        Kind::Nonfinite => 6,
        Kind::Divergence => 5,
        Kind::LossSpike | Kind::RankDead => 4,
        Kind::GradInstability | Kind::Hang | Kind::DataWait => 3,
        Kind::LossShift | Kind::ThroughputDrop => 2,
        Kind::GradSpike | Kind::MfuDroop | Kind::Throttle | Kind::CkptStale => 1,
        _ => 0,
    }
}
