//! Metrics of charts.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShownLabels {
    receiver: String,
    result: &'static str,
}

#[derive(Debug, Clone)]
pub struct PictureMetrics {
    rendered: Family<ResultLabels, Counter>,
    seconds: Histogram,
    shown: Family<ShownLabels, Counter>,
}

impl Default for PictureMetrics {
    fn default() -> Self {
        Self {
            rendered: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.005, 2.0, 10)),
            shown: Family::default(),
        }
    }
}

impl PictureMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "stepwatch_alerter_chart_renders",
            "Charts drawn as PNG, by result (done, failed)",
            self.rendered.clone(),
        );
        registry.register(
            "stepwatch_alerter_chart_render_seconds",
            "Time to draw a chart as PNG",
            self.seconds.clone(),
        );
        registry.register(
            "stepwatch_alerter_chart_uploads",
            "Charts on their way into a conversation, by result (shown, retried, given_up, forbidden)",
            self.shown.clone(),
        );
    }

    pub(super) fn rendered(&self, done: bool) {
        let result = if done { "done" } else { "failed" };
        self.rendered.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }

    pub(super) fn shown(&self, receiver: &str, result: &'static str) {
        self.shown.get_or_create(&ShownLabels { receiver: receiver.to_owned(), result }).inc();
    }
}
