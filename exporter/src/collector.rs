//! A collector reads one part of this node, again and again.
//!
//! A collector is one file in a room of `collectors/`, which holds its configuration with the
//! defaults, its families, its code and its tests, and one line in [`crate::collectors`]. It runs
//! on an OS thread of its own under [`crate::schedule`], so it may block, hang in the kernel or
//! panic without harm to the page or to its neighbours.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::family::Family;
use crate::hub::Hub;
use crate::nvml::Nvml;
use crate::roots::Roots;
use crate::samples::Samples;

/// The shortest period of anything that is done again and again.
pub(crate) const MIN_PERIOD: Period = Period::millis(10);

pub trait Collector: Send {
    /// Whether this node has what the collector reads. Asked again when it was unsupported: drivers
    /// come late.
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError>;

    /// Reads once. What cannot be read of one device is left out; with an error, what `out` has is
    /// all that could be read.
    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError>;

    /// How much of the last collection was spent waiting for something to happen, which is no work.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// Unsupported is not failed: a laptop without InfiniBand is healthy (principle 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// And what it found, for people.
    Supported(String),
    /// And why.
    Unsupported(String),
}

#[derive(Debug)]
pub struct Context<'a> {
    pub roots: &'a Roots,
    pub hub: &'a Hub,
    /// The one thread that talks to NVML.
    pub nvml: &'a Nvml,
    /// Every family of this program. Each name is used once.
    pub families: Families,
}

pub type Families = fn() -> Vec<&'static Family>;

/// What collectors are given, owned by the caller.
#[derive(Debug, Clone)]
pub struct Access {
    pub roots: Arc<Roots>,
    pub hub: Hub,
    pub nvml: Nvml,
    pub families: Families,
}

impl Access {
    pub fn context(&self) -> Context<'_> {
        Context { roots: &self.roots, hub: &self.hub, nvml: &self.nvml, families: self.families }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("cannot read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("{0}")]
    Other(String),
    /// A call that another thread makes for the collector does not return, and is over its deadline
    /// by this much.
    #[error("{what}")]
    Stuck { what: String, over: Duration },
}

impl CollectError {
    pub fn read(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Read { path: path.display().to_string(), source }
    }
}

/// How often to collect, and how long one collection may take before it counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    pub interval: Duration,
    pub deadline: Duration,
}

/// What the types do not show to be wrong in a collector's configuration, each mistake behind the
/// key that it is about.
#[derive(Debug, Default)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// Shorter periods would make a thread spin.
    pub(crate) fn period(self, key: &str, period: Period) -> Self {
        self.unless(period >= MIN_PERIOD, &format!("{key}: must be at least {MIN_PERIOD}"))
    }

    pub(crate) fn patterns(mut self, key: &str, patterns: &[String]) -> Self {
        for pattern in patterns {
            if let Err(e) = glob::Pattern::new(pattern) {
                self.0.push(format!("{key}: {pattern:?} is not a pattern: {e}"));
            }
        }
        self
    }

    pub(crate) fn unless(mut self, right: bool, mistake: &str) -> Self {
        if !right {
            self.0.push(mistake.to_owned());
        }
        self
    }

    pub(crate) fn all(mut self, key: &str, mistakes: Vec<String>) -> Self {
        self.0.extend(mistakes.into_iter().map(|mistake| format!("{key}: {mistake}")));
        self
    }

    /// Each behind the path of its configuration.
    pub(crate) fn under(self, path: &str) -> impl Iterator<Item = String> {
        self.0.into_iter().map(move |mistake| format!("{path}.{mistake}"))
    }
}
