//! The needs of a run before it can go on, as facts. `Plan` turns them into advice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions;

use crate::Target;

/// The action that a fault asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// An action that only an exporter of another version knows.
    Other(String),
    /// An action of the catalogue. Each includes those before it.
    Known(conditions::Remedy),
}

impl Action {
    /// `None` if the text is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let known = conditions::Remedy::parse(text).map(Self::Known);
        known.or_else(|| (!text.is_empty()).then(|| Self::Other(text.to_owned())))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(action) => action.as_str(),
            Self::Other(action) => action,
        }
    }

    pub fn known(&self) -> Option<conditions::Remedy> {
        match self {
            Self::Known(action) => Some(*action),
            Self::Other(_) => None,
        }
    }
}

/// The needs of a run's nodes, kept with the incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Needs {
    /// Whether the run takes no steps.
    pub stands: bool,
    /// By node, its most urgent need.
    pub nodes: BTreeMap<String, Need>,
    pub ended: Option<FirstFailure>,
    /// The run said that it is done: there is nothing to save, and nothing to restart.
    #[serde(default)]
    pub done: bool,
}

/// The need of one node, in ascending order of urgency.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The kernel killed a process that was out of memory, in this cgroup if it is known.
    Memory {
        cgroup: String,
    },
    /// The node's faults ask for this action. `sure`: at least one of the faults is an error.
    Repair {
        sure: bool,
        action: conditions::Remedy,
        gpu: String,
    },
    Link {
        name: String,
    },
    /// The host does not answer: its exporter reports nothing, not only one collector.
    Gone,
}

/// The rank that failed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    pub place: Target,
    /// The last lines of its log, if they are about the rank itself and not about a signal or a
    /// lost peer.
    pub words: Option<String>,
}
