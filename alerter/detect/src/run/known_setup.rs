//! The setup of a run that is remembered, and when a run is looked at for it.

use serde::{Deserialize, Serialize};

use super::attempts::AttemptSetup;
use stepwatch_model::time::Ts;

/// The steps of an attempt between two looks at its setup.
const LOOK_EVERY: u64 = 128;
/// The first look; the next ones are after twice as many steps each, up to [`LOOK_EVERY`].
const FIRST_LOOK: u64 = 8;

/// The setup of a run, and where it stood then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KnownSetup {
    pub run: String,
    /// The user who owns the run.
    pub(crate) uid: Option<u32>,
    pub attempt: u32,
    pub at: Ts,
    pub last_step: Option<i64>,
    /// The number of steps in total, and the number of ranks.
    pub steps: u64,
    pub ranks: u32,
    pub setup: AttemptSetup,
    /// What it did: runs of the same work have the same usual speed.
    pub(crate) work: Option<String>,
    /// Seconds of a step.
    pub(crate) secs: Option<f64>,
}

/// Whether the setup of a run is to be looked at, as its attempt went on from `before` to `after`
/// steps.
pub(crate) fn look_is_due(before: u64, after: u64) -> bool {
    let doubled = after.max(1).ilog2() > before.max(1).ilog2() && after < LOOK_EVERY;
    after >= FIRST_LOOK && (doubled || after / LOOK_EVERY > before / LOOK_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_looked_at_often_at_first() {
        let due: Vec<u64> = (1..=520).filter(|after| look_is_due(after - 1, *after)).collect();
        assert_eq!(due, [8, 16, 32, 64, 128, 256, 384, 512]);
        assert!(look_is_due(125, 131), "several steps arrived at once");
        assert!(!look_is_due(300, 1), "it restarted");
    }
}
