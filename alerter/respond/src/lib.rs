//! The half of the engine that responds: findings, alerts of other programs, answers and
//! deliveries in; incidents and messages out.
//!
//! No clock, socket, thread, file or randomness: time is an argument, timers are data, iteration
//! order is fixed. It knows nothing of steps, samples or detectors; `stepwatch-detect` does, and
//! reports through [`stepwatch_model::Detected`].

pub mod config;
pub mod effect;
pub mod external;
pub mod incident;
pub mod incident_record;
pub mod labels;
pub mod matcher;
pub mod message;
pub mod oncall;
mod plan;
mod responder;
pub mod route;
pub mod silence;

pub use responder::{DryRun, Responder};
