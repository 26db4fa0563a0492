//! Handles a store that refuses writes for long: pages are sent from memory, up to a limit.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, Effect, Input, Notification, TimelineEntry};
use stepwatch_respond::incident::{IncidentRecord, State};

use tokio::time::Instant;

use super::Runtime;
use super::pending::Pending;
use crate::store::Store;
use crate::store::unrecorded::{may_precede_its_record, say_not_recorded};

/// The interval at which the database file is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Runtime {
    /// Moves pages that the store has refused for too long to memory, including the page about the
    /// store itself.
    pub(super) fn fail_open(&mut self) {
        self.look_at_the_store();
        self.report_store_fault();
        if !self.store.fails_open() {
            return;
        }
        self.pending.dress(&self.templates, &self.metrics);
        let now = self.clock.now();
        let ago = self.store.refused_for().unwrap_or_default();
        let since = now + Span::millis(-(ago.as_millis() as i64));
        self.pending.hand_over(&self.store, now, since);
    }

    /// Checks the database file, so that its removal is detected even without writes.
    fn look_at_the_store(&mut self) {
        let now = Instant::now();
        if now >= self.schedule.look_due {
            self.schedule.look_due = now + LOOK_EVERY;
            self.store.look_soon();
        }
    }

    /// Reports that the store refuses or accepts writes, like any other fault of the alerter.
    fn report_store_fault(&mut self) {
        let fault = match self.store.refusal() {
            Some(_) if !self.store.refuses_long() => return,
            Some(why) => Some(format!("the database takes nothing: {why}")),
            None => None,
        };
        let (now, before) = (self.clock.now(), self.pending.effects.len());
        let own = Input::Store { fault: fault.as_deref(), recorded: self.store.recorded_at() };
        self.engine.handle(now, own, &mut self.pending.effects);
        if self.pending.effects.len() > before {
            self.schedule.changed();
        }
    }

    /// Reduces the pending effects, if necessary by dropping lines of history.
    pub(super) fn make_room(&mut self) {
        // If the store is only slow or refuses briefly, no history is dropped.
        if self.has_room() || self.pending.is_compact() || !self.store.refuses_long() {
            return;
        }
        // All consumers that process each effect once have now processed all of them.
        self.count_incidents();
        self.fail_open();
        self.pending.dress(&self.templates, &self.metrics);
        let lost = self.pending.compact(self.max_pending / 2);
        if lost > 0 {
            self.metrics.history_dropped.inc_by(lost as u64);
            tracing::error!(lost, "the store refuses for so long that lines of history were given up");
        }
    }
}

impl Pending {
    /// Moves pages to memory, to be sent without a record and with a note about that.
    fn hand_over(&mut self, store: &Store, now: Ts, since: Ts) {
        let notes = self.held(store, now, since);
        self.effects.extend(notes);
        self.all_handed();
    }

    /// Holds new pages in memory, and notes this in their histories.
    fn held(&self, store: &Store, now: Ts, since: Ts) -> Vec<Effect> {
        let (all, handed) = self.unkept();
        let new = all.clone().skip(handed);
        if !new.clone().any(|effect| matches!(effect, Effect::Notify(n) if may_precede_its_record(n))) {
            return Vec::new();
        }
        let mut stands: BTreeMap<&str, &IncidentRecord> = BTreeMap::new();
        for effect in all {
            if let Effect::Incident(record) = effect {
                stands.insert(&record.id, record);
            }
        }
        // A page of an incident that is acknowledged, over or suppressed by now calls nobody. An
        // acknowledgement or a resolution is only for receivers that were called from memory.
        let wanted = |n: &Notification| {
            let record = stands.get(n.incident.as_str());
            let calls = |r: &&IncidentRecord| {
                r.state == State::Open && (r.suppression.is_none() || n.despite_suppression)
            };
            may_precede_its_record(n)
                && match n.action {
                    Action::Trigger => record.is_none_or(calls),
                    _ => store.holds(&n.receiver, &n.incident),
                }
        };
        let mut notes = Vec::new();
        for effect in new {
            let Effect::Notify(n) = effect else { continue };
            if !wanted(n) {
                continue;
            }
            let mut n = (**n).clone();
            say_not_recorded(&mut n.message, since);
            let (incident, actor) = (n.incident.clone(), n.receiver.clone());
            // The creation time is that of the decision, not that of this step.
            let created_at = n.message.at;
            let (action, taken) = (n.action.as_str(), store.hold(n, created_at));
            let what = if taken {
                format!("{action} sent from memory, not recorded: the store refuses writes since {since}")
            } else {
                format!("{action} not sent: the store refuses writes since {since}, and too much is held")
            };
            notes.push(Effect::Timeline(TimelineEntry::new(&incident, now, &actor, what)));
        }
        notes
    }

    fn is_compact(&self) -> bool {
        self.compacted == self.effects.len()
    }

    /// Drops effects that later ones replace, and then the oldest lines of history while there are
    /// more than `most` effects. Returns the number of dropped lines.
    pub(super) fn compact(&mut self, most: usize) -> usize {
        let (mut records, mut updates) = (BTreeSet::new(), BTreeSet::new());
        let mut kept: Vec<Effect> = Vec::with_capacity(self.effects.len());
        for effect in std::mem::take(&mut self.effects).into_iter().rev() {
            let last = match &effect {
                Effect::Incident(record) => records.insert(record.id.clone()),
                Effect::Notify(n) if n.action == Action::Update => {
                    updates.insert((n.receiver.clone(), n.incident.clone()))
                }
                _ => true,
            };
            if last {
                kept.push(effect);
            }
        }
        kept.reverse();
        let lines = kept.iter().filter(|effect| matches!(effect, Effect::Timeline(_))).count();
        let lost = kept.len().saturating_sub(most).min(lines);
        let mut left = lost;
        kept.retain(|effect| {
            let gone = left > 0 && matches!(effect, Effect::Timeline(_));
            left -= usize::from(gone);
            !gone
        });
        self.effects = kept;
        let all = self.effects.len();
        (self.counted, self.dressed, self.handed, self.compacted) = (all, all, all, all);
        lost
    }
}
