//! Metrics of remote write.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry as Families;
use stepwatch_remote_write::Registry;

use super::{ReasonLabel, Word};

#[derive(Debug, Clone, Default)]
pub struct WriteMetrics {
    requests: Family<CodeLabel, Counter>,
    samples: Counter,
    watched_samples: Counter,
    dropped: Family<ReasonLabel, Counter>,
    series: Gauge<i64>,
    watched: Gauge<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
struct CodeLabel {
    code: u16,
}

impl WriteMetrics {
    pub fn register(&self, registry: &mut Families) {
        registry.register(
            "remote_write_requests",
            "Requests of remote write, by the status that they were answered with",
            self.requests.clone(),
        );
        registry.register("remote_write_samples", "Samples received by remote write", self.samples.clone());
        registry.register(
            "remote_write_watched_samples",
            "Of these, samples of series that mean something: signals of runs, readings of nodes, watched series",
            self.watched_samples.clone(),
        );
        registry.register(
            "remote_write_dropped_samples",
            "Samples that were not judged: out_of_order (not newer than the one before), too_old (more than 5 minutes), \
             too_far_ahead, invalid (their labels), over_series, over_watched, over_tenant and over_groups (beyond a limit)",
            self.dropped.clone(),
        );
        registry.register("remote_write_series", "Series known to remote write", self.series.clone());
        registry.register(
            "remote_write_watched_series",
            "Of these, series that mean something",
            self.watched.clone(),
        );
    }

    pub(crate) fn answered(&self, code: u16) {
        self.requests.get_or_create(&CodeLabel { code }).inc();
    }

    pub(crate) fn publish(&self, registry: &Registry) {
        let counts = registry.counts;
        set(&self.samples, counts.samples);
        set(&self.watched_samples, counts.watched_samples);
        for (reason, count) in [
            ("out_of_order", counts.out_of_order),
            ("too_old", counts.too_old),
            ("too_far_ahead", counts.too_far_ahead),
            ("invalid", counts.invalid),
            ("over_series", counts.over_series),
            ("over_watched", counts.over_watched),
            ("over_tenant", counts.over_tenant),
            ("over_groups", registry.over_groups()),
        ] {
            if count > 0 {
                set(&self.dropped.get_or_create(&ReasonLabel { reason: Word(reason) }), count);
            }
        }
        self.series.set(registry.series() as i64);
        self.watched.set(registry.watched() as i64);
    }
}

/// Raises a counter to `count`; a smaller count has no effect.
fn set(counter: &Counter, count: u64) {
    let inner: &AtomicU64 = counter.inner();
    inner.fetch_max(count, Ordering::Relaxed);
}
