//! The stages of checkpoints by HTTP.

use serde::{Deserialize, Serialize};
use stepwatch_detect::run::{CheckpointStages, Stage, StageTimes};
use utoipa::ToSchema;

use super::view::When;

/// One checkpoint and the stages of it that were reported, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointStagesView {
    pub step: Option<i64>,
    /// Where it is, as the trainer names it.
    pub path: Option<String>,
    pub bytes: Option<f64>,
    /// Whether it reached the last stage of the run, so that a crash now would go back to it or to
    /// a later one. `false` for a load.
    pub counts: bool,
    pub stages: Vec<StageView>,
}

/// One stage, from the first rank that began it to the last that ended it, by the clocks of their
/// nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageView {
    pub stage: StageName,
    pub started_at: Option<When>,
    /// `null` while any rank is in the stage.
    pub ended_at: Option<When>,
    pub seconds: Option<f64>,
    pub bytes: Option<f64>,
    pub failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// Blocks the step.
    Save,
    /// Written while the run makes steps.
    Write,
    Upload,
    Durable,
    Load,
}

impl CheckpointStagesView {
    pub(crate) fn stage(&self, stage: StageName) -> Option<&StageView> {
        self.stages.iter().find(|one| one.stage == stage)
    }
}

impl From<Stage> for StageName {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Save => Self::Save,
            Stage::Write => Self::Write,
            Stage::Upload => Self::Upload,
            Stage::Durable => Self::Durable,
            Stage::Load => Self::Load,
        }
    }
}

impl From<&StageTimes> for StageView {
    fn from(s: &StageTimes) -> Self {
        Self {
            stage: s.stage.into(),
            started_at: s.start.map(When),
            ended_at: s.end.map(When),
            seconds: s.secs,
            bytes: s.bytes,
            failed: s.failed,
        }
    }
}

impl From<&CheckpointStages> for CheckpointStagesView {
    fn from(c: &CheckpointStages) -> Self {
        Self {
            step: c.step,
            path: c.path.clone(),
            bytes: c.bytes,
            counts: c.counts,
            stages: c.stages.iter().map(StageView::from).collect(),
        }
    }
}
