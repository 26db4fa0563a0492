//! A copy of a run's attempts and checkpoints from the engine, for readers.

use std::collections::BTreeMap;

use stepwatch_detect::Run;
use stepwatch_detect::run::{
    Aspect, Attempt, CheckpointStages, Differences, Ended, SinceGood, StartPart, StartUp, StartUsual, Written,
};
use stepwatch_model::time::Ts;

/// The value of a node among the settings of a run that it runs.
pub(crate) const USED: &str = "used";

/// The most ranks named of those that have not said hello.
const MAX_MISSING: usize = 64;

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
    /// What is different from the last good attempt.
    pub since_good: Option<SinceGood>,
    /// The start that has not come to its first step.
    pub starting: Option<StartSoFar>,
    /// What was usual before the attempts of these numbers.
    pub usual_starts: BTreeMap<u32, StartUsual>,
}

/// A start that goes on.
#[derive(Debug, Clone)]
pub struct StartSoFar {
    pub since: Ts,
    /// The parts that it has had.
    pub parts: Vec<StartPart>,
    /// The ranks that said hello, how many there are to be, and the first of those that have not
    /// while most have.
    pub ranks: usize,
    pub world: Option<u32>,
    pub missing: Vec<u32>,
    pub usual: Option<StartUsual>,
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
    pub start: Option<Box<StartUp>>,
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
            start: f.attempts.start.clone(),
        };
        let numbers = f.attempts.past.iter().map(|a| a.number).chain([f.attempt]);
        let usual_starts = numbers.filter_map(|n| Some((n, f.attempts.usual_start(n)?))).collect();
        let starting = f.run_starts().map(|s| StartSoFar {
            since: s.since,
            parts: s.parts(f.last_heard),
            ranks: s.ranks(),
            world: f.world,
            missing: f.missing_ranks().into_iter().take(MAX_MISSING).collect(),
            usual: s.usual().cloned(),
        });
        let setup = f.attempts.setup.values.iter();
        let nodes = f.attempts.setup.nodes().map(|node| (Aspect::Node, node.to_owned(), USED.to_owned()));
        Self {
            past: f.attempts.past.iter().cloned().collect(),
            current: Some(current),
            checkpoints: f.checkpoints.list.iter().cloned().collect(),
            setup: setup.map(|((of, name), value)| (*of, name.clone(), value.clone())).chain(nodes).collect(),
            since_good: f.attempts.since_good.as_deref().cloned(),
            starting,
            usual_starts,
            stages: f.checkpoints.stage_table(),
            load: f.checkpoints.last_load(),
        }
    }
}
