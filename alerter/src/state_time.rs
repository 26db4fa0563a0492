//! How the time of a run was used.

use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{TimeState, Totals};
use utoipa::ToSchema;

/// How long a run was in a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StateTime {
    /// `productive`, `slowed`, `stalled`, `saving`, `loading`, `starting`, `evaluating`,
    /// `recomputing`, `down`, `idle` or `unknown`.
    pub state: String,
    pub seconds: f64,
    /// The same times its GPUs, once their number is known.
    pub gpu_seconds: Option<f64>,
    /// What that cost, where a price is configured.
    pub dollars: Option<f64>,
}

impl StateTime {
    pub(crate) fn all(totals: &Totals) -> Vec<Self> {
        let time = |state: TimeState| Self {
            state: state.as_str().to_owned(),
            seconds: totals.seconds(state),
            gpu_seconds: totals.gpu_seconds(state),
            dollars: totals.dollars(state),
        };
        TimeState::ALL.into_iter().map(time).filter(|time| time.seconds > 0.0).collect()
    }
}
