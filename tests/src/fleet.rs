//! A simulated fleet that trains, fails and is repaired, observed by the engine. It measures
//! whether the culprit was found, how soon, and how many false pages there were.
//!
//! The simulation is seeded and in virtual time: the same options give the same events, byte for
//! byte, independent of the engine's output. Nodes, runs, ranks and the events of exporters are
//! modelled; the engine is real. The truth is recorded only for the scorer. Results of the model
//! show how the engine handles faults of these shapes, but not those of your fleet.

mod job;
mod kind;
mod layout;
mod live;
mod noise;
mod reports;
mod score;
mod script;
mod table;
mod truth;
mod watch;
mod words;
mod world;

pub use kind::{Family, Kind, Mix};
pub use live::{Live, live};
pub use watch::Watch;

pub use score::{Found, Score};
pub use truth::{Culprit, Truth};
pub use world::Listener;

/// The options of a simulation.
#[derive(Debug, Clone)]
pub struct Options {
    pub nodes: usize,
    pub hours: f64,
    pub seed: u64,
    pub step_seconds: f64,
    /// The mean minutes between two faults of a run, without the repair time.
    pub fault_minutes: f64,
    pub mix: Mix,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 64, hours: 2.0, seed: 1, step_seconds: 1.0, fault_minutes: 15.0, mix: Mix::Llama3 }
    }
}

/// The volume of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    pub events: u64,
    /// The total hours of all runs.
    pub run_hours: f64,
    pub runs: usize,
    pub ranks: usize,
}

/// Simulates a fleet with these options, and passes its events to `listener`; returns what really
/// happened.
pub fn simulate(options: &Options, listener: &mut dyn Listener) -> (Vec<Truth>, Volume) {
    let mut world = world::World::new(options.clone());
    world.run(listener);
    let volume = Volume {
        events: world.said,
        run_hours: options.hours * world.jobs.len() as f64,
        runs: world.jobs.len(),
        ranks: world.jobs.iter().map(job::Job::ranks).sum(),
    };
    (world.truths, volume)
}

/// Simulates a fleet, and scores the engine's output.
pub fn score(options: &Options) -> Score {
    let mut watch = Watch::new();
    let (truths, volume) = simulate(options, &mut watch);
    Score::from_watch(truths, watch, volume)
}
