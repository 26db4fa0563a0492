//! Stores the charts of incidents: the observations, and where which chart is shown.

use stepwatch_model::time::Ts;
use stepwatch_respond::incident::IncidentRecord;

use super::error::{Result, StoreError};
use super::handle::Store;
use super::rows::{json, text_of};
use super::sql::{Row, query, query_as};
use super::writer::Who;
use crate::chart::curve::Seen;
use sqlx::AssertSqlSafe;

/// The stage of an incident `i`. When it changes, another chart is stored.
const STAGE: &str =
    "i.severity || ' ' || i.signal || CASE WHEN i.state = 'resolved' THEN ' over' ELSE '' END";

/// An incident whose stored chart is of an earlier stage.
#[derive(Debug, Clone)]
pub(crate) struct DueChart {
    pub record: IncidentRecord,
    pub stage: String,
}

/// A conversation that does not show the present chart of its incident.
#[derive(Debug, Clone)]
pub(crate) struct DuePicture {
    pub incident: String,
    /// The notifier's memory of the conversation.
    pub memory: String,
    /// The stage of the chart.
    pub stage: String,
    pub row: PictureRow,
}

/// The state of the chart in a conversation. Files have the names that the service gave them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PictureRow {
    /// The stage of the chart that is shown or was given up.
    pub stage: String,
    pub shown: Option<String>,
    /// A file that may or may not be shown.
    pub coming: Option<String>,
    /// A file to remove.
    pub stale: Option<String>,
    pub attempts: u32,
    pub next: Ts,
    pub error: Option<String>,
}

impl Store {
    /// Incidents of runs whose chart must be stored: the open ones, those that opened since
    /// `since`, and those that ended after their chart was stored.
    pub(crate) async fn charts_due(&self, since: Ts, limit: usize) -> Result<Vec<DueChart>> {
        let sql = format!(
            "SELECT i.record, {STAGE} AS stage FROM incidents i LEFT JOIN charts c ON c.incident = i.id \
             WHERE i.id IN (SELECT id FROM incidents WHERE state <> 'resolved' \
             UNION SELECT id FROM incidents WHERE opened_at >= $1 \
             UNION SELECT incident FROM charts WHERE frozen = 0) \
             AND i.run <> '' AND (c.stage IS NULL OR c.stage <> {STAGE}) ORDER BY i.opened_at DESC LIMIT $2"
        );
        let rows = query(AssertSqlSafe(sql)).bind(text_of(since)).bind(limit as i64);
        let rows = rows.fetch_all(&*self.reader()?).await?;
        rows.iter()
            .map(|row| {
                let record = serde_json::from_str(row.try_get("record")?)
                    .map_err(|source| StoreError::Damaged { what: "an incident".to_owned(), source })?;
                Ok(DueChart { record, stage: row.try_get("stage")? })
            })
            .collect()
    }

    /// Stores the observations for the chart of an incident at this stage.
    pub(crate) async fn keep_chart(&self, due: &DueChart, seen: &Seen, at: Ts) -> Result<()> {
        let text = if seen.is_empty() { String::new() } else { json("a chart", seen)? };
        let over = due.record.state == stepwatch_respond::incident::State::Resolved;
        // An ended incident has no new observations after a restart, so the earlier ones are kept.
        let sql = "INSERT INTO charts (incident, stage, frozen, seen, taken_ms) VALUES ($1, $2, $3, $4, $5) \
                   ON CONFLICT (incident) DO UPDATE SET stage = excluded.stage, frozen = excluded.frozen, \
                   taken_ms = excluded.taken_ms, \
                   seen = CASE WHEN excluded.seen = '' THEN charts.seen ELSE excluded.seen END";
        self.write(Who::InTurn, async |tx| {
            let insert = query(sql).bind(&due.record.id).bind(&due.stage).bind(i64::from(over));
            insert.bind(&text).bind(at.0).execute(tx).await?;
            Ok(())
        })
        .await
    }

