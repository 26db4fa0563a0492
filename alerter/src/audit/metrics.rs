//! Metrics of the audit log.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Entry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    door: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct AuditMetrics {
    entries: Family<Labels, Counter>,
    unwritten: Family<Reason, Counter>,
    forgotten: Counter,
}

impl AuditMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("audit_entries", "Entries of the audit log", self.entries.clone());
        registry.register(
            "audit_unwritten",
            "Entries that the audit log does not have: flood (too many refusals in a minute), store (it did not take them)",
            self.unwritten.clone(),
        );
        registry.register(
            "audit_forgotten",
            "Entries of the audit log that were forgotten because they were old or too many",
            self.forgotten.clone(),
        );
    }

    pub(crate) fn wrote(&self, entries: &[Entry]) {
        for entry in entries {
            let labels = Labels { door: entry.door.as_str(), outcome: entry.outcome.as_str() };
            self.entries.get_or_create(&labels).inc();
        }
    }

    pub(super) fn unwritten(&self, reason: &'static str) {
        self.unwritten.get_or_create(&Reason { reason }).inc();
    }

    pub(super) fn forgot(&self, count: u64) {
        self.forgotten.inc_by(count);
    }

    #[cfg(test)]
    pub(super) fn unwritten_by(&self, reason: &'static str) -> u64 {
        self.unwritten.get_or_create(&Reason { reason }).get()
    }
}
