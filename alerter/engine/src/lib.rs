//! The pure core of the alerter: series, detectors, verdicts, incidents, escalation, messages.
//!
//! No clock, socket, thread, file or randomness: time is an argument, timers are data, iteration
//! order is fixed. Five calls drive it: [`Engine::handle`], [`Engine::tick`],
//! [`Engine::next_deadline`], [`Engine::take_dirty`] and [`Engine::restore`]. The same engine runs
//! live, in `backtest` and in tests.

pub mod batches;
mod cause;
pub mod changes;
pub mod config;
pub mod detector;
pub mod detectors;
pub mod effect;
mod engine;
pub mod external;
mod fabric;
mod glob;
pub mod incident;
pub mod matcher;
pub mod message;
pub mod node;
pub mod oncall;
mod placement;
pub mod route;
pub mod run;
pub mod sample;
pub mod silence;
pub mod stats;
mod timers;
pub mod verdict;

pub use stepwatch_model::time;

pub use engine::{Engine, NO_RUN, Refusal, Refused, Rehearsal, StatePart};
