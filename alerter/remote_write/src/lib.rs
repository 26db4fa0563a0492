//! Prometheus remote write, 1.0 and 2.0: converts the bytes of a request into reports about runs,
//! nodes and watched series.
//!
//! [`decode`] reads a request in place. [`Registry`] knows the series: `meaning` decides once what
//! one means, and `scrapes` puts the samples of a scrape together again, so that the engine gets
//! the same events as from an exporter's stream; `xids` finds the new XIDs.
//!
//! This crate uses no clock, socket, thread, file or randomness: the time and the seed of the keys
//! are arguments.

mod config;
pub mod decode;
mod hash;
mod meaning;
mod registry;
mod report;
#[cfg(test)]
mod schema;
mod scrapes;
mod selector;
mod signal;
mod xids;

pub use config::{Config, RunRule};
pub use hash::Key;
pub use registry::{Batch, Counts, MAX_AGE, MAX_AHEAD, MAX_TENANTS, Registry, Tenant};
pub use report::{Report, Reported};
pub use selector::Selector;
