//! A copy of a run's attempts and checkpoints from the engine, for readers.

use stepwatch_detect::Run;
use stepwatch_detect::run::{Aspect, Attempt, CheckpointStages, Differences, Ended, Written};
use stepwatch_model::time::Ts;

/// The history of a run. Times are those of the alerter's clock.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    /// The ended attempts, oldest first.
    pub past: Vec<Attempt>,
    pub current: Option<CurrentAttempt>,
    /// The checkpoints, oldest first.
    pub checkpoints: Vec<Written>,
    /// The stages of the last ones of the current attempt, oldest first, and of the last load.
    pub stages: Vec<CheckpointStages>,
    pub load: Option<CheckpointStages>,
    /// The setup of the current attempt.
    pub setup: Vec<(Aspect, String, String)>,
}

/// The latest attempt.
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
            stages: f.checkpoints.stage_table(),
            load: f.checkpoints.last_load(),
            setup: setup.map(|((of, name), value)| (*of, name.clone(), value.clone())).collect(),
        }
    }
}
