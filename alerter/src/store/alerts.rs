//! Silences, and the alerts of other programs.

use std::sync::Arc;

use sqlx::sqlite::SqliteConnection;
use sqlx::{QueryBuilder, Row as _, Sqlite};
use stepwatch_engine::effect::Effect;
use stepwatch_engine::external::{Alert, Firing, LabelSet, fingerprint_within};
use stepwatch_engine::silence::Silence;
use stepwatch_engine::time::Ts;

use super::commit::json;
use super::rows::{list, portions};
use super::{Result, Store, StoreError, text_of};

impl Store {
    /// Every silence that is kept. One that does not read is left out, and said so: whoever made it is told of what it hid.
    pub async fn load_silences(&self) -> Result<Vec<Silence>> {
        let sql = "SELECT id, record FROM silences ORDER BY id";
        let rows: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&*self.reader()).await?;
        let readable = rows.into_iter().filter_map(|(id, record)| {
            let silence = serde_json::from_str(&record);
            silence
                .map_err(|err| tracing::error!(id, %err, "a silence in the store does not read: it is void"))
                .ok()
        });
        Ok(readable.collect())
    }

    /// Every alert that fired when it was heard of last.
    pub async fn load_alerts(&self) -> Result<Vec<Firing>> {
        let sql = "SELECT labels, annotations, within, generator_url, starts_ms, ends_ms, updated_ms \
                   FROM alerts ORDER BY fingerprint";
        let rows = sqlx::query(sql).fetch_all(&*self.reader()).await?;
        let mut firing = Vec::with_capacity(rows.len());
        for row in &rows {
            let labels: LabelSet = parse("labels of an alert", row.try_get("labels")?)?;
            let within: LabelSet = parse("limits of an alert", row.try_get("within")?)?;
            firing.push(Firing {
                alert: Arc::new(Alert {
                    fingerprint: fingerprint_within(&labels, &within),
                    labels,
                    within,
                    annotations: parse("annotations of an alert", row.try_get("annotations")?)?,
                    starts_at: Ts(row.try_get("starts_ms")?),
                    generator_url: row.try_get::<String, _>("generator_url")?.into(),
                }),
                ends_at: Ts(row.try_get("ends_ms")?),
                updated_at: Ts(row.try_get("updated_ms")?),
            });
        }
        Ok(firing)
    }
}

fn parse<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| StoreError::Damaged { what: what.to_owned(), source })
}

pub(super) async fn put_silence(tx: &mut SqliteConnection, s: &Silence) -> Result<()> {
    let sql = "INSERT INTO silences (id, matchers, starts_at, ends_at, created_by, comment, record) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO UPDATE SET matchers = excluded.matchers, \
               starts_at = excluded.starts_at, ends_at = excluded.ends_at, created_by = excluded.created_by, \
               comment = excluded.comment, record = excluded.record";
    sqlx::query(sql)
        .bind(&s.id)
        .bind(s.selector())
        .bind(text_of(s.starts_at))
        .bind(text_of(s.ends_at))
        .bind(&s.created_by)
        .bind(&s.comment)
        .bind(json("silence", s)?)
        .execute(tx)
        .await?;
    Ok(())
}

/// Brings the table up to what the effects say of alerts. Of one alert the last word counts, and is the only one written.
pub(super) async fn put_alerts(tx: &mut SqliteConnection, effects: &[Effect]) -> Result<()> {
    let mut last = std::collections::BTreeMap::new();
    for effect in effects {
        match effect {
            Effect::Alert(firing) => drop(last.insert(firing.alert.fingerprint, Some(firing))),
            Effect::AlertOver(fingerprint) => drop(last.insert(*fingerprint, None)),
            _ => {}
        }
    }
    let firing: Vec<&Firing> = last.values().filter_map(|f| *f).collect();
    for rows in portions(&firing) {
        let mut texts = Vec::with_capacity(rows.len());
        for f in rows {
            let alert = &f.alert;
            texts.push((
                json("labels", &alert.labels)?,
                json("annotations", &alert.annotations)?,
                json("limits", &alert.within)?,
            ));
        }
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO alerts (fingerprint, labels, annotations, within, generator_url, starts_ms, ends_ms, updated_ms) ",
        );
        insert.push_values(rows.iter().zip(&texts), |mut row, (f, (labels, annotations, within))| {
            row.push_bind(name_of(f.alert.fingerprint))
                .push_bind(labels)
                .push_bind(annotations)
                .push_bind(within);
            row.push_bind(&*f.alert.generator_url).push_bind(f.alert.starts_at.0);
            row.push_bind(f.ends_at.0).push_bind(f.updated_at.0);
        });
        insert.push(
            " ON CONFLICT (fingerprint) DO UPDATE SET annotations = excluded.annotations, \
             generator_url = excluded.generator_url, starts_ms = excluded.starts_ms, ends_ms = excluded.ends_ms, \
             updated_ms = excluded.updated_ms",
        );
        insert.build().execute(&mut *tx).await?;
    }
    let over: Vec<String> = last.iter().filter(|(_, f)| f.is_none()).map(|(f, _)| name_of(*f)).collect();
    for names in portions(&over) {
        let mut delete = QueryBuilder::<Sqlite>::new("DELETE FROM alerts WHERE fingerprint IN ");
        list(&mut delete, names);
        delete.build().execute(&mut *tx).await?;
    }
    Ok(())
}

fn name_of(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}
