//! Which open incident a new verdict belongs to although it is not about the same thing: a GPU that fell off the bus, the rank that
//! died of it and the run that stands are one sickness, whichever is told first.
//!
//! Nothing here depends on the order in which the two came. That the node was sick shortly before the run stopped, or said so while
//! the run stood, is what makes them one.

use super::book::{Book, Incident, Party};
use super::{Scope, Subject};
use crate::time::{Span, Ts};
use crate::verdict::{Cause, Kind, Severity, Verdict};

/// How long before a run stopped its node may have been sick for it to be the reason.
const BEFORE_STANDSTILL: Span = Span::secs(600);
/// A slow run is noticed later than one that stands.
const BEFORE_SLOWNESS: Span = Span::secs(1800);
/// Nodes of one run that fall sick within this time of each other do so of one reason.
const TOGETHER: Span = Span::secs(600);
/// Links of any nodes that go down within this time of each other share a switch.
const FABRIC: Span = Span::secs(60);

impl Book {
    pub(super) fn kin(&self, now: Ts, party: &Party, v: &Verdict) -> Option<String> {
        let mut kin: Vec<&Incident> = self.open.values().filter(|i| i.is_kin(now, party, v)).collect();
        // The one that is worst, then the one that has waited longest.
        kin.sort_by_key(|i| (core::cmp::Reverse(i.record.severity), i.record.opened_at));
        kin.first().map(|i| i.record.id.clone())
    }
}

impl Incident {
    fn is_kin(&self, now: Ts, party: &Party, v: &Verdict) -> bool {
        let cause = v.kind.cause();
        match &party.scope {
            Scope::Run(run) => {
                let before = match cause {
                    Cause::Progress => BEFORE_STANDSTILL,
                    Cause::Speed => BEFORE_SLOWNESS,
                    _ => return false,
                };
                let recent = self.node_at.is_some_and(|at| at + before >= party.well_at);
                let free = self.record.run.is_empty() || self.record.run == *run;
                recent
                    && free
                    && self.is_physical()
                    && party.nodes.iter().any(|n| self.record.nodes.contains(n))
            }
            Scope::Node(_) if !physical(cause) => false,
            Scope::Node(_) => self.hits(now, party, v) || self.shares_a_switch(now, v),
        }
    }

    /// The run of the node is hit already.
    fn hits(&self, now: Ts, party: &Party, v: &Verdict) -> bool {
        if party.run.name.is_empty() || self.record.run != party.run.name {
            return false;
        }
        let of_run = |cause| Subject { scope: Scope::Run(party.run.name.clone()), cause };
        let stands = self.subjects.contains(&of_run(Cause::Progress));
        let slow = self.subjects.contains(&of_run(Cause::Speed)) && v.kind != Kind::NodeFault;
        let others = self.is_physical() && self.node_at.is_some_and(|at| now - at <= TOGETHER);
        stands || slow && now - self.record.opened_at <= BEFORE_SLOWNESS || others
    }

    fn shares_a_switch(&self, now: Ts, v: &Verdict) -> bool {
        let links = self.raised.keys().any(|(_, kind)| *kind == Kind::LinkFault);
        v.kind == Kind::LinkFault
            && v.severity > Severity::Info
            && links
            && self.node_at.is_some_and(|at| now - at <= FABRIC)
    }

    fn is_physical(&self) -> bool {
        self.subjects.iter().any(|s| physical(s.cause))
    }
}

fn physical(cause: Cause) -> bool {
    matches!(cause, Cause::Hardware | Cause::Node)
}
