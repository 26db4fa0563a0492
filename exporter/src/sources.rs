//! Sources from which this exporter fetches training metrics; the others push theirs. A new kind
//! takes one file and one line here.

mod poll;
mod sink;

use serde::{Deserialize, Serialize};
use stepwatch_kit::shutdown::Shutdown;

use crate::family::Family;

pub use checkpoints::CheckpointsConfig;
pub(crate) use checkpoints::report_last as report_last_checkpoint;
pub use discover::DiscoverConfig;
pub use scrape::ScrapeConfig;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use scrape::fuzz as fuzz_scrape;
pub use sink::{Sink, Surroundings};
pub use statsd::StatsdConfig;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use statsd::fuzz as fuzz_statsd;
pub use tail::{From, TailConfig};

/// The most entries of the configuration; each has a thread of its own.
pub const MAX_SOURCES: usize = 64;

/// Declares the kinds, one line each: `module: Variant(its configuration)`. The module has `check`
/// of the configuration (its errors, each as `key: reason`), `start(config, surroundings,
/// shutdown)` and `FAMILIES`, its families beside those of every source.
macro_rules! sources {
    ($($(#[$doc:meta])* $name:ident: $variant:ident($config:ident),)*) => {
        $(mod $name;)*

        /// One entry of `sources:`.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum SourceConfig {
            $($(#[$doc])* $variant($name::$config),)*
        }

        impl SourceConfig {
            /// The key of the entry, and its errors.
            fn check(&self) -> (&'static str, Vec<String>) {
                match self {
                    $(Self::$variant(config) => (stringify!($name), config.check()),)*
                }
            }

            fn start(&self, around: &Surroundings, shutdown: &Shutdown) {
                match self {
                    $(Self::$variant(config) => $name::start(config.clone(), around, shutdown.clone()),)*
                }
            }
        }

        pub static FAMILIES: &[&[&Family]] = &[$($name::FAMILIES,)*];
    };
}

sources! {
    /// Log and JSONL files, followed as they grow.
    tail: Tail(TailConfig),
    /// Directories that checkpoints are written to.
    checkpoints: Checkpoints(CheckpointsConfig),
    /// Endpoints in Prometheus's format.
    scrape: Scrape(ScrapeConfig),
    /// Sockets for statsd.
    statsd: Statsd(StatsdConfig),
    /// Whatever the processes that train here are found to write.
    discover: Discover(DiscoverConfig),
}

/// The errors of the entries, each with the path of its entry.
pub fn check(sources: &[SourceConfig]) -> Vec<String> {
    let mut wrong = Vec::new();
    if sources.len() > MAX_SOURCES {
        wrong.push(format!("sources: {} entries, the limit is {MAX_SOURCES}", sources.len()));
    }
    for (i, source) in sources.iter().enumerate() {
        let (key, mistakes) = source.check();
        wrong.extend(mistakes.into_iter().map(|e| format!("sources[{i}].{key}.{e}")));
    }
    wrong
}

/// Starts every source of a configuration without errors from [`check`]. Each runs until `shutdown`
/// on a thread of its own that is not joined, because a hung file system may hold it for ever. Must
/// be called inside a Tokio runtime.
pub fn start(sources: &[SourceConfig], around: &Surroundings, shutdown: &Shutdown) {
    for source in sources.iter().take(MAX_SOURCES) {
        source.start(around, shutdown);
    }
    if !sources.is_empty() {
        tail::sweep(around, shutdown.clone());
    }
}
