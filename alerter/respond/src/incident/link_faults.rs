//! Links of several nodes that went down at once: one incident, of what they share.
//!
//! The finding about the first node comes before it is known that others follow. Until so many are
//! known that it is no chance, each has an incident of its own; the one that makes them so many
//! brings them together. What has paged by then, or is in somebody's hands, stays what it is.

use super::correlator::may_be_one;
use super::manager::Manager;
use super::open::{Incident, MAX_SUSPECTS};
use super::{End, Ended, IncidentRecord, State};
use crate::effect::Tx;
use stepwatch_model::{
    Cause, Context, Finding, Kind, LINKS_AT_ONCE, MAX_NODES_AT_ONCE, Observation, Scope, Severity, Subject,
    Suspect, Target, Ts,
};

/// Pages of other nodes after which one more of the same switch is expected.
const EXPECTED: usize = 2;

impl Manager {
    /// Takes over the incidents of the other nodes.
    pub(super) fn absorb(&mut self, tx: &mut Tx<'_>, id: &str, context: &Context) {
        let now = tx.now;
        let n = so_many(context.fabric.len());
        for node in &context.fabric {
            let subject = Subject { scope: Scope::Node(node.clone()), cause: Cause::Hardware };
            let Some(other) = self.correlator.find(&subject).filter(|other| other != id) else { continue };
            let (Some(had), Some(i)) = (self.open.get(&other), self.open.get(id)) else { continue };
            if !had.goes_with_others(now) || !may_be_one(i, &subject, &had.record.labels) {
                continue;
            }
            let (raised, known) = (had.raised.clone(), had.known.clone());
            let (nodes, suspects) = (had.record.nodes.clone(), had.record.suspects.clone());
            let reason = format!("links of {n} nodes went down at once: reported as one with {id}");
            self.resolve(tx, &other, End::of(Ended::Replaced), &reason);
            let Some(i) = self.open.get_mut(id) else { return };
            i.raised.extend(raised);
            i.known.extend(known);
            i.subjects.insert(subject.clone());
            for node in nodes {
                if !i.record.nodes.contains(&node) && i.record.nodes.len() < MAX_SUSPECTS {
                    i.record.nodes.push(node);
                }
            }
            i.record.suspects.extend(suspects);
            i.record.suspects.truncate(MAX_SUSPECTS);
            self.correlator.answers_for(id, &subject);
            self.finish(id, tx.out);
        }
    }
}

/// Beyond a limit nobody counts.
fn so_many(nodes: usize) -> String {
    if nodes < MAX_NODES_AT_ONCE { nodes.to_string() } else { format!("{MAX_NODES_AT_ONCE} or more") }
}

impl Incident {
    /// Its first link went down at most so long ago, and this one is among those that did with it.
    pub(super) fn shares_a_switch(&self, now: Ts, context: &Context, v: &Finding) -> bool {
        v.kind == Kind::LinkFault
            && v.severity > Severity::Info
            && now - self.record.opened_at <= LINKS_AT_ONCE
            && self.links_of(context).next().is_some()
    }

    /// Whoever knows of pages of this switch expects more of them.
    pub(super) fn is_expected_of_its_switch(&self, context: &Context, v: &Finding) -> bool {
        let paged = |scope: &&Scope| matches!(scope, Scope::Node(n) if context.fabric.contains(n));
        let others = self.paged.iter().filter(|s| **s != context.scope).filter(paged).count();
        v.kind == Kind::LinkFault && others >= EXPECTED
    }

    /// If links of several nodes went down at once: the observation that blames what they share.
    pub(super) fn links_down(&self, context: &Context, v: &Finding) -> Option<Observation> {
        if v.kind != Kind::LinkFault || self.links_of(context).take(2).count() < 2 {
            return None;
        }
        let total = context.fabric.len();
        Some(Observation::LinksDown {
            nodes: context.fabric.iter().take(MAX_SUSPECTS).cloned().collect(),
            total: total.min(MAX_NODES_AT_ONCE) as u64,
            at_least: total >= MAX_NODES_AT_ONCE,
            words: v.why.to_string(),
        })
    }

    /// It is of one node, nobody was called for it and nobody has it.
    fn goes_with_others(&self, now: Ts) -> bool {
        self.subjects.len() == 1
            && self.raised.keys().all(|(_, kind)| *kind == Kind::LinkFault)
            && self.record.severity < Severity::Page
            && self.record.state == State::Open
            && self.storm.is_none()
            && now - self.record.opened_at <= LINKS_AT_ONCE
    }

    /// Those of the nodes whose links are in it.
    fn links_of<'a>(&'a self, context: &'a Context) -> impl Iterator<Item = &'a String> {
        self.raised.keys().filter_map(|(s, kind)| match &s.scope {
            Scope::Node(node) if *kind == Kind::LinkFault => {
                Some(node).filter(|n| context.fabric.contains(*n))
            }
            _ => None,
        })
    }
}

impl IncidentRecord {
    /// What the links of several nodes share is the first suspect.
    pub(super) fn suspect_switch(&mut self, links: Observation) {
        if self.kind == Kind::LinkFault {
            self.suspects.retain(|had| had.target != Target::Switch);
            self.suspects.insert(0, Suspect::new(Target::Switch, links));
            self.suspects.truncate(MAX_SUSPECTS);
        }
    }
}
