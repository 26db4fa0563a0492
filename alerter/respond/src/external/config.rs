//! The settings of external alerts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::label_set::LabelSet;
use stepwatch_model::{Kind, Severity, Span};

/// The section `alerts:` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertsConfig {
    /// How long an alert without an end fires after it was last posted.
    pub resolve_timeout: Span,
    /// Severities by value of the label `severity`, besides the built-in ones.
    pub severities: BTreeMap<String, Severity>,
    /// The severity of an alert without that label, or with an unknown value.
    pub default_severity: Severity,
    /// Kinds by alert name, for alerts about what Stepwatch itself detects. Alerts with a label
    /// `kind` need no entry.
    pub kinds: BTreeMap<String, Kind>,
    /// Labels that alerts of one incident have in common, besides the run that they are about.
    pub group_by: Vec<String>,
    /// The most alerts that fire at once; further ones are refused and counted.
    pub max_alerts: usize,
    /// The most bytes of labels, annotations and addresses of all firing alerts together.
    pub max_bytes: usize,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            resolve_timeout: Span::secs(300),
            severities: BTreeMap::new(),
            default_severity: Severity::Ticket,
            kinds: BTreeMap::new(),
            group_by: vec!["alertname".into()],
            max_alerts: 100_000,
            max_bytes: 32 * 1024 * 1024,
        }
    }
}

impl AlertsConfig {
    pub fn severity(&self, labels: &LabelSet) -> Severity {
        let Some(word) = labels.get("severity") else { return self.default_severity };
        if let Some(severity) = self.severities.get(word) {
            return *severity;
        }
        match word.to_ascii_lowercase().as_str() {
            "page" | "critical" | "emergency" | "fatal" | "disaster" => Severity::Page,
            "ticket" | "warning" | "warn" | "error" | "major" | "high" => Severity::Ticket,
            "info" | "informational" | "none" | "debug" | "low" | "notice" => Severity::Info,
            _ => self.default_severity,
        }
    }

    /// The kind that an alert is about.
    pub fn kind(&self, labels: &LabelSet) -> Kind {
        let named = labels.get("alertname").and_then(|name| self.kinds.get(name).copied());
        let labelled =
            || labels.get("kind").and_then(|word| Kind::ALL.iter().copied().find(|k| k.as_str() == word));
        named.or_else(labelled).unwrap_or(Kind::PrometheusAlert)
    }
}
