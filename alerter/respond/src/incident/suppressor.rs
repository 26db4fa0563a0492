//! Decides why an open incident notifies nobody: a silence, an incident that explains it, or a
//! storm that it is part of.

mod inhibited;
pub mod inhibition;
mod silenced;
pub(crate) mod storm;

use std::collections::{BTreeMap, BTreeSet};

use super::open::{Incident, Open};
use super::report::View;
use super::{Suppression, SuppressionReason};
use crate::config::{ResponderConfig, Storm};
use crate::route::joined;
use crate::silence::{Phase, Silences};
pub(super) use inhibited::leads_to;
pub(super) use inhibition::MAX_CHAIN;
use inhibition::{Inhibition, Place};
use stepwatch_model::Ts;
use storm::{Crowd, Storms};

#[derive(Debug, Default)]
pub(crate) struct Suppressor {
    silences: Silences,
    inhibition: Inhibition,
    storms: Storms,
    /// The suppressed incidents, by the id of the silence or incident that suppresses them.
    suppressed: BTreeMap<String, BTreeSet<String>>,
}

impl Suppressor {
    pub(super) fn configure(&mut self, config: &ResponderConfig, open: &Open) {
        self.inhibition = Inhibition::new(config);
        for (id, i) in open {
            self.inhibition.note(id, i);
        }
        self.silences.configure(config.silences.clone(), &config.maintenance, &config.oncall.time_intervals);
    }

    /// Registers an incident that opens.
    pub(super) fn add(&mut self, id: &str, i: &Incident) {
        if let Some(suppression) = &i.record.suppression {
            self.add_suppressed(id, &suppression.by);
        }
        self.inhibition.note(id, i);
    }

    /// Updates the inhibition roles of an open incident.
    pub(super) fn note(&mut self, id: &str, i: &Incident) {
        self.inhibition.note(id, i);
    }

    /// Removes a resolved incident.
    pub(super) fn remove(&mut self, id: &str) {
        self.inhibition.take(id);
    }

    /// Must be called after all stored incidents are restored.
    pub(super) fn restored(&mut self) {
        self.inhibition.restored();
    }

    /// What suppresses an incident now: a silence, or the incident that explains it.
    pub(super) fn suppression_of(&self, view: View<'_>, id: &str) -> Option<Suppression> {
        let i = view.open.get(id)?;
        if let Some(silenced_by) = self.silenced(view, i) {
            return Some(Suppression {
                why: SuppressionReason::Silenced,
                by: silenced_by.id.clone(),
                until: Some(silenced_by.until),
                words: silenced_by.words(),
            });
        }
        self.inhibited(view, id)
    }

    /// Counts an incident that is about to be notified. Returns its crowd if that is above its
    /// limit.
    pub(super) fn crowd(&mut self, now: Ts, i: &Incident, config: &Storm) -> Option<Crowd> {
        let team = i.record.labels.get("team").map(|team| format!(" of team {team}")).unwrap_or_default();
        let way = format!("{} by {}{team}", i.record.severity.as_str(), joined(&i.ladders.ways()));
        let reporter = i.origin.as_ref().map(|origin| &origin.reporter);
        match i.known_run_of_node(now) {
            Some(run) => self.storms.crowd_of_nodes(now, &way, (reporter, run), config),
            None => self.storms.crowd(now, &way, reporter, config),
        }
    }

    /// Records that `by` suppresses an incident.
    pub(super) fn add_suppressed(&mut self, id: &str, by: &str) {
        self.suppressed.entry(by.to_owned()).or_default().insert(id.to_owned());
    }

    /// Records that `by` no longer suppresses an incident.
    pub(super) fn remove_suppressed(&mut self, id: &str, by: &str) {
        if let Some(suppressed) = self.suppressed.get_mut(by) {
            suppressed.remove(id);
            if suppressed.is_empty() {
                self.suppressed.remove(by);
            }
        }
    }

    pub(super) fn suppressed_by(&self, by: &str) -> BTreeSet<String> {
        self.suppressed.get(by).cloned().unwrap_or_default()
    }

    /// The places whose sources changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<Place> {
        core::mem::take(&mut self.inhibition.changed)
    }

    /// The incidents that a source at this place may explain.
    pub(super) fn targets_at(&self, place: &Place) -> BTreeSet<String> {
        self.inhibition.targets.get(place).cloned().unwrap_or_default()
    }

    /// The number of silences that are active.
    pub(super) fn active_silences(&self, now: Ts) -> usize {
        self.silences.all().filter(|s| s.phase(now) == Phase::Active).count()
    }

    pub(crate) fn silences(&self) -> &Silences {
        &self.silences
    }

    pub(crate) fn silences_mut(&mut self) -> &mut Silences {
        &mut self.silences
    }

    pub(crate) fn storms(&self) -> &Storms {
        &self.storms
    }

    pub(crate) fn restore_storms(&mut self, storms: Storms) {
        self.storms = storms;
    }
}
