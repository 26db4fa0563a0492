//! A collector reads one part of this node periodically.
//!
//! A collector is one file in a directory of `collectors/`, with its configuration and defaults,
//! its families, its code and its tests, and one line in [`crate::collectors`]. It runs on an OS
//! thread of its own under [`crate::schedule`], so it may block, hang in the kernel or panic
//! without harm to the metrics page or to other collectors.

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::family::Family;
use crate::hub::Hub;
use crate::nvml::Nvml;
use crate::roots::Roots;
use crate::samples::Samples;

/// The shortest period of any repeated work.
pub(crate) const MIN_PERIOD: Period = Period::millis(10);

pub trait Collector: Send {
    /// Whether this node supports the collector. It is called again while unsupported, because
    /// drivers may be loaded late.
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError>;

    /// Reads once. Devices that cannot be read are left out. With an error, `out` has what could be
    /// read.
    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError>;

    /// The part of the last collection that was spent waiting for events, which is no work.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// Unsupported is not failed: a laptop without InfiniBand is healthy (principle 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// The collector is supported, with a description for people.
    Supported(String),
    /// The collector is not supported, with the reason.
    Unsupported(String),
}

#[derive(Debug)]
pub struct Context<'a> {
    pub roots: &'a Roots,
    pub hub: &'a Hub,
    /// The thread that makes all calls of NVML.
    pub nvml: &'a Nvml,
    /// Every family of this program, with unique names.
    pub families: Families,
}

pub type Families = fn() -> Vec<&'static Family>;

/// The owned form of [`Context`], which a caller keeps.
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
    /// A call that another thread makes for the collector does not return, and has exceeded its
    /// deadline by `over`.
    #[error("{what}")]
    Stuck { what: String, over: Duration },
}

impl CollectError {
    pub fn read(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Read { path: path.display().to_string(), source }
    }
}

/// The interval of a collector, and the time after which a collection counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rhythm {
    pub interval: Duration,
    pub deadline: Duration,
}

/// The errors in a collector's configuration that its types allow, each after its key.
#[derive(Debug, Default)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// Checks a period. A shorter one would busy-loop a thread.
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

    /// The mistakes, each after the path of the configuration.
    pub(crate) fn under(self, path: &str) -> impl Iterator<Item = String> {
        self.0.into_iter().map(move |mistake| format!("{path}.{mistake}"))
    }
}
