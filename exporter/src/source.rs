//! The health of sources of training metrics: a tail, the socket, an endpoint. Each source holds a
//! [`SourceHandle`] and reports its state with it; its series leave the metrics page with the
//! handle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::family::Family;
use crate::lock::Locked as _;
use crate::samples::Samples;

pub static UP: Family = Family::gauge(
    "train_source_up",
    "",
    &["source", "kind"],
    "Whether the source could be read when it was last tried",
);
pub static LAG: Family = Family::gauge(
    "train_source_lag_seconds",
    "seconds",
    &["source", "kind"],
    "How far the last event of the source lay behind the time it was read",
);
pub static DROPPED: Family = Family::counter(
    "train_source_dropped_total",
    "",
    &["source", "kind", "reason"],
    "Records that the source had to drop",
);
pub static UNMATCHED: Family = Family::counter(
    "train_source_unmatched_lines_total",
    "",
    &["source", "kind"],
    "Lines that no parser of the source understood: normal for a log, a sign of a wrong format when nothing else moves",
);
pub static SKIPPED: Family = Family::counter(
    "train_source_skipped_bytes_total",
    "bytes",
    &["source", "kind"],
    "Bytes of files that were passed over because they were never written: holes and zeros",
);

pub static RESOLUTION: Family = Family::gauge(
    "train_log_resolution",
    "",
    &["source", "metric"],
    "Step between two neighbouring values as the source prints them: smaller changes are the printer's, not the training's",
);

pub static FAMILIES: &[&Family] = &[&UP, &LAG, &DROPPED, &UNMATCHED, &SKIPPED, &RESOLUTION];

/// The reason why a file is not read: its user may not read it, or a link of another user leads to
/// it.
pub(crate) const NOT_OWNER: &str = "not_owner";

/// The most distinct reasons of drops of one source.
const MAX_REASONS: usize = 16;

#[derive(Debug)]
struct Health {
    name: String,
    kind: String,
    up: AtomicBool,
    /// The bits of an `f64`; NaN until the source sets it.
    lag: AtomicU64,
    unmatched: AtomicU64,
    skipped: AtomicU64,
    dropped: Mutex<BTreeMap<String, u64>>,
    resolution: Mutex<BTreeMap<&'static str, f64>>,
    samples: Mutex<Samples>,
}

/// The handle of a source's metrics. It is cheap to clone; they are exported while a clone exists.
#[derive(Debug, Clone)]
pub struct SourceHandle(Arc<Health>);

impl SourceHandle {
    pub fn up(&self, up: bool) {
        self.0.up.store(up, Ordering::Relaxed);
    }

    pub fn lag_seconds(&self, seconds: f64) {
        self.0.lag.store(seconds.max(0.0).to_bits(), Ordering::Relaxed);
    }

    pub fn dropped(&self, reason: &str, records: u64) {
        let mut dropped = self.0.dropped.locked();
        if let Some(count) = dropped.get_mut(reason) {
            *count += records;
        } else if dropped.len() < MAX_REASONS {
            dropped.insert(reason.to_owned(), records);
        }
    }

    /// The resolution with which the source prints a metric.
    pub fn resolution(&self, metric: &'static str, step: f64) {
        self.0.resolution.locked().insert(metric, step);
    }

    /// Replaces the samples of families that only this kind of source has.
    pub fn samples(&self, samples: Samples) {
        *self.0.samples.locked() = samples;
    }

    pub fn skipped_bytes(&self, bytes: u64) {
        self.0.skipped.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn unmatched_lines(&self, lines: u64) {
        self.0.unmatched.fetch_add(lines, Ordering::Relaxed);
    }
}

/// All existing sources.
#[derive(Debug, Default)]
pub(crate) struct Sources(Mutex<Vec<Weak<Health>>>);

impl Sources {
    pub(crate) fn register(&self, name: &str, kind: &str) -> SourceHandle {
        let health = Arc::new(Health {
            name: name.to_owned(),
            kind: kind.to_owned(),
            up: AtomicBool::new(false),
            lag: AtomicU64::new(f64::NAN.to_bits()),
            unmatched: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            dropped: Mutex::default(),
            resolution: Mutex::default(),
            samples: Mutex::default(),
        });
        let mut all = self.0.locked();
        all.retain(|w| w.strong_count() > 0);
        all.push(Arc::downgrade(&health));
        SourceHandle(health)
    }

    /// The names of the sources of one kind.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let all = self.0.locked();
        all.iter().filter_map(Weak::upgrade).filter(|h| h.kind == kind).map(|h| h.name.clone()).collect()
    }

    pub(crate) fn write(&self, out: &mut Samples) {
        for health in self.0.locked().iter().filter_map(Weak::upgrade) {
            let labels: &[&str] = &[&health.name, &health.kind];
            out.set(&UP, labels, health.up.load(Ordering::Relaxed));
            out.set(&LAG, labels, f64::from_bits(health.lag.load(Ordering::Relaxed)));
            out.set(&UNMATCHED, labels, health.unmatched.load(Ordering::Relaxed));
            let skipped = health.skipped.load(Ordering::Relaxed);
            if skipped > 0 {
                out.set(&SKIPPED, labels, skipped);
            }
            out.extend(&health.samples.locked());
            for (metric, step) in health.resolution.locked().iter() {
                out.set(&RESOLUTION, &[&health.name, metric], *step);
            }
            for (reason, count) in health.dropped.locked().iter() {
                out.set(&DROPPED, &[&health.name, &health.kind, reason], *count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(sources: &Sources) -> Samples {
        let mut out = Samples::default();
        sources.write(&mut out);
        out
    }

    #[test]
    fn a_source_is_on_the_page_while_its_handle_lives() {
        let sources = Sources::default();
        let handle = sources.register("/logs/run.log", "tail");
        let labels = ["/logs/run.log", "tail"];
        assert_eq!(page(&sources).get(&UP, &labels), Some(0.0));
        assert_eq!(page(&sources).get(&LAG, &labels), None, "unknown is absent");
        handle.up(true);
        handle.lag_seconds(1.5);
        handle.unmatched_lines(3);
        handle.dropped("too_long", 2);
        let now = page(&sources);
        assert_eq!(now.get(&UP, &labels), Some(1.0));
        assert_eq!(now.get(&LAG, &labels), Some(1.5));
        assert_eq!(now.get(&UNMATCHED, &labels), Some(3.0));
        assert_eq!(now.get(&DROPPED, &["/logs/run.log", "tail", "too_long"]), Some(2.0));
        drop(handle);
        assert!(page(&sources).is_empty());
    }

    #[test]
    fn reasons_are_capped() {
        let sources = Sources::default();
        let handle = sources.register("s", "tail");
        for i in 0..100 {
            handle.dropped(&format!("r{i}"), 1);
        }
        assert_eq!(page(&sources).iter().filter(|s| s.family == &DROPPED).count(), MAX_REASONS);
    }
}
