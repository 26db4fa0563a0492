//! What the responder needs of the configuration: its part of the YAML file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::external::AlertsConfig;
use crate::oncall::OnCallConfig;
use crate::silence::{Maintenance, SilenceConfig};
use stepwatch_model::{Severity, Span};

/// Built by the alerter from its configuration file; names are already checked against the
/// receivers.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponderConfig {
    /// Names of all receivers, in configuration order.
    pub receivers: Vec<String>,
    /// Those of them that go on by themselves about a call that was made, and by what, in words:
    /// calling them again rings nobody.
    pub repeated_by: BTreeMap<String, String>,
    /// Those of them that show what becomes of an incident beside its first message: every call is
    /// shown there, whomever it is for.
    pub threads: Vec<String>,
    /// Those of them that wake somebody: what is not a page never falls back to them.
    pub waking: Vec<String>,
    /// Receivers of last resort, for any team's notification that nobody else can receive:
    /// receivers, `user:NAME` and `schedule:NAME`.
    pub fallback: Vec<String>,
    pub policies: Vec<Policy>,
    pub routes: Vec<Route>,
    /// Labels that runs declare of themselves or alerts bring, as the operator says.
    pub labels: Vec<String>,
    pub cost_per_gpu_hour: Option<f64>,
    /// Base of runbook links: `<base>/<kind>`.
    pub runbook_url: String,
    /// Where this alerter can be reached by a browser, for links to incidents.
    pub external_url: Option<String>,
    /// How long a condition must stay clear before its incident resolves; a return within it is a
    /// flap.
    pub resolve_after: Span,
    /// How long after a person resolved an incident that still fires it comes back.
    pub reopen_after: Span,
    pub oncall: OnCallConfig,
    /// How long the first message of a ticket waits for what else comes; a page never waits.
    pub batch_window: Span,
    /// Least time between two updates about one incident. What happens in between is sent in one
    /// message.
    pub update_min_interval: Span,
    /// How often the last level of a page that nobody answers is notified again.
    pub remind_every: Span,
    /// How long after its acknowledgement a page that is not over is notified again; never if
    /// absent.
    pub ack_timeout: Option<Span>,
    /// After this many returns an incident is reported as flapping, and further returns notify
    /// nobody.
    pub flapping_after: u32,
    /// What would open an incident joins an open one that has these labels in common; empty: only
    /// what is one fault.
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
    /// Since the previous level was notified; of the first level, since the incident opened.
    pub after: Span,
    /// Receivers, `user:NAME` and `schedule:NAME`.
    pub notify: Vec<String>,
    /// How often the level is repeated, `after` apart, while nobody answers.
    #[serde(default)]
    pub repeat: u32,
    /// Asked when the level is due; a level of which it does not hold is passed over, and its wait
    /// counts.
    #[serde(default, rename = "if")]
    pub condition: Condition,
}

/// All that is set must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Condition {
    pub severity: Option<Severity>,
    /// Names of time intervals.
    pub during: Option<String>,
    pub outside: Option<String>,
    /// Dollars an hour that the incident burns, more than which it must.
    pub burn_over: Option<f64>,
}

/// The first route whose matchers all hold decides, and within it the first of its children; with
/// `continue` the next ones are asked too.
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
    /// Children; one without `policy` and `notify` has those of its parent.
    #[serde(default)]
    pub routes: Vec<Self>,
    #[serde(default, rename = "continue")]
    pub go_on: bool,
}

/// Whom an incident belongs to: its label `team`, and who is notified where no route matches.
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
    /// Who is notified when those cannot be.
    #[serde(default)]
    pub fallback: Vec<String>,
}

/// While an incident of which the source matchers hold is open, those of which the target matchers
/// hold notify nobody, if they have the same values of `equal`.
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
    /// The same of one origin: a user of an exporter, or an exporter that names no user.
    pub per_origin: u32,
    pub within: Span,
}

impl ResponderConfig {
    /// Whether a receiver calls somebody. Where nothing is known to wake anybody, anything may.
    pub fn calls(&self, receiver: &str) -> bool {
        self.waking.is_empty() || self.waking.iter().any(|name| name == receiver)
    }

    /// Whether an item of `notify` may wake somebody.
    pub fn wakes(&self, item: &str) -> bool {
        self.oncall
            .reachable(item)
            .into_iter()
            .any(|receiver| self.waking.iter().any(|name| name == receiver))
    }

    /// How often a level notifies again, in words; empty if it does not. Receivers that repeat by
    /// themselves are called once.
    pub fn again(&self, level: &Level) -> String {
        if level.repeat == 0 {
            return String::new();
        }
        let reached: BTreeSet<&str> =
            level.notify.iter().flat_map(|item| self.oncall.reachable(item)).collect();
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
