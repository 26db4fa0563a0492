//! Suppressed incidents notify nobody while something suppresses them. They are kept, shown and
//! counted, and notified if they still hold when that ends.
//!
//! Suppression is checked before every notification, and again whenever its cause may have changed.
//! A suppressed incident is checked again at least every [`LOOK_AGAIN`], in case an end was missed.

use super::dispatcher::{Recipient, Word};
use super::manager::Manager;
use super::suppressor::MAX_CHAIN;
use super::{Suppression, SuppressionReason};
use crate::effect::{Action, Effect, TimelineEntry, Tx, by_actor, timeline};
use crate::message::{Reason, Why};
use stepwatch_model::{Span, Subject};

/// The longest time between two checks of a suppressed incident.
const LOOK_AGAIN: Span = Span::secs(300);
/// The most incidents of one silence that send a reminder of its end. For the others, only the
/// timeline has it.
const MAX_REMINDERS: usize = 20;

impl Manager {
    /// What suppresses an incident that is about to be notified, if anything does.
    pub(super) fn find_suppression(&mut self, tx: &mut Tx<'_>, id: &str) -> Option<Suppression> {
        self.suppressor.suppression_of(self.view(tx.now), id).or_else(|| self.rolls_up(tx, id))
    }

    /// Suppresses an incident, and sets when it is checked again.
    pub(super) fn suppress(&mut self, tx: &mut Tx<'_>, id: &str, suppression: Suppression) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        let again = now + LOOK_AGAIN;
        i.record.next_at = Some(suppression.until.map_or(again, |ends| ends.min(again)));
        self.touched.push(id.to_owned());
        if i.record.suppression.as_ref() == Some(&suppression) {
            return;
        }
        let why = format!("{} ({})", suppression.words, suppression.by);
        let entry = TimelineEntry::new(id, now, "engine", format!("nobody is notified: {why}"));
        tx.out.push(Effect::Timeline(TimelineEntry { suppressed: Some(why), ..entry }));
        self.set_suppressed(tx, id, Some(suppression));
    }

    /// Ends the suppression of an incident, if it has one. Returns the reason to notify now.
    pub(super) fn reason_after_suppression(&mut self, tx: &mut Tx<'_>, id: &str, why: Why) -> Why {
        let now = tx.now;
        let Some(suppression) = self.open.get(id).and_then(|i| i.record.suppression.clone()) else {
            return why;
        };
        self.set_suppressed(tx, id, None);
        let over = !self.open.contains_key(&suppression.by);
        let after = Why::after(suppression.why, &suppression.by, over);
        tx.out.push(timeline(now, id, after.words.clone()));
        // A raised severity is the more important reason.
        if why.because == Reason::Raised { why } else { after }
    }

    /// Updates what suppressed an incident: the incident is notified now, or resolved.
    pub(super) fn suppression_ended(&mut self, tx: &mut Tx<'_>, id: &str, had: &Suppression) {
        self.suppressor.remove_suppressed(id, &had.by);
        if had.why == SuppressionReason::RolledUp {
            self.left_storm(tx, &had.by);
        }
    }

    pub(super) fn set_suppressed(&mut self, tx: &mut Tx<'_>, id: &str, suppression: Option<Suppression>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if let Some(had) = core::mem::replace(&mut i.record.suppression, suppression.clone()) {
            self.suppression_ended(tx, id, &had);
        }
        if let Some(suppression) = suppression {
            self.suppressor.add_suppressed(id, &suppression.by);
        }
    }

    /// Checks an incident again: its suppression may have ended, or something may suppress it now.
    pub(super) fn reevaluate_suppression(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        // An incident that resolves at this moment notifies nobody any more.
        let Some(i) = self.open.get(id).filter(|i| i.resolve_at.is_none_or(|at| at > now)) else { return };
        let had = i.record.suppression.clone();
        match self.find_suppression(tx, id) {
            Some(suppression) => self.suppress(tx, id, suppression),
            None if had.is_some() => self.unsuppress(tx, id),
            None => return,
        }
        if self.open.get(id).is_some_and(|i| i.record.suppression != had) {
            self.finish(id, tx.out);
        }
    }

    /// Ends the suppression of an incident: notifies the levels that are due, and sends updates
    /// that waited.
    fn unsuppress(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        let due = self.open.get(id).and_then(|i| i.ladders.next_at()).is_some_and(|at| at <= now);
        if due {
            self.climb_if_it_holds(tx, id);
        } else {
            self.reason_after_suppression(tx, id, Why::first());
            if let Some(i) = self.open.get_mut(id) {
                i.record.next_at = i.ladders.next_at();
            }
        }
        self.notify_news(tx, id);
    }

    /// Checks the incidents that `by` suppressed again.
    pub(super) fn release(&mut self, tx: &mut Tx<'_>, by: &str) {
        for id in self.suppressor.suppressed_by(by) {
            self.reevaluate_suppression(tx, &id);
        }
    }

    /// Checks every open incident again, because silences began, ended or changed.
    pub(crate) fn reconsider(&mut self, tx: &mut Tx<'_>) {
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            self.reevaluate_suppression(tx, &id);
        }
        self.explain_others(tx);
    }

    /// Suppresses what new sources explain, and releases what former sources explained.
    pub(crate) fn explain_others(&mut self, tx: &mut Tx<'_>) {
        // Each round may change what the next one explains. What is left after the last round is
        // checked with the next finding or input.
        for _ in 0..MAX_CHAIN {
            for place in self.suppressor.take_changed() {
                for target in self.suppressor.targets_at(&place) {
                    self.reevaluate_suppression(tx, &target);
                }
            }
        }
    }

    /// Checks a suppressed incident again, because other alerts of it fire now: a silence may not
    /// match them.
    pub(crate) fn alerts_changed(&mut self, tx: &mut Tx<'_>, of: &Subject) {
        let Some(id) = self.correlator.find(of) else { return };
        if self.open.get(&id).is_some_and(|i| i.record.suppression.is_some()) {
            self.reevaluate_suppression(tx, &id);
        }
    }

    /// Notifies those who rely on a silence that it is about to end; false if it suppresses
    /// nothing.
    pub(crate) fn remind_of_silence(&mut self, tx: &mut Tx<'_>, silence: &str) -> bool {
        let now = tx.now;
        let Some(s) = self.suppressor.silences().get(silence) else { return false };
        let (left, by) = (s.ends_at - now, s.created_by.clone());
        let chosen = self.suppressor.silences().config().remind.clone();
        let suppressed = self.suppressor.suppressed_by(silence);
        for (n, id) in suppressed.iter().enumerate() {
            let Some(i) = self.open.get(id) else { continue };
            // A receiver that has not been notified yet is notified of the incident itself when the
            // silence ends, and needs no reminder.
            let knows = |receiver: &&String| chosen.is_empty() || chosen.contains(receiver);
            let receivers: Vec<String> = i.lanes.keys().filter(knows).cloned().collect();
            let words =
                format!("still firing, and the silence of {by} ends in {left}: people will be notified then");
            let whom =
                if receivers.is_empty() { "nobody had been notified".into() } else { receivers.join(", ") };
            tx.out.push(by_actor(now, id, "engine", format!("reminder ({whom}): {words}")));
            let why = Why::from(words);
            for receiver in receivers.into_iter().filter(|_| n < MAX_REMINDERS) {
                let to = Recipient::known(receiver, Vec::new());
                self.send(tx, id, to, Word { action: Action::Update, why: &why });
            }
            self.finish(id, tx.out);
        }
        !suppressed.is_empty()
    }
}
