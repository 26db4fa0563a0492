//! Finds the incident that inhibits another one, because it explains it.

use super::Suppressor;
use super::inhibition::MAX_CHAIN;
use crate::incident::open::{Incident, Open};
use crate::incident::report::View;
use crate::incident::{Suppression, SuppressionReason};

impl Suppressor {
    /// The incident that explains this one, if one is open.
    pub(super) fn inhibited(&self, view: View<'_>, id: &str) -> Option<Suppression> {
        let target = view.open.get(id)?;
        if target.record.kind.is_of_alerter() {
            return None;
        }
        let inhibition = &self.inhibition;
        for place in inhibition.of.get(id).into_iter().flat_map(|roles| &roles.target) {
            let rule = &inhibition.rules[place.0];
            let explains = |i: &&Incident| {
                let other = &i.record;
                other.id != id
                    && other.severity >= target.record.severity
                    && !(inhibition.is_source(place, id) && inhibition.is_target(place, &other.id))
                    && !leads_to(view.open, &other.id, id)
                    && i.has_a_say(&target.record.labels)
                    && self.may_explain(view, i)
            };
            let sources = inhibition.sources.get(place).into_iter().flatten();
            let sources =
                sources.filter_map(|other| view.open.get(other)).filter(explains).map(|i| &i.record);
            let best = sources.min_by_key(|other| (core::cmp::Reverse(other.severity), &other.id));
            if let Some(by) = best {
                let words = format!("{} explains it (rule {})", by.kind.title(), rule.name);
                return Some(Suppression {
                    why: SuppressionReason::Inhibited,
                    by: by.id.clone(),
                    until: None,
                    words,
                });
            }
        }
        None
    }

    /// Whether it is acknowledged or not silenced, and so may explain others. The silences
    /// themselves are evaluated, so that the result does not depend on which incident is checked
    /// first.
    fn may_explain(&self, view: View<'_>, i: &Incident) -> bool {
        let is_notified = |i: &Incident| i.is_acknowledged() || self.silenced(view, i).is_none();
        is_notified(i) && (i.is_acknowledged() || storm_of(view.open, i).is_none_or(is_notified))
    }

    /// Whether an inhibiting incident explains nothing: it was silenced at the last check, and
    /// still is.
    pub(in crate::incident) fn explains_nothing(&self, view: View<'_>, by: &Incident) -> bool {
        let explained_nothing = by.is_silenced_and_unanswered()
            || storm_of(view.open, by).is_some_and(Incident::is_silenced_and_unanswered);
        explained_nothing && !self.may_explain(view, by)
    }
}

/// Whether `to` inhibits `from`, directly or through others. Then `from` must not inhibit `to`.
pub(in crate::incident) fn leads_to(open: &Open, from: &str, to: &str) -> bool {
    let mut at = from;
    for _ in 0..MAX_CHAIN {
        match open.get(at).and_then(|i| i.record.suppressed_as(SuppressionReason::Inhibited)) {
            Some(suppression) if suppression.by == to => return true,
            Some(suppression) => at = &suppression.by,
            None => return false,
        }
    }
    true
}

/// The storm that it is rolled up in.
fn storm_of<'a>(open: &'a Open, i: &Incident) -> Option<&'a Incident> {
    open.get(&i.record.suppressed_as(SuppressionReason::RolledUp)?.by)
}
