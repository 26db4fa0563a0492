//! All firing alerts: alerts of other programs, and our own incidents in the form of alerts.

use std::sync::Arc;

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::external::group::RUN_LABELS;
use stepwatch_respond::external::{Firing, LabelSet, fingerprint};
use stepwatch_respond::incident::{IncidentRecord, SuppressionReason, labels};
use stepwatch_respond::matcher::Labels;
use stepwatch_respond::silence::Silence;

use super::filter::Filter;
use super::inhibited::Inhibited;
use super::wire::{AlertState, AlertStatus, GettableAlert, Name};
use crate::api::view::When;
use crate::read_model::Routing;

/// How far in the future `endsAt` of our own incidents is. It moves with every answer, as in
/// Prometheus.
const LASTS: Span = Span::secs(300);

/// The data from which an answer is made.
#[derive(Debug)]
pub(super) struct Looker<'a> {
    pub(super) filter: &'a Filter,
    pub(super) routing: &'a Routing,
    /// The silences in force.
    pub(super) silences: &'a [Arc<Silence>],
    pub(super) inhibited: Inhibited<'a>,
    pub(super) now: Ts,
}

/// A firing alert, and its group.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) alert: GettableAlert,
    pub(super) group: Labels,
    pub(super) receivers: Vec<String>,
}

impl Looker<'_> {
    pub(super) fn alert(&self, firing: &Firing) -> Option<Shown> {
        let alert = &firing.alert;
        let own = alert.labels.to_labels();
        let silenced_by = self.silencing(&own);
        let inhibited_by = self.inhibited.of_alert(firing);
        if !self.filter.wants(&own, !silenced_by.is_empty(), !inhibited_by.is_empty()) {
            return None;
        }
        let config = &self.routing.config.alerts;
        let kind = config.kind(&alert.labels);
        let mut routed = own;
        routed.insert("severity".into(), config.severity(&alert.labels).as_str().into());
        routed.insert("kind".into(), kind.as_str().into());
        routed.insert("cause".into(), kind.cause().as_str().into());
        if let Some(run) = RUN_LABELS.iter().find_map(|name| alert.labels.get(name)) {
            routed.insert("run".into(), run.to_owned());
        }
        // These are the labels that its incident will have, so that the team's receivers are the
        // same.
        let receivers = self.routing.receivers(&self.routing.with_team(routed));
        if !self.filter.wants_receivers(&receivers) {
            return None;
        }
        let names = config.group_by.iter().map(String::as_str).chain(["run"]);
        let group = names.filter_map(|n| Some((n.to_owned(), alert.labels.get(n)?.to_owned()))).collect();
        let shown = GettableAlert {
            annotations: alert.annotations.clone(),
            ends_at: When(firing.ends_at),
            fingerprint: format!("{:016x}", alert.fingerprint),
            receivers: names_of(&receivers),
            starts_at: When(alert.starts_at),
            status: status(silenced_by, inhibited_by),
            updated_at: When(firing.updated_at),
            generator_url: alert.generator_url.clone(),
            labels: alert.labels.clone(),
        };
        Some(Shown { alert: shown, group, receivers })
    }

    /// An incident as an alert; `None` for incidents of alerts, whose alerts are listed themselves.
    pub(super) fn incident(&self, r: &IncidentRecord) -> Option<Shown> {
        if of_alerts(r) {
            return None;
        }
        let silenced = r.suppressed_as(SuppressionReason::Silenced).into_iter();
        let silenced_by: Vec<String> = silenced.map(|q| q.by.clone()).collect();
        let inhibited_by = self.inhibited.of_incident(r);
        let receivers = self.routing.receivers(&r.labels);
        let wanted = self.filter.wants(&r.labels, !silenced_by.is_empty(), !inhibited_by.is_empty());
        if !wanted || !self.filter.wants_receivers(&receivers) {
            return None;
        }
        let labels = set(&r.labels);
        let link = self.routing.config.external_url.as_ref().map(|base| format!("{base}/incidents/{}", r.id));
        let place = r.place();
        let summary = if place.is_empty() { r.title() } else { format!("{place}: {}", r.title()) };
        let annotations = Labels::from([
            ("incident".into(), r.id.clone()),
            ("summary".into(), summary),
            ("description".into(), r.summary.to_string()),
            ("acknowledged_by".into(), r.acked_by.clone().unwrap_or_default()),
        ]);
        let group = r.labels.iter().filter(|(n, _)| matches!(n.as_str(), "alertname" | "run"));
        let group = group.map(|(n, v)| (n.clone(), v.clone())).collect();
        let shown = GettableAlert {
            annotations: set(&annotations),
            ends_at: When(self.now + LASTS),
            fingerprint: fingerprint_of(&labels),
            receivers: names_of(&receivers),
            starts_at: When(r.opened_at),
            status: status(silenced_by, inhibited_by),
            updated_at: When(self.now),
            generator_url: link.unwrap_or_default().into(),
            labels,
        };
        Some(Shown { alert: shown, group, receivers })
    }

    fn silencing(&self, labels: &Labels) -> Vec<String> {
        self.silences.iter().filter(|s| s.matches(labels)).map(|s| s.id.clone()).collect()
    }
}

/// Whether the incident consists of other programs' alerts.
pub(super) fn of_alerts(r: &IncidentRecord) -> bool {
    r.labels.get(labels::ALERTNAME).is_some_and(|name| *name != labels::alertname(r.kind))
}

fn set(pairs: &Labels) -> LabelSet {
    pairs.iter().map(|(n, v)| (Box::from(n.as_str()), Box::from(v.as_str()))).collect()
}

/// The fingerprint of one of our own incidents.
pub(super) fn own_fingerprint(r: &IncidentRecord) -> String {
    fingerprint_of(&set(&r.labels))
}

fn fingerprint_of(labels: &LabelSet) -> String {
    format!("{:016x}", fingerprint(labels.iter()))
}

fn names_of(receivers: &[String]) -> Vec<Name> {
    receivers.iter().map(|name| Name { name: name.clone() }).collect()
}

fn status(silenced_by: Vec<String>, inhibited_by: Vec<String>) -> AlertStatus {
    let suppressed = !silenced_by.is_empty() || !inhibited_by.is_empty();
    let state = if suppressed { AlertState::Suppressed } else { AlertState::Active };
    AlertStatus { inhibited_by, muted_by: Vec::new(), silenced_by, state }
}
