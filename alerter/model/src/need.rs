//! What has to be done before a run can go on, as far as it is known, as facts. `Plan` says what to
//! do about it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::Remedy as Action;

use crate::Target;

/// The action of a reset that can wait for the next drain.
pub const DRAIN_RESET: &str = Action::DrainReset.as_str();
/// The action of a reset now.
pub const RESET_GPU: &str = Action::ResetGpu.as_str();

/// What the nodes of a run need, kept with the incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Needs {
    /// The run takes no steps.
    pub stands: bool,
    /// By node, what it needs most.
    pub nodes: BTreeMap<String, Need>,
    pub ended: Option<FirstFailure>,
}

/// What one node needs, the least first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The kernel killed a process for want of memory, in this cgroup if it is known.
    Memory {
        cgroup: String,
    },
    /// The faults of the node ask for this action; `sure`: at least one of them is an error.
    Repair {
        sure: bool,
        effort: usize,
        action: String,
        gpu: String,
    },
    Link {
        name: String,
    },
    /// The host does not answer: more than a collector of its exporter fell silent.
    Gone,
}

/// The rank that failed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    pub place: Target,
    /// The last lines of its log, if they are about itself: no signal, no peer that was gone.
    pub words: Option<String>,
}

/// How much of the node an action costs: an action includes all with a lower number. 0 of a text
/// that is no action.
pub fn effort(action: &str) -> usize {
    Action::parse(action).map_or(0, |action| action as usize)
}
