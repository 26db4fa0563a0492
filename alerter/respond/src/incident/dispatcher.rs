//! Decides who is notified of an incident: its team, its ways through the routes, who is on call on
//! each level, which receivers replace others, and what each of them is sent.

pub(super) mod escalation;
mod fallback;
mod labels;
pub(super) mod lane;
mod notification;
mod targets;

use std::sync::Arc;

use super::IncidentRecord;
use super::report::Report;
use crate::config::ResponderConfig;
use crate::external::LabelSet;
use crate::matcher::{Labels, all_hold};
use crate::oncall::OnCall;
use crate::route::{Router, Way};
pub(super) use notification::Word;
use stepwatch_model::{RunSummary, Ts};
pub(super) use targets::{Call, Recipient};

#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    router: Router,
    /// Shared with whoever shows it.
    oncall: Arc<OnCall>,
}

impl Dispatcher {
    pub(super) fn configure(&mut self, config: &ResponderConfig) {
        self.oncall_mut().configure(config.oncall.clone());
        // The alerter refuses a configuration whose matchers do not parse; a route that slipped
        // through matches nothing, and a page that no route matches goes to every receiver.
        self.router = Router::new(&config.routes, &config.teams).unwrap_or_default();
    }

    /// The team of an alert with these labels: the one that it names, or else the first under
    /// `teams` whose matchers hold. Empty if there is none.
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

    /// The labels of an incident of a run, including `team`.
    pub(super) fn labels(&self, record: &IncidentRecord, run: &RunSummary) -> Labels {
        labels::of(record, run, self.router.teams())
    }

    /// The labels of the incident that a report would open.
    pub(super) fn labels_of(&self, report: Report<'_>) -> Labels {
        let record = IncidentRecord::opened_by(report, Ts(0), String::new(), 0);
        self.labels(&record, &report.context.run)
    }

    pub(super) fn ways(&self, config: &ResponderConfig, labels: &Labels) -> Vec<Way> {
        self.router.ways(config, labels)
    }

    pub(crate) fn oncall(&self) -> &Arc<OnCall> {
        &self.oncall
    }

    pub(crate) fn oncall_mut(&mut self) -> &mut OnCall {
        Arc::make_mut(&mut self.oncall)
    }
}
