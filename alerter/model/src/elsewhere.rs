//! Other runs and attempts that met the same data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

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
}
