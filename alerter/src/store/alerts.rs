//! Stores silences, and the alerts of other programs.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use stepwatch_model::time::Ts;
use stepwatch_respond::effect::Effect;
use stepwatch_respond::external::{Alert, Firing, LabelSet, fingerprint_within};
use stepwatch_respond::silence::{MAX_ENDED, Silence};

use super::alert_rows::AlertRows;
use super::error::{Result, StoreError};
use super::handle::Store;
use super::rows::{json, portions, text_of};
use super::sql::{Connection, QueryBuilder, Row, query, query_as};

impl Store {
    /// All stored silences. An unreadable one is logged and skipped, so that what it suppressed
    /// notifies again.
    pub async fn load_silences(&self) -> Result<Vec<Silence>> {
        let sql = "SELECT id, record FROM silences ORDER BY id";
        let rows: Vec<(String, String)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let readable = rows.into_iter().filter_map(|(id, record)| {
            let silence = serde_json::from_str(&record);
            silence
                .map_err(|err| tracing::error!(id, %err, "a silence in the store does not read: it is void"))
                .ok()
        });
        Ok(readable.collect())
    }

    /// All alerts that fired when they were last received. An unreadable one is skipped, because
    /// its sender will send it again.
    pub async fn load_alerts(&self) -> Result<Vec<Firing>> {
        let sql = "SELECT id, labels, annotations, within, sender, generator_url, starts_ms, ends_ms, updated_ms FROM alerts ORDER BY id";
        let rows = query(sql).fetch_all(&*self.reader()?).await?;
        let readable = rows.iter().filter_map(|row| {
            let firing = firing_of(row);
            let id: Option<i64> = row.try_get("id").ok();
            firing
                .map_err(|err| tracing::error!(id, %err, "an alert in the store does not read: it is void"))
                .ok()
        });
        Ok(readable.collect())
    }

    /// Updates the table with the effects about alerts; returns the rows after the commit, if there
    /// are such effects. The last effect of an alert counts and is the only one written, in the
    /// order in which the alerts first appeared.
    pub(super) async fn put_alerts(
        &self,
        tx: &mut Connection,
        effects: &[Effect],
    ) -> Result<Option<AlertRows>> {
        let mut last = BTreeMap::new();
        for (n, effect) in effects.iter().enumerate() {
            let (fingerprint, word) = match effect {
                Effect::Alert(firing) => (firing.alert.fingerprint, Some(firing)),
                Effect::AlertOver(fingerprint) => (*fingerprint, None),
                _ => continue,
            };
            last.entry(fingerprint).or_insert((n, word)).1 = word;
        }
        if last.is_empty() {
            return Ok(None);
        }
        let known = self.inner.alerts.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut rows = match known {
            Some(rows) => rows,
            None => AlertRows::load(tx).await?,
        };
        let mut words: Vec<(usize, u64, Option<&Firing>)> =
            last.into_iter().map(|(fingerprint, (n, word))| (n, fingerprint, word)).collect();
        words.sort_unstable_by_key(|(n, ..)| *n);
        let (mut firing, mut over) = (Vec::new(), Vec::new());
        for (_, fingerprint, word) in words {
            match word {
                Some(word) => firing.push((rows.give(fingerprint), word)),
                None => over.extend(rows.of.remove(&fingerprint)),
            }
        }
        put_firing(tx, &firing).await?;
        delete(tx, over).await?;
        Ok(Some(rows))
    }

    /// Stores the rows of [`Self::put_alerts`]. Must be called after the commit.
    pub(super) fn know(&self, rows: Option<AlertRows>) {
        if rows.is_some() {
            *self.inner.alerts.lock().unwrap_or_else(PoisonError::into_inner) = rows;
        }
    }
}

