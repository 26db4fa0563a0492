//! The open incidents: findings in, notifications out.
//!
//! A run, and a node, has at most one open incident a cause; what turns out to be one fault of both
//! is one incident ([`super::correlator`]). It opens with the first raised finding, follows the
//! most severe one, and resolves when every kind that raised it has been clear for the hold time.
//! Each return within the hold, and each incident that follows a resolved one of the same cause
//! within an hour, doubles the hold: a condition that comes and goes is one incident, not twenty.

use super::open::{Incident, Open};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::closed::Closed;
use super::correlator::Correlator;
use super::report::{Report, View};
use super::suppressor::Suppressor;
use super::{IncidentRecord, State, labels};
use crate::config::ResponderConfig;
use crate::external::{External, LabelSet};
use crate::matcher::{Labels, all_hold};
use crate::oncall::OnCall;
use crate::route::Router;
use stepwatch_model::{Kind, Scope, Subject, Ts};

#[derive(Debug, Default)]
pub(crate) struct Manager {
    pub(crate) config: ResponderConfig,
    pub(super) router: Router,
    /// Shared with whoever shows it.
    pub(crate) oncall: Arc<OnCall>,
    pub(crate) open: Open,
    /// Resolved by hand, and still firing.
    pub(crate) closed: Closed,
    pub(crate) correlator: Correlator,
    pub(crate) suppressor: Suppressor,
    pub(crate) external: External,
    /// Incidents that changed since the last look; gone ones are not in `open`.
    pub(crate) touched: Vec<String>,
}

impl Manager {
    pub(crate) fn new(config: ResponderConfig) -> Self {
        let mut book = Self::default();
        book.configure(config);
        book
    }

    /// The team of an alert with these labels: the one that it names, or else the first under
    /// `teams` whose matchers hold. Empty of none.
    pub(crate) fn team_of(&self, labels: &LabelSet) -> String {
        if let Some(named) = labels.get("team") {
            return named.to_owned();
        }
        let teams = self.router.teams();
        if teams.is_empty() {
            return String::new();
        }
        let labels = labels.to_labels();
        let found = teams.iter().find(|(matchers, _)| all_hold(matchers, &labels));
        found.map(|(_, team)| team.name.clone()).unwrap_or_default()
    }

    pub(crate) fn configure(&mut self, config: ResponderConfig) {
        // The alerter refuses a configuration whose matchers do not parse; a route that slipped
        // through matches nothing, and what no route matches goes to every receiver.
        Arc::make_mut(&mut self.oncall).configure(config.oncall.clone());
        self.router = Router::new(&config.routes, &config.teams).unwrap_or_default();
        self.correlator.configure(&config.group_by, &self.open);
        self.suppressor.configure(&config, &self.open);
        self.external.configure(config.alerts.clone());
        self.config = config;
        // What they wait for may be another time now.
        self.touched.extend(self.open.keys().cloned());
    }

    /// Takes in an incident that was stored.
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

    /// To be called when all that was stored is taken in.
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

    /// The alerts that were ever in the incident of a group, by what makes each one; none if it has
    /// none.
    pub(crate) fn alerts_of(&self, group: &Scope, kind: Kind) -> Option<&BTreeSet<u64>> {
        let subject = Subject { scope: group.clone(), cause: kind.cause() };
        let open = self.correlator.find(&subject).and_then(|id| self.open.get(&id));
        let closed = || self.closed.find(&subject).and_then(|id| self.closed.get(&id));
        open.or_else(closed).map(|i| &i.alerts)
    }

    /// What the parts may read.
    pub(super) fn view(&self, now: Ts) -> View<'_> {
        View { now, config: &self.config, open: &self.open, external: &self.external }
    }

    /// The labels of what a report would open.
    pub(super) fn labels_of(&self, report: Report<'_>) -> Labels {
        let record = IncidentRecord::opened_by(report, Ts(0), String::new(), 0);
        labels::of(&record, &report.context.run, self.router.teams())
    }

    /// Brings the labels up to what is known of the incident.
    pub(super) fn relabel(&mut self, id: &str) {
        if let Some(i) = self.open.get_mut(id) {
            i.record.labels = labels::of(&i.record, &i.summary, self.router.teams());
            self.correlator.note(id, i);
            self.suppressor.note(id, i);
        }
    }
}
