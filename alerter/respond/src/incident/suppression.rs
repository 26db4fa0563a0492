//! Incidents that are told to nobody while something hides them: kept, shown, counted, and told
//! when it ends and they still hold.
//!
//! Asked wherever somebody is about to be told, and again whenever what hides may have changed; an
//! incident that is hidden is looked at anew at least every [`LOOK_AGAIN`], whoever forgot to say
//! that it ended.

use crate::effect::{Effect, TimelineEntry, Tx, timeline};
use std::collections::BTreeSet;

use super::manager::Manager;
use super::{Hidden, Quiet};
use crate::message::{Reason, Why};
use stepwatch_model::{Span, Ts};

/// How long a hidden incident is hidden without being looked at.
const LOOK_AGAIN: Span = Span::secs(300);

impl Manager {
    /// What hides the incident at `now`, if anything does; for one that is about to be told.
    pub(super) fn suppressor_of(&mut self, tx: &mut Tx<'_>, id: &str) -> Option<Quiet> {
        let now = tx.now;
        self.kept_quiet(now, id).or_else(|| self.rolls_up(tx, id))
    }

    /// The silence, or the incident, that keeps it quiet.
    pub(super) fn kept_quiet(&self, now: Ts, id: &str) -> Option<Quiet> {
        let i = self.open.get(id)?;
        if let Some(hush) = self.silenced(now, i) {
            return Some(Quiet {
                why: Hidden::Silenced,
                by: hush.id.clone(),
                until: Some(hush.until),
                words: hush.words(),
            });
        }
        self.inhibited(now, id)
    }

    /// Tells nobody for now.
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

    /// Nothing hides it: if something did, that is why it is told now.
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
        if let Some(hidden) = self.hidden.get_mut(&had.by) {
            hidden.remove(id);
            if hidden.is_empty() {
                self.hidden.remove(&had.by);
            }
        }
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
            self.hidden.entry(quiet.by).or_default().insert(id.to_owned());
        }
    }

    /// Looks at an incident again: what hid it may have ended, or something may hide it now.
    pub(super) fn reevaluate_suppression(&mut self, tx: &mut Tx<'_>, id: &str) {
        let now = tx.now;
        // What resolves at this moment is told to nobody any more.
        let Some(i) = self.open.get(id).filter(|i| i.resolve_at.is_none_or(|at| at > now)) else { return };
        let had = i.record.quiet.clone();
        match self.suppressor_of(tx, id) {
            Some(quiet) => self.suppress(tx, id, quiet),
            None if had.is_some() => self.unsuppress(tx, id),
            None => return,
        }
        if self.open.get(id).is_some_and(|i| i.record.quiet != had) {
            self.finish(id, tx.out);
        }
    }

    /// Nothing hides it any more: whoever is due hears of it now, and news that waited are told.
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

    /// What `by` hid may be told.
    pub(super) fn release(&mut self, tx: &mut Tx<'_>, by: &str) {
        for id in self.hidden_by(by) {
            self.reevaluate_suppression(tx, &id);
        }
    }

    pub(super) fn hidden_by(&self, by: &str) -> BTreeSet<String> {
        self.hidden.get(by).cloned().unwrap_or_default()
    }

    /// Silences came, went or changed: every open incident is looked at.
    pub(crate) fn reconsider(&mut self, tx: &mut Tx<'_>) {
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            self.reevaluate_suppression(tx, &id);
        }
        self.explain_others(tx);
    }
}
