//! What a run shows of its rate of failures: its nodes, its ends, and its work.

use stepwatch_model::FailuresSeen;

use super::RunState;
use super::attempts::AttemptEnd;
use super::exposure::ExposedAt;
use super::state::STOPPED;

/// GPUs of a node while not all nodes are known.
const GPUS_A_NODE: u32 = 8;

impl RunState {
    /// The number of nodes of the run. Where not all of its processes report a node, it is worked
    /// out from the number of GPUs, or of its processes. `None` until the run declares its world
    /// size.
    pub(crate) fn node_count(&self) -> Option<u32> {
        let world = self.world.filter(|world| *world > 0)?;
        let declared = self.gpus().unwrap_or(world).div_ceil(GPUS_A_NODE);
        Some(self.nodes_heard().unwrap_or_else(|| declared.max(self.nodes.len() as u32)))
    }

    /// The number of nodes of the run, if each of its processes was heard on one.
    pub(crate) fn nodes_heard(&self) -> Option<u32> {
        let world = self.world.filter(|world| *world > 0)?;
        let placed: u64 = self.nodes.values().map(|ranks| u64::from(*ranks)).sum();
        (placed >= u64::from(world)).then_some(self.nodes.len() as u32)
    }

    fn exposed_at(&self) -> ExposedAt {
        ExposedAt {
            nodes: self.nodes_heard(),
            now: self.last_heard,
            first_seen: self.first_seen,
            attempt_at: self.attempt_at,
        }
    }

    /// Whether the attempt has failed. One that ends as it announced has not.
    fn has_failed(&self) -> bool {
        let failed = !self.deaths.is_empty() || self.ended.as_ref().is_some_and(|ended| !ended.well());
        failed && !self.has_announced()
    }

    /// Whether the run announced that it is about to end the attempt.
    fn has_announced(&self) -> bool {
        self.attempts.planned_at.is_some_and(|at| at >= self.attempt_at)
    }

    /// All its failures, with that of this attempt and those that came back at the same step, and
    /// the seconds of its work.
    pub(crate) fn all_failures(&self) -> FailuresSeen {
        let mut all = self.checkpoints.exposure.all();
        all.failures = all.failures.saturating_add(u64::from(self.has_failed()));
        all
    }

    /// Counts the end of the attempt. Must be called before the state is reset.
    pub(super) fn count_end(&mut self, end: &AttemptEnd) {
        // Without a new process, a trainer only counts its steps anew.
        let began = self.attempts.greeted_at.is_some_and(|at| at >= self.last_progress);
        let failed = match end {
            AttemptEnd::Failed { .. } => true,
            AttemptEnd::Exited { code, .. } => *code != 0 && !STOPPED.contains(code),
            AttemptEnd::Silent => false,
            AttemptEnd::Unreported => began && self.checkpoints.work > 0.0,
        };
        let (failed, place, last) = (failed && !self.has_announced(), self.exposed_at(), self.last_step);
        self.checkpoints.exposure.ended(failed, last, place);
    }

    /// The failures, and seconds of nodes, that the fleet was not told, if they are many enough.
    pub(crate) fn take_exposure(&mut self) -> Option<FailuresSeen> {
        if !self.checkpoints.exposure.wants_to_tell() {
            return None;
        }
        let place = self.exposed_at();
        self.checkpoints.exposure.count(place);
        Some(self.checkpoints.exposure.take_untold())
    }

    /// The same of a run that is forgotten: nothing more comes of it, so its last end counts.
    pub(crate) fn take_last_exposure(&mut self) -> FailuresSeen {
        let (failed, place, last) = (self.has_failed(), self.exposed_at(), self.last_step);
        self.checkpoints.exposure.ended(failed, last, place);
        self.checkpoints.exposure.take_untold()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Ended;
    use stepwatch_model::time::Ts;

    #[test]
    fn an_end_that_was_announced_is_no_failure() {
        let mut f = RunState::new("r", Ts(0));
        f.last_step = Some(10);
        f.ended = Some(Ended { at: Ts(9), code: 1, text: None, silent: false });
        assert_eq!(f.all_failures().failures, 1);
        f.attempts.plan(Ts(5), None);
        assert_eq!((f.all_failures().failures, f.take_last_exposure()), (0, FailuresSeen::default()));
        assert_eq!(f.checkpoints.exposure.seen().failures, 0);
    }

    #[test]
    fn nodes_that_report_nothing_are_counted_by_the_number_of_processes() {
        let mut f = RunState::new("r", Ts(0));
        f.nodes.insert("n1".into(), 1);
        assert_eq!(f.node_count(), None);
        f.world = Some(20);
        assert_eq!((f.node_count(), f.nodes_heard()), (Some(3), None));
        f.nodes = [("n1".into(), 10), ("n2".into(), 10)].into();
        assert_eq!((f.node_count(), f.nodes_heard()), (Some(2), Some(2)));
    }
}
