//! Alerts that are one condition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::alert::Alert;
use super::common::Common;
use super::config::AlertsConfig;
pub use super::label_names::{JOB_LABELS, NODE_LABELS, RUN_LABELS};
use super::label_set::LabelSet;
use stepwatch_model::{AlertScope, Kind, Scope, Severity, Ts};

/// Nodes kept of one condition.
const MAX_NODES: usize = 64;
/// Alerts of one condition that are known to have ended in silence.
const MAX_SILENT: usize = 64;

/// What an alert is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Empty of none.
    pub run: String,
    pub node: String,
    /// Whose it is, where the configuration has teams.
    pub team: String,
}

/// An alert that came to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newcomer {
    pub severity: Severity,
    /// It is of a node that the group was not about before.
    pub is_elsewhere: bool,
    pub fingerprint: u64,
}

#[derive(Debug, Clone)]
pub struct Group {
    /// What they have in common, readable: `DiskFull of llama-70b`.
    pub key: Arc<str>,
    /// Labels that limit those who post them.
    within: LabelSet,
    pub kind: Kind,
    pub run: String,
    /// Every node it was about since it began, and how many alerts fire for each now.
    pub nodes: BTreeMap<String, usize>,
    /// Fingerprints.
    pub firing: BTreeSet<u64>,
    /// The worst that came to it since it was last judged.
    pub newcomer: Option<Newcomer>,
    /// All that did, by their identity, and how severe each is.
    pub came: Vec<(u64, Severity)>,
    /// Those that ended since then, once none of the same identity and severity fires.
    pub went: Vec<(u64, Severity)>,
    /// How many fire of each identity and severity.
    alike: BTreeMap<(u64, Severity), usize>,
    /// Those that ended because nobody posted them any more, by fingerprint, and when they last
    /// were.
    silent: BTreeMap<u64, Ts>,
    /// The worst of those that fire.
    pub severity: Severity,
    /// How many of each severity fire.
    severities: BTreeMap<Severity, usize>,
    pub(super) common: Common,
}

impl About {
    /// What makes alerts one condition. Those about something that Stepwatch itself detects share a
    /// run or a node and a cause, as its own findings do; others share the labels of `group_by`.
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

    /// Whether it was not about this node before.
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

    /// `silent`: when it was last posted, if that is why it ended.
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

    /// When the last was posted of those whose end nobody posted.
    pub fn silent_since(&self) -> Option<Ts> {
        self.silent.values().copied().max()
    }

    /// What was worst stays so when nothing fires any more.
    fn weigh(&mut self) {
        self.severity = self.severities.keys().next_back().copied().unwrap_or(self.severity);
    }
}

/// What makes alerts that are posted within some limits conditions of their own: `... (within
/// run=llama-70b)`.
pub(super) fn within(limits: &LabelSet) -> String {
    if limits.is_empty() {
        return String::new();
    }
    // A value cannot contain what separates two of them.
    let plain = |text: &str| text.replace([',', '=', '(', ')'], "\u{fffd}");
    let pairs = limits.iter().map(|(name, value)| format!("{}={}", plain(name), plain(value)));
    format!(" (within {})", pairs.collect::<Vec<_>>().join(", "))
}

/// Whether this may be a job of a scheduler: a number, or one that begins with it (`12.server`), or
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
