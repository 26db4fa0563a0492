//! The delivery state of each receiver.

use std::collections::BTreeMap;

use stepwatch_model::time::Ts;

use super::error::Result;
use super::handle::Store;
use super::sql::{query, query_as};
use sqlx::AssertSqlSafe;

/// The most messages with an error that are searched, latest first.
const MAX_ERRORS: u32 = 500;

/// The stored delivery state of one receiver.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReceiverState {
    /// The number of messages that are not sent, or of which this is unknown.
    pub waiting: usize,
    /// Since when the oldest of these waits.
    pub oldest: Option<Ts>,
    /// When the last message was delivered, in RFC 3339.
    pub delivered_at: Option<String>,
    pub failed: usize,
    /// The latest error, and the time of its message.
    pub error: Option<(Ts, String)>,
}

impl Store {
    /// The states by receiver name; a receiver without any message is absent.
    pub async fn receiver_states(&self) -> Result<BTreeMap<String, ReceiverState>> {
        let undone = "state IN ('pending', 'attempting', 'ambiguous')";
        let sql = format!(
            "SELECT receiver, sum(CASE WHEN {undone} THEN 1 ELSE 0 END) AS waiting, \
             min(CASE WHEN {undone} THEN created_ms END) AS oldest, \
             max(CASE WHEN state = 'delivered' THEN done_at END) AS delivered_at, \
             sum(CASE WHEN state = 'failed' THEN 1 ELSE 0 END) AS failed \
             FROM outbox GROUP BY receiver"
        );
        let mut states = BTreeMap::new();
        for row in query(AssertSqlSafe(sql)).fetch_all(&*self.reader()?).await? {
            let count = |name| row.try_get::<i64, _>(name).map(|n| usize::try_from(n).unwrap_or_default());
            let state = ReceiverState {
                waiting: count("waiting")?,
                oldest: row.try_get::<Option<i64>, _>("oldest")?.map(Ts),
                delivered_at: row.try_get("delivered_at")?,
                failed: count("failed")?,
                error: None,
            };
            states.insert(row.try_get::<String, _>("receiver")?, state);
        }
        let sql = "SELECT receiver, created_ms, error FROM outbox WHERE error IS NOT NULL \
                   ORDER BY created_ms DESC LIMIT $1";
        let errors: Vec<(String, i64, String)> =
            query_as(sql).bind(i64::from(MAX_ERRORS)).fetch_all(&*self.reader()?).await?;
        for (receiver, at, error) in errors {
            let state: &mut ReceiverState = states.entry(receiver).or_default();
            state.error.get_or_insert((Ts(at), error));
        }
        Ok(states)
    }
}
