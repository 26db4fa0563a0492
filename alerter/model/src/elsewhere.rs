//! Other runs and attempts that spiked on the same data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The other runs and attempts that spiked on a batch of data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Other runs that spiked on the batch.
    pub runs: BTreeSet<String>,
    /// Other attempts of this run that spiked on the batch.
    pub attempts: BTreeSet<u32>,
}

impl Elsewhere {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.attempts.is_empty()
    }
}
