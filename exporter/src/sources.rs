//! Places that training metrics are fetched from, as opposed to those that bring them: one kind, one file, one line here.

mod tail;

use std::path::Path;

use serde::{Deserialize, Serialize};
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::Event;

use crate::hub::{Hub, Origin, Outcome};
use crate::source::SourceHandle;

pub use tail::{From, TailConfig};

/// Entries of the configuration; each has a thread of its own.
pub const MAX_SOURCES: usize = 64;

/// One entry of `sources:`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceConfig {
    /// Log and JSONL files, followed as they grow.
    Tail(TailConfig),
}

/// Where sources put what they read: the hub.
pub trait Sink: Send {
    fn publish(&self, origin: Origin, event: Event) -> Outcome;

    /// The last step known of a rank: what a source reads again after a crash is recognised by it.
    fn last_step(&self, run: &str, rank: u32) -> Option<i64>;

    fn source(&self, name: &str, kind: &str) -> SourceHandle;
}

impl Sink for Hub {
    fn publish(&self, origin: Origin, event: Event) -> Outcome {
        Hub::publish(self, origin, event)
    }

    fn last_step(&self, run: &str, rank: u32) -> Option<i64> {
        Hub::last_step(self, run, rank)
    }

    fn source(&self, name: &str, kind: &str) -> SourceHandle {
        Hub::source(self, name, kind)
    }
}

/// What is wrong with the entries, each named by its place.
pub fn check(sources: &[SourceConfig]) -> Vec<String> {
    let mut wrong = Vec::new();
    if sources.len() > MAX_SOURCES {
        wrong.push(format!("sources: {} entries, the limit is {MAX_SOURCES}", sources.len()));
    }
    for (i, source) in sources.iter().enumerate() {
        let SourceConfig::Tail(tail) = source;
        wrong.extend(tail.check().into_iter().map(|e| format!("sources[{i}].tail.{e}")));
    }
    wrong
}

/// Starts every source of a configuration that [`check`] found right. Each works until `shutdown` is raised, on a thread that
/// nobody waits for: a file system that hangs may hold it for ever. Must be called inside a Tokio runtime.
pub fn start(sources: &[SourceConfig], hub: &Hub, state_dir: &Path, shutdown: &Shutdown) {
    for source in sources.iter().take(MAX_SOURCES) {
        let SourceConfig::Tail(config) = source;
        tail::start(config.clone(), Box::new(hub.clone()), state_dir, shutdown.clone());
    }
}
