//! One batch of the engine, kept in one transaction.

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, QueryBuilder, Sqlite};
use stepwatch_engine::StatePart;
use stepwatch_engine::effect::{Action, Effect, Notification, TimelineEntry};
use stepwatch_engine::incident::IncidentRecord;
use stepwatch_engine::time::Ts;
use stepwatch_wire::Cursor;

use super::alerts::{put_alerts, put_silence};
use super::audit::put_audit;
use super::{Durability, Result, Store, StoreError, Writer, name_of, text_of};
use crate::audit::Entry;

/// Rows of one statement: far below SQLite's limit of bound values.
const ROWS_MAX: usize = 256;

/// What one batch of inputs led to. All of it is kept, or none.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    pub effects: Vec<Effect>,
    /// Changed parts of the engine's state; `None` deletes one.
    pub state: Vec<StatePart>,
    /// How far each source had been read when the state was as it is here.
    pub cursors: Vec<(String, Cursor)>,
    /// The idempotency keys of the outbox outcomes ([`crate::outbox::Feedback`]) that were among the inputs. An outcome that
    /// is not listed here is told to the engine again after a restart.
    pub reported: Vec<String>,
    /// Who asked for it.
    pub audit: Vec<Entry>,
    pub at: Ts,
}

impl Commit {
    /// A commit that only moves the state and the cursors on. Losing the latest of these to a power cut loses nothing: the
    /// engine resumes where both stood before, and the exporter still has what came after.
    fn durability(&self) -> Durability {
        if self.effects.is_empty() && self.reported.is_empty() && self.audit.is_empty() {
            Durability::Process
        } else {
            Durability::Power
        }
    }
}

impl Store {
    /// Keeps a batch. When this returns, it survives the loss of power if it holds an effect.
    pub async fn commit(&self, commit: &Commit) -> Result<()> {
        {
            let mut writer = self.writer().await;
            writer.set_durability(commit.durability()).await?;
            let mut tx = writer.connection.begin().await?;
            for effect in &commit.effects {
                match effect {
                    Effect::Incident(record) => put_incident(&mut tx, record).await?,
                    Effect::Timeline(entry) => append_timeline(&mut tx, entry).await?,
                    Effect::Notify(notification) => post(&mut tx, notification, commit.at).await?,
                    Effect::Silence(silence) => put_silence(&mut tx, silence).await?,
                    // All at once, below.
                    Effect::Alert(_) | Effect::AlertOver(_) => {}
                }
            }
            put_alerts(&mut tx, &commit.effects).await?;
            put_state(&mut tx, &commit.state).await?;
            put_cursors(&mut tx, &commit.cursors, commit.at).await?;
            for key in &commit.reported {
                let sql = "UPDATE outbox SET reported = 1 WHERE idem_key = $1";
                sqlx::query(sql).bind(key).execute(&mut *tx).await?;
            }
            put_audit(&mut tx, &commit.audit).await?;
            put_alive(&mut tx, commit.at).await?;
            stepwatch_kit::crash::point("store.before_commit");
            tx.commit().await?;
        }
        stepwatch_kit::crash::point("store.after_commit");
        if commit.effects.iter().any(|e| matches!(e, Effect::Notify(_))) {
            self.post();
        }
        Ok(())
    }

    /// Forgets what ended before `before`: resolved incidents with their history and deliveries, and the cursors of sources
    /// not read since. Returns how many incidents went.
    pub async fn prune(&self, before: Ts) -> Result<u64> {
        let mut writer = self.writer().await;
        writer.set_durability(Durability::Power).await?;
        let mut tx = writer.connection.begin().await?;
        let old = text_of(before);
        for sql in [
            "DELETE FROM timeline WHERE incident IN (SELECT id FROM incidents WHERE state = 'resolved' AND resolved_at < $1)",
            "DELETE FROM outbox WHERE incident IN (SELECT id FROM incidents WHERE state = 'resolved' AND resolved_at < $1)",
            "DELETE FROM counterparts WHERE incident IN (SELECT id FROM incidents WHERE state = 'resolved' AND resolved_at < $1)",
            "DELETE FROM lanes WHERE incident IN (SELECT id FROM incidents WHERE state = 'resolved' AND resolved_at < $1)",
        ] {
            sqlx::query(sql).bind(&old).execute(&mut *tx).await?;
        }
        sqlx::query("DELETE FROM silences WHERE ends_at < $1").bind(&old).execute(&mut *tx).await?;
        let sql = "DELETE FROM incidents WHERE state = 'resolved' AND resolved_at < $1";
        let gone = sqlx::query(sql).bind(&old).execute(&mut *tx).await?.rows_affected();
        sqlx::query("DELETE FROM cursors WHERE updated_ms < $1").bind(before.0).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(gone)
    }
}

