//! The summary of a run that an incident keeps.

use std::collections::BTreeSet;

use stepwatch_model::{Needs, RunSummary, Saves};

use super::gpus::Processes;
use super::{Checkpoints, RunState, median};

/// The highest number of the first step of a run that is seen from its beginning.
const BEGINNING: i64 = 10;

impl RunState {
    /// Whether the run has come to this step, which may lie after the last one that it reported.
    fn has_reached(&self, step: i64) -> bool {
        self.last_step.is_none_or(|last| step <= last.saturating_add(self.interval))
    }

    /// Whether a run that is first seen at this step is seen from its beginning.
    pub(crate) fn is_first_step(&self, step: Option<i64>) -> bool {
        step.is_some_and(|step| step <= self.interval.max(BEGINNING))
    }

    /// The number of GPUs, which are paid for also while the run has a fault. `None` while it is
    /// not sure: a process may have several. What counts is, in this order: the devices that the
    /// trainer declares, the GPUs that its jobs hold, and its processes if each has one GPU. The
    /// ranks that were heard are no bound of it: some may be of an earlier attempt, and a report
    /// without a rank counts as one of rank 0.
    pub fn gpus(&self) -> Option<u32> {
        let fill_nodes = |seen| self.nodes_heard().is_some() && self.nodes.values().all(|here| *here >= seen);
        self.known_gpus.of(&Processes { world: self.world, fill_nodes: &fill_nodes })
    }

    /// The GPUs of each process, as far as they are known: one at least.
    pub(crate) fn gpus_each(&self) -> u32 {
        let each = self.gpus().zip(self.world).and_then(|(gpus, world)| gpus.checked_div(world));
        each.unwrap_or(1).max(1)
    }

    /// The usual seconds of a step.
    pub(crate) fn step_seconds(&self) -> Option<f64> {
        self.pace.quantile(0.5).map(|secs| secs / self.interval.max(1) as f64)
    }
}

pub(crate) fn summary(f: &RunState) -> RunSummary {
    let nodes: BTreeSet<&str> = f.ranks.values().filter_map(|r| r.node.as_deref()).collect();
    let c = &f.checkpoints;
    let saved: Vec<i64> = c.steps.iter().copied().filter(|step| f.has_reached(*step)).collect();
    let (checkpoint_step, checkpoint_at) = match c.last_step.filter(|last| !f.has_reached(*last)) {
        Some(_) => (saved.last().copied(), saved.last().and_then(|last| c.written_at(*last))),
        None => (c.last_step, c.last_at),
    };
    RunSummary {
        name: f.name.clone(),
        gpus: f.gpus(),
        nodes: nodes.len() as u32,
        attempt: f.attempt,
        last_step: f.last_step,
        checkpoint_step,
        checkpoint_at,
        saved,
        on_disk: c.on_disk(),
        flawed: c.flawed(),
        spoilt: c.spoilt(),
        report_steps: f.interval,
        step_secs: f.step_seconds(),
        start_secs: f.first_gap,
        unsaved: f.checkpoints.work,
        unsaved_at_most: f.checkpoints.at_most(),
        save_secs: save_secs(&f.checkpoints),
        saves: saves(&f.checkpoints),
        save_interval: None,
        failing_interval: None,
        labels: f.labels.clone(),
        needs: Needs::default(),
    }
}

fn save_secs(c: &Checkpoints) -> Option<f64> {
    (!c.saves.is_empty()).then(|| median(c.saves.iter().map(|save| save.secs)))
}

fn saves(c: &Checkpoints) -> Saves {
    let waits = c.stages().is_some_and(|stages| stages.waiting().next().is_some());
    match (c.in_progress, &c.failure) {
        (Some(_), _) => Saves::Running,
        (None, Some(_)) => Saves::Failing,
        (None, None) if waits => Saves::Running,
        (None, None) => Saves::Idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwatch_model::time::Ts;
    use stepwatch_wire::Event;

    #[test]
    fn the_ranks_that_were_heard_are_no_number_of_gpus() {
        let mut f = RunState::new("r", Ts(0));
        let mut hear = |rank: u32, world: Option<u32>| {
            let mut e = Event::step("r", 1);
            (e.rank, e.world) = (Some(rank), world);
            f.heard(Ts(0), "n:1", &e);
            (f.gpus(), f.ranks_known(), summary(&f).gpus)
        };
        assert_eq!(hear(0, None), (None, 1, None));
        assert_eq!(hear(1, None), (None, 2, None));
        assert_eq!(hear(2, Some(0)), (None, 3, None));
        assert_eq!(hear(0, Some(8)), (Some(8), 8, Some(8)));
    }
}
