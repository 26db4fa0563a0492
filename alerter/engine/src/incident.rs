//! Incidents: from verdicts to something a person owns.

pub mod audit;
pub(crate) mod book;
mod ending;
mod escalation;
mod fabric;
mod hands;
mod id;
pub mod inhibition;
mod kin;
pub mod labels;
pub(crate) mod ledger;
mod left;
mod nature;
mod own;
mod party;
mod places;
mod put_off;
mod quiet;
mod record;
mod silenced;
mod storm;
mod targets;
mod telling;
#[cfg(test)]
mod tests;
mod unreached;
pub(crate) mod v4;

use serde::{Deserialize, Serialize};

use crate::matcher::Labels;
use crate::time::Ts;
use crate::verdict::{Cause, Kind, Severity, Suspect};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Open,
    Acknowledged,
    Resolved,
}

/// Why an open incident is told to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hidden {
    /// A silence that a person or the configuration made.
    Silenced,
    /// An incident that explains it.
    Inhibited,
    /// The incident that tells of many.
    RolledUp,
}

/// An open incident is kept, shown and counted, and told to nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    pub why: Hidden,
    /// The silence, or the incident.
    pub by: String,
    /// When that ends, where it is known.
    pub until: Option<Ts>,
    /// For people: `silenced by alice until 2026-11-21T02:16:56Z: new switch`.
    pub words: String,
}

/// What a verdict is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Scope {
    Run(String),
    /// A node, whoever uses it.
    Node(String),
    /// This alerter, by what is wrong with it.
    Own(String),
    /// Many incidents of the same people, by their route.
    Storm(String),
    /// Alerts of other programs that are one condition, by what they have in common.
    Alert(String),
}

/// One sickness of one thing: there is at most one open incident of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Subject {
    pub(crate) scope: Scope,
    pub(crate) cause: Cause,
}

/// An incident as stored, listed and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentRecord {
    pub id: String,
    /// The run that it hits; empty of a node that no run uses.
    pub run: String,
    /// Nodes that are sick themselves, the first suspect first.
    #[serde(default)]
    pub nodes: Vec<String>,
    pub cause: Cause,
    /// The kind of the most severe verdict.
    pub kind: Kind,
    /// The highest severity it reached.
    pub severity: Severity,
    pub state: State,
    pub signal: String,
    /// Estimated onset.
    pub start_step: i64,
    /// The last step fed when it was first announced (ticket or page); of an annotation, when it was seen.
    pub opened_step: i64,
    /// The last step fed when it reached its severity.
    pub detected_step: i64,
    pub end_step: Option<i64>,
    #[serde(with = "stepwatch_wire::num::any")]
    pub value: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub expected: f64,
    #[serde(with = "stepwatch_wire::num::any")]
    pub score: f64,
    pub summary: String,
    pub suspects: Vec<Suspect>,
    pub opened_at: Ts,
    pub resolved_at: Option<Ts>,
    pub acked_by: Option<String>,
    pub acked_at: Option<Ts>,
    /// Escalation level reached, from 1; 0 before anyone was told.
    pub level: u32,
    /// When the next escalation is due.
    pub next_at: Option<Ts>,
    /// How often it came back within the hold time.
    pub flaps: u32,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub quiet: Option<Quiet>,
}

impl Scope {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Run(name) | Self::Node(name) | Self::Own(name) | Self::Storm(name) | Self::Alert(name) => {
                name
            }
        }
    }
}

impl Subject {
    /// A run that stands still.
    pub(crate) fn is_standstill(&self) -> bool {
        self.cause == Cause::Progress && matches!(self.scope, Scope::Run(_))
    }

    pub(crate) fn has_a_say(&self, labels: &Labels) -> bool {
        match &self.scope {
            Scope::Alert(key) => crate::external::group::has_a_say(key, labels),
            _ => true,
        }
    }
}

impl IncidentRecord {
    /// What is wrong, in a word or two: `hang`, or what the alert of another program is called.
    pub fn title(&self) -> String {
        match self.alert() {
            Some(name) if self.kind == Kind::PrometheusAlert => {
                name.split_whitespace().collect::<Vec<_>>().join(" ")
            }
            _ => self.kind.title().to_owned(),
        }
    }

    /// Whether there is a run that it costs anything.
    pub fn hits_a_run(&self) -> bool {
        !self.run.is_empty() && self.run != crate::engine::NO_RUN
    }

    /// Whether what a run does and costs is to be told of it. What another program tells of, it knows best what that is about.
    pub(crate) fn costs_a_run(&self) -> bool {
        self.hits_a_run() && self.kind != Kind::PrometheusAlert
    }

    /// Whether it has a place in the steps of a run: what other programs tell has none unless we watch that run.
    pub fn has_steps(&self) -> bool {
        let unwatched = self.alert().is_some() && self.start_step == 0 && self.opened_step == 0;
        !self.run.is_empty() && !matches!(self.cause, Cause::Telemetry | Cause::External) && !unwatched
    }

    /// The name of the alert of another program that makes it, if all that make it have the same.
    pub fn alert(&self) -> Option<&str> {
        let name = self.labels.get(labels::ALERTNAME).filter(|name| !name.trim().is_empty())?;
        (*name != labels::alertname(self.kind)).then_some(name.as_str())
    }

    /// What it is about, in a word or two: `llama-70b`, `gpu-042`, `llama-70b on gpu-042`.
    pub fn place(&self) -> String {
        match self.kind {
            Kind::AlertStorm => "many places".into(),
            Kind::AlerterFault => "this alerter".into(),
            _ => crate::message::place(&self.run, &self.nodes),
        }
    }
}
