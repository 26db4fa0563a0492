//! Who is notified in the place of a receiver that refuses a notification.
//!
//! Nearest first: the incident's own receivers, the `fallback` of its team, then whoever the router
//! says is left. A page goes on until somebody is notified whom it wakes. What is not a page never
//! goes to a receiver that wakes: it waits for the one that refused it.

use std::collections::BTreeSet;

use super::Dispatcher;
use super::lane::Lane;
use super::targets::Recipient;
use crate::config::Level;
use crate::incident::State;
use crate::incident::open::Incident;
use crate::incident::report::View;
use crate::route::WayName;
use stepwatch_model::{Kind, Severity};

/// Those who may be notified in the place of others, and those who may not because it would wake
/// them.
#[derive(Debug, Default)]
pub(in crate::incident) struct Nearest {
    pub(in crate::incident) to: Vec<Recipient>,
    spared: Vec<String>,
    /// Which of them these are.
    pub(super) words: String,
}

impl Dispatcher {
    /// The nearest of those who have not been notified, for a receiver that fails; `None` if nobody
    /// need be.
    pub(in crate::incident) fn fallback(
        &self,
        view: View<'_>,
        i: &Incident,
        receiver: &str,
        failing: &BTreeSet<String>,
    ) -> Option<Nearest> {
        if i.record.severity == Severity::Page && i.rang_elsewhere(view, receiver) {
            // That one's own failure notifies somebody in its place, if need be.
            return None;
        }
        let not_notified = |name: &str| !i.lanes.contains_key(name);
        // A fault of ours is often that a receiver fails: others are asked first.
        if i.record.kind == Kind::AlerterFault {
            let nearest = self.nearest(view, i, |name| not_notified(name) && !failing.contains(name));
            if nearest.to.iter().any(|r| view.config.calls(&r.receiver)) {
                return Some(nearest);
            }
        }
        Some(self.nearest(view, i, not_notified))
    }

    /// Whether the next level may be notified at once because a receiver failed for good: not if it
    /// only stood in for another, or if that would wake somebody for what is not a page.
    pub(in crate::incident) fn may_hurry(&self, view: View<'_>, i: &Incident, receiver: &str) -> bool {
        let may = if i.record.severity == Severity::Page {
            // A page that rang elsewhere need not ring sooner because a chat does not show it.
            !i.rang_elsewhere(view, receiver)
        } else {
            !i.ladders.upcoming().flat_map(|level| &level.notify).any(|item| view.config.wakes(item))
        };
        may && !self.stood_in(view, i, receiver)
    }

    /// The nearest of those who are `wanted`.
    pub(super) fn nearest(&self, view: View<'_>, i: &Incident, wanted: impl Fn(&str) -> bool) -> Nearest {
        let page = i.record.severity == Severity::Page;
        let config = view.config;
        let mut nearest = Nearest::default();
        for stage in self.router.instead(config, &i.record.labels, i.ladders.levels()) {
            for mut recipient in self.meant(view.now, &stage.names).0 {
                let name = &recipient.receiver;
                if !wanted(name) || nearest.to.iter().any(|r| r.receiver == *name) {
                    continue;
                }
                if !page && config.wakes(name) {
                    if !nearest.spared.contains(name) {
                        nearest.spared.push(name.clone());
                    }
                    continue;
                }
                recipient.instead(if stage.everybody {
                    "everybody who had not been notified".to_owned()
                } else {
                    stage.name.to_string()
                });
                nearest.to.push(recipient);
            }
            nearest.words = stage.name.to_string();
            if !nearest.to.is_empty() && (!page || nearest.to.iter().any(|r| config.calls(&r.receiver))) {
                break;
            }
        }
        nearest
    }

    /// Whether it was notified in the place of another: no level that was due means it. All others
    /// were notified together with it, so that nobody has to be called sooner because it does not
    /// exist.
    pub(in crate::incident) fn stood_in(&self, view: View<'_>, i: &Incident, receiver: &str) -> bool {
        let of_nobody = i.lanes.get(receiver).is_some_and(|lane| lane.users.is_empty());
        let means_it =
            |level: &Level| self.recipients(view, i, level).0.iter().any(|to| to.receiver == receiver);
        let mut levels = i.ladders.notified().peekable();
        of_nobody && levels.peek().is_some() && !levels.any(means_it)
    }
}

impl Incident {
    /// It is a page of a team that names nobody, and nobody else may be notified of it either.
    pub(crate) fn is_homeless(&self) -> bool {
        self.record.severity == Severity::Page
            && self.record.state == State::Open
            && self.lanes.is_empty()
            && matches!(self.ladders.ways().first(), Some(WayName::NobodyOfTeam(_)))
    }

    /// Whether a receiver that wakes nobody fails, and another one that wakes somebody was
    /// notified.
    fn rang_elsewhere(&self, view: View<'_>, receiver: &str) -> bool {
        let wakes = |name: &str| view.config.wakes(name);
        let rings =
            |(other, lane): (&String, &Lane)| other != receiver && wakes(other) && lane.untaken.is_none();
        !wakes(receiver) && self.lanes.iter().any(rings)
    }

    /// The other receivers that were notified, as far as is known.
    pub(in crate::incident) fn told_beside(&self, receiver: &str) -> Vec<String> {
        let told = self.lanes.iter().filter(|(name, lane)| *name != receiver && lane.untaken.is_none());
        told.map(|(name, _)| name.clone()).collect()
    }

    /// Whether somebody who can be woken has been notified, as far as is known.
    pub(in crate::incident) fn may_have_rung(&self, view: View<'_>) -> bool {
        let rings = |(name, lane): (&String, &Lane)| lane.untaken.is_none() && view.config.calls(name);
        self.lanes.iter().any(rings)
    }
}

impl Nearest {
    /// What the timeline has where nobody is left to notify.
    pub(in crate::incident) fn waits(&self, receiver: &str, told: &[String]) -> String {
        let why = match self.spared.as_slice() {
            [] if told.is_empty() => "nobody is left who may be notified of it".to_owned(),
            [] => format!("{} had it already, and nobody else is left", told.join(" and ")),
            [one] => format!("{one} wakes somebody, which only a page may"),
            many => format!("{} wake somebody, which only a page may", many.join(" and ")),
        };
        format!("{why}: it waits for {receiver}, and in the list of incidents")
    }
}
