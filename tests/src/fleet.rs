//! A fleet that trains, breaks and is repaired, for the engine to watch: who did it, how soon was
//! it known, who was woken for nothing?
//!
//! Seeded and in virtual time: the same options give the same events, byte for byte, and nothing
//! depends on the engine's output. Nodes, runs, ranks and the events of exporters are modelled; the
//! engine is the real one. What happened in truth is written down for the scorer alone. It is a
//! model: figures measured on it show how the engine does on faults of these shapes, not on your
//! fleet.

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

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    pub nodes: usize,
    pub hours: f64,
    pub seed: u64,
    pub step_seconds: f64,
    /// From one fault of a run to the next, on average, with the time until it is mended left out.
    pub fault_minutes: f64,
    pub mix: Mix,
}

impl Default for Options {
    fn default() -> Self {
        Self { nodes: 64, hours: 2.0, seed: 1, step_seconds: 1.0, fault_minutes: 15.0, mix: Mix::Llama3 }
    }
}

/// What was done, besides what was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Volume {
    pub events: u64,
    /// Hours of all runs together.
    pub run_hours: f64,
    pub runs: usize,
    pub ranks: usize,
}

/// Lets a fleet run for as long as the options require, and passes its events to `listener`;
/// returns what happened in truth.
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

/// Simulates, and scores what the engine made of it.
pub fn score(options: &Options) -> Score {
    let mut watch = Watch::new();
    let (truths, volume) = simulate(options, &mut watch);
    Score::from_watch(truths, watch, volume)
}
