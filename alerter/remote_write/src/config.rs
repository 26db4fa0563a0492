//! The `remote_write` section of the configuration.

use serde::{Deserialize, Serialize};

use crate::selector::Selector;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Rules for series that are signals of runs, in addition to the well-known names
    /// (`docs/remote-write.md`). The first rule that selects a series wins.
    pub runs: Vec<RunRule>,
    /// Selectors of series that are watched under their own names, as `detectors.generic` says.
    pub generic: Vec<Selector>,
    /// Selectors of series that are counted and then dropped, whatever else selects them.
    pub drop: Vec<Selector>,
    /// The most series known at once; samples of more series are counted and dropped.
    pub max_series: usize,
    /// The most series of one named tenant.
    pub max_series_per_tenant: usize,
    /// The most series in use at once: signals of runs, readings of nodes, watched series.
    pub max_watched: usize,
}

/// A rule that makes series a signal of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRule {
    pub series: Selector,
    /// The name of the signal: `loss`, `grad_norm`, `lr`, `step`, `step_time`, `tokens_per_second`,
    /// `mfu` or any other.
    pub signal: String,
    /// The label that names the run.
    #[serde(default = "run")]
    pub run: String,
    /// The label with the rank; empty if there is none.
    #[serde(default = "rank")]
    pub rank: String,
    /// The factor for the value: 0.001 if it is in milliseconds.
    #[serde(default = "one")]
    pub scale: f64,
}

fn run() -> String {
    "run".to_owned()
}

fn rank() -> String {
    "rank".to_owned()
}

const fn one() -> f64 {
    1.0
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runs: Vec::new(),
            generic: Vec::new(),
            drop: Vec::new(),
            max_series: 1_000_000,
            max_series_per_tenant: 250_000,
            max_watched: 20_000,
        }
    }
}

impl Config {
    /// The upper limit of `max_series`: series numbers have no more room, and memory stays at a few
    /// hundred megabytes.
    pub const MOST_SERIES: usize = 10_000_000;

    /// Adds an error with the key for every mistake.
    pub fn check(&self, errors: &mut Vec<String>) {
        for (i, rule) in self.runs.iter().enumerate() {
            let mut wrong = |key: &str, why: &str| errors.push(format!("runs[{i}].{key}: {why}"));
            if rule.signal.is_empty() {
                wrong("signal", "is empty; expected loss, grad_norm, lr, step, step_time, or another name");
            }
            if rule.run.is_empty() {
                wrong("run", "is empty; expected the name of the label that names the run");
            }
            if !(rule.scale.is_finite() && rule.scale != 0.0) {
                wrong("scale", "must be a number other than 0");
            }
        }
        for (key, value) in [
            ("max_series", self.max_series),
            ("max_series_per_tenant", self.max_series_per_tenant),
            ("max_watched", self.max_watched),
        ] {
            if !(1..=Self::MOST_SERIES).contains(&value) {
                errors.push(format!("{key}: must be 1 to {}, got {value}", Self::MOST_SERIES));
            }
        }
    }
}
