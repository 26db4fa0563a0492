//! The attempts and checkpoints of a run as readers see them, copied from the engine.

use stepwatch_detect::Run;
use stepwatch_detect::run::{Aspect, Attempt, Differences, Ended, Written};
use stepwatch_model::time::Ts;

/// Times are of the alerter's clock.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    /// Attempts that are over, oldest first.
    pub past: Vec<Attempt>,
    pub current: Option<CurrentAttempt>,
    /// Oldest first.
    pub checkpoints: Vec<Written>,
    /// How the current attempt is set up.
    pub setup: Vec<(Aspect, String, String)>,
}

/// The attempt that is the last one.
#[derive(Debug, Clone)]
pub struct CurrentAttempt {
    pub number: u32,
    pub began: Ts,
    pub first_step: Option<i64>,
    pub last_step: Option<i64>,
    pub ended: Option<Ended>,
    pub changes: Differences,
}

impl RunHistory {
    pub(crate) fn from_run(run: &Run) -> Self {
        let f = &run.state;
        let current = CurrentAttempt {
            number: f.attempt,
            began: f.attempt_at,
            first_step: f.attempts.first_step,
            last_step: f.last_step,
            ended: f.ended.clone(),
            changes: f.attempts.changes(),
        };
        let setup = f.attempts.setup.values.iter();
        Self {
            past: f.attempts.past.iter().cloned().collect(),
            current: Some(current),
            checkpoints: f.checkpoints.list.iter().cloned().collect(),
            setup: setup.map(|((of, name), value)| (*of, name.clone(), value.clone())).collect(),
        }
    }
}
