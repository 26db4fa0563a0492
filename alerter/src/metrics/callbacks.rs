//! Metrics of the callbacks.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    service: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct CallbackMetrics {
    callbacks: Family<Labels, Counter>,
    /// Sockets to Slack that have received its hello.
    pub(crate) sockets: Gauge,
    pub(crate) socket_failures: Counter,
}

impl CallbackMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "callbacks",
            "Callbacks of services, by result: acted, nothing (nothing to do), repeated, refused (no \
             valid signature), stranger (signed, of somebody whose clicks do not count), malformed, busy, failed",
            self.callbacks.clone(),
        );
        registry.register(
            "slack_sockets",
            "Socket Mode connections that Slack has confirmed; 0 means that clicks do not arrive",
            self.sockets.clone(),
        );
        registry.register(
            "slack_socket_failures",
            "Socket Mode connections that could not be made or ended without notice",
            self.socket_failures.clone(),
        );
    }

    pub(crate) fn count(&self, service: &'static str, result: &'static str) {
        self.callbacks.get_or_create(&Labels { service, result }).inc();
    }
}
