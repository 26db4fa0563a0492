//! The names of the labels that every incident has. Routes, teams, inhibition, silences and the
//! Alertmanager API select by them.

use stepwatch_model::Kind;

/// The label that alerts are known by: an incident has one too, so that a silence made of what
/// Alertmanager's API shows fits it.
pub const ALERTNAME: &str = "alertname";

/// Of a storm: the one origin of all that is in it.
pub const ORIGIN: &str = "origin";

/// Of a series that is watched by its name: the metric.
pub const METRIC: &str = "metric";
/// The same: on whose behalf it was sent, where several share this alerter.
pub const TENANT: &str = "tenant";

/// The names that are ours, whatever an incident is about.
pub const OURS: &[&str] = &["severity", "kind", "cause", "run", "node", "signal", "team"];

/// The name of incidents of a kind among alerts: `StepwatchGradSpike`.
pub fn alertname(kind: Kind) -> String {
    let words = kind.as_str().split('_').map(|word| {
        let mut chars = word.chars();
        chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect::<String>()
    });
    core::iter::once("Stepwatch".to_owned()).chain(words).collect()
}
