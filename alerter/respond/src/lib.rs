//! The half of the engine that responds. Its inputs are findings, external alerts, answers of
//! people and results of deliveries; its outputs are incidents and messages.
//!
//! It uses no clock, socket, thread, file or randomness: time is an argument, timers are data, and
//! iteration order is fixed. It knows no steps, samples or detectors; `stepwatch-detect` does, and
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
mod rollback;
pub mod route;
pub mod silence;

pub use responder::{DryRun, Responder};