    /// The observations for the chart of an incident, and whether they are final.
    pub(crate) async fn chart(&self, incident: &str) -> Result<Option<(Seen, bool)>> {
        let sql = "SELECT seen, frozen FROM charts WHERE incident = $1 AND seen <> ''";
        let row: Option<(String, i64)> =
            query_as(sql).bind(incident).fetch_optional(&*self.finder()?).await?;
        let Some((text, frozen)) = row else { return Ok(None) };
        let seen = serde_json::from_str(&text)
            .map_err(|source| StoreError::Damaged { what: "a chart".to_owned(), source })?;
        Ok(Some((seen, frozen != 0)))
    }

    /// Conversations with a receiver that changed since `since` and do not show the present chart,
    /// or have a file to remove. Those with a waiting message are excluded, because messages come
    /// first.
    pub(crate) async fn pictures_due(
        &self,
        receiver: &str,
        since: Ts,
        now: Ts,
        limit: usize,
    ) -> Result<Vec<DuePicture>> {
        let sql = "SELECT l.incident, l.memory, c.stage AS chart_stage, p.stage, p.shown, p.coming, p.stale, \
             p.attempts, p.next_ms, p.error FROM lanes l JOIN charts c ON c.incident = l.incident \
             LEFT JOIN pictures p ON p.incident = l.incident AND p.receiver = l.receiver \
             WHERE l.receiver = $1 AND l.incident IN ( \
             SELECT incident FROM lanes WHERE receiver = $1 AND updated_ms >= $2 \
             UNION SELECT incident FROM pictures WHERE receiver = $1 AND (coming IS NOT NULL OR stale IS NOT NULL)) \
             AND c.seen <> '' AND (p.stage IS NULL OR p.stage <> c.stage OR p.coming IS NOT NULL OR p.stale IS NOT NULL) \
             AND COALESCE(p.next_ms, 0) <= $3 \
             AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.incident = l.incident AND o.receiver = l.receiver \
             AND o.state IN ('pending', 'attempting', 'ambiguous')) ORDER BY l.updated_ms DESC LIMIT $4";
        let rows = query(sql).bind(receiver).bind(since.0).bind(now.0).bind(limit as i64);
        rows.fetch_all(&*self.reader()?).await?.iter().map(due_picture).collect()
    }

    /// Stores the state of the chart in a conversation.
    pub(crate) async fn put_picture(&self, incident: &str, receiver: &str, row: &PictureRow) -> Result<()> {
        let sql = "INSERT INTO pictures (incident, receiver, stage, shown, coming, stale, attempts, next_ms, error) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (incident, receiver) DO UPDATE SET \
                   stage = excluded.stage, shown = excluded.shown, coming = excluded.coming, stale = excluded.stale, \
                   attempts = excluded.attempts, next_ms = excluded.next_ms, error = excluded.error";
        self.write(Who::InTurn, async |tx| {
            let insert = query(sql).bind(incident).bind(receiver).bind(&row.stage).bind(&row.shown);
            let insert = insert.bind(&row.coming).bind(&row.stale).bind(i64::from(row.attempts));
            insert.bind(row.next.0).bind(&row.error).execute(tx).await?;
            Ok(())
        })
        .await
    }
}

fn due_picture(row: &Row) -> Result<DuePicture> {
    let stage: Option<String> = row.try_get("stage")?;
    Ok(DuePicture {
        incident: row.try_get("incident")?,
        memory: row.try_get("memory")?,
        stage: row.try_get("chart_stage")?,
        row: PictureRow {
            stage: stage.unwrap_or_default(),
            shown: row.try_get("shown")?,
            coming: row.try_get("coming")?,
            stale: row.try_get("stale")?,
            attempts: row.try_get::<Option<i64>, _>("attempts")?.unwrap_or_default() as u32,
            next: Ts(row.try_get::<Option<i64>, _>("next_ms")?.unwrap_or_default()),
            error: row.try_get("error")?,
        },
    })
}
