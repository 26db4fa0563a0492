//! The settings: `remote_write` in the configuration.

use serde::{Deserialize, Serialize};

use crate::selector::Selector;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Series that are signals of runs, beside those that are known by their names
    /// (`docs/remote-write.md`). The first rule that selects a series decides.
    pub runs: Vec<RunRule>,
    /// Series that are watched by their names alone, as `detectors.generic` says.
    pub generic: Vec<Selector>,
    /// Series that are counted and not looked at, whatever else selects them.
    pub drop: Vec<Selector>,
    /// Series known at once; further ones are counted and dropped.
    pub max_series: usize,
    /// The share of one tenant that has a name.
    pub max_series_per_tenant: usize,
    /// Series that anything is made of at once: signals of runs, readings of nodes, watched ones.
    pub max_watched: usize,
}

/// How series become a signal of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRule {
    pub series: Selector,
    /// `loss`, `grad_norm`, `lr`, `step`, `step_time`, `tokens_per_second`, `mfu`, or any other
    /// name.
    pub signal: String,
    /// The label that names the run.
    #[serde(default = "run")]
    pub run: String,
    /// The label with the rank, where there is one.
    #[serde(default = "rank")]
    pub rank: String,
    /// What the value is multiplied by: 0.001 of milliseconds.
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
    /// The most that `max_series` may be: what the numbers of series have room for, and a few
    /// hundred megabytes.
    pub const MOST_SERIES: usize = 10_000_000;

    /// Every mistake, each with its key.
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
