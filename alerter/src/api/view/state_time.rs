//! Where the time of a run went.

use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{Accounts, TimeState};
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
    pub(super) fn all(accounts: &Accounts) -> Vec<Self> {
        let time = |state: TimeState| Self {
            state: state.as_str().to_owned(),
            seconds: accounts.seconds(state),
            gpu_seconds: accounts.gpu_seconds(state),
            dollars: accounts.dollars(state),
        };
        TimeState::ALL.into_iter().map(time).filter(|time| time.seconds > 0.0).collect()
    }
}
