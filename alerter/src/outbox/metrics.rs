//! Metrics of the outbox.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use stepwatch_respond::effect::Action;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    receiver: String,
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RetryLabels {
    receiver: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceiverLabels {
    receiver: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BeatLabels {
    result: &'static str,
}

#[derive(Debug, Clone)]
pub struct OutboxMetrics {
    sent: Family<MessageLabels, Counter>,
    failed: Family<MessageLabels, Counter>,
    retried: Family<RetryLabels, Counter>,
    depth: Gauge,
    oldest_page_age: Gauge<f64, AtomicU64>,
    latency: Family<ReceiverLabels, Histogram, fn() -> Histogram>,
    down: Family<ReceiverLabels, Gauge>,
    store_errors: Counter,
    heartbeats: Family<BeatLabels, Counter>,
    left_out: Family<ReceiverLabels, Counter>,
    unrecorded: Family<ReceiverLabels, Counter>,
    unrecorded_left_out: Counter,
}

/// Buckets from a local fake that answers in a millisecond to an outage of a night.
fn latency_histogram() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0, 3600.0,
    ])
}

impl Default for OutboxMetrics {
    fn default() -> Self {
        Self {
            sent: Family::default(),
            failed: Family::default(),
            retried: Family::default(),
            depth: Gauge::default(),
            oldest_page_age: Gauge::default(),
            latency: Family::new_with_constructor(latency_histogram),
            down: Family::default(),
            store_errors: Counter::default(),
            heartbeats: Family::default(),
            left_out: Family::default(),
            unrecorded: Family::default(),
            unrecorded_left_out: Counter::default(),
        }
    }
}

impl OutboxMetrics {
    /// Registers the metrics. The registry shares the values, so the time does not matter.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "stepwatch_alerter_notifications_sent",
            "Messages that a receiver took",
            self.sent.clone(),
        );
        registry.register(
            "stepwatch_alerter_notifications_failed",
            "Messages given up: refused for good, or tried too often",
            self.failed.clone(),
        );
        registry.register(
            "stepwatch_alerter_notification_retries",
            "Attempts that will be repeated, by reason",
            self.retried.clone(),
        );
        registry.register(
            "stepwatch_alerter_outbox_depth",
            "Messages not yet delivered nor given up",
            self.depth.clone(),
        );
        registry.register(
            "stepwatch_alerter_outbox_oldest_page_age_seconds",
            "Age of the oldest page that no receiver has taken; 0 if there is none",
            self.oldest_page_age.clone(),
        );
        registry.register(
            "stepwatch_alerter_notification_latency_seconds",
            "From the commit of a message to the receiver having taken it",
            self.latency.clone(),
        );
        registry.register(
            "stepwatch_alerter_receiver_down",
            "1 while a receiver fails every attempt and is only probed",
            self.down.clone(),
        );
        registry.register(
            "stepwatch_alerter_outbox_store_errors",
            "Operations of the outbox that the store refused; they are repeated",
            self.store_errors.clone(),
        );
        registry.register(
            "stepwatch_alerter_notifications_left_out",
            "Messages that wake nobody, left out because the budget of their receiver was used up",
            self.left_out.clone(),
        );
        registry.register(
            "stepwatch_alerter_notifications_unrecorded",
            "Attempts to send a page from memory because the store refused to record it",
            self.unrecorded.clone(),
        );
        registry.register(
            "stepwatch_alerter_notifications_unrecorded_left_out",
            "Pages that could neither be recorded nor held in memory; they are sent when the store takes them",
            self.unrecorded_left_out.clone(),
        );
        registry.register(
            "stepwatch_alerter_heartbeats",
            "Signs of life to the watchdog: sent, failed (it did not answer), withheld (we are not well)",
            self.heartbeats.clone(),
        );
    }

    pub(crate) fn left_out(&self, receiver: &str) {
        self.left_out.get_or_create(&ReceiverLabels { receiver: receiver.to_owned() }).inc();
    }

    pub(crate) fn unrecorded(&self, receiver: &str) {
        self.unrecorded.get_or_create(&ReceiverLabels { receiver: receiver.to_owned() }).inc();
    }

    pub(crate) fn unrecorded_left_out(&self, total: u64) {
        self.unrecorded_left_out.inc_by(total.saturating_sub(self.unrecorded_left_out.get()));
    }

    pub(crate) fn beat(&self, result: &'static str) {
        self.heartbeats.get_or_create(&BeatLabels { result }).inc();
    }

    pub(crate) fn sent(&self, receiver: &str, action: Action, seconds: f64) {
        self.sent.get_or_create(&message(receiver, action)).inc();
        let labels = ReceiverLabels { receiver: receiver.to_owned() };
        self.latency.get_or_create(&labels).observe(seconds.max(0.0));
    }

    pub(crate) fn failed(&self, receiver: &str, action: Action) {
        self.failed.get_or_create(&message(receiver, action)).inc();
    }

    pub(crate) fn retried(&self, receiver: &str, reason: &'static str) {
        self.retried.get_or_create(&RetryLabels { receiver: receiver.to_owned(), reason }).inc();
    }

    pub(crate) fn down(&self, receiver: &str, down: bool) {
        self.down.get_or_create(&ReceiverLabels { receiver: receiver.to_owned() }).set(down.into());
    }

    pub(crate) fn queue(&self, depth: u64, oldest_page_age: f64) {
        self.depth.set(depth as i64);
        self.oldest_page_age.set(oldest_page_age.max(0.0));
    }

    pub(crate) fn store_error(&self) {
        self.store_errors.inc();
    }

    /// The number of operations that the store refused.
    pub fn store_errors(&self) -> u64 {
        self.store_errors.get()
    }

    /// The number of messages that a receiver accepted.
    pub fn sent_total(&self, receiver: &str, action: Action) -> u64 {
        self.sent.get_or_create(&message(receiver, action)).get()
    }

    /// The number of messages in the queue at the last pass.
    pub fn depth(&self) -> u64 {
        self.depth.get().unsigned_abs()
    }
}

fn message(receiver: &str, action: Action) -> MessageLabels {
    MessageLabels { receiver: receiver.to_owned(), action: action.as_str() }
}
