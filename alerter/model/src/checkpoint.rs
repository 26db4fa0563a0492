//! Checkpoints that nobody should go back to, and why.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{Num, number};

/// A checkpoint that is not the one to go back to, although it is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    pub step: i64,
    pub why: Flaw,
}

/// What spoils the checkpoints of a run, and the step of its onset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spoilt {
    pub by: Spoiler,
    pub onset: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spoiler {
    /// The loss or the gradient norm is not finite.
    Nonfinite,
    Divergence,
    /// The loss of one rank is out of line again and again.
    RankLoss,
}

impl fmt::Display for Spoilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.by {
            Spoiler::Nonfinite => "the numbers were not finite",
            Spoiler::Divergence => "the loss diverged",
            Spoiler::RankLoss => "the loss of one rank was out of line",
        };
        write!(f, "{what} at step {}", self.onset)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flaw {
    /// It was saved at or after the onset of what it would keep.
    AfterOnset { onset: i64 },
    /// Its save, or a later stage of it, failed.
    Failed,
    /// It has not reached its last stage.
    Incomplete,
    /// The loss of its evaluation at this step, the first since it was saved, is not finite or far
    /// above the usual one before.
    BadEvaluation { step: i64, loss: Num, before: Num },
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.step;
        match self.why {
            Flaw::AfterOnset { onset } => write!(f, "checkpoint {step} is not from before step {onset}"),
            Flaw::Failed => write!(f, "checkpoint {step} failed"),
            Flaw::Incomplete => write!(f, "checkpoint {step} is not complete"),
            Flaw::BadEvaluation { step: at, loss, before } => {
                let (loss, before) = (number(loss.0), number(before.0));
                write!(
                    f,
                    "checkpoint {step} is bad: its evaluation at step {at} has a loss of {loss}, {before} before"
                )
            }
        }
    }
}
