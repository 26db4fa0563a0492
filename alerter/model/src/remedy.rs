//! What to do about an incident, as data that a page can show and an action can carry out, with the
//! arithmetic that speaks for it. The words of a remedy are its [`Display`](core::fmt::Display).

use core::fmt;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::Remedy as Action;

use crate::{Suspect, Target};

/// What to do, in the order in which it is done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub remedies: Vec<Remedy>,
    pub cost: PlanCost,
}

/// One thing to do. GPUs, links and nodes are named as messages name them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing: the same batches of data did it before, and training went on.
    Leave {
        batch: Suspect,
    },
    /// No checkpoint is known to go back to. `saved`: there are some, from after the onset.
    Stop {
        saved: bool,
    },
    /// Go back to a checkpoint from before the onset, and leave out the batches that follow it.
    RollBack {
        checkpoint: i64,
        skip_from: i64,
        skip_to: i64,
        /// Only if the loss does not come back by itself.
        if_it_stays: bool,
        /// Checkpoints that were written after the onset.
        later_checkpoints: usize,
    },
    /// From this checkpoint, if one was reported.
    Restart {
        checkpoint: Option<i64>,
    },
    /// A restart that may cure a slow-down, where it pays back.
    TryRestart,
    /// Restart the job on the same nodes.
    RestartApp,
    /// At the next checkpoint; `last`: the step of the one that was written last.
    DrainNode {
        node: String,
        last_checkpoint: Option<i64>,
    },
    /// After a drain: now, or at the next checkpoint.
    ResetGpu {
        node: String,
        gpu: String,
        when: When,
    },
    RebootNode {
        node: String,
    },
    CheckHardware {
        node: String,
    },
    ContactSupport {
        node: String,
    },
    /// A link of a node that is to be drained: cable, transceiver or adapter.
    CheckLink {
        node: String,
        link: String,
    },
    /// Nothing answers from it.
    CheckHost {
        node: String,
    },
    /// In this cgroup, if it is known.
    LimitMemory {
        node: String,
        cgroup: String,
    },
    /// What nodes share: a switch, storage, power.
    Inspect {
        target: Target,
    },
    /// What ended the rank that failed first; without `words` its log has to be read.
    InspectFailure {
        place: Target,
        words: Option<String>,
    },
    /// The stacks of all ranks, of a run that hangs.
    TakeStacks,
    /// What an exporter of another version asks for.
    Other {
        action: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Now,
    /// `last`: the step of the checkpoint that was written last.
    NextCheckpoint {
        last: Option<i64>,
    },
}

/// The arithmetic of a plan. What is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanCost {
    /// Those of the run.
    pub gpus: u32,
    pub dollars_per_gpu_hour: Option<f64>,
    /// The share of its speed that the run has lost, between 0 and 1.
    pub speed_lost: Option<f64>,
    /// The run takes no steps: all of its GPUs are idle.
    pub stands: bool,
    /// Steps that are done again, and how long they take.
    pub steps_redone: Option<i64>,
    pub redo_seconds: Option<f64>,
    /// What a restart costs now: the steps since the last checkpoint, and starting.
    pub restart_seconds: Option<f64>,
    /// What it costs right after a checkpoint: starting.
    pub start_seconds: Option<f64>,
    /// After how long a restart that cures the slow-down has paid for itself.
    pub pays_back_seconds: Option<f64>,
    pub forecast: Option<Forecast>,
}

/// Where a slow-down that creeps leads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// It took so many steps to lose what is lost now.
    pub steps: i64,
    /// The share of the speed that will be lost, and when at this slope.
    pub speed_lost: f64,
    pub seconds: f64,
}

impl PlanCost {
    /// What so many seconds of the whole run cost.
    pub fn dollars(&self, seconds: f64) -> Option<f64> {
        self.dollars_per_gpu_hour.map(|rate| rate * f64::from(self.gpus) * seconds / 3600.0)
    }
}

impl Remedy {
    /// What an action of the catalogue asks for, on a GPU of a node. None where nothing is to be
    /// done.
    pub fn from_action(action: &str, node: &str, gpu: &str) -> Option<Self> {
        if action.is_empty() {
            return None;
        }
        let node = node.to_owned();
        Some(match Action::parse(action) {
            Some(Action::None) => return None,
            Some(Action::RestartApp) => Self::RestartApp,
            Some(Action::DrainReset) => {
                Self::ResetGpu { node, gpu: gpu.to_owned(), when: When::NextCheckpoint { last: None } }
            }
            Some(Action::ResetGpu) => Self::ResetGpu { node, gpu: gpu.to_owned(), when: When::Now },
            Some(Action::RebootNode) => Self::RebootNode { node },
            Some(Action::CheckHardware) => Self::CheckHardware { node },
            Some(Action::ContactSupport) => Self::ContactSupport { node },
            None => Self::Other { action: action.to_owned() },
        })
    }
}

/// ` (the last is 10000)`
struct Last(Option<i64>);

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |step| write!(f, " (the last is {step})"))
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |gpu: &str| if gpu.is_empty() { "the GPU".to_owned() } else { gpu.to_owned() };
        match self {
            Self::Leave { batch } => write!(f, "leave it: {}, {}", batch.what(), batch.why()),
            Self::Stop { saved: false } => f.write_str("stop and look: no checkpoint was reported"),
            Self::Stop { saved: true } => {
                f.write_str("stop and look: no checkpoint from before the onset is known")
            }
            Self::RollBack { checkpoint, skip_from, skip_to, if_it_stays, .. } => {
                let wait = if *if_it_stays { "if it does not come back by itself, " } else { "" };
                write!(
                    f,
                    "{wait}roll back to checkpoint {checkpoint} and skip the batches of steps {skip_from} to {skip_to}"
                )
            }
            Self::Restart { checkpoint: Some(step) } => write!(f, "restart from checkpoint {step}"),
            Self::Restart { checkpoint: None } | Self::TryRestart => f.write_str("restart"),
            Self::RestartApp => f.write_str("restart the job; the node can stay"),
            Self::DrainNode { node, last_checkpoint } => {
                write!(f, "drain {node} at the next checkpoint{}", Last(*last_checkpoint))
            }
            Self::ResetGpu { node, gpu, when: When::Now } => {
                write!(f, "drain {node} and reset {}", named(gpu))
            }
            Self::ResetGpu { node, gpu, when: When::NextCheckpoint { last } } => {
                write!(f, "drain {node} at the next checkpoint{}, then reset {}", Last(*last), named(gpu))
            }
            Self::RebootNode { node } => write!(f, "drain {node} and reboot it"),
            Self::CheckHardware { node } => write!(f, "drain {node} and have its hardware checked"),
            Self::ContactSupport { node } => write!(f, "drain {node} and contact the vendor's support"),
            Self::CheckLink { node, link } => write!(f, "drain {node} and have its link {link} looked at"),
            Self::CheckHost { node } => {
                write!(f, "see whether the host {node} is up, and drain it if it is not")
            }
            Self::LimitMemory { node, cgroup } => {
                write!(f, "let the job use less memory on {node} or raise the limit")?;
                if cgroup.is_empty() { Ok(()) } else { write!(f, " of {cgroup}") }
            }
            Self::Inspect { target } => write!(f, "look at the {target}"),
            Self::InspectFailure { place, words: Some(words) } => {
                write!(f, "look at what ended {place} ({words})")
            }
            Self::InspectFailure { place, words: None } => write!(f, "look at the log of {place}"),
            Self::TakeStacks => f.write_str("take the stacks of all ranks"),
            Self::Other { action } => f.write_str(&action.replace('_', " ")),
        }
    }
}
