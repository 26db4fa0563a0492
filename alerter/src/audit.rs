//! The audit log: who changed or tried to change what, through which interface, from where, and
//! with what result.
//!
//! An action that the engine decides is written in the same transaction as its effects, so that
//! both or neither are stored. Earlier refusals and actions without a transaction (a reload, a log
//! level) are written when they are done. Anybody can cause refusals, so their number per minute is
//! limited; the others are counted in one entry.
//!
//! The audit log is no access log: it contains no reads, and no alerts that are sent again and
//! change nothing.

mod metrics;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use stepwatch_model::time::{Span, Ts};

pub use metrics::AuditMetrics;

use crate::clock::wall;
use crate::errors::chain;
use crate::store::Store;
pub use crate::store::{Door, Entry, Outcome};

/// The most refusals written within [`REFUSALS_WITHIN`].
const MAX_REFUSALS: u64 = 30;
const REFUSALS_WITHIN: Span = Span::secs(60);

/// The limits of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    pub retention: Span,
    /// The most entries; beyond this number the oldest are deleted.
    pub max_entries: u32,
}

/// Writes entries that belong to no transaction of the engine. Clones share it.
#[derive(Debug, Clone)]
pub struct AuditLog {
    store: Store,
    config: Arc<ArcSwap<AuditConfig>>,
    metrics: AuditMetrics,
    refusals: Arc<Mutex<Refusals>>,
}

/// The number of refusals in the current window, and its start.
#[derive(Debug, Default)]
struct Refusals {
    since: Ts,
    seen: u64,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { retention: Span::secs(365 * 86_400), max_entries: 100_000 }
    }
}

impl AuditLog {
    pub fn new(store: Store, config: AuditConfig, metrics: AuditMetrics) -> Self {
        Self { store, config: Arc::new(ArcSwap::from_pointee(config)), metrics, refusals: Arc::default() }
    }

    pub fn configure(&self, config: AuditConfig) {
        self.config.store(Arc::new(config));
    }

    /// Stores an entry; returns when it is on disk. A failure is counted and does not undo the
    /// action.
    pub async fn write(&self, entry: Entry) {
        let mut entries = vec![entry];
        if let Some(entry) = entries.first().filter(|e| e.outcome == Outcome::Refused) {
            let seen = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).see(entry.at);
            match seen {
                Seen::TooMany => return self.metrics.unwritten("flood"),
                Seen::First { unwritten: 0 } | Seen::Again => {}
                Seen::First { unwritten } => entries.insert(0, flood(entry, unwritten)),
            }
        }
        if let Err(err) = self.store.write_audit(&entries).await {
            tracing::error!(err = chain(&err), entry = %entries[entries.len() - 1], "an entry of the audit log cannot be kept");
            return self.metrics.unwritten("store");
        }
        self.metrics.wrote(&entries);
    }

    /// Deletes entries that are too old, and the oldest beyond the limit.
    pub async fn prune(&self) {
        let config = self.config.load_full();
        let before = Ts(wall().0.saturating_sub(config.retention.0));
        match self.store.prune_audit(before, config.max_entries).await {
            Ok(gone) => self.metrics.forgot(gone),
            Err(err) => {
                tracing::warn!(
                    err = chain(&err),
                    "cannot forget old entries of the audit log; trying again later"
                )
            }
        }
    }
}

enum Seen {
    /// The first refusal of a window, with the number of the unwritten ones before it.
    First {
        unwritten: u64,
    },
    Again,
    TooMany,
}

impl Refusals {
    fn see(&mut self, at: Ts) -> Seen {
        // A clock that was set back starts a new window as well.
        if !(Span::ZERO..REFUSALS_WITHIN).contains(&(at - self.since)) {
            let unwritten = self.seen.saturating_sub(MAX_REFUSALS);
            *self = Self { since: at, seen: 1 };
            return Seen::First { unwritten };
        }
        self.seen += 1;
        if self.seen > MAX_REFUSALS { Seen::TooMany } else { Seen::Again }
    }
}

fn flood(first: &Entry, unwritten: u64) -> Entry {
    Entry::new(first.door, "", "refusals", "")
        .saying(&format!("{unwritten} more were refused before this and not written one by one"))
        .came_to(Outcome::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::AuditFilter;

    #[tokio::test]
    async fn a_flood_of_refusals_is_counted_and_recorded_in_one_entry() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("a.db")).await.unwrap();
        let log = AuditLog::new(store.clone(), AuditConfig::default(), AuditMetrics::default());
        let refused = |at: i64| {
            let entry = Entry::new(Door::Api, "", "ack", "/x").came_to(Outcome::Refused);
            Entry { at: Ts(at), ..entry }
        };
        for i in 0..100 {
            log.write(refused(1_000_000 + i)).await;
        }
        let all = async || store.audit(&AuditFilter::default()).await.unwrap();
        assert_eq!(all().await.len() as u64, MAX_REFUSALS);
        // Successful actions are always recorded, regardless of the number of refusals.
        log.write(Entry::new(Door::Api, "api:ops", "ack", "01")).await;
        log.write(refused(1_000_000 + REFUSALS_WITHIN.0)).await;
        let entries = all().await;
        assert_eq!(entries.len() as u64, MAX_REFUSALS + 3);
        assert!(entries[1].entry.detail.starts_with("70 more were refused"), "{:?}", entries[1]);
        assert_eq!(log.metrics.unwritten_by("flood"), 70);
    }
}
