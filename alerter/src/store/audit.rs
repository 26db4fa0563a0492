//! Stores the audit log.

mod entry;

use stepwatch_model::time::Ts;

use super::error::Result;
use super::handle::Store;
use super::rows::{portions, text_of, word};
use super::sql::{Connection, QueryBuilder, Row, query, query_scalar};
use super::writer::Who;
pub use entry::{Door, Entry, Outcome};

/// The default limit of entries in one answer.
const ENTRIES_DEFAULT: u32 = 100;

/// A selection of entries; the default is the latest of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub target: Option<String>,
    pub door: Option<String>,
    pub outcome: Option<String>,
    pub since: Option<Ts>,
    /// Only entries with lower numbers, for the next page.
    pub before: Option<i64>,
    /// The most entries, latest first.
    pub limit: Option<u32>,
}

/// An entry and its number, which only rises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    pub seq: i64,
    pub entry: Entry,
}

impl Store {
    /// Stores entries that belong to no other transaction.
    pub(crate) async fn write_audit(&self, entries: &[Entry]) -> Result<()> {
        self.write(Who::InTurn, async |tx| put_audit(tx, entries).await).await
    }

    /// The entries that match the filter, latest first.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<Audited>> {
        let mut query = QueryBuilder::new(
            "SELECT seq, at_ms, actor, door, action, target, outcome, remote, detail FROM audit WHERE 1 = 1",
        );
        for (column, value) in [
            ("actor", &filter.actor),
            ("action", &filter.action),
            ("target", &filter.target),
            ("door", &filter.door),
            ("outcome", &filter.outcome),
        ] {
            if let Some(value) = value {
                query.push(" AND ").push(column).push(" = ").push_bind(value);
            }
        }
        if let Some(since) = filter.since {
            query.push(" AND at_ms >= ").push_bind(since.0);
        }
        if let Some(before) = filter.before {
            query.push(" AND seq < ").push_bind(before);
        }
        query.push(" ORDER BY seq DESC LIMIT ");
        query.push_bind(i64::from(filter.limit.unwrap_or(ENTRIES_DEFAULT)));
        let rows = query.build().fetch_all(&*self.reader()?).await?;
        rows.iter().map(entry).collect()
    }

    /// Deletes entries from before `before`, and the oldest beyond `max`. Returns their number.
    pub(crate) async fn prune_audit(&self, before: Ts, max: u32) -> Result<u64> {
        let sql =
            "DELETE FROM audit WHERE at_ms < $1 OR seq <= (SELECT COALESCE(MAX(seq), 0) FROM audit) - $2";
        self.write(Who::InTurn, async |tx| {
            let gone = query(sql).bind(before.0).bind(i64::from(max)).execute(tx).await?;
            Ok(gone.rows_affected())
        })
        .await
    }
}

pub(super) async fn put_audit(tx: &mut Connection, entries: &[Entry]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    // There is only one writer, so the largest number plus one is free.
    let sql = "SELECT COALESCE(MAX(seq), 0) FROM audit";
    let last: i64 = query_scalar(sql).fetch_one(&mut *tx).await?;
    let numbered: Vec<(i64, &Entry)> = (last + 1..).zip(entries).collect();
    for rows in portions(&numbered) {
        let mut insert = QueryBuilder::new(
            "INSERT INTO audit (seq, at, at_ms, actor, door, action, target, outcome, remote, detail) ",
        );
        insert.push_values(rows, |mut row, (seq, e)| {
            row.push_bind(*seq).push_bind(text_of(e.at)).push_bind(e.at.0).push_bind(&e.actor);
            row.push_bind(e.door.as_str()).push_bind(&e.action).push_bind(&e.target);
            row.push_bind(e.outcome.as_str())
                .push_bind(e.remote.map(|ip| ip.to_string()).unwrap_or_default());
            row.push_bind(&e.detail);
        });
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

fn entry(row: &Row) -> Result<Audited> {
    let entry = Entry {
        at: Ts(row.try_get("at_ms")?),
        actor: row.try_get("actor")?,
        door: word("door", row.try_get("door")?)?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        outcome: word("outcome", row.try_get("outcome")?)?,
        remote: row.try_get::<&str, _>("remote")?.parse().ok(),
        detail: row.try_get("detail")?,
    };
    Ok(Audited { seq: row.try_get("seq")?, entry })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn entries_are_kept_found_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("a.db")).await.unwrap();
        let said = |at: i64, actor: &str, action: &str| Entry {
            at: Ts(at),
            remote: "10.0.0.7".parse().ok(),
            ..Entry::new(Door::PagerDuty, actor, action, "01J9ZC").saying("why").came_to(Outcome::Unchanged)
        };
        let entries: Vec<_> =
            (1..=9).map(|i| said(i * 1000, if i % 2 == 0 { "a" } else { "b" }, "ack")).collect();
        store.write_audit(&entries).await.unwrap();
        let seqs = async |filter: AuditFilter| {
            store.audit(&filter).await.unwrap().into_iter().map(|a| a.seq).collect::<Vec<_>>()
        };
        let all = AuditFilter::default();
        assert_eq!(store.audit(&all).await.unwrap()[0], Audited { seq: 9, entry: entries[8].clone() });
        assert_eq!(seqs(AuditFilter { limit: Some(3), ..all.clone() }).await, [9, 8, 7]);
        assert_eq!(seqs(AuditFilter { before: Some(7), limit: Some(2), ..all.clone() }).await, [6, 5]);
        assert_eq!(seqs(AuditFilter { actor: Some("a".into()), ..all.clone() }).await, [8, 6, 4, 2]);
        assert_eq!(seqs(AuditFilter { since: Some(Ts(8000)), ..all.clone() }).await, [9, 8]);
        assert_eq!(seqs(AuditFilter { action: Some("resolve".into()), ..all.clone() }).await, [0; 0]);
        assert_eq!(store.prune_audit(Ts(3000), 100).await.unwrap(), 2);
        assert_eq!(store.prune_audit(Ts(0), 4).await.unwrap(), 3);
        assert_eq!(seqs(all.clone()).await, [9, 8, 7, 6]);
        // Numbers are not reused, so that a page is never read twice.
        store.write_audit(&[said(10_000, "a", "ack")]).await.unwrap();
        assert_eq!(seqs(AuditFilter { limit: Some(1), ..all }).await, [10]);
    }
}