impl Writer {
    pub(super) async fn set_durability(&mut self, wanted: Durability) -> Result<()> {
        if self.durability == wanted {
            return Ok(());
        }
        // Until the switch is known to have happened, assume the weaker: this future may be dropped half way.
        self.durability = Durability::Process;
        let pragma = match wanted {
            Durability::Power => "PRAGMA synchronous = FULL",
            Durability::Process => "PRAGMA synchronous = NORMAL",
        };
        sqlx::raw_sql(pragma).execute(&mut self.connection).await?;
        self.durability = wanted;
        Ok(())
    }
}

async fn put_incident(tx: &mut SqliteConnection, r: &IncidentRecord) -> Result<()> {
    let sql = "INSERT INTO incidents (id, run, cause, kind, severity, state, signal, start_step, opened_step, \
               detected_step, end_step, value, expected, score, summary, opened_at, resolved_at, acked_by, acked_at, \
               level, next_at, flaps, nodes, record) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, \
               $22, $23, $24) \
               ON CONFLICT (id) DO UPDATE SET run = excluded.run, cause = excluded.cause, kind = excluded.kind, \
               severity = excluded.severity, state = excluded.state, signal = excluded.signal, \
               start_step = excluded.start_step, opened_step = excluded.opened_step, \
               detected_step = excluded.detected_step, end_step = excluded.end_step, value = excluded.value, \
               expected = excluded.expected, score = excluded.score, summary = excluded.summary, \
               opened_at = excluded.opened_at, resolved_at = excluded.resolved_at, acked_by = excluded.acked_by, \
               acked_at = excluded.acked_at, level = excluded.level, next_at = excluded.next_at, \
               flaps = excluded.flaps, nodes = excluded.nodes, record = excluded.record";
    let finite = |v: f64| v.is_finite().then_some(v);
    sqlx::query(sql)
        .bind(&r.id)
        .bind(&r.run)
        .bind(name_of(&r.cause))
        .bind(r.kind.as_str())
        .bind(r.severity.as_str())
        .bind(name_of(&r.state))
        .bind(&r.signal)
        .bind(r.start_step)
        .bind(r.opened_step)
        .bind(r.detected_step)
        .bind(r.end_step)
        .bind(finite(r.value))
        .bind(finite(r.expected))
        .bind(finite(r.score))
        .bind(&r.summary)
        .bind(text_of(r.opened_at))
        .bind(r.resolved_at.map(text_of))
        .bind(&r.acked_by)
        .bind(r.acked_at.map(text_of))
        .bind(i64::from(r.level))
        .bind(r.next_at.map(text_of))
        .bind(i64::from(r.flaps))
        .bind(r.nodes.iter().fold(",".to_owned(), |all, node| all + node + ","))
        .bind(json("incident", r)?)
        .execute(tx)
        .await?;
    Ok(())
}

async fn append_timeline(tx: &mut SqliteConnection, entry: &TimelineEntry) -> Result<()> {
    // The writer is alone, so that the largest number plus one is free.
    let sql = "INSERT INTO timeline (incident, seq, at, at_ms, actor, what) \
               SELECT $1, COALESCE(MAX(seq), 0) + 1, $2, $3, $4, $5 FROM timeline WHERE incident = $1";
    sqlx::query(sql)
        .bind(&entry.incident)
        .bind(text_of(entry.at))
        .bind(entry.at.0)
        .bind(&entry.actor)
        .bind(&entry.what)
        .execute(tx)
        .await?;
    Ok(())
}

