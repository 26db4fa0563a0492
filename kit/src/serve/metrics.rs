//! Counts requests, and what the limits of serving refuse.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of one server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ServeMetrics {
    connections: Gauge,
    refused: Family<Reason, Counter>,
    over_rate: Counter,
    bodies: Counter,
    foreign: Counter,
    requests: Family<Code, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

impl ServeMetrics {
    /// Registers `<program>_http_*`.
    pub fn register(&self, registry: &mut Registry, program: &str) {
        registry.register(
            format!("{program}_http_connections"),
            "Open HTTP connections",
            self.connections.clone(),
        );
        registry.register(
            format!("{program}_http_connections_refused"),
            "Connections closed before a request: over the limit (capacity), idle and closed for a newcomer at the limit (evicted), failed TLS handshake, failed accept",
            self.refused.clone(),
        );
        registry.register(
            format!("{program}_http_requests_rate_limited"),
            "HTTP requests answered 429 by the rate_limit of the web configuration",
            self.over_rate.clone(),
        );
        registry.register(
            format!("{program}_http_bodies_refused"),
            "Request bodies broken off or not read: no room beside those of other requests, or too slow",
            self.bodies.clone(),
        );
        registry.register(
            format!("{program}_http_requests_foreign"),
            "Requests of browsers that were refused: for a page of another site, or by a name that is not in web.hosts",
            self.foreign.clone(),
        );
        registry.register(
            format!("{program}_http_requests"),
            "HTTP requests answered, by status code",
            self.requests.clone(),
        );
    }

    pub(super) fn connection_opened(&self) -> Open {
        self.connections.inc();
        Open(self.connections.clone())
    }

    pub(super) fn refused_over_capacity(&self) {
        self.refuse("capacity");
    }

    pub(super) fn evicted(&self) {
        self.refuse("evicted");
    }

    pub(super) fn handshake_failed(&self) {
        self.refuse("handshake");
    }

    pub(super) fn accept_failed(&self) {
        self.refuse("accept");
    }

    pub(super) fn refused_over_rate(&self) {
        self.over_rate.inc();
    }

    pub(super) fn refused_body(&self) {
        self.bodies.inc();
    }

    pub(super) fn refused_foreign(&self) {
        self.foreign.inc();
    }

    pub(super) fn answered(&self, code: u16) {
        self.requests.get_or_create(&Code { code }).inc();
    }

    fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub(super) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
