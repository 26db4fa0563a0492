//! The half of the engine that detects. Its inputs are events of runs and nodes; its outputs are
//! findings.
//!
//! It uses no clock, socket, thread, file or randomness: time is an argument, timers are data, and
//! iteration order is fixed. This crate does not depend on incidents, people or receivers.
//! `stepwatch-respond` handles those; it gets the findings as [`stepwatch_model::Detected`].

mod batches;
mod cause;
pub mod changes;
pub mod detector;
pub mod detectors;
mod expectation;
mod fabric;
mod glob;
mod kernel_messages;
mod monitor;
pub mod node;
mod placement;
mod registry;
pub mod run;
pub mod sample;
pub mod series;
pub mod stats;

pub use expectation::{Expectation, Expectations, JudgedSample};
pub use monitor::{Counters, Input, Monitor, News, Node, Refusal, Refused, Run, SCRAPED};
