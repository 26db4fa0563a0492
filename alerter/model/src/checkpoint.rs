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
    /// Its save, or a later stage of it, failed.
    Failed,
    /// It has not reached its last stage.
    Incomplete,
    /// The last load failed, and it was a load of this one.
    LoadFailed,
    /// The loss of its evaluation at this step, the first since it was saved, is not finite or far
    /// above the usual one before.
    BadEvaluation { step: i64, loss: Num, before: Num },
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.step;
        match self.why {
            Flaw::Failed => write!(f, "checkpoint {step} failed"),
            Flaw::Incomplete => write!(f, "checkpoint {step} is not complete"),
            Flaw::LoadFailed => write!(f, "checkpoint {step} could not be loaded"),
            Flaw::BadEvaluation { step: at, loss, before } => {
                let (loss, before) = (number(loss.0), number(before.0));
                write!(f, "checkpoint {step} is bad: ")?;
                if at == step {
                    f.write_str("its evaluation")?;
                } else {
                    write!(f, "the first evaluation after it, at step {at},")?;
                }
                write!(f, " has a loss of {loss}, and {before} was usual before")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_called_its_own_only_if_it_is_of_the_same_step() {
        let of = |at| Flaw::BadEvaluation { step: at, loss: 3.5.into(), before: 2.1.into() };
        let said = |step, why| PassedOver { step, why }.to_string();
        let own = "checkpoint 9500 is bad: its evaluation has a loss of 3.5, and 2.1 was usual before";
        assert_eq!(said(9_500, of(9_500)), own);
        let next = "checkpoint 9500 is bad: the first evaluation after it, at step 9600, has a loss of 3.5, and 2.1 was usual before";
        assert_eq!(said(9_500, of(9_600)), next);
        assert_eq!(said(9_500, Flaw::LoadFailed), "checkpoint 9500 could not be loaded");
    }
}
