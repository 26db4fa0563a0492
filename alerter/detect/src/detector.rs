//! What a detector is: of the samples of a run, of the passing of time, or of a node.

use crate::detectors::shared::Shared;
use crate::node::{NodeState, Tenants};
use crate::run::RunState;
use crate::sample::{Extra, StepSample};
use stepwatch_model::Finding;
use stepwatch_model::time::Ts;

/// A detector of one run's steps. O(1) state, no clock: everything it knows is in `self` and in the
/// samples.
pub trait StepDetector {
    type Config;

    /// Takes the next sample of the run. Steps rise within an attempt; a new attempt may start
    /// lower. `shared` holds what is already known of this sample, and what the detectors
    /// listed before have found in it.
    fn step(&mut self, c: &Self::Config, s: &StepSample, shared: &mut Shared, out: &mut Vec<Finding>);

    /// Takes what is told beside the samples; most detectors have no use for it.
    fn extra(&mut self, _c: &Self::Config, _e: &Extra<'_>, _shared: &Shared, _out: &mut Vec<Finding>) {}

    /// Settings changed; most detectors read them when they need them.
    fn configured(&mut self, _c: &Self::Config) {}
}

/// A detector of what does not happen: it looks at the whole run when time passes.
pub trait ClockDetector {
    type Config;

    /// Judges the run as it is at `now`; called when its deadline is due and when the run changed
    /// in a way that matters.
    fn look(&mut self, c: &Self::Config, now: Ts, run: &RunState, out: &mut Vec<Finding>);

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, c: &Self::Config, run: &RunState) -> Option<Ts>;
}

/// A detector of one node, whether or not a run uses it.
pub trait NodeDetector {
    type Config;

    /// Judges the node as it is at `now`; called when something new was read of it and when its
    /// deadline is due.
    fn look(
        &mut self,
        c: &Self::Config,
        now: Ts,
        node: &NodeState,
        tenants: Tenants<'_>,
        out: &mut Vec<Finding>,
    );

    /// When it wants to look next if nothing else happens.
    fn deadline(&self, c: &Self::Config, node: &NodeState) -> Option<Ts>;
}
