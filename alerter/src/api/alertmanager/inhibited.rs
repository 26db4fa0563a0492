//! Which alert suppresses which, by the fingerprints under which the suppressing alerts are listed.
//!
//! An incident of alerts is found by the labels that its alerts share, so that a lookup does not
//! search all firing alerts.

use std::collections::BTreeMap;

use stepwatch_respond::external::Firing;
use stepwatch_respond::incident::{IncidentRecord, Suppression, SuppressionReason, labels};

use super::shown::{of_alerts, own_fingerprint};

/// The values of the labels by which the alerts of an incident are grouped.
type Key<'a> = Vec<Option<&'a str>>;

#[derive(Debug, Default)]
pub(super) struct Inhibited<'a> {
    names: Vec<&'a str>,
    incidents: BTreeMap<&'a str, &'a IncidentRecord>,
    /// Incidents of alerts that another incident suppresses.
    inhibited: BTreeMap<Key<'a>, Vec<&'a IncidentRecord>>,
    firing: BTreeMap<Key<'a>, Vec<&'a Firing>>,
}

impl<'a> Inhibited<'a> {
    pub(super) fn new(group_by: &'a [String], incidents: &'a [IncidentRecord], firing: &'a [Firing]) -> Self {
        let mut found = Self::default();
        if !incidents.iter().any(|r| inhibition(r).is_some()) {
            return found;
        }
        found.names = group_by.iter().map(String::as_str).chain([labels::ALERTNAME]).collect();
        for r in incidents {
            found.incidents.insert(&r.id, r);
            if inhibition(r).is_some() && of_alerts(r) {
                found
                    .inhibited
                    .entry(found.key(|name| r.labels.get(name).map(String::as_str)))
                    .or_default()
                    .push(r);
            }
        }
        for f in firing {
            found.firing.entry(found.key(|name| f.alert.labels.get(name))).or_default().push(f);
        }
        found
    }

    pub(super) fn of_alert(&self, firing: &Firing) -> Vec<String> {
        if self.inhibited.is_empty() {
            return Vec::new();
        }
        let made = self.inhibited.get(&self.key(|name| firing.alert.labels.get(name)));
        made.into_iter().flatten().flat_map(|r| self.of_incident(r)).collect()
    }

    pub(super) fn of_incident(&self, r: &IncidentRecord) -> Vec<String> {
        let Some(suppression) = inhibition(r) else { return Vec::new() };
        match self.incidents.get(suppression.by.as_str()) {
            Some(by) if of_alerts(by) => {
                let shown = self.firing.get(&self.key(|name| by.labels.get(name).map(String::as_str)));
                shown.into_iter().flatten().map(|f| format!("{:016x}", f.alert.fingerprint)).collect()
            }
            Some(by) => vec![own_fingerprint(by)],
            // The suppressing incident has just ended, or is beyond the limit of listed incidents.
            None => vec![suppression.by.clone()],
        }
    }

    fn key<'b>(&self, label: impl Fn(&str) -> Option<&'b str>) -> Key<'b> {
        self.names.iter().map(|name| label(name)).collect()
    }
}

fn inhibition(r: &IncidentRecord) -> Option<&Suppression> {
    r.suppressed_as(SuppressionReason::Inhibited)
}
