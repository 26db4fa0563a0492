//! The possible meanings of a series.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meaning {
    /// A signal of a run, as an instance reports it.
    Run { instance: Instance, run: Arc<str>, rank: Option<u32>, signal: Signal },
    /// A reading of a device of a node.
    Device { instance: Instance, device: DeviceName, name: &'static str, scale: f64 },
    /// A sample about the XIDs of a GPU.
    Xid { instance: Instance, gpu: Arc<str>, series: XidSeries },
    /// Whether the instance answers scrapes.
    Up { instance: Instance },
    /// A series that is watched under its own name.
    Generic(Box<Generic>),
}

/// A scraped instance: its address, and its node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instance {
    pub(crate) address: Arc<str>,
    pub(crate) node: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeviceName {
    Gpu { uuid: Arc<str> },
    Port { device: Arc<str>, port: Arc<str> },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Generic {
    pub(crate) text: String,
    pub(crate) metric: String,
    pub(crate) job: String,
    pub(crate) run: String,
    pub(crate) node: String,
    /// Whether the series is a counter, of which the rate is watched.
    pub(crate) counter: bool,
}

/// The meaning of a value for a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Signal {
    Step,
    World,
    Attempt,
    /// A metric of a step, by its wire name, and the factor for its value.
    Metric {
        name: Arc<str>,
        scale: f64,
    },
    /// Model FLOPs utilization, by one of several conventions.
    Mfu {
        convention: Arc<str>,
    },
    /// The increase of a counter since the last scrape.
    Rise {
        name: &'static str,
    },
    /// The total seconds of steps, and their number.
    StepSeconds,
    StepCount,
    /// The number of steps in which this metric was not finite.
    NonFinite {
        name: Arc<str>,
    },
    EvalLoss {
        dataset: Arc<str>,
    },
    CheckpointStep,
    CheckpointFailures,
    CheckpointRunning,
}

/// The meaning of a series about XIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XidSeries {
    /// XIDs of a code since boot, or the harmless ones among them.
    Counter { code: u32, harmless: bool },
    /// The code of the last XID, or 0.
    LastCode,
    /// This page counts XIDs.
    Read,
}

impl Signal {
    pub(crate) fn metric(name: &'static str) -> Self {
        Self::Metric { name: name.into(), scale: 1.0 }
    }
}
