//! The summary of a run that an incident keeps.

use std::collections::BTreeSet;

use stepwatch_model::{Needs, RunSummary};

use super::RunState;

pub(crate) fn summary(f: &RunState) -> RunSummary {
    let nodes: BTreeSet<&str> = f.ranks.values().filter_map(|r| r.node.as_deref()).collect();
    RunSummary {
        name: f.name.clone(),
        gpus: f.gpus(),
        nodes: nodes.len() as u32,
        attempt: f.attempt,
        last_step: f.last_step,
        checkpoint_step: f.checkpoints.last_step,
        checkpoint_at: f.checkpoints.last_at,
        saved: f.checkpoints.steps.iter().copied().collect(),
        step_secs: f.pace.quantile(0.5).map(|secs| secs / f.interval.max(1) as f64),
        start_secs: f.first_gap,
        unsaved: f.checkpoints.work,
        unsaved_at_most: f.checkpoints.at_most(),
        labels: f.labels.clone(),
        needs: Needs::default(),
    }
}