/// Puts a notification at the end of its lane and drops from the lane what it makes pointless.
async fn post(tx: &mut SqliteConnection, n: &Notification, at: Ts) -> Result<()> {
    let sql = "INSERT INTO outbox (idem_key, incident, receiver, seq, action, page, state, attempts, created_ms, \
               next_ms, reported, notification) VALUES ($1, $2, $3, $4, $5, $6, 'pending', 0, $7, 0, 0, $8) \
               ON CONFLICT (idem_key) DO NOTHING";
    let inserted = sqlx::query(sql)
        .bind(&n.idem_key)
        .bind(&n.incident)
        .bind(&n.receiver)
        .bind(i64::from(n.seq))
        .bind(n.action.as_str())
        .bind(i64::from(n.page))
        .bind(at.0)
        .bind(json("notification", n)?)
        .execute(&mut *tx)
        .await?;
    if inserted.rows_affected() > 0 {
        supersede(tx, n, at).await?;
    }
    Ok(())
}

/// Coalesces a lane: the newest word wins, but a first word is only ever replaced by another first word. A row that may have
/// arrived stays and is settled, except that optional news never holds up a page.
async fn supersede(tx: &mut SqliteConnection, n: &Notification, at: Ts) -> Result<()> {
    let sql = match n.action {
        Action::Ack => return Ok(()),
        Action::Update | Action::Resolve => "action = 'update' AND state = 'pending'",
        Action::Trigger if n.page => {
            "(action = 'trigger' AND state = 'pending' OR action = 'update' AND state IN ('pending', 'ambiguous'))"
        }
        Action::Trigger => "(action = 'trigger' AND page = 0 OR action = 'update') AND state = 'pending'",
    };
    let mut update = QueryBuilder::<Sqlite>::new("UPDATE outbox SET state = 'superseded', done_at = ");
    update.push_bind(text_of(at)).push(" WHERE incident = ").push_bind(&n.incident);
    update.push(" AND receiver = ").push_bind(&n.receiver);
    update.push(" AND seq < ").push_bind(i64::from(n.seq)).push(" AND ").push(sql);
    update.build().execute(&mut *tx).await?;
    if n.page {
        // What is still before it has waited long enough.
        let sql = "UPDATE outbox SET next_ms = 0 WHERE incident = $1 AND receiver = $2 \
                   AND state IN ('pending', 'ambiguous')";
        sqlx::query(sql).bind(&n.incident).bind(&n.receiver).execute(tx).await?;
    }
    Ok(())
}

/// How far time had come: the next life does not begin before it.
pub(super) async fn put_alive(connection: &mut SqliteConnection, at: Ts) -> Result<()> {
    let sql = "INSERT INTO meta (key, value) VALUES ('alive_at', $1) \
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    sqlx::query(sql).bind(text_of(at)).execute(connection).await?;
    Ok(())
}

async fn put_state(tx: &mut SqliteConnection, parts: &[StatePart]) -> Result<()> {
    let kept: Vec<(&String, &Vec<u8>)> =
        parts.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
    for rows in kept.chunks(ROWS_MAX) {
        let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO engine_state (key, value) ");
        insert.push_values(rows, |mut row, (key, value)| {
            row.push_bind(*key).push_bind(value.as_slice());
        });
        insert.push(" ON CONFLICT (key) DO UPDATE SET value = excluded.value");
        insert.build().execute(&mut *tx).await?;
    }
    for (key, _) in parts.iter().filter(|(_, value)| value.is_none()) {
        sqlx::query("DELETE FROM engine_state WHERE key = $1").bind(key).execute(&mut *tx).await?;
    }
    Ok(())
}

async fn put_cursors(tx: &mut SqliteConnection, cursors: &[(String, Cursor)], at: Ts) -> Result<()> {
    for rows in cursors.chunks(ROWS_MAX) {
        let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO cursors (source, cursor, updated_ms) ");
        insert.push_values(rows, |mut row, (source, cursor)| {
            row.push_bind(source).push_bind(cursor.to_string()).push_bind(at.0);
        });
        insert.push(
            " ON CONFLICT (source) DO UPDATE SET cursor = excluded.cursor, updated_ms = excluded.updated_ms",
        );
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

pub(super) fn json(what: &str, value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|source| StoreError::Damaged { what: what.to_owned(), source })
}
