//! Other runs and attempts that met the same data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Runs named one by one.
const NAMED: usize = 3;

/// Other runs and attempts that a batch made spike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Other runs that spiked at it.
    pub runs: BTreeSet<String>,
    /// Other attempts of this run that did.
    pub attempts: BTreeSet<u32>,
}

impl Elsewhere {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.attempts.is_empty()
    }

    /// `3 other runs (a, b, c) and attempt 1 of this one`.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        if !self.runs.is_empty() {
            let n = self.runs.len();
            let mut names: Vec<&str> = self.runs.iter().take(NAMED).map(String::as_str).collect();
            if n > NAMED {
                names.push("...");
            }
            parts.push(format!("{n} other run{} ({})", if n == 1 { "" } else { "s" }, names.join(", ")));
        }
        if !self.attempts.is_empty() {
            let numbers: Vec<String> = self.attempts.iter().map(u32::to_string).collect();
            let s = if numbers.len() == 1 { "" } else { "s" };
            parts.push(format!("attempt{s} {} of this run", numbers.join(", ")));
        }
        parts.join(" and ")
    }
}
