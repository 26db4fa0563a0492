//! Stores overrides of on-call schedules that people make at run time.

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::oncall::{MAX_ENDED, OverrideRecord, REMEMBER};

use super::error::Result;
use super::handle::Store;
use super::rows::{json, text_of};
use super::sql::{Connection, query, query_as};

impl Store {
    /// All stored overrides. An unreadable one is logged and skipped: whoever is on call without it
    /// is notified.
    pub async fn load_overrides(&self) -> Result<Vec<OverrideRecord>> {
        let sql = "SELECT id, record FROM oncall_overrides ORDER BY id";
        let rows: Vec<(String, String)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let readable = rows.into_iter().filter_map(|(id, record)| {
            let record = serde_json::from_str(&record);
            record
                .map_err(
                    |err| tracing::error!(id, %err, "an override in the store does not read: it is void"),
                )
                .ok()
        });
        Ok(readable.collect())
    }
}

/// Writes the overrides among the effects, in their order.
pub(super) async fn put_overrides(tx: &mut Connection, effects: &[Effect]) -> Result<()> {
    for effect in effects {
        if let Effect::Override(record) = effect {
            put(tx, record).await?;
        }
    }
    Ok(())
}

async fn put(tx: &mut Connection, o: &OverrideRecord) -> Result<()> {
    let sql = "INSERT INTO oncall_overrides (id, schedule, users, starts_at, ends_at, created_by, note, record) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO UPDATE SET \
               ends_at = excluded.ends_at, record = excluded.record";
    let users = o.covers.iter().map(|cover| cover.user.as_str()).collect::<Vec<_>>().join(", ");
    query(sql)
        .bind(&o.id)
        .bind(&o.schedule)
        .bind(users)
        .bind(text_of(o.begins_at()))
        .bind(text_of(o.ends_at()))
        .bind(&o.created_by)
        .bind(&o.note)
        .bind(json("override", o)?)
        .execute(&mut *tx)
        .await?;
    forget_ended(tx, o.changed_at()).await
}

/// Deletes what the engine has forgotten by `now`: overrides that ended long ago, and the first
/// ended ones above the limit.
async fn forget_ended(tx: &mut Connection, now: Ts) -> Result<()> {
    let sql = "DELETE FROM oncall_overrides WHERE ends_at <= $1";
    query(sql).bind(text_of(now.earlier(REMEMBER))).execute(&mut *tx).await?;
    let sql = "DELETE FROM oncall_overrides WHERE id IN (SELECT id FROM oncall_overrides WHERE ends_at <= $1 \
               ORDER BY ends_at DESC, id DESC LIMIT 9223372036854775807 OFFSET $2)";
    query(sql).bind(text_of(now)).bind(MAX_ENDED as i64).execute(tx).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_model::time::Span;
    use stepwatch_respond::oncall::Cover;

    use super::super::tests::{by_hand, reopen};
    use super::*;
    use crate::store::Commit;

    /// 2026-11-21T02:16:56Z.
    const T0: Ts = Ts(1_795_227_416_000);

    fn record(id: &str, begins: i64, hours: i64) -> OverrideRecord {
        let from = T0 + Span::secs(begins * 3600);
        let cover =
            Cover { user: "bob".into(), replaces: None, from, until: from + Span::secs(hours * 3600) };
        OverrideRecord {
            id: id.into(),
            seq: 1,
            schedule: "primary".into(),
            covers: vec![cover],
            created_by: "ann".into(),
            note: "dentist".into(),
            created_at: from,
            removed: None,
        }
    }

    async fn commit(store: &Store, records: &[OverrideRecord]) {
        let effects = records.iter().map(|r| Effect::Override(Arc::new(r.clone()))).collect();
        store.commit(&Commit { effects, ..Commit::default() }).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_stored_is_read_back_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let store = Store::open(&path).await.unwrap();
        let (a, b) = (record("a", 0, 2), record("b", 1, 2));
        let gone = a.removed_by("carol", T0 + Span::secs(600));
        commit(&store, &[a, b.clone()]).await;
        commit(&store, std::slice::from_ref(&gone)).await;
        drop(store);
        let store = reopen(&path).await;
        assert_eq!(store.load_overrides().await.unwrap(), [gone.clone(), b.clone()]);
        // One that does not read costs no other.
        by_hand(&store, "UPDATE oncall_overrides SET record = '{' WHERE id = 'b'").await.unwrap();
        assert_eq!(store.load_overrides().await.unwrap(), [gone]);
    }

    #[tokio::test]
    async fn what_ended_long_ago_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
        commit(&store, &[record("a", 0, 2), record("b", 0, 3)]).await;
        // Thirty days after the end of the first one.
        let late = record("c", 2 + 30 * 24, 1);
        commit(&store, std::slice::from_ref(&late)).await;
        assert_eq!(store.load_overrides().await.unwrap(), [record("b", 0, 3), late]);
    }

    #[tokio::test]
    async fn a_database_of_the_first_schema_gets_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let store = Store::open(&path).await.unwrap();
        for sql in ["DROP TABLE oncall_overrides", "DELETE FROM _sqlx_migrations WHERE version = 2"] {
            by_hand(&store, sql).await.unwrap();
        }
        drop(store);
        let store = reopen(&path).await;
        commit(&store, &[record("a", 0, 2)]).await;
        assert_eq!(store.load_overrides().await.unwrap(), [record("a", 0, 2)]);
    }
}
