//! What a series can mean.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meaning {
    /// A signal of a run, as an instance reports it.
    Run { instance: Instance, run: Arc<str>, rank: Option<u32>, signal: Signal },
    /// A reading of a device of a node.
    Device { instance: Instance, device: DeviceName, name: &'static str, scale: f64 },
    /// What is known of the XIDs of a GPU.
    Xid { instance: Instance, gpu: Arc<str>, series: XidSeries },
    /// Whether the instance answers.
    Up { instance: Instance },
    /// Watched by its name.
    Generic(Box<Generic>),
}

/// What was scraped: the address, and the node it is on.
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
    /// It only rises: its rate is watched.
    pub(crate) counter: bool,
}

/// What a value says of a run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Signal {
    Step,
    World,
    Attempt,
    /// A metric of a step, by its name on the wire, and what it is multiplied by.
    Metric {
        name: Arc<str>,
        scale: f64,
    },
    /// Model FLOPs utilization, by one of several conventions.
    Mfu {
        convention: Arc<str>,
    },
    /// How much a counter rose since the scrape before.
    Rise {
        name: &'static str,
    },
    /// Seconds of steps in all, and how many there were.
    StepSeconds,
    StepCount,
    /// Steps in which this metric was no number.
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

/// What a series says of XIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XidSeries {
    /// XIDs of a code since the boot, or those of them that do no harm.
    Counter { code: u32, harmless: bool },
    /// The code of the last XID, or 0.
    LastCode,
    /// XIDs are counted on this page.
    Read,
}

impl Signal {
    pub(crate) fn metric(name: &'static str) -> Self {
        Self::Metric { name: name.into(), scale: 1.0 }
    }
}
