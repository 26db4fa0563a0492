//! The part that knows which findings are one incident: which open one answers for a subject, where
//! each of them is, and what is remembered of a fault between two incidents of it.

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
    /// Which open incident answers for a subject.
    by_subject: BTreeMap<Subject, String>,
    flap_history: FlapHistory,
}

impl Correlator {
    /// The labels that make incidents one are others now.
    pub(super) fn configure(&mut self, group_by: &[String], open: &Open) {
        self.index = Index::new(group_by);
        for (id, i) in open {
            self.index.note(id, i);
        }
    }

    /// An incident is open from now on.
    pub(super) fn add(&mut self, id: &str, i: &Incident) {
        for subject in &i.subjects {
            self.answers_for(id, subject);
        }
        self.index.note(id, i);
    }

    /// Takes note of where an open incident is now.
    pub(super) fn note(&mut self, id: &str, i: &Incident) {
        self.index.note(id, i);
    }

    pub(super) fn answers_for(&mut self, id: &str, subject: &Subject) {
        self.by_subject.insert(subject.clone(), id.to_owned());
    }

    /// No open incident answers for it any more.
    pub(super) fn let_go(&mut self, subject: &Subject) {
        self.by_subject.remove(subject);
    }

    /// An incident is resolved.
    pub(super) fn remove(&mut self, now: Ts, id: &str, gone: &Incident) {
        for subject in &gone.subjects {
            self.by_subject.remove(subject);
            self.flap_history.resolved(now, subject, gone.record.flaps);
        }
        self.index.forget(id);
    }

    /// The open incident that answers for a subject.
    pub(super) fn find(&self, subject: &Subject) -> Option<String> {
        self.by_subject.get(subject).cloned()
    }

    /// Whether no other incident answers for what this one does.
    pub(super) fn is_alone(&self, id: &str, i: &Incident) -> bool {
        i.subjects.iter().all(|s| self.by_subject.get(s).is_some_and(|other| other == id))
    }

    /// Those that answer for anything of a run or a node: each once, in the order of their ids.
    pub(super) fn of_scope(&self, scope: &Scope) -> BTreeSet<String> {
        let first = Subject { scope: scope.clone(), cause: Cause::FIRST };
        let of = self.by_subject.range(first..).take_while(|(s, _)| s.scope == *scope);
        of.map(|(_, id)| id.clone()).collect()
    }

    /// The checks of ours that begin so and have found a fault.
    pub(super) fn own(&self, prefix: &str) -> Vec<String> {
        let first = Subject { scope: Scope::Own(prefix.to_owned()), cause: Cause::FIRST };
        let checks = self.by_subject.range(first..).map_while(|(subject, _)| match &subject.scope {
            Scope::Own(check) if check.starts_with(prefix) => Some(check.clone()),
            _ => None,
        });
        checks.collect()
    }

    /// Those that name the run, in the order of their ids.
    pub(super) fn of_run(&self, run: &str) -> Vec<String> {
        self.index.at(&Place::Run(run.to_owned())).cloned().collect()
    }

    /// Whether an open incident of the run of this name notifies somebody; `None` if there is none.
    pub(crate) fn is_notified_of(&self, open: &Open, run: &str) -> Option<bool> {
        let open = self.index.at(&Place::Run(run.to_owned())).filter_map(|id| open.get(id));
        let alone = open.map(|i| i.record.suppressed_as(SuppressionReason::RolledUp).is_none());
        alone.reduce(|a, b| a || b)
    }

    /// Why a run stands still, or is slow, if it does: the kind that is raised of it.
    pub(crate) fn standstill_or_slowness(&self, open: &Open, run: &str) -> Option<Kind> {
        [Cause::Progress, Cause::Speed].into_iter().find_map(|cause| {
            let subject = Subject { scope: Scope::Run(run.to_owned()), cause };
            let i = open.get(self.by_subject.get(&subject)?)?;
            i.raised.keys().filter(|(s, _)| *s == subject).map(|(_, kind)| *kind).min()
        })
    }

    /// The id of an incident that begins now.
    pub(super) fn next_id(&mut self, now: Ts, subject: &Subject) -> String {
        id::new(now, subject.scope.name(), subject.cause, self.flap_history.next_number())
    }

    /// The id of an incident whose alerts began at `since`. A crash before it was stored does not
    /// change it, so that receivers know its calls by the same keys. `None` where an earlier
    /// incident may have it.
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
