//! Handles receivers that refuse a notification, do not accept it in time, or ask for a pause.

use super::State;
use super::dispatcher::Word;
use super::manager::Manager;
use crate::effect::{Action, Tx, by_actor, timeline};
use crate::message::{Reason, Why};
use stepwatch_model::{Kind, Severity, Span};

/// A notification that a receiver did not accept, with the receiver's error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undelivered<'a> {
    pub(crate) incident: &'a str,
    pub(crate) receiver: &'a str,
    pub(crate) error: &'a str,
}

impl Manager {
    /// Handles a page that a receiver has not accepted for `waited`. The receiver may still accept
    /// it, but somebody must be woken meanwhile: the nearest other receiver is notified.
    pub(crate) fn unreached(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, waited: Span) {
        let Undelivered { incident: id, receiver, error } = what;
        let Some(i) = self.open.get(id).filter(|i| i.record.state == State::Open) else { return };
        let own = i.record.kind == Kind::AlerterFault;
        let suppressed = i.record.suppression.is_some();
        let cause = if error.is_empty() { String::new() } else { format!(": {error}") };
        let words = format!("has not taken this page for {waited}{cause}");
        tx.out.push(by_actor(tx.now, id, receiver, words));
        self.not_taken(what);
        if !own {
            let fault = format!("{receiver} has not taken a page (incident {id}) for {waited}{cause}");
            self.does_not_take(tx, receiver, &fault);
        }
        if !suppressed {
            let words = format!("{receiver} could not be notified for {waited}{cause}");
            self.notify_fallback(tx, id, receiver, &Why::new(Reason::ReceiverFailed, words));
        }
        self.finish(id, tx.out);
    }

    /// Handles a receiver that asks for a long pause. It will accept the page later, but somebody
    /// must be woken meanwhile. Once a call, the next level becomes due now if it may; otherwise
    /// the nearest receiver that has not been notified is called.
    pub(crate) fn put_off(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, wait: Span) {
        let now = tx.now;
        let Undelivered { incident: id, receiver, error } = what;
        let Some(i) = self.open.get_mut(id).filter(|i| i.record.state == State::Open) else { return };
        let Some(lane) = i.lanes.get_mut(receiver).filter(|lane| lane.put_off < lane.seq) else { return };
        lane.put_off = lane.seq;
        lane.untaken = Some(format!("takes no call for {wait}: {error}"));
        let words = format!("wants no call for {wait}: {error}");
        tx.out.push(by_actor(now, id, receiver, words));
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} takes no call for {wait}: {error}"));
        let Some(i) = self.open.get(id) else { return };
        let may_hurry = self.dispatcher.may_hurry(self.view(now), i, receiver);
        self.hurry_or_fall_back(tx, what, &why, may_hurry);
    }

    /// Handles a permanent delivery error: the next level becomes due now if it may.
    pub(crate) fn failed(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, action: Action) {
        let now = tx.now;
        let Undelivered { incident: id, receiver, error } = what;
        tx.out.push(by_actor(now, id, receiver, format!("{} failed for good: {error}", action.as_str())));
        if action != Action::Trigger {
            return;
        }
        self.not_taken(what);
        let Some(i) = self.open.get(id).filter(|i| i.record.state == State::Open) else { return };
        let why = Why::new(Reason::ReceiverFailed, format!("{receiver} could not be reached: {error}"));
        let may_hurry = self.dispatcher.may_hurry(self.view(now), i, receiver);
        self.hurry_or_fall_back(tx, what, &why, may_hurry);
    }

    /// Counts the receiver as not notified until it accepts a notification again.
    fn not_taken(&mut self, what: Undelivered<'_>) {
        let lane = self.open.get_mut(what.incident).and_then(|i| i.lanes.get_mut(what.receiver));
        if let Some(lane) = lane {
            lane.untaken = Some(what.error.to_owned());
        }
    }

    /// Notifies the next level now if it may. If it may not, or if that level wakes nobody, the
    /// nearest receiver is notified unless the incident is suppressed. A page that still wakes
    /// nobody is reported as a fault of the alerter.
    fn hurry_or_fall_back(&mut self, tx: &mut Tx<'_>, what: Undelivered<'_>, why: &Why, may_hurry: bool) {
        let Undelivered { incident: id, receiver, error } = what;
        let Some(i) = self.open.get_mut(id) else { return };
        let page = i.record.severity == Severity::Page;
        let hurries = may_hurry && i.ladders.hurry(tx.now);
        if hurries {
            self.climb(tx, id, why);
        }
        let Some(i) = self.open.get(id) else { return };
        let (suppressed, own) = (i.record.suppression.is_some(), i.record.kind == Kind::AlerterFault);
        if !suppressed && (!hurries || page && !i.may_have_rung(self.view(tx.now))) {
            self.notify_fallback(tx, id, receiver, why);
        }
        let rings = self.open.get(id).is_none_or(|i| i.may_have_rung(self.view(tx.now)));
        if !suppressed && page && !own && !rings {
            let fault = format!(
                "{receiver} does not take a page (incident {id}), and nobody else can be woken: {error}"
            );
            self.does_not_take(tx, receiver, &fault);
        }
        self.finish(id, tx.out);
    }

    /// Notifies the nearest receivers that have not been notified, and posts that to the threads.
    pub(super) fn notify_fallback(&mut self, tx: &mut Tx<'_>, id: &str, receiver: &str, why: &Why) {
        let failing = self.failing();
        let Some(i) = self.open.get(id) else { return };
        let view = self.view(tx.now);
        let Some(nearest) = self.dispatcher.fallback(view, i, receiver, &failing) else { return };
        let mut called = vec![receiver.to_owned()];
        let words = if nearest.to.is_empty() {
            let waits = nearest.waits(receiver, &i.told_beside(receiver));
            tx.out.push(timeline(tx.now, id, waits.clone()));
            waits
        } else {
            called.extend(nearest.to.iter().map(|r| r.receiver.clone()));
            format!("notified now: {}", called[1..].join(", "))
        };
        for recipient in nearest.to {
            self.send(tx, id, recipient, Word { action: Action::Trigger, why });
        }
        self.show(tx, id, &called, &Why::new(why.because, format!("{}; {words}", why.words)));
    }
}
