//! Scheduled reports as their receivers get them.

use stepwatch_model::time::Ts;

use super::error::Result;
use super::rows::{list, portions};
use super::sql::{Connection, QueryBuilder, query_scalar};

/// The prefix of a report's id. Ids of incidents contain no slash.
pub(crate) const REPORT: &str = "report/";
/// The most reports that one transaction deletes.
const PRUNE_AT_ONCE: i64 = 500;

/// Whether an id in place of an incident's is that of a report.
pub(crate) fn is_report(id: &str) -> bool {
    id.starts_with(REPORT)
}

/// The report with this id; `None` if it is an incident's.
pub(super) async fn report_of(tx: &mut Connection, id: &str) -> Result<Option<String>> {
    if !is_report(id) {
        return Ok(None);
    }
    let sql = "SELECT report FROM reports WHERE id = $1";
    Ok(query_scalar(sql).bind(id).fetch_optional(tx).await?)
}

/// Deletes reports that were created before `before`, and their deliveries.
pub(super) async fn prune_reports(tx: &mut Connection, before: Ts) -> Result<()> {
    let sql = "SELECT id FROM reports WHERE made_ms < $1 ORDER BY id LIMIT $2";
    let ids: Vec<String> = query_scalar(sql).bind(before.0).bind(PRUNE_AT_ONCE).fetch_all(&mut *tx).await?;
    for ids in portions(&ids) {
        for (table, id) in [("outbox", "incident"), ("lanes", "incident"), ("reports", "id")] {
            let mut delete = QueryBuilder::new(format!("DELETE FROM {table} WHERE {id} IN "));
            list(&mut delete, ids);
            delete.build().execute(&mut *tx).await?;
        }
    }
    Ok(())
}
