//! Merges the link faults of several nodes that went down at once into one incident, about the
//! switch that they share.
//!
//! The first findings come before it is known that others follow. Each opens an incident of its own
//! until too many nodes are down for coincidence; then the next finding merges them. Incidents that
//! have paged, or that a person has acknowledged, stay separate.

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
    /// Merges the incidents of the other nodes into this one.
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

/// The number of nodes in words. Nodes are counted up to `MAX_NODES_AT_ONCE`.
fn so_many(nodes: usize) -> String {
    if nodes < MAX_NODES_AT_ONCE { nodes.to_string() } else { format!("{MAX_NODES_AT_ONCE} or more") }
}

impl Incident {
    /// Whether it opened at most `LINKS_AT_ONCE` ago, and one of its links went down together with
    /// this one.
    pub(super) fn shares_a_switch(&self, now: Ts, context: &Context, v: &Finding) -> bool {
        v.kind == Kind::LinkFault
            && v.severity > Severity::Info
            && now - self.record.opened_at <= LINKS_AT_ONCE
            && self.links_of(context).next().is_some()
    }

    /// Whether enough other nodes of this switch have paged that one more is expected.
    pub(super) fn is_expected_of_its_switch(&self, context: &Context, v: &Finding) -> bool {
        let paged = |scope: &&Scope| matches!(scope, Scope::Node(n) if context.fabric.contains(n));
        let others = self.paged.iter().filter(|s| **s != context.scope).filter(paged).count();
        v.kind == Kind::LinkFault && others >= EXPECTED
    }

    /// The observation that blames the shared switch, if the links of several nodes are down.
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

    /// Whether it may be merged: it is about one node, has not paged and is not acknowledged.
    fn goes_with_others(&self, now: Ts) -> bool {
        self.subjects.len() == 1
            && self.raised.keys().all(|(_, kind)| *kind == Kind::LinkFault)
            && self.record.severity < Severity::Page
            && self.record.state == State::Open
            && self.storm.is_none()
            && now - self.record.opened_at <= LINKS_AT_ONCE
    }

    /// The nodes of `context.fabric` whose links are raised in it.
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
    /// Makes the switch that the links share the first suspect.
    pub(super) fn suspect_switch(&mut self, links: Observation) {
        if self.kind == Kind::LinkFault {
            self.suspects.retain(|had| had.target != Target::Switch);
            self.suspects.insert(0, Suspect::new(Target::Switch, links));
            self.suspects.truncate(MAX_SUSPECTS);
        }
    }
}
