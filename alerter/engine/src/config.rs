//! What the engine needs of the configuration: its part of the YAML file.

use serde::{Deserialize, Serialize};

use crate::detector::DetectorsConfig;
use crate::oncall::OnCallConfig;
use crate::time::Span;

/// Built by the alerter from its configuration file; names are already checked against the receivers.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Names of all receivers, in configuration order.
    pub receivers: Vec<String>,
    pub policies: Vec<Policy>,
    pub routes: Vec<Route>,
    pub cost_per_gpu_hour: Option<f64>,
    /// Base of runbook links: `<base>/<kind>`.
    pub runbook_url: String,
    /// Where this alerter can be reached by a browser, for links to incidents.
    pub external_url: Option<String>,
    /// How long a condition must stay clear before its incident resolves; a return within it is a flap.
    pub resolve_after: Span,
    pub oncall: OnCallConfig,
    pub detectors: DetectorsConfig,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    pub levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Since the previous level was notified; of the first level, since the incident opened.
    pub after: Span,
    pub notify: Vec<String>,
    /// How often the level is repeated, `after` apart, while nobody answers.
    #[serde(default)]
    pub repeat: u32,
}

/// The first route whose matchers all hold decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// `severity="page"`, `kind=~"grad_.*"`, `run!="scratch"`; an empty list matches everything.
    #[serde(default, rename = "match")]
    pub matchers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(default)]
    pub notify: Vec<String>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            receivers: Vec::new(),
            policies: Vec::new(),
            routes: Vec::new(),
            cost_per_gpu_hour: None,
            runbook_url: "https://github.com/stepwatch/stepwatch/blob/main/docs/runbooks".into(),
            external_url: None,
            resolve_after: Span::secs(60),
            oncall: OnCallConfig::default(),
            detectors: DetectorsConfig::default(),
        }
    }
}
