//! Which alert suppresses which, by the fingerprints under which the suppressing ones are listed
//! here.
//!
//! An incident of alerts is found by the labels that its alerts have in common, so that a lookup
//! does not search everything that fires.

use std::collections::BTreeMap;

use stepwatch_respond::external::Firing;
use stepwatch_respond::incident::{Hidden, IncidentRecord, labels};

use super::shown::{of_alerts, own_fingerprint};

/// What the alerts of an incident are grouped by.
type Key<'a> = Vec<Option<&'a str>>;

#[derive(Debug, Default)]
pub(super) struct Hiding<'a> {
    names: Vec<&'a str>,
    incidents: BTreeMap<&'a str, &'a IncidentRecord>,
    /// Those that alerts make and others hide.
    hidden: BTreeMap<Key<'a>, Vec<&'a IncidentRecord>>,
    firing: BTreeMap<Key<'a>, Vec<&'a Firing>>,
}

impl<'a> Hiding<'a> {
    pub(super) fn new(group_by: &'a [String], incidents: &'a [IncidentRecord], firing: &'a [Firing]) -> Self {
        let mut hiding = Self::default();
        if !incidents.iter().any(is_inhibited) {
            return hiding;
        }
        hiding.names = group_by.iter().map(String::as_str).chain([labels::ALERTNAME]).collect();
        for r in incidents {
            hiding.incidents.insert(&r.id, r);
            if is_inhibited(r) && of_alerts(r) {
                hiding
                    .hidden
                    .entry(hiding.key(|name| r.labels.get(name).map(String::as_str)))
                    .or_default()
                    .push(r);
            }
        }
        for f in firing {
            hiding.firing.entry(hiding.key(|name| f.alert.labels.get(name))).or_default().push(f);
        }
        hiding
    }

    pub(super) fn of_alert(&self, firing: &Firing) -> Vec<String> {
        if self.hidden.is_empty() {
            return Vec::new();
        }
        let made = self.hidden.get(&self.key(|name| firing.alert.labels.get(name)));
        made.into_iter().flatten().flat_map(|r| self.of_incident(r)).collect()
    }

    pub(super) fn of_incident(&self, r: &IncidentRecord) -> Vec<String> {
        let Some(quiet) = r.quiet.as_ref().filter(|_| is_inhibited(r)) else { return Vec::new() };
        match self.incidents.get(quiet.by.as_str()) {
            Some(hider) if of_alerts(hider) => {
                let shown = self.firing.get(&self.key(|name| hider.labels.get(name).map(String::as_str)));
                shown.into_iter().flatten().map(|f| format!("{:016x}", f.alert.fingerprint)).collect()
            }
            Some(hider) => vec![own_fingerprint(hider)],
            // It ended a moment ago, or there are more than are looked at.
            None => vec![quiet.by.clone()],
        }
    }

    fn key<'b>(&self, label: impl Fn(&str) -> Option<&'b str>) -> Key<'b> {
        self.names.iter().map(|name| label(name)).collect()
    }
}

fn is_inhibited(r: &IncidentRecord) -> bool {
    r.quiet.as_ref().is_some_and(|q| q.why == Hidden::Inhibited)
}
