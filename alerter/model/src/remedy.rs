//! What has to be done before a run can go on, as data, and the words for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::Remedy as Action;

use crate::Target;

/// The action of a reset that can wait for the next drain.
pub const DRAIN_RESET: &str = Action::DrainReset.as_str();
/// The action of a reset now.
pub const RESET_GPU: &str = Action::ResetGpu.as_str();

/// What is known of it, kept with the incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Remedies {
    /// The run takes no steps.
    pub stands: bool,
    /// By node, what it needs most.
    pub nodes: BTreeMap<String, Remedy>,
    pub ended: Option<FirstFailure>,
}

/// What one node needs, the least first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// A process was killed for want of memory, in this cgroup if it is known.
    Memory {
        cgroup: String,
    },
    /// The faults of the node want this done; `sure`: at least one of them is an error.
    Repair {
        sure: bool,
        effort: usize,
        action: String,
        gpu: String,
    },
    Link {
        name: String,
    },
    /// Nothing is heard of the host: what fell silent is more than a collector of its exporter.
    Gone,
}

/// The rank that failed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    pub place: Target,
    /// Its last words, if they are its own: no signal, no peer that was gone.
    pub words: Option<String>,
}

/// How much of the node an action costs: whoever does the most has done the rest too. 0 of what is
/// no action.
pub fn effort(action: &str) -> usize {
    Action::parse(action).map_or(0, |action| action as usize)
}

/// The words for an action of the catalogue on a GPU of a node; none where nothing is to be done.
pub fn advice(action: &str, node: &str, gpu: &str) -> Option<String> {
    let named = if gpu.is_empty() { "the GPU" } else { gpu };
    if action.is_empty() {
        return None;
    }
    Some(match Action::parse(action) {
        Some(Action::None) => return None,
        Some(Action::RestartApp) => "restart the job; the node can stay".into(),
        Some(Action::DrainReset) => drain_and_reset(node, gpu, ""),
        Some(Action::ResetGpu) => format!("drain {node} and reset {named}"),
        Some(Action::RebootNode) => format!("drain {node} and reboot it"),
        Some(Action::CheckHardware) => format!("drain {node} and have its hardware checked"),
        Some(Action::ContactSupport) => format!("drain {node} and contact the vendor's support"),
        // What an exporter of another version asks for.
        None => action.replace('_', " "),
    })
}

/// What can wait for a checkpoint; `last`: which one was written last, in words.
pub fn drain_and_reset(node: &str, gpu: &str, last: &str) -> String {
    let gpu = if gpu.is_empty() { "the GPU" } else { gpu };
    format!("drain {node} at the next checkpoint{last}, then reset {gpu}")
}
