//! What can be set of the RDMA ports.

use std::collections::BTreeMap;

use stepwatch_kit::config::Period;

use crate::collector::Mistakes;
use crate::family_filter::Metrics;
use crate::link::rates::Threshold;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Which families are on the page.
    pub metrics: Metrics,
    /// How often states are read.
    pub interval: Period,
    /// How often counters are read.
    pub counters_interval: Period,
    /// Devices to read; all when empty. `*` stands for anything.
    pub include: Vec<String>,
    /// Devices to leave alone altogether.
    pub exclude: Vec<String>,
    /// Devices that are read and not judged: of the management network, of storage that comes and
    /// goes.
    pub management: Vec<String>,
    pub expected: Expectation,
    /// A port that is down for longer has dropped. By then NCCL's transport, as it is set by
    /// default, has given up.
    pub drop_after: Period,
    /// After a start, ports that were up before may take this long to come up.
    pub grace: Period,
    /// Errors that are too many, by name of the counter, where the defaults do not fit.
    pub thresholds: BTreeMap<String, Threshold>,
}

/// The ports that this node should have, for sites that do not rely on what the node had before.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expectation {
    /// Ports of the fabric that should be up.
    pub ports: Option<usize>,
    /// Rate that each of them should negotiate.
    pub rate_gbps: Option<f64>,
    /// Lowest and highest rate that each of them reaches when the node is busy.
    pub bandwidth_gbps: Option<(f64, f64)>,
    /// Devices that this applies to; all when empty.
    pub devices: Vec<String>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("counters_interval", self.counters_interval)
            .patterns("include", &self.include)
            .patterns("exclude", &self.exclude)
            .patterns("management", &self.management)
            .patterns("expected.devices", &self.expected.devices)
            .unless(
                self.expected.bandwidth_gbps.is_none_or(|(low, high)| low > 0.0 && low <= high),
                "expected.bandwidth_gbps: must be two numbers, from and to",
            )
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(1),
            counters_interval: Period::secs(10),
            include: Vec::new(),
            exclude: Vec::new(),
            management: Vec::new(),
            expected: Expectation::default(),
            drop_after: Period::secs(30),
            grace: Period::secs(120),
            thresholds: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Patterns(Vec<glob::Pattern>);

impl Patterns {
    pub(super) fn new(texts: &[String]) -> Self {
        Self(texts.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect())
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|p| p.matches(name))
    }

    pub(super) fn allow(&self, name: &str) -> bool {
        self.0.is_empty() || self.matches(name)
    }
}
