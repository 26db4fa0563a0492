//! Stores the ids of applied callbacks, and the services' ids of our incidents.

use stepwatch_model::time::Ts;

use super::error::Result;
use super::handle::Store;
use super::sql::{query, query_as, query_scalar};
use super::writer::Who;

/// A service's id of an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counterpart {
    pub(crate) incident: String,
    /// The time of the incident's last effective event, by the service's clock.
    pub(crate) spoke_at: Ts,
}

impl Store {
    /// Whether a callback with this id was applied.
    pub(crate) async fn was_heard(&self, service: &str, id: &str) -> Result<bool> {
        let sql = "SELECT COUNT(*) FROM callbacks WHERE service = $1 AND id = $2";
        let count: i64 = query_scalar(sql).bind(service).bind(id).fetch_one(&*self.finder()?).await?;
        Ok(count > 0)
    }

    /// Stores that a callback was applied, and deletes those from before `forget`.
    pub(crate) async fn mark_heard(&self, service: &str, id: &str, now: Ts, forget: Ts) -> Result<()> {
        self.write(Who::Prompt, async |tx| {
            let sql = "INSERT INTO callbacks (service, id, at_ms) VALUES ($1, $2, $3) \
                       ON CONFLICT (service, id) DO NOTHING";
            query(sql).bind(service).bind(id).bind(now.0).execute(&mut *tx).await?;
            let sql = "DELETE FROM callbacks WHERE service = $1 AND at_ms < $2";
            query(sql).bind(service).bind(forget.0).execute(tx).await?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn counterpart(&self, service: &str, id: &str) -> Result<Option<Counterpart>> {
        let sql = "SELECT incident, spoke_ms FROM counterparts WHERE service = $1 AND id = $2";
        let row: Option<(String, i64)> =
            query_as(sql).bind(service).bind(id).fetch_optional(&*self.finder()?).await?;
        Ok(row.map(|(incident, spoke)| Counterpart { incident, spoke_at: Ts(spoke) }))
    }

    /// Stores a service's id of an incident; `spoke_at` only rises.
    pub(crate) async fn keep_counterpart(&self, service: &str, id: &str, of: &Counterpart) -> Result<()> {
        let sql = "INSERT INTO counterparts (service, id, incident, spoke_ms) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (service, id) DO UPDATE SET incident = excluded.incident, \
                   spoke_ms = CASE WHEN excluded.spoke_ms > counterparts.spoke_ms THEN excluded.spoke_ms \
                   ELSE counterparts.spoke_ms END";
        self.write(Who::Prompt, async |tx| {
            let insert = query(sql).bind(service).bind(id).bind(&of.incident).bind(of.spoke_at.0);
            insert.execute(tx).await?;
            Ok(())
        })
        .await
    }

    /// The incidents whose alerts a person moved to the service's incident `target`.
    pub(crate) async fn merged_into(&self, service: &str, target: &str) -> Result<Vec<String>> {
        let sql = "SELECT DISTINCT incident FROM counterparts WHERE service = $1 AND merged_into = $2 \
                   ORDER BY incident";
        Ok(query_scalar(sql).bind(service).bind(target).fetch_all(&*self.finder()?).await?)
    }

    /// Records that a person merged the service's incident `source` into `target`, with everything
    /// that was merged into it before. `incident` is our incident of `source`.
    pub(crate) async fn keep_merge(
        &self,
        service: &str,
        source: &str,
        target: &str,
        incident: &str,
    ) -> Result<()> {
        self.write(Who::Prompt, async |tx| {
            // Callbacks arrive in any order, so the target may have been merged itself.
            let sql =
                "SELECT merged_into FROM counterparts WHERE service = $1 AND id = $2 AND merged_into <> ''";
            let beyond: Option<String> =
                query_scalar(sql).bind(service).bind(target).fetch_optional(&mut *tx).await?;
            let target = beyond.as_deref().unwrap_or(target);
            let sql = "INSERT INTO counterparts (service, id, incident, spoke_ms, merged_into) \
                       VALUES ($1, $2, $3, 0, $4) ON CONFLICT (service, id) DO UPDATE SET \
                       merged_into = excluded.merged_into";
            let insert = query(sql).bind(service).bind(source).bind(incident);
            insert.bind(target).execute(&mut *tx).await?;
            let sql = "UPDATE counterparts SET merged_into = $3 WHERE service = $1 AND merged_into = $2";
            query(sql).bind(service).bind(source).bind(target).execute(tx).await?;
            Ok(())
        })
        .await
    }
}
