//! Places that training metrics are fetched from, as opposed to those that bring them. One kind takes one file and one line here.

mod poll;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::Event;

use crate::drops::Reason;
use crate::family::Family;
use crate::hub::{Hub, Origin, Outcome};
use crate::identity::Claim;
use crate::roots::Roots;
use crate::source::SourceHandle;
use crate::stream::Mark;
use crate::voice::Voice;

pub use checkpoints::CheckpointsConfig;
pub(crate) use checkpoints::tell_last as tell_last_checkpoint;
pub use discover::DiscoverConfig;
pub(crate) use discover::processes;
pub use scrape::ScrapeConfig;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use scrape::fuzz as fuzz_scrape;
pub use statsd::StatsdConfig;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use statsd::fuzz as fuzz_statsd;
pub(crate) use tail::Zone;
pub use tail::{From, TailConfig};

/// Entries of the configuration; each has a thread of its own.
pub const MAX_SOURCES: usize = 64;

/// One line a kind: `module: Variant(its configuration)`. The module offers `check` on the configuration (what is wrong, each as
/// `key: reason`), `start(config, surroundings, shutdown)` and `FAMILIES`, families of its own beside those of every source.
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
            /// Key of the entry, and what is wrong with it.
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

/// What a source finds itself in.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub hub: Hub,
    pub roots: Roots,
    /// Where sources keep what must outlive this process.
    pub state_dir: PathBuf,
}

/// Where sources put what they read: the hub.
pub trait Sink: Send {
    fn publish(&self, origin: Origin, event: Event) -> Outcome;

    /// Publishes what was read at a time, and keeps with it how far the source has read, if it can: then it returns true. What must
    /// wait for room among the runs is left in `events`.
    fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        let _ = mark;
        while let Some(event) = events.first().cloned() {
            if matches!(self.publish(origin.clone(), event), Outcome::Dropped(Reason::Runs | Reason::NewRuns))
            {
                break;
            }
            events.remove(0);
        }
        false
    }

    /// What was last kept under this key, by this process or one before it.
    fn mark(&self, key: &str) -> Option<String> {
        let _ = key;
        None
    }

    /// Whether this run is known.
    fn follows(&self, run: &str) -> bool {
        let _ = run;
        true
    }

    /// Whether `voice` may speak for this run.
    fn hears(&self, voice: Voice, run: &str) -> bool {
        let _ = (voice, run);
        true
    }

    /// The last step known of a rank: what a source reads again after a crash is recognised by it.
    fn last_step(&self, run: &str, rank: u32) -> Option<i64>;

    fn source(&self, name: &str, kind: &str) -> SourceHandle;

    /// Takes down whose a source is, and returns what its run is called.
    fn claim(&self, now: f64, claim: Claim) -> String {
        let _ = now;
        claim.run
    }

    /// What was told of one run turns out to be of another, as `voice` says.
    fn join(&self, now: f64, voice: Voice, from: &str, to: &str) {
        let _ = (now, voice, from, to);
    }

    /// Jobs that were heard of from those whose word counts for `voice`, each with what the rule calls its run.
    fn jobs(&self, voice: Voice) -> Vec<(String, String)> {
        let _ = voice;
        Vec::new()
    }
}

impl Sink for Hub {
    fn claim(&self, now: f64, claim: Claim) -> String {
        Hub::claim(self, now, claim)
    }

    fn join(&self, now: f64, voice: Voice, from: &str, to: &str) {
        Hub::join(self, now, voice, from, to);
    }

    fn jobs(&self, voice: Voice) -> Vec<(String, String)> {
        Hub::jobs(self, voice)
    }

    fn publish(&self, origin: Origin, event: Event) -> Outcome {
        Hub::publish(self, origin, event)
    }

    fn publish_all(&self, origin: &Origin, events: &mut Vec<Event>, mark: Mark<'_>) -> bool {
        Hub::publish_all(self, origin, events, mark)
    }

    fn mark(&self, key: &str) -> Option<String> {
        Hub::mark(self, key)
    }

    fn follows(&self, run: &str) -> bool {
        Hub::follows(self, run)
    }

    fn hears(&self, voice: Voice, run: &str) -> bool {
        Hub::hears(self, voice, run)
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
        let (key, mistakes) = source.check();
        wrong.extend(mistakes.into_iter().map(|e| format!("sources[{i}].{key}.{e}")));
    }
    wrong
}

/// Starts every source of a configuration that [`check`] found right. Each works until `shutdown` is raised, on a thread that
/// nobody waits for: a file system that hangs may hold it for ever. Must be called inside a Tokio runtime.
pub fn start(sources: &[SourceConfig], around: &Surroundings, shutdown: &Shutdown) {
    for source in sources.iter().take(MAX_SOURCES) {
        source.start(around, shutdown);
    }
}
