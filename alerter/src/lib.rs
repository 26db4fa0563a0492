//! The alerter: from the streams of all exporters to a person who answers.
//!
//! The life of a step: [`ingest`] reads it from an exporter's stream. [`runtime`] passes it to the
//! engine, which alone makes decisions. They are stored in one transaction of the [`store`], with
//! the detector state behind them and the cursor of the step. [`outbox`] finds the message there
//! and sends it with a notifier of [`notify`]; the outcome returns to the engine. [`api`] shows all
//! this and accepts the answers of people.
//!
//! This crate does the I/O. `stepwatch-detect` finds faults of runs, and `stepwatch-respond`
//! decides who is notified and when; neither does any I/O.

pub mod access;
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
pub mod events;
mod fabric_report;
mod files;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod ingest;
mod label_names;
mod ledger_metrics;
mod markdown;
mod markup;
pub mod metrics;
mod money;
pub mod node_snapshot;
pub mod notify;
pub mod oidc;
pub mod openapi;
pub mod outbox;
pub mod pictures;
pub mod postmortem;
pub mod rank_table;
pub mod read_model;
pub mod remote_write;
mod replica;
mod report;
mod reporter;
pub mod run_history;
mod run_snapshot;
pub mod runtime;
pub mod save_interval;
pub mod series;
mod signed_paths;
mod simulation;
pub mod state_time;
pub mod store;
pub mod templates;
#[cfg(test)]
mod testing;
pub mod watchdog;
mod web;
pub mod when;
