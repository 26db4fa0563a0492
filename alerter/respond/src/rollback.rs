//! Chooses the checkpoint to go back to: the newest that is complete, that was saved before what
//! spoilt the run, that the last load did not fail to read, and whose evaluation is not bad, if it
//! was evaluated before the onset.

use crate::incident_record::IncidentRecord;
use stepwatch_model::{Cause, Flaw, PassedOver, RunSummary, Spoilt};

/// The most newer checkpoints of which it is said why they are passed over: the newest.
const PASSED_OVER: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) checkpoint: Option<i64>,
    /// It is not the newest, and nobody would have said if it was removed.
    pub(crate) may_be_gone: bool,
    /// The number of saved checkpoints from after the onset.
    pub(crate) later: usize,
    /// What they are from after, if it is not the onset of the incident.
    pub(crate) spoilt: Option<Spoilt>,
    /// The last of those that are newer and no good for another reason, oldest first.
    pub(crate) passed_over: Vec<PassedOver>,
}

/// The step whose report first showed what the incident is about, or what else spoils the run.
fn onset(r: &IncidentRecord, run: &RunSummary) -> Option<i64> {
    let own = (r.cause == Cause::Numerics).then_some(r.start_step);
    own.into_iter().chain(run.spoilt.map(|spoilt| spoilt.onset)).min()
}

/// Whether a checkpoint at this step may keep it: the report stands for all steps since the one
/// before.
pub(crate) fn is_after_onset(r: &IncidentRecord, run: &RunSummary, step: i64) -> bool {
    let before = |onset: i64| onset.saturating_sub(run.report_steps.max(1));
    onset(r, run).is_some_and(|onset| step > before(onset))
}

pub(crate) fn choose(r: &IncidentRecord, run: &RunSummary) -> Choice {
    let onset = onset(r, run);
    let is_after = |step: i64| is_after_onset(r, run, step);
    // A bad evaluation is no reason to lose work to a fault that has nothing to do with the loss.
    // One from after the onset shows what the fault did, and nothing of what was saved before.
    let counts = |flawed: &&PassedOver| match flawed.why {
        _ if is_after(flawed.step) => false,
        Flaw::BadEvaluation { step: at, .. } => onset.is_some() && !is_after(at),
        Flaw::Failed | Flaw::Incomplete | Flaw::LoadFailed => true,
    };
    let flawed: Vec<PassedOver> = run.flawed.iter().filter(counts).copied().collect();
    let is_flawed = |step: i64| flawed.iter().any(|flawed| flawed.step == step);
    let is_good = |step: &i64| !is_after(*step) && !is_flawed(*step);
    // Of some only the last is known.
    let saved = || run.saved.iter().copied().chain(run.checkpoint_step.filter(|_| run.saved.is_empty()));
    let checkpoint = saved().filter(is_good).max();
    let may_be_gone = checkpoint.is_some_and(|one| saved().max() > Some(one) && !run.on_disk.contains(&one));
    let is_own = r.cause == Cause::Numerics && onset == Some(r.start_step);
    let is_newer = |flawed: &PassedOver| checkpoint.is_none_or(|checkpoint| flawed.step > checkpoint);
    let mut passed_over: Vec<PassedOver> = flawed.iter().copied().filter(is_newer).collect();
    passed_over.drain(..passed_over.len().saturating_sub(PASSED_OVER));
    Choice {
        checkpoint,
        may_be_gone,
        later: saved().filter(|step| is_after(*step)).count(),
        spoilt: run.spoilt.filter(|_| !is_own),
        passed_over,
    }
}
