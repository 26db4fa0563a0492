//! Publishes the last results of `check --active`, so that nodes can be compared.
//!
//! The command leaves them in a file of the state directory. They are measured between jobs, hours
//! or days apart, so each test has the time of its last run, and the collector itself costs
//! nothing.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::node_tests::{MAX_MEASUREMENTS, MEASURES, Results, VERDICTS};
use crate::samples::Samples;

pub const ABOUT: &str = "the last results of check --active";
pub const NEEDS: &str = "state_dir, into which check --active writes them; any user";
pub const COST: &str = "a small file";

pub static INFO: Family = Family::gauge(
    "node_test_info",
    "",
    &["test", "verdict"],
    "Verdict of the last run of a test of check --active that said something of the node, or of the last try: ok, measured, not_run, warning, unknown or unhealthy; always 1",
);
pub static LAST_RUN: Family = Family::gauge(
    "node_test_last_run_timestamp_seconds",
    "seconds",
    &["test"],
    "Unix time of that run, whose values are published",
);
pub static LAST_ATTEMPT: Family = Family::gauge(
    "node_test_last_attempt_timestamp_seconds",
    "seconds",
    &["test", "verdict"],
    "Unix time of the last try of the test, with its verdict, also where it was not run",
);
pub static BANDWIDTH: Family = Family::gauge(
    "node_test_bandwidth_bytes_per_second",
    "",
    &["test", "measure", "device", "gpus"],
    "Bandwidth that the last run of the test measured; gpus are those of the node at that time, so that nodes of one kind are compared",
);
pub static REFERENCE: Family = Family::gauge(
    "node_test_reference_bytes_per_second",
    "",
    &["test", "measure", "device", "gpus"],
    "Configured reference of the bandwidth, of those that have one",
);

pub static FAMILIES: &[&Family] = &[&INFO, &LAST_RUN, &LAST_ATTEMPT, &BANDWIDTH, &REFERENCE];

/// The most tests in a file.
const MAX_TESTS: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(30) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct NodeTestsReader;

impl NodeTestsReader {
    pub fn new(_: &Config) -> Self {
        Self
    }
}

/// The results; `None` if no test has run.
fn results(cx: &Context<'_>) -> Result<Option<Results>, CollectError> {
    let Some(state) = &cx.roots.state else { return Ok(None) };
    match Results::load(state) {
        Ok(results) => Ok(Some(results)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CollectError::read(state, error)),
    }
}

impl Collector for NodeTestsReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        Ok(match results(cx)? {
            Some(results) => Support::Supported(format!("{} tests", results.tests.len())),
            None => Support::Unsupported("check --active has not run on this node".into()),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let results = results(cx)?.unwrap_or_default();
        for (test, result) in results.tests.iter().take(MAX_TESTS) {
            if VERDICTS.contains(&result.verdict.as_str()) {
                out.set(&INFO, &[test, &result.verdict], true);
            }
            let (tried, verdict) = match &result.attempt {
                Some(attempt) => (attempt.ts, &attempt.verdict),
                None => (result.ts, &result.verdict),
            };
            if VERDICTS.contains(&verdict.as_str()) {
                out.set(&LAST_ATTEMPT, &[test, verdict], tried);
            }
            out.set(&LAST_RUN, &[test], result.ts);
            let mut seen = BTreeSet::new();
            for m in result.measurements.iter().take(MAX_MEASUREMENTS) {
                if !MEASURES.contains(&m.measure.as_str()) || !seen.insert((&m.measure, &m.device)) {
                    continue;
                }
                let labels = [test, &m.measure, &m.device, &result.gpus].map(String::as_str);
                out.set(&BANDWIDTH, &labels, m.bytes_per_second);
                out.maybe(&REFERENCE, &labels, m.reference);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::node_tests::{Attempt, Measurement, TestResult};
    use crate::roots::Roots;
    use crate::testing;

    fn measured(measure: &str, device: &str, value: f64, reference: Option<f64>) -> Measurement {
        Measurement { measure: measure.into(), device: device.into(), bytes_per_second: value, reference }
    }

    #[test]
    fn the_last_results_are_published_and_nothing_else_that_stands_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let bench = testing::Bench::new(Roots { state: Some(dir.path().into()), ..Roots::default() });
        let mut reader = NodeTestsReader::new(&Config::default());
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Unsupported(_))));
        let fast = TestResult {
            ts: 1_795_227_416.0,
            verdict: "ok".into(),
            gpus: "8 x NVIDIA H100".into(),
            measurements: vec![
                measured("nvbandwidth_h2d", "gpu0", 55.25e9, Some(55e9)),
                measured("nvbandwidth_h2d", "gpu0", 1.0, None),
                measured("made_up", "gpu0", 1.0, None),
            ],
            attempt: Some(Attempt { ts: 9.0, verdict: "unknown".into() }),
        };
        let without = |ts, verdict: &str| TestResult {
            ts,
            verdict: verdict.to_owned(),
            gpus: "7 x NVIDIA H100".into(),
            measurements: Vec::new(),
            attempt: None,
        };
        let (missing, odd) = (without(7.0, "not_run"), without(8.0, "excellent"));
        let tests = [("nvbandwidth", fast), ("dcgm", missing), ("odd", odd)];
        let tests: BTreeMap<_, _> = tests.map(|(name, result)| (name.to_owned(), result)).into();
        Results { tests }.save(dir.path()).unwrap();
        assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("3 tests".into()));
        let page = bench.collect(&mut reader);
        let labels = &["nvbandwidth", "nvbandwidth_h2d", "gpu0", "8 x NVIDIA H100"][..];
        for (family, labels, want) in [
            (&BANDWIDTH, labels, Some(55.25e9)),
            (&REFERENCE, labels, Some(55e9)),
            (&BANDWIDTH, &["nvbandwidth", "made_up", "gpu0", "8 x NVIDIA H100"], None),
            (&INFO, &["nvbandwidth", "ok"], Some(1.0)),
            (&INFO, &["dcgm", "not_run"], Some(1.0)),
            (&INFO, &["odd", "excellent"], None),
            (&LAST_RUN, &["dcgm"], Some(7.0)),
            (&LAST_RUN, &["nvbandwidth"], Some(1_795_227_416.0)),
            (&LAST_ATTEMPT, &["nvbandwidth", "unknown"], Some(9.0)),
            (&LAST_ATTEMPT, &["dcgm", "not_run"], Some(7.0)),
        ] {
            assert_eq!(page.get(family, labels), want, "{} {labels:?}", family.name);
        }
        assert_eq!(page.rows(&BANDWIDTH).count(), 1, "each series once");
        std::fs::write(dir.path().join("node-tests.json"), "{").unwrap();
        assert!(reader.probe(&bench.context()).is_err(), "a damaged file is no node without results");
    }
}
