//! Metrics of the series: the expectations for each run, the deviation of its last values, and the
//! amount of kept data.

use core::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::{Latest, SeriesTable};

/// The most signals with an expectation that are exposed, of all runs: each has four series.
const MAX_EXPOSED: usize = 2_000;

/// The names of the active runs.
pub type LiveRuns = Box<dyn Fn() -> Vec<String> + Send + Sync>;

pub struct SeriesMetrics {
    series: Arc<SeriesTable>,
    live: LiveRuns,
}

impl fmt::Debug for SeriesMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeriesMetrics").field("series", &self.series).finish_non_exhaustive()
    }
}

impl SeriesMetrics {
    /// Adds the families to a registry.
    pub fn register(series: &Arc<SeriesTable>, live: LiveRuns, registry: &mut Registry) {
        registry.register_collector(Box::new(Self { series: Arc::clone(series), live }));
    }

    /// The signals of active runs with an expectation, and the number of those beyond the limit.
    fn expected(&self) -> (Vec<(String, Latest)>, usize) {
        let all = (self.live)().into_iter().flat_map(|run| {
            let signals = self.series.latest(&run).into_iter();
            signals.map(move |latest| (run.clone(), latest))
        });
        let mut all: Vec<_> = all.filter(|(_, latest)| latest.expectation.is_some()).collect();
        let hidden = all.len().saturating_sub(MAX_EXPOSED);
        all.truncate(MAX_EXPOSED);
        (all, hidden)
    }
}

impl Collector for SeriesMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (all, hidden) = self.expected();
        let help = "What the detectors expect of a signal, and the band beyond which a value counts towards an incident";
        let mut family = encoder.encode_descriptor("train_expected", help, None, MetricType::Gauge)?;
        for (run, latest) in &all {
            let Some(e) = latest.expectation else { continue };
            for (bound, value) in [("expected", e.expected), ("low", e.low), ("high", e.high)] {
                let labels = [("run", run.as_str()), ("signal", latest.signal.as_str()), ("bound", bound)];
                gauge(family.encode_family(&labels)?, value)?;
            }
        }
        let help = "How far the last value is from what was expected: 1 at the edge of the band";
        let mut family = encoder.encode_descriptor("train_anomaly_score", help, None, MetricType::Gauge)?;
        for (run, latest) in &all {
            let score = latest.expectation.zip(latest.value).and_then(|(e, value)| e.score(value));
            if let Some(score) = score {
                let labels = [("run", run.as_str()), ("signal", latest.signal.as_str())];
                gauge(family.encode_family(&labels)?, score)?;
            }
        }
        self.encode_own(encoder, hidden)
    }
}

impl SeriesMetrics {
    fn encode_own(&self, mut encoder: DescriptorEncoder<'_>, hidden: usize) -> fmt::Result {
        for (name, help, value) in [
            ("stepwatch_alerter_series", "Signals of runs that are kept for pictures", self.series.len()),
            ("stepwatch_alerter_series_bytes", "Memory of the signals that are kept", self.series.bytes()),
            (
                "stepwatch_alerter_expectations_hidden",
                "Signals with an expectation beyond the limit of what is exposed",
                hidden,
            ),
        ] {
            gauge(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?, value as f64)?;
        }
        let dropped = self.series.dropped();
        let help =
            "What is missing in pictures because of a limit: samples of runs, values of signals, idle runs";
        let name = "stepwatch_alerter_series_dropped";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (what, count) in
            [("samples", dropped.samples), ("values", dropped.values), ("runs", dropped.runs)]
        {
            ConstCounter::new(count).encode(family.encode_family(&[("what", what)])?)?;
        }
        Ok(())
    }
}

fn gauge(encoder: MetricEncoder<'_>, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder)
}
