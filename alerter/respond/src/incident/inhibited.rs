//! Which open incidents are hidden by another one.

use super::inhibition::{MAX_CHAIN, is_at};
use super::manager::Manager;
use super::open::Incident;
use super::{Hidden, Quiet};
use crate::effect::Tx;
use stepwatch_model::{Kind, Ts};

impl Manager {
    /// The incident that explains this one, if one is open.
    pub(super) fn inhibited(&self, now: Ts, id: &str) -> Option<Quiet> {
        let target = self.open.get(id)?;
        if matches!(target.record.kind, Kind::AlertStorm | Kind::AlerterFault) {
            return None;
        }
        for place in self.inhibition.of.get(id).into_iter().flat_map(|roles| &roles.target) {
            let rule = &self.inhibition.rules[place.0];
            let is_source = |other: &str| is_at(&self.inhibition.sources, place, other);
            let is_target = |other: &str| is_at(&self.inhibition.targets, place, other);
            let explains = |i: &&Incident| {
                let other = &i.record;
                other.id != id
                    && other.severity >= target.record.severity
                    && !(is_source(id) && is_target(&other.id))
                    && !self.leads_to(&other.id, id)
                    && i.has_a_say(&target.record.labels)
                    && self.may_explain(now, i)
            };
            let sources = self.inhibition.sources.get(place).into_iter().flatten();
            let sources =
                sources.filter_map(|other| self.open.get(other)).filter(explains).map(|i| &i.record);
            let best = sources.min_by_key(|other| (core::cmp::Reverse(other.severity), &other.id));
            if let Some(by) = best {
                let words = format!("{} explains it (rule {})", by.kind.title(), rule.name);
                return Some(Quiet { why: Hidden::Inhibited, by: by.id.clone(), until: None, words });
            }
        }
        None
    }

    /// Whether `from` is hidden by `to`, over however many steps: it must not hide it in turn.
    pub(super) fn leads_to(&self, from: &str, to: &str) -> bool {
        let mut at = from;
        for _ in 0..MAX_CHAIN {
            let quiet = self.open.get(at).and_then(|i| i.record.quiet.as_ref());
            match quiet.filter(|q| q.why == Hidden::Inhibited) {
                Some(quiet) if quiet.by == to => return true,
                Some(quiet) => at = &quiet.by,
                None => return false,
            }
        }
        true
    }

    /// Whether somebody is told of it, or has it. Asked of the silences themselves: that one begins
    /// or ends counts at once, whichever incident is looked at first.
    pub(super) fn may_explain(&self, now: Ts, i: &Incident) -> bool {
        let is_told = |i: &Incident| i.is_acknowledged() || self.silenced(now, i).is_none();
        is_told(i) && (i.is_acknowledged() || self.storm_of(i).is_none_or(is_told))
    }

    /// An open incident is hidden by what explains nothing: when silences were asked last, and now.
    pub(super) fn is_hidden_for_nothing(&self, now: Ts, by: &Incident) -> bool {
        let was_hushed = by.is_hushed() || self.storm_of(by).is_some_and(Incident::is_hushed);
        was_hushed && !self.may_explain(now, by)
    }

    /// What it is told as one of many of.
    pub(super) fn storm_of(&self, i: &Incident) -> Option<&Incident> {
        let quiet = i.record.quiet.as_ref().filter(|quiet| quiet.why == Hidden::RolledUp)?;
        self.open.get(&quiet.by)
    }

    /// Hides what new sources explain, and shows what former ones did.
    pub(crate) fn explain_others(&mut self, tx: &mut Tx<'_>) {
        // Each look may change what the next one explains; what is left is looked at with the next
        // finding or input.
        for _ in 0..MAX_CHAIN {
            for place in core::mem::take(&mut self.inhibition.changed) {
                for target in self.inhibition.targets.get(&place).cloned().unwrap_or_default() {
                    self.reevaluate_suppression(tx, &target);
                }
            }
        }
    }
}
