//! A source of a run that does not answer.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// When it was noticed, whether or not we have listened all the time since.
    pub since: Ts,
    pub reason: String,
    /// The node that it reported, where that is known.
    pub node: Option<String>,
}
