//! The advice about an incident, as data that a page can show and an action can carry out, with the
//! calculation behind it. The text of a remedy is its [`Display`](core::fmt::Display).

use core::fmt;

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions;

use crate::{Action, PassedOver, SaveInterval, Span, Spoilt, Suspect, Target};

/// The remedies of an incident, in the order in which they are done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub remedies: Vec<Remedy>,
    pub cost: PlanCost,
}

/// One remedy. GPUs, links and nodes have the names that messages use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Do nothing: the same data caused the spike before, and training went on.
    Leave {
        batch: Suspect,
    },
    /// Stop: there is no checkpoint to go back to. `saved`: checkpoints exist, but from after the
    /// onset.
    Stop {
        saved: bool,
    },
    /// Go back to a checkpoint from before the onset, and leave out the batches that follow it.
    RollBack {
        checkpoint: i64,
        skip_from: i64,
        skip_to: i64,
        /// Whether to roll back only if the loss does not recover by itself.
        if_it_stays: bool,
        /// The number of checkpoints that were written after the onset.
        later_checkpoints: usize,
        /// What these are from after, if it is not the onset of the incident.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spoilt: Option<Spoilt>,
        /// The checkpoint is not the newest, and nobody would have said if it was removed.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        may_be_gone: bool,
        /// Newer ones from before the onset that are no good, the last three.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        passed_over: Vec<PassedOver>,
    },
    /// Restart from this checkpoint, if one was reported.
    Restart {
        checkpoint: Option<i64>,
        /// The number of checkpoints that were written after the onset of something else that
        /// spoils the run.
        #[serde(default)]
        later_checkpoints: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spoilt: Option<Spoilt>,
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        may_be_gone: bool,
        /// Newer ones that are no good, the last three.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        passed_over: Vec<PassedOver>,
    },
    /// Save now: the hardware under the run is failing, and it still makes steps.
    SaveNow {
        /// Seconds of work that a crash would lose.
        unsaved_seconds: f64,
        /// Seconds for which a save blocks the steps, if that is known.
        save_seconds: Option<f64>,
    },
    /// Restart from the checkpoint that [`Self::SaveNow`] writes.
    RestartSaved,
    /// Save at another interval.
    SaveEvery(Box<SaveInterval>),
    /// Try a restart, which may cure a slow-down, if it pays back.
    TryRestart,
    /// Restart the job on the same nodes.
    RestartApp,
    /// Drain the node at the next checkpoint. `last_checkpoint` is the step of the last one
    /// written.
    DrainNode {
        node: String,
        last_checkpoint: Option<i64>,
    },
    /// Reset the GPU after a drain: now, or at the next checkpoint.
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
    /// Check a link of a node that is to be drained: cable, transceiver or adapter.
    CheckLink {
        node: String,
        link: String,
    },
    /// Check a host that does not answer.
    CheckHost {
        node: String,
    },
    /// Limit the memory of a node's processes, in this cgroup if it is known.
    LimitMemory {
        node: String,
        cgroup: String,
    },
    /// Inspect what the nodes share: a switch, storage, power.
    Inspect {
        target: Target,
    },
    /// Inspect what ended the rank that failed first. Without `words`, a person has to read its
    /// log.
    InspectFailure {
        place: Target,
        words: Option<String>,
    },
    /// Limit the bandwidth of what is written or uploaded while the run makes steps.
    LimitSaves,
    /// Let the nodes save one after another.
    StaggerSaves,
    /// Take the stacks of all ranks of a run that hangs.
    TakeStacks,
    /// An action that is unknown here, from an exporter of another version.
    Other {
        action: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Now,
    /// At the next checkpoint. `last` is the step of the last one written.
    NextCheckpoint {
        last: Option<i64>,
    },
}

/// The calculation of a plan. Unknown values are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanCost {
    /// The GPUs of the run; `None` if their number is unknown.
    pub gpus: Option<u32>,
    pub dollars_per_gpu_hour: Option<f64>,
    /// The share of its speed that the run has lost, between 0 and 1.
    pub speed_lost: Option<f64>,
    /// Whether the run takes no steps, so that all of its GPUs are idle.
    pub stands: bool,
    /// The steps that a roll-back repeats, and their duration.
    pub steps_redone: Option<i64>,
    pub redo_seconds: Option<f64>,
    /// The cost of a restart now: the steps since the last checkpoint, and starting.
    pub restart_seconds: Option<f64>,
    /// The cost of a restart right after a checkpoint: starting.
    pub start_seconds: Option<f64>,
    /// The seconds after which a restart that cures the slow-down has paid for itself.
    pub pays_back_seconds: Option<f64>,
    pub forecast: Option<Forecast>,
}

