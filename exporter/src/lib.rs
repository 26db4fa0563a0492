//! stepwatch-exporter: one per node. Collects metrics of this node and its training processes, and
//! serves them to Prometheus as an exposition and to the alerter as a stream.
//!
//! Life of an event: a way in ([`ingest`], [`sources`], a collector) parses it and hands it to the
//! [`hub`]; [`training`] judges it (which run, which attempt, a duplicate?), completes it
//! (throughput, MFU) and remembers what the exposition needs; the ring of the [`stream`] keeps it
//! for readers. Life of a scrape: [`schedule`] runs each of the [`collectors`] on a thread of its
//! own and keeps what it read; [`exposition`] puts all of it together once a second; `/metrics`
//! serves the last one.
//!
//! A condition of this node is judged here, where the facts are; the alerter judges runs and
//! compares nodes (see ARCHITECTURE.md). Nothing here waits for a trainer, and no trainer waits for
//! it.

pub mod app;
mod background;
pub mod cli;
pub mod clock;
pub mod collector;
pub mod collectors;
pub mod commands;
pub mod condition;
pub mod config;
pub mod drops;
pub mod exposition;
mod fair_share;
pub mod family;
pub mod family_filter;
mod fill;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod gpus;
pub mod hub;
pub mod identity;
pub mod ingest;
pub mod link;
mod lock;
pub mod node_tests;
pub mod nvml;
pub mod origin;
pub mod persisted_state;
mod pipes;
pub mod principal;
mod processes;
pub(crate) mod reach;
mod readings;
mod reply;
pub mod roots;
pub mod runs;
pub mod samples;
pub mod schedule;
pub(crate) mod scheduler;
pub mod source;
pub mod sources;
pub mod state;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod training;
pub mod unfinished;
mod zone;

pub use stepwatch_kit::build_info::VERSION;
