//! Stores which calls their service has confirmed.

use stepwatch_model::time::Ts;

use super::error::Result;
use super::handle::Store;
use super::rows::text_of;
use super::sql::{query, query_as};
use super::writer::Who;
use crate::notify::Ring;

/// A page that its service accepted but has not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    pub idem_key: String,
    pub incident: String,
    /// When the page was accepted.
    pub since: Ts,
}

impl Store {
    /// Records that the service notified a person of this call.
    pub(crate) async fn confirm(&self, incident: &str, ring: Ring) -> Result<()> {
        let sql = "UPDATE outbox SET confirmed = 1 WHERE incident = $1 AND ring = $2 AND page = $3";
        self.write(Who::Prompt, async |tx| {
            let update = query(sql).bind(incident);
            update.bind(i64::from(ring.number)).bind(i64::from(ring.page)).execute(tx).await?;
            Ok(())
        })
        .await
    }

    /// The pages that a receiver accepted after `after` and until `before`, of open incidents
    /// without a confirmed call. Empty if the receiver has never confirmed a call, because its
    /// webhooks may not include confirmations.
    pub(crate) async fn unconfirmed(
        &self,
        receiver: &str,
        after: Ts,
        before: Ts,
    ) -> Result<Vec<Unconfirmed>> {
        let sql = "SELECT o.idem_key, o.incident, o.done_at FROM outbox o JOIN incidents i ON i.id = o.incident \
                   WHERE o.receiver = $1 AND o.done_at > $2 AND o.done_at <= $3 AND o.confirmed = 0 AND o.page = 1 \
                   AND o.action = 'trigger' AND o.state = 'delivered' AND o.ring IS NOT NULL AND i.state = 'open' \
                   AND (i.unsuppressed_ms IS NOT NULL OR o.despite_suppression = 1) \
                   AND EXISTS (SELECT 1 FROM outbox s WHERE s.receiver = $1 AND s.confirmed = 1) \
                   AND NOT EXISTS (SELECT 1 FROM outbox c WHERE c.incident = o.incident AND c.receiver = $1 \
                   AND c.page = 1 AND c.confirmed = 1) ORDER BY o.done_at";
        let query = query_as(sql).bind(receiver).bind(text_of(after)).bind(text_of(before));
        let rows: Vec<(String, String, String)> = query.fetch_all(&*self.reader()?).await?;
        let moment = |text: &str| text.parse::<jiff::Timestamp>().map_or(before, |t| Ts(t.as_millisecond()));
        let call = |(idem_key, incident, done_at): (String, String, String)| Unconfirmed {
            idem_key,
            incident,
            since: moment(&done_at),
        };
        Ok(rows.into_iter().map(call).collect())
    }
}
