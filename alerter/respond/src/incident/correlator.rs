//! Decides which findings belong to one incident. It keeps the open incident of each subject, an
//! index of open incidents by run, node and labels, and the flap history of each fault.

mod correlation;
pub(crate) mod flap_history;
mod index;

use std::collections::{BTreeMap, BTreeSet};

use super::open::{Incident, Open};
use super::{SuppressionReason, id};
pub(super) use correlation::may_be_one;
use flap_history::FlapHistory;
use index::{Index, Place};
use stepwatch_model::{Cause, Kind, Scope, Subject, Ts};

#[derive(Debug, Default)]
pub(crate) struct Correlator {
    index: Index,
    /// The id of the open incident that covers each subject.
    by_subject: BTreeMap<Subject, String>,
    flap_history: FlapHistory,
}

impl Correlator {
    /// Rebuilds the index for a new `group_by`.
    pub(super) fn configure(&mut self, group_by: &[String], open: &Open) {
        self.index = Index::new(group_by);
        for (id, i) in open {
            self.index.note(id, i);
        }
    }

    /// Registers an incident that opens.
    pub(super) fn add(&mut self, id: &str, i: &Incident) {
        for subject in &i.subjects {
            self.answers_for(id, subject);
        }
        self.index.note(id, i);
    }

    /// Updates the index after a change of an open incident.
    pub(super) fn note(&mut self, id: &str, i: &Incident) {
        self.index.note(id, i);
    }

    pub(super) fn answers_for(&mut self, id: &str, subject: &Subject) {
        self.by_subject.insert(subject.clone(), id.to_owned());
    }

    /// Removes a subject from its open incident.
    pub(super) fn let_go(&mut self, subject: &Subject) {
        self.by_subject.remove(subject);
    }

    /// Removes a resolved incident, and counts its flaps for the next incident of its subjects.
    pub(super) fn remove(&mut self, now: Ts, id: &str, gone: &Incident) {
        for subject in &gone.subjects {
            self.by_subject.remove(subject);
            self.flap_history.resolved(now, subject, gone.record.flaps);
        }
        self.index.forget(id);
    }

    /// The id of the open incident that covers a subject.
    pub(super) fn find(&self, subject: &Subject) -> Option<String> {
        self.by_subject.get(subject).cloned()
    }

    /// Whether every subject of this incident is registered to this incident.
    pub(super) fn is_alone(&self, id: &str, i: &Incident) -> bool {
        i.subjects.iter().all(|s| self.by_subject.get(s).is_some_and(|other| other == id))
    }

    /// The open incidents of a run or a node, of any cause: each once, in order of their ids.
    pub(super) fn of_scope(&self, scope: &Scope) -> BTreeSet<String> {
        let first = Subject { scope: scope.clone(), cause: Cause::FIRST };
        let of = self.by_subject.range(first..).take_while(|(s, _)| s.scope == *scope);
        of.map(|(_, id)| id.clone()).collect()
    }

    /// The self-checks whose names begin with `prefix` and that have an open incident.
    pub(super) fn own(&self, prefix: &str) -> Vec<String> {
        let first = Subject { scope: Scope::Own(prefix.to_owned()), cause: Cause::FIRST };
        let checks = self.by_subject.range(first..).map_while(|(subject, _)| match &subject.scope {
            Scope::Own(check) if check.starts_with(prefix) => Some(check.clone()),
            _ => None,
        });
        checks.collect()
    }

    /// The open incidents whose record names the run, in order of their ids.
    pub(super) fn of_run(&self, run: &str) -> Vec<String> {
        self.index.at(&Place::Run(run.to_owned())).cloned().collect()
    }

    /// Whether an open incident of the run is reported by itself and not in a storm; `None` if the
    /// run has no open incident.
    pub(crate) fn is_notified_of(&self, open: &Open, run: &str) -> Option<bool> {
        let open = self.index.at(&Place::Run(run.to_owned())).filter_map(|id| open.get(id));
        let alone = open.map(|i| i.record.suppressed_as(SuppressionReason::RolledUp).is_none());
        alone.reduce(|a, b| a || b)
    }

    /// The kind that is raised of a run that stands still or, otherwise, is slow.
    pub(crate) fn standstill_or_slowness(&self, open: &Open, run: &str) -> Option<Kind> {
        [Cause::Progress, Cause::Speed].into_iter().find_map(|cause| {
            let subject = Subject { scope: Scope::Run(run.to_owned()), cause };
            let i = open.get(self.by_subject.get(&subject)?)?;
            i.raised.keys().filter(|(s, _)| *s == subject).map(|(_, kind)| *kind).min()
        })
    }

    /// Whether an incident of this cause is open of the run.
    pub(crate) fn is_about(&self, open: &Open, run: &str, cause: Cause) -> bool {
        let subject = Subject { scope: Scope::Run(run.to_owned()), cause };
        self.by_subject.get(&subject).is_some_and(|id| open.contains_key(id))
    }

    /// The id of an incident that begins now.
    pub(super) fn next_id(&mut self, now: Ts, subject: &Subject) -> String {
        id::new(now, subject.scope.name(), subject.cause, self.flap_history.next_number())
    }

    /// The id of an incident whose alerts began at `since`. The id stays the same after a crash
    /// before it was stored, so that receivers recognise its calls by the same keys. `None` if an
    /// earlier incident may have this id.
    pub(super) fn id_since(&mut self, now: Ts, subject: &Subject, since: Ts) -> Option<String> {
        let first = self.flap_history.is_first_since(now, subject, since);
        first.then(|| Self::id_at(since, subject))
    }

    /// The id of the only incident of the subject that begins at that time.
    pub(super) fn id_at(since: Ts, subject: &Subject) -> String {
        id::new(since, subject.scope.name(), subject.cause, 0)
    }

    pub(crate) fn flap_history(&self) -> &FlapHistory {
        &self.flap_history
    }

    pub(crate) fn flap_history_mut(&mut self) -> &mut FlapHistory {
        &mut self.flap_history
    }
}
