//! Chooses the receivers that replace one that refuses a notification.
//!
//! Nearest first: the incident's own receivers, the `fallback` of its team, then the receivers that
//! the router has left. For a page, the search continues until a receiver that wakes somebody is
//! found. Anything else never goes to a receiver that wakes: it waits for the one that refused it.

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

/// The receivers that replace another, and those left out because only a page may wake somebody.
#[derive(Debug, Default)]
pub(in crate::incident) struct Nearest {
    pub(in crate::incident) to: Vec<Recipient>,
    spared: Vec<String>,
    /// The name of the stage that chose the receivers.
    pub(super) words: String,
}

impl Dispatcher {
    /// The nearest receivers that have not been notified, in place of one that fails; `None` if no
    /// replacement is needed.
    pub(in crate::incident) fn fallback(
        &self,
        view: View<'_>,
        i: &Incident,
        receiver: &str,
        failing: &BTreeSet<String>,
    ) -> Option<Nearest> {
        if i.record.severity == Severity::Page && i.rang_elsewhere(view, receiver) {
            // If that other receiver fails too, its own failure chooses a replacement.
            return None;
        }
        let not_notified = |name: &str| !i.lanes.contains_key(name);
        // An incident of the alerter is often about a receiver that fails: others are tried first.
        if i.record.kind == Kind::AlerterFault {
            let nearest = self.nearest(view, i, |name| not_notified(name) && !failing.contains(name));
            if nearest.to.iter().any(|r| view.config.calls(&r.receiver)) {
                return Some(nearest);
            }
        }
        Some(self.nearest(view, i, not_notified))
    }

    /// Whether the next level may be due now because a receiver failed for good. It may not if the
    /// receiver only replaced another, or if it would wake somebody for less than a page.
    pub(in crate::incident) fn may_hurry(&self, view: View<'_>, i: &Incident, receiver: &str) -> bool {
        let may = if i.record.severity == Severity::Page {
            // A page that woke somebody need not escalate sooner because a chat did not show it.
            !i.rang_elsewhere(view, receiver)
        } else {
            !i.ladders.upcoming().flat_map(|level| &level.notify).any(|item| view.config.wakes(item))
        };
        may && !self.stood_in(view, i, receiver)
    }

    /// The nearest receivers for which `wanted` holds.
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

    /// Whether the receiver only replaced another, because no level that was due names it. Its
    /// failure makes no level due sooner: all other replacements were notified together with it.
    pub(in crate::incident) fn stood_in(&self, view: View<'_>, i: &Incident, receiver: &str) -> bool {
        let of_nobody = i.lanes.get(receiver).is_some_and(|lane| lane.users.is_empty());
        let means_it =
            |level: &Level| self.recipients(view, i, level).0.iter().any(|to| to.receiver == receiver);
        let mut levels = i.ladders.notified().peekable();
        of_nobody && levels.peek().is_some() && !levels.any(means_it)
    }
}

impl Incident {
    /// Whether it is a page of a team without receivers, and nobody else may be notified of it
    /// either.
    pub(crate) fn is_homeless(&self) -> bool {
        self.record.severity == Severity::Page
            && self.record.state == State::Open
            && self.lanes.is_empty()
            && matches!(self.ladders.ways().first(), Some(WayName::NobodyOfTeam(_)))
    }

    /// Whether `receiver` wakes nobody, and another receiver that wakes somebody was notified.
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
    /// The timeline's words for a notification that nobody is left to take over.
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
