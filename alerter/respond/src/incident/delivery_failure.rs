//! A receiver that does not take what it is told: who is told in its place.
//!
//! Nearest first: the incident's own receivers, the `fallback` of its team, then whoever the router
//! says is left. A page goes on until somebody is told whom it wakes. What is not a page never goes
//! to a receiver that wakes: it waits for the one that refused it.

use super::State;
use super::manager::Manager;
use super::open::Incident;
use super::targets::Recipient;
use crate::config::Level;
use crate::effect::Action;
use crate::effect::Tx;
use crate::effect::{by_actor, timeline};
use crate::message::{Reason, Why};
use crate::route::Rest;
use stepwatch_model::{Severity, Span, Ts};

/// Whoever may be told in the place of others, and who may not because it would wake them.
#[derive(Debug, Default)]
pub(super) struct Nearest {
    pub(super) to: Vec<Recipient>,
    pub(super) spared: Vec<String>,
    /// Which of them these are.
    pub(super) words: String,
}

impl Manager {
    /// Nobody knows yet whether the receiver ever will take it, and somebody has to be woken all
    /// the same.
    pub(crate) fn unreached(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, waited: Span, error: &str) {
        let now = tx.now;
        let Some(i) = self.open.get(id).filter(|i| i.record.state == State::Open) else { return };
        let quiet = i.record.quiet.is_some();
        let cause = if error.is_empty() { String::new() } else { format!(": {error}") };
        tx.out.push(by_actor(now, id, receiver, format!("has not taken this page for {waited}{cause}")));
        let words = format!("{receiver} could not be told for {waited}{cause}");
        if !quiet {
            self.notify_fallback(tx, id, receiver, &Why::new(Reason::ReceiverFailed, words));
        }
        self.finish(id, tx.out);
    }

    /// Tells whoever is nearest of those who have not been told.
    pub(super) fn notify_fallback(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, why: &Why) {
        let now = tx.now;
        let Some(i) = self.open.get(id) else { return };
        let wakes = |name: &str| self.config.wakes(name);
        let rings_elsewhere = i.lanes.keys().any(|other| other != receiver && wakes(other));
        if i.record.severity == Severity::Page && !wakes(receiver) && rings_elsewhere {
            // That one has somebody told in its place itself, if need be.
            return;
        }
        let nearest = self.nearest(now, i, |name| !i.lanes.contains_key(name));
        if nearest.to.is_empty() {
            tx.out.push(timeline(now, id, nearest.waits(receiver)));
        }
        for recipient in nearest.to {
            self.send(tx, id, recipient, Action::Trigger, why);
        }
    }

    /// The nearest of those who are `wanted`.
    pub(super) fn nearest(&self, now: Ts, i: &Incident, wanted: impl Fn(&str) -> bool) -> Nearest {
        let page = i.record.severity == Severity::Page;
        // Where nothing is known to wake anybody, anything may.
        let calls = |name: &str| self.config.waking.is_empty() || self.config.wakes(name);
        let mut nearest = Nearest::default();
        for stage in self.stages(i) {
            for mut recipient in self.meant(now, &stage.names).0 {
                let name = &recipient.receiver;
                if !wanted(name) || nearest.to.iter().any(|r| r.receiver == *name) {
                    continue;
                }
                if !page && self.config.wakes(name) {
                    nearest.spared.push(name.clone());
                    continue;
                }
                recipient.instead(if stage.everybody {
                    "everybody who had not been told".to_owned()
                } else {
                    stage.words.clone()
                });
                nearest.to.push(recipient);
            }
            nearest.words = stage.words;
            if !nearest.to.is_empty() && (!page || nearest.to.iter().any(|r| calls(&r.receiver))) {
                break;
            }
        }
        nearest
    }

    /// Who may be told in the place of others, nearest first.
    fn stages<'a>(&'a self, i: &'a Incident) -> Vec<Rest<'a>> {
        self.router.instead(&self.config, &i.record.labels, i.ladders.levels())
    }

    /// Open pages of teams that name nobody, where nobody else may be told of them either.
    pub(crate) fn homeless(&self) -> Vec<String> {
        let alone = |i: &&Incident| {
            i.record.severity == Severity::Page
                && i.record.state == State::Open
                && i.lanes.is_empty()
                && i.ladders.routes().starts_with(crate::route::NOBODY)
        };
        self.open.values().filter(alone).map(|i| i.record.id.clone()).collect()
    }

    /// Whether it was told in the place of another: no level that was due means it. All others were
    /// told together with it, so that nobody has to be called sooner because it does not exist.
    pub(super) fn stood_in(&self, now: Ts, id: &str, receiver: &str) -> bool {
        let Some(i) = self.open.get(id) else { return false };
        let of_nobody = i.lanes.get(receiver).is_some_and(|lane| lane.users.is_empty());
        let means_it =
            |level: &Level| self.recipients(now, i, level).0.iter().any(|to| to.receiver == receiver);
        let mut levels = i.ladders.told().peekable();
        of_nobody && levels.peek().is_some() && !levels.any(means_it)
    }
}

impl Nearest {
    /// What the history says where nobody is left to tell.
    fn waits(&self, receiver: &str) -> String {
        let why = match self.spared.as_slice() {
            [] => "nobody is left who may be told of it".to_owned(),
            [one] => format!("{one} wakes somebody, which only a page may"),
            many => format!("{} wake somebody, which only a page may", many.join(" and ")),
        };
        format!("{why}: it waits for {receiver}, and in the list of incidents")
    }
}