/// The forecast for a gradual slow-down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// The number of steps in which the present loss of speed came about.
    pub steps: i64,
    /// The share of the speed that will be lost at this slope, and in how many seconds.
    pub speed_lost: f64,
    pub seconds: f64,
}

impl PlanCost {
    /// The GPU hours of `seconds` of the whole run; `None` if the number of GPUs is unknown.
    pub fn gpu_hours(&self, seconds: f64) -> Option<f64> {
        self.gpus.map(|gpus| f64::from(gpus) * seconds / 3600.0)
    }

    /// The cost of `seconds` of the whole run in dollars. `None` if there is no price, or if the
    /// number of GPUs is unknown.
    pub fn dollars(&self, seconds: f64) -> Option<f64> {
        let price = self.dollars_per_gpu_hour.zip(self.gpus);
        price.map(|(rate, gpus)| rate * f64::from(gpus) * seconds / 3600.0)
    }
}

impl Remedy {
    /// The remedy for an action of the catalogue, on a GPU of a node. `None` if there is nothing to
    /// do.
    pub fn from_action(action: &Action, node: &str, gpu: &str) -> Option<Self> {
        let node = node.to_owned();
        let action = match action {
            Action::Known(action) => *action,
            Action::Other(action) => return Some(Self::Other { action: action.clone() }),
        };
        Some(match action {
            conditions::Remedy::None => return None,
            conditions::Remedy::RestartApp => Self::RestartApp,
            conditions::Remedy::DrainReset => {
                Self::ResetGpu { node, gpu: gpu.to_owned(), when: When::NextCheckpoint { last: None } }
            }
            conditions::Remedy::ResetGpu => Self::ResetGpu { node, gpu: gpu.to_owned(), when: When::Now },
            conditions::Remedy::RebootNode => Self::RebootNode { node },
            conditions::Remedy::CheckHardware => Self::CheckHardware { node },
            conditions::Remedy::ContactSupport => Self::ContactSupport { node },
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

/// ` (if it is still on disk)`
struct IfThere(bool);

impl fmt::Display for IfThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { " (if it is still on disk)" } else { "" })
    }
}

/// `every 280 steps (18m 38s)`
struct Every(Option<i64>, f64);

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = Span::from_secs_f64(self.1);
        match self.0 {
            Some(1) => write!(f, "every step ({span})"),
            Some(steps) => write!(f, "every {steps} steps ({span})"),
            None => write!(f, "every {span}"),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |gpu: &str| if gpu.is_empty() { "the GPU".to_owned() } else { gpu.to_owned() };
        match self {
            Self::Leave { batch } => write!(f, "leave it: {}, {}", batch.what(), batch.why()),
            Self::Stop { saved: false } => f.write_str("stop and look: no checkpoint was reported"),
            Self::Stop { saved: true } => {
                f.write_str("stop and look: no good checkpoint from before the onset is known")
            }
            Self::RollBack { checkpoint, skip_from, skip_to, if_it_stays, may_be_gone, .. } => {
                let wait = if *if_it_stays { "if it does not come back by itself, " } else { "" };
                write!(
                    f,
                    "{wait}roll back to checkpoint {checkpoint}{} and skip the batches of steps {skip_from} to {skip_to}",
                    IfThere(*may_be_gone),
                )
            }
            Self::Restart { checkpoint: Some(step), may_be_gone, .. } => {
                write!(f, "restart from checkpoint {step}{}", IfThere(*may_be_gone))
            }
            Self::Restart { checkpoint: None, .. } | Self::TryRestart => f.write_str("restart"),
            Self::SaveNow { .. } => f.write_str("save now"),
            Self::RestartSaved => f.write_str("restart from that checkpoint"),
            Self::SaveEvery(i) => {
                let (best, had) =
                    (Every(i.best_steps, i.best_seconds), Every(i.interval_steps, i.interval_seconds));
                write!(f, "save {best} instead of {had}")
            }
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
            Self::LimitSaves => f.write_str(
                "limit the bandwidth of uploads and writes, or give them an interface of their own",
            ),
            Self::StaggerSaves => f.write_str("let the nodes save one after another, or fewer at once"),
            Self::TakeStacks => f.write_str("take the stacks of all ranks"),
            Self::Other { action } => f.write_str(&action.replace('_', " ")),
        }
    }
}
