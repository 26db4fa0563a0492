//! The stages of the last checkpoints, for people.

use stepwatch_model::time::Ts;

use super::{Load, Stage, StageRecord, Staged, Stages};

const SHOWN: [Stage; 4] = [Stage::Save, Stage::Write, Stage::Upload, Stage::Durable];

/// One checkpoint and the stages of it that any rank reported, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointStages {
    pub step: Option<i64>,
    pub path: Option<String>,
    pub bytes: Option<f64>,
    /// It has reached the last stage of the run, so a crash now would go back to it or to a later
    /// one.
    pub counts: bool,
    pub stages: Vec<StageTimes>,
}

/// One stage: from the first rank that began it to the last that ended it, by their clocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageTimes {
    pub stage: Stage,
    pub start: Option<Ts>,
    /// Absent while any rank is in the stage.
    pub end: Option<Ts>,
    pub secs: Option<f64>,
    pub bytes: Option<f64>,
    pub failed: bool,
}

impl Stages {
    /// The checkpoints of the current attempt, oldest first.
    pub(crate) fn table(&self) -> Vec<CheckpointStages> {
        self.steps.iter().map(CheckpointStages::from).collect()
    }

    /// The last load.
    pub(crate) fn loaded(&self) -> Option<CheckpointStages> {
        self.load.as_ref().map(CheckpointStages::from)
    }
}

impl From<&Staged> for CheckpointStages {
    fn from(one: &Staged) -> Self {
        let times = |stage| StageTimes::new(stage, one.record(stage)?);
        Self {
            step: Some(one.step),
            path: one.path.clone(),
            bytes: one.bytes(),
            counts: one.counted,
            stages: SHOWN.into_iter().filter_map(times).collect(),
        }
    }
}

impl From<&Load> for CheckpointStages {
    fn from(load: &Load) -> Self {
        Self {
            step: load.step,
            path: load.path.clone(),
            bytes: load.record.bytes,
            counts: false,
            stages: StageTimes::new(Stage::Load, &load.record).into_iter().collect(),
        }
    }
}

impl StageTimes {
    /// Nothing if no rank reported the stage.
    fn new(stage: Stage, record: &StageRecord) -> Option<Self> {
        let end = record.end.filter(|_| record.has_ended());
        let secs = record.start.zip(end).map(|(start, end)| (end - start).as_secs_f64().max(0.0));
        let was_reported = record.start.is_some() || record.end.is_some() || record.has_failed();
        was_reported.then_some(Self {
            stage,
            start: record.start,
            end,
            secs,
            bytes: record.bytes,
            failed: record.has_failed(),
        })
    }
}
