//! How often runs save, how often they should, and how often runs fail.
//!
//! The failures of all runs are kept in a part of the stored state of their own, so that what was
//! learned outlives the runs and restarts of the alerter.

use std::collections::BTreeSet;

use stepwatch_model::{FailureRate, FailuresSeen, Finding, SaveInterval};

use super::run::Run;
use super::{Key, Monitor};

impl Monitor {
    /// How often a run saves, and how often it should. `None` until what its saves cost is known,
    /// and while neither its own failures nor its nodes are.
    pub fn save_interval(&self, run: &Run) -> Option<SaveInterval> {
        let own = run.state.checkpoints.exposure.seen();
        let rate = FailureRate::of(own, self.fleet, run.state.node_count());
        SaveInterval::of(run.save_cost()?, rate?)
    }

    /// The failures of all runs, and the seconds of their nodes, after the first hour of each
    /// attempt.
    pub fn fleet_failures(&self) -> FailuresSeen {
        self.fleet
    }

    /// Counts what was seen of a run that is forgotten.
    pub(super) fn count_last(&mut self, run: &mut Run) {
        let seen = run.state.take_last_exposure();
        if seen != FailuresSeen::default() {
            self.fleet.join(seen);
            self.dirty.insert(Key::Fleet);
        }
    }
}

/// Takes note of what was found of a run, and of what it has to tell the fleet.
pub(super) fn note(run: &mut Run, found: &[Finding], fleet: &mut FailuresSeen, dirty: &mut BTreeSet<Key>) {
    run.state.checkpoints.note_trouble(found);
    if let Some(seen) = run.state.take_exposure() {
        fleet.join(seen);
        dirty.insert(Key::Fleet);
    }
}
