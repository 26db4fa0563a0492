//! The last messages of open incidents, for a receiver whose alerts expire.

use stepwatch_respond::effect::Notification;

use super::error::Result;
use super::handle::Store;
use super::sql::query_as;

impl Store {
    /// The last message that `receiver` accepted of each open incident, in the order of the
    /// incidents: the next `limit` after `after`.
    pub(crate) async fn standing(
        &self,
        receiver: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(String, Option<Notification>)>> {
        let sql = "SELECT o.incident, o.notification FROM outbox o JOIN incidents i ON i.id = o.incident \
                   WHERE o.receiver = $1 AND o.incident > $2 AND o.state = 'delivered' \
                   AND i.state <> 'resolved' AND o.seq = (SELECT MAX(p.seq) FROM outbox p \
                   WHERE p.incident = o.incident AND p.receiver = o.receiver AND p.state = 'delivered') \
                   ORDER BY o.incident LIMIT $3";
        let rows: Vec<(String, String)> =
            query_as(sql).bind(receiver).bind(after).bind(limit as i64).fetch_all(&*self.reader()?).await?;
        // A message that cannot be parsed was reported when it was claimed.
        Ok(rows.into_iter().map(|(id, text)| (id, serde_json::from_str(&text).ok())).collect())
    }
}
