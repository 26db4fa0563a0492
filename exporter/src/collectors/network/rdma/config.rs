//! The settings of the RDMA ports.

use std::collections::BTreeMap;

use stepwatch_kit::config::Period;

use crate::collector::Mistakes;
use crate::family_filter::Metrics;
use crate::link::rates::Threshold;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// The interval at which states are read.
    pub interval: Period,
    /// The interval at which counters are read.
    pub counters_interval: Period,
    /// Patterns with `*` of devices to read; all if empty.
    pub include: Vec<String>,
    /// Devices that are not read at all.
    pub exclude: Vec<String>,
    /// Devices that are read but not judged: those of the management network, or of storage that is
    /// not always connected.
    pub management: Vec<String>,
    pub expected: Expectation,
    /// A link that is down for longer counts as dropped. By then NCCL's transport has given up,
    /// with its default settings.
    pub drop_after: Period,
    /// After a start, the time in which ports that were up before may come up.
    pub grace: Period,
    /// Limits of errors by the name of the counter, where the defaults do not fit.
    pub thresholds: BTreeMap<String, Threshold>,
}

/// The expected ports of this node, for sites that do not rely on earlier ones.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expectation {
    /// The number of ports of the fabric that should be up.
    pub ports: Option<usize>,
    /// The rate that each of them should negotiate, in Gb/s.
    pub rate_gbps: Option<f64>,
    /// The lowest and highest rate that each of them reaches when the node is busy, in Gb/s.
    pub bandwidth_gbps: Option<(f64, f64)>,
    /// The devices that this applies to; all if empty.
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
