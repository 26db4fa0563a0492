//! Incidents that a person resolved while they still fire. They notify nobody for `reopen_after`,
//! and then reopen unless they are over by then. A person who wants no notifications for longer
//! makes a silence, which everybody can see.

use std::collections::BTreeMap;

use super::open::Incident;
use stepwatch_model::Subject;

#[derive(Debug, Default)]
pub(crate) struct Closed {
    pub(super) all: BTreeMap<String, Incident>,
    pub(super) by_subject: BTreeMap<Subject, String>,
}

impl Closed {
    pub(crate) fn get(&self, id: &str) -> Option<&Incident> {
        self.all.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Incident)> {
        self.all.iter()
    }

    /// The id of the closed incident that covers a subject.
    pub(super) fn find(&self, subject: &Subject) -> Option<String> {
        self.by_subject.get(subject).cloned()
    }

    pub(super) fn keep(&mut self, id: String, i: Incident) {
        for subject in &i.subjects {
            self.by_subject.insert(subject.clone(), id.clone());
        }
        self.all.insert(id, i);
    }

    pub(super) fn take(&mut self, id: &str) -> Option<Incident> {
        let i = self.all.remove(id)?;
        i.subjects.iter().for_each(|subject| drop(self.by_subject.remove(subject)));
        Some(i)
    }
}
