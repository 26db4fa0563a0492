//! A group of alerts that are one condition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::alert::Alert;
use super::common::Common;
use super::config::AlertsConfig;
pub use super::label_names::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use super::label_set::LabelSet;
use stepwatch_model::{AlertScope, Kind, Scope, Severity, Ts};

/// The most nodes that a condition keeps.
const MAX_NODES: usize = 64;
/// The most alerts of one condition that are remembered as ended because their sender stopped.
const MAX_SILENT: usize = 64;

/// What an alert is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Empty if the alert is about no run.
    pub run: String,
    pub node: String,
    /// The team that it belongs to, if the configuration has teams.
    pub team: String,
}

/// An alert that joined a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    pub severity: Severity,
    /// The group was not about the alert's node before.
    pub is_elsewhere: bool,
    pub fingerprint: u64,
}

#[derive(Debug, Clone)]
pub struct Group {
    /// What the alerts have in common, in words: `DiskFull of llama-70b`.
    pub key: Arc<str>,
    /// The labels to which the token that posts them is limited.
    within: LabelSet,
    pub kind: Kind,
    pub run: String,
    /// Every node that it has been about, and how many alerts fire for each now.
    pub nodes: BTreeMap<String, usize>,
    /// Fingerprints of the alerts that fire.
    pub firing: BTreeSet<u64>,
    /// The most severe alert that joined it since it was last evaluated.
    pub newcomer: Option<Newcomer>,
    /// All alerts that joined it since then, by identity, with their severity.
    pub came: Vec<(u64, Severity)>,
    /// Alerts that ended since then, once none of the same identity and severity fires.
    pub went: Vec<(u64, Severity)>,
    /// The number of firing alerts by identity and severity.
    alike: BTreeMap<(u64, Severity), usize>,
    /// Alerts that ended because nobody posted them any more, by fingerprint, with the time of the
    /// last post.
    silent: BTreeMap<u64, Ts>,
    /// The highest severity of the firing alerts.
    pub severity: Severity,
    /// The number of firing alerts by severity.
    severities: BTreeMap<Severity, usize>,
    pub(super) common: Common,
}

impl About {
    /// The key of the condition. Alerts about something that Stepwatch itself detects share a run
    /// or a node and a cause, as its own findings do; others share the labels of `group_by`.
    pub(super) fn key(&self, config: &AlertsConfig, labels: &LabelSet) -> String {
        let mut key = self.own_key(config, labels);
        // A team's incidents notify no other team: alerts of two teams are two conditions.
        if !self.team.is_empty() {
            let _ = write!(key, " for {}", self.team);
        }
        key
    }

    fn own_key(&self, config: &AlertsConfig, labels: &LabelSet) -> String {
        let kind = config.kind(labels);
        if kind != Kind::PrometheusAlert {
            let of = if self.run.is_empty() { &self.node } else { &self.run };
            return format!("{} of {of}", kind.as_str());
        }
        let mut key = String::new();
        for name in &config.group_by {
            let value = labels.get(name).unwrap_or_default();
            let _ = write!(key, "{}{value}", if key.is_empty() { "" } else { "/" });
        }
        if !self.run.is_empty() {
            let _ = write!(key, " of {}", self.run);
        }
        key
    }
}

impl Group {
    pub(super) fn new(key: Arc<str>, within: LabelSet, kind: Kind, about: &About) -> Self {
        Self {
            key,
            within,
            kind,
            run: about.run.clone(),
            nodes: BTreeMap::new(),
            firing: BTreeSet::new(),
            newcomer: None,
            came: Vec::new(),
            went: Vec::new(),
            alike: BTreeMap::new(),
            silent: BTreeMap::new(),
            severity: Severity::Info,
            severities: BTreeMap::new(),
            common: Common::default(),
        }
    }

    pub(crate) fn scope(&self) -> Scope {
        Scope::Alert(AlertScope { key: self.key.to_string(), within: self.within.to_labels() })
    }

    pub(super) fn add(&mut self, alert: &Arc<Alert>, about: &About, severity: Severity) {
        let is_elsewhere = self.enter(&about.node);
        if self.newcomer.is_none_or(|n| (n.severity, n.is_elsewhere) < (severity, is_elsewhere)) {
            self.newcomer = Some(Newcomer { severity, is_elsewhere, fingerprint: alert.fingerprint });
        }
        let identity = (alert.identity(), severity);
        self.came.push(identity);
        *self.alike.entry(identity).or_default() += 1;
        self.silent.remove(&alert.fingerprint);
        *self.severities.entry(severity).or_default() += 1;
        self.weigh();
        self.firing.insert(alert.fingerprint);
        self.common.add(alert);
    }

    /// Adds a node. Returns whether the group was not about it before.
    fn enter(&mut self, node: &str) -> bool {
        if node.is_empty() {
            return false;
        }
        let known = self.nodes.len();
        match self.nodes.get_mut(node) {
            Some(firing) => *firing += 1,
            None if known < MAX_NODES => {
                self.nodes.insert(node.to_owned(), 1);
                return true;
            }
            None => {}
        }
        false
    }

    /// Removes an alert. `silent` is when it was last posted, if it ended because its sender
    /// stopped.
    pub(super) fn remove(&mut self, alert: &Alert, node: &str, severity: Severity, silent: Option<Ts>) {
        let fingerprint = alert.fingerprint;
        self.firing.remove(&fingerprint);
        let identity = (alert.identity(), severity);
        if let Some(count) = self.alike.get_mut(&identity) {
            *count -= 1;
            if *count == 0 {
                self.alike.remove(&identity);
                self.came.retain(|came| *came != identity);
                self.went.push(identity);
            }
        }
        if let Some(at) = silent.filter(|_| self.silent.len() < MAX_SILENT) {
            self.silent.insert(fingerprint, at);
        }
        if let Some(firing) = self.nodes.get_mut(node) {
            *firing = firing.saturating_sub(1);
        }
        if let Some(count) = self.severities.get_mut(&severity) {
            *count = count.saturating_sub(1);
        }
        self.severities.retain(|_, count| *count > 0);
        self.weigh();
    }

    /// The last post of those alerts whose end nobody posted.
    pub fn silent_since(&self) -> Option<Ts> {
        self.silent.values().copied().max()
    }

    /// Updates the severity, which stays as it was when nothing fires any more.
    fn weigh(&mut self) {
        self.severity = self.severities.keys().next_back().copied().unwrap_or(self.severity);
    }
}

/// The part of a key that separates alerts posted within some limits: `... (within run=llama-70b)`.
pub(super) fn within(limits: &LabelSet) -> String {
    if limits.is_empty() {
        return String::new();
    }
    // A value must not contain the characters that separate pairs.
    let plain = |text: &str| text.replace([',', '=', '(', ')'], "\u{fffd}");
    let pairs = limits.iter().map(|(name, value)| format!("{}={}", plain(name), plain(value)));
    format!(" (within {})", pairs.collect::<Vec<_>>().join(", "))
}

/// Whether this may be a job of a scheduler: a number, text that begins with one (`12.server`), or
/// a pod with its namespace. `exported_job` may also be the name of a scrape.
pub(crate) fn may_be_job(value: &str) -> bool {
    value.starts_with(|c: char| c.is_ascii_digit()) || value.contains('/')
}

/// The node that a label names: `gpu-042` of `gpu-042:9100`.
pub fn node_of(value: &str) -> &str {
    match value.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            host.trim_matches(['[', ']'])
        }
        _ => value,
    }
}
