//! The names of the labels that every incident has. Routes, teams, inhibition, silences and the
//! Alertmanager API select by them.

use stepwatch_model::Kind;

/// The name of an alert. An incident has this label too, so that a silence made from what the
/// Alertmanager API shows matches it.
pub const ALERTNAME: &str = "alertname";

/// The origin that all members of a storm share.
pub const ORIGIN: &str = "origin";

/// The metric of a watched series.
pub const METRIC: &str = "metric";
/// The tenant of a watched series, if several tenants share this alerter.
pub const TENANT: &str = "tenant";

/// The labels that Stepwatch sets itself. No run or alert may replace them.
pub const OURS: &[&str] = &["severity", "kind", "cause", "run", "node", "signal", "team"];

/// The name of incidents of a kind among alerts: `StepwatchGradSpike`.
pub fn alertname(kind: Kind) -> String {
    let words = kind.as_str().split('_').map(|word| {
        let mut chars = word.chars();
        chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect::<String>()
    });
    core::iter::once("Stepwatch".to_owned()).chain(words).collect()
}
