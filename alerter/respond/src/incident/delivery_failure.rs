//! A receiver that does not take what it is told, or not now: what becomes of the incident.

use super::State;
use super::dispatcher::Word;
use super::manager::Manager;
use crate::effect::{Action, Tx, by_actor, timeline};
use crate::message::{Reason, Why};
use stepwatch_model::Span;

/// What a receiver has not taken, in its words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undelivered<'a> {
    pub(crate) incident: &'a str,
    pub(crate) receiver: &'a str,
    pub(crate) error: &'a str,
}

impl Manager {
    /// Nobody knows yet whether the receiver ever will take it, and somebody has to be woken all
    /// the same.
    pub(crate) fn unreached(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, waited: Span) {
        let Undelivered { incident: id, receiver, error } = what;
        let Some(i) = self.open.get(id).filter(|i| i.record.state == State::Open) else { return };
        let quiet = i.record.quiet.is_some();
        let cause = if error.is_empty() { String::new() } else { format!(": {error}") };
        let words = format!("has not taken this page for {waited}{cause}");
        tx.out.push(by_actor(tx.now, id, receiver, words));
        if !quiet {
            let words = format!("{receiver} could not be told for {waited}{cause}");
            self.notify_fallback(tx, id, receiver, &Why::new(Reason::ReceiverFailed, words));
        }
        self.finish(id, tx.out);
    }

    /// A receiver asks to be left alone for long. It will take the page, and somebody has to be
    /// woken meanwhile: the next level is due now, once a call; where there is none, whoever is
    /// nearest of those who had not been told is called.
    pub(crate) fn put_off(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, wait: Span) {
        let now = tx.now;
        let Undelivered { incident: id, receiver, error } = what;
        let Some(i) = self.open.get_mut(id).filter(|i| i.record.state == State::Open) else { return };
        let Some(lane) = i.lanes.get_mut(receiver).filter(|lane| lane.put_off < lane.seq) else { return };
        lane.put_off = lane.seq;
        let words = format!("wants no call for {wait}; others are called meanwhile: {error}");
        tx.out.push(by_actor(now, id, receiver, words));
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} takes no call for {wait}: {error}"));
        let stood_in =
            self.open.get(id).is_some_and(|i| self.dispatcher.stood_in(self.view(now), i, receiver));
        self.hurry_or_fall_back(tx, what, &why, !stood_in);
    }

    /// A receiver will never take it: the next level is due now, where that may be.
    pub(crate) fn failed(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, action: Action) {
        let now = tx.now;
        let Undelivered { incident: id, receiver, error } = what;
        tx.out.push(by_actor(now, id, receiver, format!("{} failed for good: {error}", action.as_str())));
        let Some(i) = self.open.get(id) else { return };
        if action != Action::Trigger || i.record.state != State::Open {
            return;
        }
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} could not be reached: {error}"));
        let may_hurry = self.dispatcher.may_hurry(self.view(now), i, receiver);
        self.hurry_or_fall_back(tx, what, &why, may_hurry);
    }

    /// Tells the next level now, if it may, or else whoever is nearest unless something hides it.
    fn hurry_or_fall_back(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, why: &Why, may_hurry: bool) {
        let Undelivered { incident: id, receiver, .. } = what;
        let Some(i) = self.open.get_mut(id) else { return };
        if may_hurry && i.ladders.hurry(tx.now) {
            self.climb(tx, id, why);
        } else if i.record.quiet.is_none() {
            self.notify_fallback(tx, id, receiver, why);
        }
        self.finish(id, tx.out);
    }

    /// Tells whoever is nearest of those who have not been told.
    fn notify_fallback(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, why: &Why) {
        let Some(i) = self.open.get(id) else { return };
        let Some(nearest) = self.dispatcher.fallback(self.view(tx.now), i, receiver) else { return };
        if nearest.to.is_empty() {
            tx.out.push(timeline(tx.now, id, nearest.waits(receiver)));
        }
        for recipient in nearest.to {
            self.send(tx, id, recipient, Word { action: Action::Trigger, why });
        }
    }
}