fn firing_of(row: &Row) -> Result<Firing> {
    let labels: LabelSet = parse("labels of an alert", row.try_get("labels")?)?;
    let within: LabelSet = parse("limits of an alert", row.try_get("within")?)?;
    let alert = Alert {
        fingerprint: fingerprint_within(&labels, &within),
        labels,
        within,
        sender: row.try_get::<String, _>("sender")?.into(),
        annotations: parse("annotations of an alert", row.try_get("annotations")?)?,
        starts_at: Ts(row.try_get("starts_ms")?),
        generator_url: row.try_get::<String, _>("generator_url")?.into(),
    };
    Ok(Firing {
        alert: Arc::new(alert),
        ends_at: Ts(row.try_get("ends_ms")?),
        updated_at: Ts(row.try_get("updated_ms")?),
    })
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| StoreError::Damaged { what: what.to_owned(), source })
}

pub(super) async fn put_silence(tx: &mut Connection, s: &Silence) -> Result<()> {
    let sql = "INSERT INTO silences (id, matchers, starts_at, ends_at, created_by, comment, record) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET matchers = excluded.matchers, \
               starts_at = excluded.starts_at, ends_at = excluded.ends_at, created_by = excluded.created_by, \
               comment = excluded.comment, record = excluded.record";
    query(sql)
        .bind(&s.id)
        .bind(s.selector())
        .bind(text_of(s.starts_at))
        .bind(text_of(s.ends_at))
        .bind(&s.created_by)
        .bind(&s.comment)
        .bind(json("silence", s)?)
        .execute(&mut *tx)
        .await?;
    forget_ended(tx, s.updated_at, MAX_ENDED).await
}

/// Deletes silences that had ended at `now`, except about `kept` of them.
async fn forget_ended(tx: &mut Connection, now: Ts, kept: usize) -> Result<()> {
    let sql = "DELETE FROM silences WHERE ends_at < (SELECT ends_at FROM silences WHERE ends_at < $1 \
               ORDER BY ends_at DESC LIMIT 1 OFFSET $2)";
    query(sql).bind(text_of(now)).bind(kept as i64).execute(tx).await?;
    Ok(())
}

