//! The open incidents: findings in, notifications out.
//!
//! Only the manager changes an incident. Three parts decide for it which findings are one incident,
//! why an incident notifies nobody, and who is notified of it. They own the state that this needs,
//! and only read the open incidents. No part uses another part, or the manager.
//!
//! A run, or a node, has at most one open incident a cause. Findings with the same fault join one
//! incident ([`super::correlator`]). It opens with the first raised finding, follows the most
//! severe one, and resolves when every kind that raised it has been clear for the hold time. Each
//! return within the hold, and each incident that follows a resolved one of the same cause within
//! an hour, doubles the hold: a condition that comes and goes is one incident, not twenty.

use std::collections::BTreeSet;

use super::State;
use super::closed::Closed;
use super::correlator::Correlator;
use super::dispatcher::Dispatcher;
use super::open::{Incident, Open};
use super::report::View;
use super::suppressor::Suppressor;
use crate::config::ResponderConfig;
use crate::external::External;
use stepwatch_model::{Context, Scope, Severity, Subject, Ts};

#[derive(Debug, Default)]
pub(crate) struct Manager {
    pub(crate) config: ResponderConfig,
    pub(crate) open: Open,
    /// Incidents that a person resolved and that still fire.
    pub(crate) closed: Closed,
    /// Decides which findings are one incident.
    pub(crate) correlator: Correlator,
    /// Decides why an incident notifies nobody.
    pub(crate) suppressor: Suppressor,
    /// Decides who is notified of an incident.
    pub(crate) dispatcher: Dispatcher,
    /// External alerts, which the parts may read.
    pub(crate) external: External,
    /// The time of the last write to the store; `None` without a store.
    pub(crate) recorded: Option<Ts>,
    /// Incidents that changed since the last look; resolved ones are no longer in `open`.
    pub(crate) touched: Vec<String>,
}

impl Manager {
    pub(crate) fn new(config: ResponderConfig) -> Self {
        let mut manager = Self::default();
        manager.configure(config);
        manager
    }

    pub(crate) fn configure(&mut self, config: ResponderConfig) {
        self.correlator.configure(&config.group_by, &self.open);
        self.suppressor.configure(&config, &self.open);
        self.dispatcher.configure(&config);
        self.external.configure(config.alerts.clone());
        self.config = config;
        // Their deadlines may have changed.
        self.touched.extend(self.open.keys().cloned());
    }

    /// Registers an incident that was stored, or that is new.
    pub(crate) fn restore(&mut self, id: String, incident: Incident) {
        if incident.record.state == State::Resolved {
            self.touched.push(id.clone());
            return self.closed.keep(id, incident);
        }
        self.correlator.add(&id, &incident);
        self.suppressor.add(&id, &incident);
        self.touched.push(id.clone());
        self.open.insert(id, incident);
    }

    /// Must be called after all stored incidents are restored.
    pub(crate) fn restored(&mut self) {
        self.suppressor.restored();
    }

    /// The runs that an open incident is about.
    pub(crate) fn runs_of(&self, id: &str) -> BTreeSet<String> {
        let Some(i) = self.open.get(id) else { return BTreeSet::new() };
        let of_run = |subject: &Subject| match &subject.scope {
            Scope::Run(run) => Some(run.clone()),
            _ => None,
        };
        let named = Some(i.record.run.clone()).filter(|run| !run.is_empty());
        named.into_iter().chain(i.subjects.iter().filter_map(of_run)).collect()
    }

    /// Whether the incident of the subject does not know one of these alerts; false without an
    /// incident.
    pub(crate) fn has_another_alert<'a>(
        &self,
        now: Ts,
        subject: &Subject,
        mut alerts: impl Iterator<Item = &'a (u64, Severity)>,
    ) -> bool {
        let open = self.correlator.find(subject).and_then(|id| self.open.get(&id));
        let closed = || self.closed.find(subject).and_then(|id| self.closed.get(&id));
        let Some(i) = open.or_else(closed) else { return false };
        let hold = i.hold(self.config.resolve_after);
        alerts.any(|(alert, severity)| {
            i.alerts.get(alert).is_none_or(|known| !known.covers(now, *severity, hold))
        })
    }

    /// Notes in the incident of a group which of its alerts ended.
    pub(super) fn alerts_ended(&mut self, now: Ts, subject: &Subject, context: &Context) {
        if context.went.is_empty() {
            return;
        }
        let open = self.correlator.find(subject).and_then(|id| self.open.get_mut(&id));
        let closed = self.closed.by_subject.get(subject).and_then(|id| self.closed.all.get_mut(id));
        for i in open.into_iter().chain(closed) {
            i.alerts_ended(now, &context.went);
        }
    }

    /// The state that the parts may read.
    pub(super) fn view(&self, now: Ts) -> View<'_> {
        View { now, config: &self.config, open: &self.open, external: &self.external }
    }

    /// Computes the labels of an incident again, and updates the indexes of the parts.
    pub(super) fn relabel(&mut self, id: &str) {
        if let Some(i) = self.open.get_mut(id) {
            i.record.labels = self.dispatcher.labels(&i.record, &i.summary);
            self.correlator.note(id, i);
            self.suppressor.note(id, i);
        }
    }
}
