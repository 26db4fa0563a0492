//! A source of a run that does not answer.

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// When the loss was noticed, even if the alerter was down since then.
    pub since: Ts,
    pub reason: String,
    /// The node that it reported, where that is known.
    pub node: Option<String>,
}