async fn put_firing(tx: &mut Connection, firing: &[(i64, &Firing)]) -> Result<()> {
    for rows in portions(firing) {
        let mut texts = Vec::with_capacity(rows.len());
        for (_, Firing { alert, .. }) in rows {
            texts.push((
                json("labels", &alert.labels)?,
                json("annotations", &alert.annotations)?,
                json("limits", &alert.within)?,
            ));
        }
        let mut insert = QueryBuilder::new(
            "INSERT INTO alerts (id, fingerprint, labels, annotations, within, sender, generator_url, starts_ms, ends_ms, \
             updated_ms) ",
        );
        insert.push_values(rows.iter().zip(texts), |mut row, ((id, f), (labels, annotations, within))| {
            row.push_bind(*id).push_bind(name_of(f.alert.fingerprint));
            row.push_bind(labels).push_bind(annotations).push_bind(within).push_bind(&*f.alert.sender);
            row.push_bind(&*f.alert.generator_url).push_bind(f.alert.starts_at.0);
            row.push_bind(f.ends_at.0).push_bind(f.updated_at.0);
        });
        insert.push(
            " ON CONFLICT (id) DO UPDATE SET annotations = excluded.annotations, \
             generator_url = excluded.generator_url, starts_ms = excluded.starts_ms, ends_ms = excluded.ends_ms, \
             updated_ms = excluded.updated_ms",
        );
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

/// Deletes rows in ranges: alerts that began together usually end together and have adjacent rows.
async fn delete(tx: &mut Connection, mut ids: Vec<i64>) -> Result<()> {
    ids.sort_unstable();
    let stretches: Vec<(i64, i64)> = ids
        .chunk_by(|a, b| a + 1 == *b)
        .filter_map(|stretch| Some((*stretch.first()?, *stretch.last()?)))
        .collect();
    for stretches in portions(&stretches) {
        let mut delete = QueryBuilder::new("DELETE FROM alerts WHERE ");
        let mut any = delete.separated(" OR ");
        for (first, last) in stretches {
            any.push("id BETWEEN ").push_bind_unseparated(first);
            any.push_unseparated(" AND ").push_bind_unseparated(last);
        }
        delete.build().execute(&mut *tx).await?;
    }
    Ok(())
}

fn name_of(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

#[cfg(test)]
mod tests {
    use stepwatch_respond::external::Limits;

    use super::super::tests::{by_hand, reopen};
    use super::*;
    use crate::store::Commit;

    fn firing(n: u64, says: u64) -> Firing {
        let set = |name: &str, value: u64| [(name.into(), value.to_string().into())].into_iter().collect();
        let alert = Alert::new(set("alertname", n), set("summary", says), Ts(1), "", &Limits::default());
        Firing { alert: Arc::new(alert.unwrap()), ends_at: Ts(3), updated_at: Ts(2) }
    }

    async fn commit(store: &Store, effects: Vec<Effect>) {
        store.commit(&Commit { effects, ..Commit::default() }).await.unwrap();
    }

    async fn stored(store: &Store) -> BTreeMap<u64, Firing> {
        let all = store.load_alerts().await.unwrap();
        let count = all.len();
        let all: BTreeMap<u64, Firing> = all.into_iter().map(|f| (f.alert.fingerprint, f)).collect();
        assert_eq!(all.len(), count, "none is there twice");
        all
    }

    /// Alerts that begin, change, end and return, several in one commit, across restarts and failed
    /// commits.
    #[tokio::test]
    async fn the_table_has_what_was_posted_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let mut store = Store::open(&path).await.unwrap();
        let (mut model, mut seed) = (BTreeMap::new(), 1_u64);
        for round in 0..120 {
            let mut effects = Vec::new();
            for _ in 0..round % 23 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (n, says, over) = (seed >> 33 & 63, seed >> 40 & 3, seed >> 45 & 1 == 0);
                let posted = firing(n, says);
                let fingerprint = posted.alert.fingerprint;
                if over {
                    model.remove(&fingerprint);
                    effects.push(Effect::AlertOver(fingerprint));
                } else {
                    model.insert(fingerprint, posted.clone());
                    effects.push(Effect::Alert(posted));
                }
            }
            commit(&store, effects).await;
            match round % 20 {
                7 => {
                    drop(store);
                    store = reopen(&path).await;
                }
                13 => {
                    let sql = "ALTER TABLE meta RENAME TO gone";
                    by_hand(&store, sql).await.unwrap();
                    let effects = vec![Effect::Alert(firing(round, 9))];
                    assert!(store.commit(&Commit { effects, ..Commit::default() }).await.is_err());
                    let sql = "ALTER TABLE gone RENAME TO meta";
                    by_hand(&store, sql).await.unwrap();
                }
                _ => {}
            }
            assert_eq!(stored(&store).await, model, "round {round}");
        }
    }

    #[tokio::test]
    async fn one_that_does_not_read_costs_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let store = Store::open(&path).await.unwrap();
        commit(&store, (1..=3).map(|n| Effect::Alert(firing(n, n))).collect()).await;
        by_hand(&store, "UPDATE alerts SET fingerprint = 'none', labels = '{' WHERE id = 2").await.unwrap();
        drop(store);
        let store = reopen(&path).await;
        let of = |all: &[u64]| -> BTreeMap<u64, Firing> {
            all.iter().map(|n| firing(*n, *n)).map(|f| (f.alert.fingerprint, f)).collect()
        };
        assert_eq!(stored(&store).await, of(&[1, 3]));
        commit(&store, vec![Effect::Alert(firing(2, 2)), Effect::AlertOver(firing(1, 1).alert.fingerprint)])
            .await;
        assert_eq!(stored(&store).await, of(&[2, 3]));
    }
}
