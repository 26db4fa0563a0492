//! What the callbacks tell about themselves.

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
    /// Sockets to Slack that have greeted us.
    pub(super) sockets: Gauge,
    pub(super) socket_failures: Counter,
}

impl CallbackMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "callbacks",
            "Words that came back from a service, by what came of them: acted, nothing (nothing to do), repeated, refused (no \
             valid signature), stranger (signed, of somebody whose clicks do not count), malformed, busy, failed",
            self.callbacks.clone(),
        );
        registry.register(
            "slack_sockets",
            "Socket Mode connections that Slack has greeted; 0 means that clicks are not heard",
            self.sockets.clone(),
        );
        registry.register(
            "slack_socket_failures",
            "Socket Mode connections that could not be made or ended without notice",
            self.socket_failures.clone(),
        );
    }

    pub(super) fn count(&self, service: &'static str, result: &'static str) {
        self.callbacks.get_or_create(&Labels { service, result }).inc();
    }
}
