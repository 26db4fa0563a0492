//! The row of each alert in the alerts table.

use std::collections::BTreeMap;

use super::error::Result;
use super::sql::{Connection, query};

/// The rows of the firing alerts, kept in memory because an index of their fingerprints would be as
/// large as the alerts.
#[derive(Debug, Default)]
pub(super) struct AlertRows {
    pub(super) of: BTreeMap<u64, i64>,
    /// The highest row number so far.
    last: i64,
}

impl AlertRows {
    /// Loads the rows of the table.
    pub(super) async fn load(connection: &mut Connection) -> Result<Self> {
        let all = query("SELECT id, fingerprint FROM alerts").fetch_all(connection).await?;
        let mut rows = Self::default();
        for row in &all {
            let id = row.try_get("id")?;
            rows.last = rows.last.max(id);
            // A row without a readable fingerprint keeps its number but belongs to no alert.
            let fingerprint = row.try_get("fingerprint").ok().and_then(|f| u64::from_str_radix(f, 16).ok());
            if let Some(fingerprint) = fingerprint {
                rows.of.insert(fingerprint, id);
            }
        }
        Ok(rows)
    }

    /// The row of an alert, which gets a new one if it has none.
    pub(super) fn give(&mut self, fingerprint: u64) -> i64 {
        *self.of.entry(fingerprint).or_insert_with(|| {
            self.last += 1;
            self.last
        })
    }
}
