//! Indexes of the open incidents by run, by node and by shared labels, so that correlation does not
//! look through all of them.
//!
//! The indexes only give candidates. The incident itself decides whether a finding belongs to it.

use std::collections::{BTreeMap, BTreeSet};

use crate::incident::open::Incident;
use stepwatch_model::Kind;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Run(String),
    Node(String),
    /// Incidents in which a link fault is raised.
    Links,
    /// The values of the labels of `group_by`.
    Group(Vec<String>),
}

#[derive(Debug, Default)]
pub(super) struct Index {
    group_by: Vec<String>,
    at: BTreeMap<Place, BTreeSet<String>>,
    of: BTreeMap<String, Vec<Place>>,
}

impl Index {
    pub(super) fn new(group_by: &[String]) -> Self {
        Self { group_by: group_by.to_vec(), ..Self::default() }
    }

    /// Updates the places of an incident.
    pub(super) fn note(&mut self, id: &str, i: &Incident) {
        let places = self.of_incident(i);
        if self.of.get(id).is_some_and(|had| *had == places) {
            return;
        }
        self.forget(id);
        for place in &places {
            self.at.entry(place.clone()).or_default().insert(id.to_owned());
        }
        self.of.insert(id.to_owned(), places);
    }

    pub(super) fn forget(&mut self, id: &str) {
        for place in self.of.remove(id).unwrap_or_default() {
            if let Some(ids) = self.at.get_mut(&place) {
                ids.remove(id);
                if ids.is_empty() {
                    self.at.remove(&place);
                }
            }
        }
    }

    /// The ids of the incidents at a place, in order.
    pub(super) fn at(&self, place: &Place) -> impl Iterator<Item = &String> + use<'_> {
        self.at.get(place).into_iter().flatten()
    }

    fn of_incident(&self, i: &Incident) -> Vec<Place> {
        let mut places = Vec::new();
        if !i.record.run.is_empty() {
            places.push(Place::Run(i.record.run.clone()));
        }
        places.extend(i.record.nodes.iter().cloned().map(Place::Node));
        if i.raised.keys().any(|(_, kind)| *kind == Kind::LinkFault) {
            places.push(Place::Links);
        }
        let values = self.group_by.iter().map(|name| i.record.labels.get(name).cloned());
        if let Some(values) = values.collect::<Option<Vec<_>>>().filter(|values| !values.is_empty()) {
            places.push(Place::Group(values));
        }
        places
    }
}
