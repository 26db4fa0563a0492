//! Incidents that notify nobody while something hides them. They are kept, shown and counted, and
//! notified when that ends and they still hold.
//!
//! Checked wherever somebody is about to be notified, and again whenever what hides may have
//! changed. A hidden incident is checked again at least every [`LOOK_AGAIN`], in case an end was
//! missed.

use super::dispatcher::{Recipient, Word};
use super::manager::Manager;
use super::suppressor::MAX_CHAIN;
use super::{Hidden, Quiet};
use crate::effect::{Action, Effect, TimelineEntry, Tx, by_actor, timeline};
use crate::message::{Reason, Why};
use stepwatch_model::{Cause, Scope, Span, Subject};

/// How long a hidden incident is hidden without being looked at.
const LOOK_AGAIN: Span = Span::secs(300);
/// Incidents of one silence about whose end somebody is reminded; the others have it in their
/// history.
const MAX_REMINDERS: usize = 20;

impl Manager {
    /// What hides an incident that is about to be notified, if anything does.
    pub(super) fn what_hides(&mut self, tx: &mut Tx<'_>, id: &str) -> Option<Quiet> {
        self.suppressor.kept_quiet(self.view(tx.now), id).or_else(|| self.rolls_up(tx, id))
    }

    /// Notifies nobody for now.
    pub(super) fn suppress(&mut self, tx: &mut Tx<'_>, id: &str, quiet: Quiet) {
        let now = tx.now;
        let Some(i) = self.open.get_mut(id) else { return };
        let again = now + LOOK_AGAIN;
        i.record.next_at = Some(quiet.until.map_or(again, |ends| ends.min(again)));
        self.touched.push(id.to_owned());
        if i.record.quiet.as_ref() == Some(&quiet) {
            return;
        }
        let why = format!("{} ({})", quiet.words, quiet.by);
        let entry = TimelineEntry::new(id, now, "engine", format!("told to nobody: {why}"));
        tx.out.push(Effect::Timeline(TimelineEntry { suppressed: Some(why), ..entry }));
        self.set_suppressed(tx, id, Some(quiet));
    }

    /// Nothing hides it: if something did, that is why it is notified now.
    pub(super) fn reason_after_suppression(&mut self, tx: &mut Tx<'_>, id: &str, why: Why) -> Why {
        let now = tx.now;
        let Some(quiet) = self.open.get(id).and_then(|i| i.record.quiet.clone()) else { return why };
        self.set_suppressed(tx, id, None);
        let over = !self.open.contains_key(&quiet.by);
        let after = Why::after(quiet.why, &quiet.by, over);
        tx.out.push(timeline(now, id, after.words.clone()));
        // That it got worse says more.
        if why.because == Reason::Raised { why } else { after }
    }

    /// It is over, hidden as it was.
    pub(super) fn no_longer_hidden(&mut self, tx: &mut Tx<'_>, id: &str, had: &Quiet) {
        self.suppressor.show(id, &had.by);
        if had.why == Hidden::RolledUp {
            self.left_storm(tx, &had.by);
        }
    }

    pub(super) fn set_suppressed(&mut self, tx: &mut Tx<'_>, id: &str, quiet: Option<Quiet>) {
        let Some(i) = self.open.get_mut(id) else { return };
        if let Some(had) = core::mem::replace(&mut i.record.quiet, quiet.clone()) {
            self.no_longer_hidden(tx, id, &had);
        }
        if let Some(quiet) = quiet {
            self.suppressor.hide(id, &quiet.by);
        }
    }

    /// Looks at an incident again: what hid it may have ended, or something may hide it now.
    pub(super) fn reevaluate_suppression(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        // What resolves at this moment notifies nobody any more.
        let Some(i) = self.open.get(id).filter(|i| i.resolve_at.is_none_or(|at| at > now)) else { return };
        let had = i.record.quiet.clone();
        match self.what_hides(tx, id) {
            Some(quiet) => self.suppress(tx, id, quiet),
            None if had.is_some() => self.unsuppress(tx, id),
            None => return,
        }
        if self.open.get(id).is_some_and(|i| i.record.quiet != had) {
            self.finish(id, tx.out);
        }
    }

    /// Nothing hides it any more: whoever is due is notified now, and updates that waited are sent.
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

    /// What `by` hid may be notified.
    pub(super) fn release(&mut self, tx: &mut Tx<'_>, by: &str) {
        for id in self.suppressor.hidden_by(by) {
            self.reevaluate_suppression(tx, &id);
        }
    }

    /// Silences came, went or changed: every open incident is looked at.
    pub(crate) fn reconsider(&mut self, tx: &mut Tx<'_>) {
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            self.reevaluate_suppression(tx, &id);
        }
        self.explain_others(tx);
    }

    /// Hides what new sources explain, and shows what former ones did.
    pub(crate) fn explain_others(&mut self, tx: &mut Tx<'_>) {
        // Each look may change what the next one explains; what is left is looked at with the next
        // finding or input.
        for _ in 0..MAX_CHAIN {
            for place in self.suppressor.take_changed() {
                for target in self.suppressor.targets_at(&place) {
                    self.reevaluate_suppression(tx, &target);
                }
            }
        }
    }

    /// Other alerts fire than before: what was silenced may not be any more.
    pub(crate) fn alerts_changed(&mut self, tx: &mut Tx<'_>, group: &str, cause: Cause) {
        let subject = Subject { scope: Scope::Alert(group.to_owned()), cause };
        let Some(id) = self.correlator.find(&subject) else { return };
        if self.open.get(&id).is_some_and(|i| i.record.quiet.is_some()) {
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
        let hidden = self.suppressor.hidden_by(silence);
        for (n, id) in hidden.iter().enumerate() {
            let Some(i) = self.open.get(id) else { continue };
            // Whoever has not been notified yet is notified of the incident itself when the silence
            // ends, not of its silence first.
            let knows = |receiver: &&String| chosen.is_empty() || chosen.contains(receiver);
            let receivers: Vec<String> = i.lanes.keys().filter(knows).cloned().collect();
            let words = format!("still firing, and the silence of {by} ends in {left}: it will be told then");
            let whom =
                if receivers.is_empty() { "nobody had been told".into() } else { receivers.join(", ") };
            tx.out.push(by_actor(now, id, "engine", format!("reminder ({whom}): {words}")));
            let why = Why::from(words);
            for receiver in receivers.into_iter().filter(|_| n < MAX_REMINDERS) {
                let to = Recipient::known(receiver, Vec::new());
                self.send(tx, id, to, Word { action: Action::Update, why: &why });
            }
            self.finish(id, tx.out);
        }
        !hidden.is_empty()
    }
}
