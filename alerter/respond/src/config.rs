//! The responder's part of the YAML configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::external::AlertsConfig;
use crate::oncall::OnCallConfig;
use crate::silence::{Maintenance, SilenceConfig};
use stepwatch_model::{Severity, Span};

/// The alerter builds this from its configuration file, and has already checked names against the
/// receivers.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponderConfig {
    /// Names of all receivers, in configuration order.
    pub receivers: Vec<String>,
    /// Receivers whose own service repeats a call, and the service, in words. Calling them again
    /// rings nobody.
    pub repeated_by: BTreeMap<String, String>,
    /// Receivers that show updates beside an incident's first message. Every call is posted there,
    /// whomever it is for.
    pub threads: Vec<String>,
    /// Receivers that wake somebody. Only a page falls back to them.
    pub waking: Vec<String>,
    /// Receivers of last resort, for any team's notification that nobody else can receive:
    /// receivers, `user:NAME` and `schedule:NAME`.
    pub fallback: Vec<String>,
    pub policies: Vec<Policy>,
    pub routes: Vec<Route>,
    /// Names of labels that runs declare or alerts bring, as the operator lists them.
    pub labels: Vec<String>,
    pub cost_per_gpu_hour: Option<f64>,
    /// Base of runbook links: `<base>/<kind>`.
    pub runbook_url: String,
    /// The address of this alerter for browsers, for links to incidents.
    pub external_url: Option<String>,
    /// How long a condition must stay clear before its incident resolves; a return within it is a
    /// flap.
    pub resolve_after: Span,
    /// How long after a person resolved it an incident that still fires reopens.
    pub reopen_after: Span,
    pub oncall: OnCallConfig,
    /// How long the first message of a ticket waits for further findings; a page never waits.
    pub batch_window: Span,
    /// The least time between two updates about one incident. Changes within it are sent in one
    /// message.
    pub update_min_interval: Span,
    /// How often the last level of a page that nobody answers is notified again.
    pub remind_every: Span,
    /// How long after its acknowledgement a page that is not over is notified again; `None` is
    /// never.
    pub ack_timeout: Option<Span>,
    /// After this many returns an incident is reported as flapping, and further returns notify
    /// nobody.
    pub flapping_after: u32,
    /// A finding joins an open incident that has the same values of these labels. If empty, it
    /// joins only an incident with the same fault.
    pub group_by: Vec<String>,
    pub storm: Storm,
    pub inhibit_rules: Vec<InhibitRule>,
    /// The built-in rules that are switched off, by name.
    pub inhibit_off: Vec<String>,
    pub teams: Vec<Team>,
    pub silences: SilenceConfig,
    pub maintenance: Vec<Maintenance>,
    pub alerts: AlertsConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    pub levels: Vec<Level>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// The wait since the previous level was notified; for the first level, since the incident
    /// opened.
    pub after: Span,
    /// Receivers, `user:NAME` and `schedule:NAME`.
    pub notify: Vec<String>,
    /// How often the level is repeated, `after` apart, while nobody answers.
    #[serde(default)]
    pub repeat: u32,
    /// Evaluated when the level is due. A level whose condition is false is passed over, but its
    /// wait counts.
    #[serde(default, rename = "if")]
    pub condition: Condition,
}

/// The conditions of a level, of which all that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Condition {
    pub severity: Option<Severity>,
    /// Names of time intervals.
    pub during: Option<String>,
    pub outside: Option<String>,
    /// Holds if the incident costs more than this, in dollars an hour.
    pub burn_over: Option<f64>,
}

/// The first route whose matchers all hold decides, and within it the first of its children. After
/// a route with `continue`, the next routes are evaluated too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// `severity="page"`, `kind=~"grad_.*"`, `run!="scratch"`; an empty list matches everything.
    #[serde(default, rename = "match")]
    pub matchers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(default)]
    pub notify: Vec<String>,
    /// Child routes; one without `policy` and `notify` inherits both from its parent.
    #[serde(default)]
    pub routes: Vec<Self>,
    #[serde(default, rename = "continue")]
    pub go_on: bool,
}

/// A team: incidents belong to it by the label `team`, and it is notified if no route matches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    pub name: String,
    #[serde(default, rename = "match")]
    pub matchers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(default)]
    pub notify: Vec<String>,
    /// Receivers that are notified when those of the team cannot be.
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// While an incident that the source matchers match is open, incidents that the target matchers
/// match and that have the same values of `equal` notify nobody.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InhibitRule {
    #[serde(default)]
    pub name: String,
    pub source_matchers: Vec<String>,
    pub target_matchers: Vec<String>,
    #[serde(default)]
    pub equal: Vec<String>,
}

/// More than `incidents` incidents for the same people within `within` are notified as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storm {
    pub enabled: bool,
    pub incidents: u32,
    /// The limit for one origin: a user of an exporter, or an exporter that names no user.
    pub per_origin: u32,
    pub within: Span,
}

impl ResponderConfig {
    /// Whether a receiver calls somebody. If no receiver is known to wake anybody, all count as
    /// such.
    pub fn calls(&self, receiver: &str) -> bool {
        self.waking.is_empty() || self.is_waking(receiver)
    }

    /// Whether an item of `notify` may wake somebody.
    pub fn wakes(&self, item: &str) -> bool {
        self.oncall.reachable(item).into_iter().any(|receiver| self.is_waking(receiver))
    }

    /// Whether an item of `notify` wakes somebody as long as nobody takes over a schedule.
    pub fn wakes_as_planned(&self, item: &str) -> bool {
        self.oncall.planned(item).into_iter().any(|receiver| self.is_waking(receiver))
    }

    fn is_waking(&self, receiver: &str) -> bool {
        self.waking.iter().any(|name| name == receiver)
    }

    /// How often a level notifies again, in words; empty if it does not. Receivers that repeat by
    /// themselves are called once.
    pub fn again(&self, level: &Level) -> String {
        if level.repeat == 0 {
            return String::new();
        }
        let reached: BTreeSet<&str> =
            level.notify.iter().flat_map(|item| self.oncall.planned(item)).collect();
        let once: Vec<&str> =
            reached.into_iter().filter(|receiver| self.repeated_by.contains_key(*receiver)).collect();
        let once = if once.is_empty() { String::new() } else { format!(" (but {} once)", once.join(", ")) };
        format!(", {} more times{once}", level.repeat)
    }
}

impl Default for Storm {
    fn default() -> Self {
        Self { enabled: true, incidents: 100, per_origin: 10, within: Span::secs(300) }
    }
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            receivers: Vec::new(),
            repeated_by: BTreeMap::new(),
            threads: Vec::new(),
            waking: Vec::new(),
            fallback: Vec::new(),
            policies: Vec::new(),
            routes: Vec::new(),
            labels: Vec::new(),
            cost_per_gpu_hour: None,
            runbook_url: "https://github.com/stepwatch/stepwatch/blob/main/docs/runbooks".into(),
            external_url: None,
            resolve_after: Span::secs(60),
            reopen_after: Span::secs(600),
            oncall: OnCallConfig::default(),
            batch_window: Span::ZERO,
            update_min_interval: Span::secs(30),
            remind_every: Span::secs(1800),
            ack_timeout: None,
            flapping_after: 3,
            group_by: Vec::new(),
            storm: Storm::default(),
            inhibit_rules: Vec::new(),
            inhibit_off: Vec::new(),
            teams: Vec::new(),
            silences: SilenceConfig::default(),
            maintenance: Vec::new(),
            alerts: AlertsConfig::default(),
        }
    }
}
