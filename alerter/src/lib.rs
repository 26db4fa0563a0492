//! The alerter: from the streams of all exporters to somebody who answers.
//!
//! The life of a step: [`ingest`] reads it off an exporter's stream; [`runtime`] hands it to the
//! engine, which alone decides; what it decides is one transaction of the [`store`], together with
//! the detector state it came from and the cursor behind the step; [`outbox`] finds the message
//! there and sends it by a notifier of [`notify`]; what became of it goes back into the
//! engine. [`api`] shows all this and carries the words of people.
//!
//! This crate does the I/O. What is wrong with a run is decided in `stepwatch-detect`, who must
//! know and when in `stepwatch-respond`; neither does any.

pub mod api;
pub mod app;
pub mod audit;
mod backoff;
pub mod backtest;
pub mod bulkhead;
pub mod calendars;
pub mod callbacks;
pub mod changes;
pub mod chart;
pub mod cli;
pub mod clock;
pub mod config;
mod errors;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod ingest;
mod markup;
pub mod metrics;
pub mod notify;
pub mod outbox;
pub mod postmortem;
pub mod read_model;
pub mod runtime;
pub mod store;
pub mod templates;
#[cfg(test)]
mod testing;
pub mod watchdog;
