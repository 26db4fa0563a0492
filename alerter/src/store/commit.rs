//! Stores one batch of the engine in one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepwatch_detect::run::RunHour;
use stepwatch_engine::StatePart;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Effect, Notification};
use stepwatch_respond::incident::IncidentRecord;
use stepwatch_wire::Cursor;

use super::alerts::put_silence;
use super::audit::{Entry, put_audit};
use super::error::{Result, StoreError};
use super::handle::Store;
use super::hours::put_hours;
use super::overrides::put_overrides;
use super::reports::prune_reports;
use super::rows::{json, list, name_of, portions, put_alive, text_of};
use super::sql::{Connection, QueryBuilder, query, query_scalar};
use super::unrecorded::put_written;
use super::writer::{Durability, Who};

/// The most incidents that one transaction deletes, which limits the wait of other writers.
const PRUNE_AT_ONCE: i64 = 500;

/// The time limit for checking that the pages of a commit can be read.
const FIND_MAX: Duration = Duration::from_secs(5);

/// The results of one batch of inputs, stored in one transaction.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    pub effects: Vec<Effect>,
    /// Changed parts of the engine's state; `None` deletes one.
    pub state: Vec<StatePart>,
    /// The cursor of each source that belongs to this state.
    pub cursors: Vec<(String, Cursor)>,
    /// The idempotency keys of the outbox outcomes ([`crate::outbox::Feedback`]) that were among
    /// the inputs. An outcome that is not listed here is reported to the engine again after a
    /// restart.
    pub reported: Vec<String>,
    /// Entries of the audit log.
    pub audit: Vec<Entry>,
    /// The accounted hours of runs, which the state no longer contains.
    pub hours: Vec<RunHour>,
    pub at: Ts,
}

impl Commit {
    /// The durability of a commit. If it only advances the state and the cursors, a power failure
    /// may lose it: the engine resumes at the earlier position, and the exporter still has the
    /// later records.
    fn durability(&self) -> Durability {
        if self.effects.is_empty() && self.reported.is_empty() && self.audit.is_empty() {
            Durability::Process
        } else {
            Durability::Power
        }
    }
}

impl Store {
    /// Stores a batch. If the batch has an effect, it survives a power failure once this returns.
    pub async fn commit(&self, commit: &Commit) -> Result<()> {
        let posts: Vec<&Notification> = commit.effects.iter().filter_map(notification).collect();
        // Some of the messages may already have been sent.
        let early = self.begin_writing(&posts);
        let written = self.write(Who::Engine(commit.durability()), async |tx| {
            put_incidents(tx, &commit.effects, commit.at).await?;
            append_timelines(tx, &commit.effects).await?;
            post_all(tx, &posts, commit.at).await?;
            put_written(tx, &early).await?;
            for effect in &commit.effects {
                if let Effect::Silence(silence) = effect {
                    put_silence(tx, silence).await?;
                }
            }
            put_overrides(tx, &commit.effects).await?;
            let rows = self.put_alerts(tx, &commit.effects).await?;
            put_state(tx, &commit.state).await?;
            put_cursors(tx, &commit.cursors, commit.at).await?;
            for keys in portions(&commit.reported) {
                let mut update = QueryBuilder::new("UPDATE outbox SET reported = 1 WHERE idem_key IN ");
                list(&mut update, keys);
                update.build().execute(&mut *tx).await?;
            }
            put_audit(tx, &commit.audit).await?;
            put_hours(tx, &commit.hours).await?;
            put_alive(tx, commit.at).await?;
            stepwatch_kit::crash::point("store.before_commit");
            Ok(rows)
        });
        let written = written.await.inspect(|_| self.note_recorded(commit.at));
        let written = match written {
            // PostgreSQL has what it committed, and a repeated commit would double the history.
            Ok(rows) => match self.find(&posts, commit.at).await {
                Err(err) if self.epoch().is_none() => Err(err),
                Ok(()) | Err(_) => Ok(rows),
            },
            Err(err) => Err(err),
        };
        self.end_writing(&early, written.is_ok());
        self.know(written?);
        self.now_recorded(&posts);
        stepwatch_kit::crash::point("store.after_commit");
        if !posts.is_empty() {
            self.post();
        }
        if !commit.effects.is_empty() {
            self.inner.changed.notify_one();
        }
        Ok(())
    }

    /// Checks, as the outbox does, that the pages just stored can be found. Otherwise the store
    /// refuses what follows, and on SQLite the commit counts as failed.
    async fn find(&self, posts: &[&Notification], at: Ts) -> Result<()> {
        let calls = posts.iter().filter(|n| n.page && n.action == Action::Trigger);
        let receivers: BTreeSet<&str> = calls.map(|n| n.receiver.as_str()).collect();
        let found = tokio::time::timeout(FIND_MAX, async {
            for receiver in receivers {
                // The finder connections are not occupied by long lists.
                self.lanes_due(self.finder()?, receiver, at, 1).await?;
            }
            Ok(())
        });
        let found =
            found.await.unwrap_or_else(|_| Err(StoreError::Stalled { path: self.inner.path.clone() }));
        found.inspect_err(|err| self.note_read(Some(err)))
    }

    /// Deletes what ended before `before`: resolved incidents with their history and deliveries,
    /// sent reports, and the cursors of sources that were not read since. Returns the number of
    /// deleted incidents.
    pub async fn prune(&self, before: Ts) -> Result<u64> {
        let mut gone = 0;
        loop {
            match self.prune_some(before).await? {
                0 => return Ok(gone),
                some => gone += some,
            }
        }
    }

    async fn prune_some(&self, before: Ts) -> Result<u64> {
        self.write(Who::InTurn, async |tx| {
            let old = text_of(before);
            let sql =
                "SELECT id FROM incidents WHERE state = 'resolved' AND resolved_at < $1 ORDER BY id LIMIT $2";
            let ids: Vec<String> =
                query_scalar(sql).bind(&old).bind(PRUNE_AT_ONCE).fetch_all(&mut *tx).await?;
            for ids in portions(&ids) {
                for (table, id) in [
                    ("timeline", "incident"),
                    ("outbox", "incident"),
                    ("counterparts", "incident"),
                    ("lanes", "incident"),
                    ("pictures", "incident"),
                    ("charts", "incident"),
                    ("incidents", "id"),
                ] {
                    let mut delete = QueryBuilder::new(format!("DELETE FROM {table} WHERE {id} IN "));
                    list(&mut delete, ids);
                    delete.build().execute(&mut *tx).await?;
                }
            }
            query("DELETE FROM silences WHERE ends_at < $1").bind(&old).execute(&mut *tx).await?;
            let sql = "DELETE FROM oncall_overrides WHERE ends_at < $1";
            query(sql).bind(&old).execute(&mut *tx).await?;
            query("DELETE FROM cursors WHERE updated_ms < $1").bind(before.0).execute(&mut *tx).await?;
            prune_reports(tx, before).await?;
            Ok(ids.len() as u64)
        })
        .await
    }
}

/// Writes only the last record of each incident. Its opening time does not change, and neither does
/// its place in the index.
async fn put_incidents(tx: &mut Connection, effects: &[Effect], at: Ts) -> Result<()> {
    let mut last = BTreeMap::new();
    for effect in effects {
        if let Effect::Incident(record) = effect {
            last.insert(record.id.as_str(), &**record);
        }
    }
    let mut texts = Vec::with_capacity(last.len());
    for record in last.values() {
        texts.push(json("incident", record)?);
    }
    let all: Vec<(&IncidentRecord, String)> = last.into_values().zip(texts).collect();
    let finite = |v: f64| v.is_finite().then_some(v);
    for records in portions(&all) {
        let mut insert = QueryBuilder::new(
            "INSERT INTO incidents (id, run, cause, kind, severity, state, signal, start_step, opened_step, \
             detected_step, end_step, value, expected, score, summary, opened_at, resolved_at, acked_by, acked_at, \
             level, next_at, flaps, nodes, unsuppressed_ms, reopens_ms, record) ",
        );
        insert.push_values(records, |mut row, (r, text)| {
            row.push_bind(&r.id).push_bind(&r.run).push_bind(name_of(&r.cause)).push_bind(r.kind.as_str());
            row.push_bind(r.severity.as_str()).push_bind(name_of(&r.state)).push_bind(&r.signal);
            row.push_bind(r.start_step)
                .push_bind(r.opened_step)
                .push_bind(r.detected_step)
                .push_bind(r.end_step);
            row.push_bind(finite(r.value)).push_bind(finite(r.expected)).push_bind(finite(r.score));
            row.push_bind(r.summary.to_string())
                .push_bind(text_of(r.opened_at))
                .push_bind(r.resolved_at.map(text_of));
            row.push_bind(&r.acked_by).push_bind(r.acked_at.map(text_of)).push_bind(i64::from(r.level));
            row.push_bind(r.next_at.map(text_of)).push_bind(i64::from(r.flaps));
            row.push_bind(r.nodes.iter().fold(",".to_owned(), |all, node| all + node + ","));
            row.push_bind(r.suppression.is_none().then_some(at.0)).push_bind(r.reopens_at().map(|at| at.0));
            row.push_bind(text);
        });
        insert.push(
            " ON CONFLICT (id) DO UPDATE SET run = excluded.run, cause = excluded.cause, kind = excluded.kind, \
             severity = excluded.severity, state = excluded.state, signal = excluded.signal, \
             start_step = excluded.start_step, opened_step = excluded.opened_step, \
             detected_step = excluded.detected_step, end_step = excluded.end_step, value = excluded.value, \
             expected = excluded.expected, score = excluded.score, summary = excluded.summary, \
             resolved_at = excluded.resolved_at, acked_by = excluded.acked_by, acked_at = excluded.acked_at, \
             level = excluded.level, next_at = excluded.next_at, flaps = excluded.flaps, nodes = excluded.nodes, \
             reopens_ms = excluded.reopens_ms, record = excluded.record, unsuppressed_ms = CASE WHEN excluded.unsuppressed_ms IS NULL THEN NULL \
             ELSE COALESCE(incidents.unsuppressed_ms, excluded.unsuppressed_ms) END",
        );
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

async fn append_timelines(tx: &mut Connection, effects: &[Effect]) -> Result<()> {
    let mut seqs: BTreeMap<&str, i64> = BTreeMap::new();
    for effect in effects {
        if let Effect::Timeline(entry) = effect {
            seqs.insert(&entry.incident, 0);
        }
    }
    let incidents: Vec<&str> = seqs.keys().copied().collect();
    for incidents in portions(&incidents) {
        // There is only one writer, so the largest number plus one is free. With GROUP BY, SQLite
        // would read the whole history of each incident.
        let mut select = QueryBuilder::new("WITH asked (id) AS (");
        select.push_values(incidents, |mut row, id| _ = row.push_bind(*id));
        select.push(
            ") SELECT id, last FROM (SELECT id, (SELECT MAX(seq) FROM timeline WHERE incident = id) AS last \
             FROM asked) AS numbered WHERE last IS NOT NULL",
        );
        let last: Vec<(String, i64)> = select.build_query_as().fetch_all(&mut *tx).await?;
        for (incident, seq) in last {
            if let Some(last) = seqs.get_mut(incident.as_str()) {
                *last = seq;
            }
        }
    }
    let mut numbered = Vec::new();
    for effect in effects {
        if let Effect::Timeline(entry) = effect {
            let seq = seqs.entry(&entry.incident).or_default();
            *seq += 1;
            numbered.push((*seq, entry));
        }
    }
    for entries in portions(&numbered) {
        let mut insert =
            QueryBuilder::new("INSERT INTO timeline (incident, seq, at, at_ms, actor, what, suppressed) ");
        insert.push_values(entries, |mut row, (seq, entry)| {
            row.push_bind(&entry.incident).push_bind(*seq).push_bind(text_of(entry.at)).push_bind(entry.at.0);
            row.push_bind(&entry.actor).push_bind(&entry.what).push_bind(&entry.suppressed);
        });
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

fn notification(effect: &Effect) -> Option<&Notification> {
    if let Effect::Notify(n) = effect { Some(n) } else { None }
}

/// Appends notifications to their lanes. The first of a lane supersedes nothing, and in a storm
/// most are the first.
async fn post_all(tx: &mut Connection, all: &[&Notification], at: Ts) -> Result<()> {
    let (first, later): (Vec<&Notification>, Vec<&Notification>) = all.iter().partition(|n| n.seq <= 1);
    for some in portions(&first) {
        insert_posts(tx, some, at).await?;
    }
    for n in later {
        if insert_posts(tx, &[n], at).await? > 0 {
            supersede(tx, n, at).await?;
        }
    }
    Ok(())
}

pub(super) async fn insert_posts(tx: &mut Connection, posts: &[&Notification], at: Ts) -> Result<u64> {
    let mut texts = Vec::with_capacity(posts.len());
    for n in posts {
        texts.push(json("notification", n)?);
    }
    let mut insert = QueryBuilder::new(
        "INSERT INTO outbox (idem_key, incident, receiver, seq, action, page, state, attempts, created_ms, next_ms, \
         reported, despite_suppression, source, reporter, notification) ",
    );
    insert.push_values(posts.iter().zip(&texts), |mut row, (n, text)| {
        row.push_bind(&n.idem_key).push_bind(&n.incident).push_bind(&n.receiver).push_bind(i64::from(n.seq));
        row.push_bind(n.action.as_str()).push_bind(i64::from(n.page)).push("'pending'").push("0");
        row.push_bind(at.0).push("0").push("0").push_bind(i64::from(n.despite_suppression));
        row.push_bind(&n.source).push_bind(&n.reporter).push_bind(text);
    });
    insert.push(" ON CONFLICT (idem_key) DO NOTHING");
    Ok(insert.build().execute(tx).await?.rows_affected())
}

/// Coalesces a lane: the newest message replaces older ones, but only a trigger replaces a trigger.
/// A row that may have arrived stays and is reconciled, except that an optional update never delays
/// a page.
async fn supersede(tx: &mut Connection, n: &Notification, at: Ts) -> Result<()> {
    let sql = match n.action {
        Action::Ack => return Ok(()),
        Action::Update | Action::Resolve => "action = 'update' AND state = 'pending'",
        Action::Trigger if n.page => {
            "(action = 'trigger' AND state = 'pending' OR action = 'update' AND state IN ('pending', 'ambiguous'))"
        }
        Action::Trigger => "(action = 'trigger' AND page = 0 OR action = 'update') AND state = 'pending'",
    };
    let mut update = QueryBuilder::new("UPDATE outbox SET state = 'superseded', done_at = ");
    update.push_bind(text_of(at)).push(" WHERE incident = ").push_bind(&n.incident);
    update.push(" AND receiver = ").push_bind(&n.receiver);
    update.push(" AND seq < ").push_bind(i64::from(n.seq)).push(" AND ").push(sql);
    update.build().execute(&mut *tx).await?;
    if n.page {
        // Older messages need not wait any longer.
        let sql = "UPDATE outbox SET next_ms = 0 WHERE incident = $1 AND receiver = $2 \
                   AND state IN ('pending', 'ambiguous')";
        query(sql).bind(&n.incident).bind(&n.receiver).execute(tx).await?;
    }
    Ok(())
}

async fn put_state(tx: &mut Connection, parts: &[StatePart]) -> Result<()> {
    let kept: Vec<(&String, &Vec<u8>)> =
        parts.iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).collect();
    for rows in portions(&kept) {
        let mut insert = QueryBuilder::new("INSERT INTO engine_state (key, value) ");
        insert.push_values(rows, |mut row, (key, value)| {
            row.push_bind(*key).push_bind(value.as_slice());
        });
        insert.push(" ON CONFLICT (key) DO UPDATE SET value = excluded.value");
        insert.build().execute(&mut *tx).await?;
    }
    let gone: Vec<&String> = parts.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key).collect();
    for keys in portions(&gone) {
        let mut delete = QueryBuilder::new("DELETE FROM engine_state WHERE key IN ");
        list(&mut delete, keys);
        delete.build().execute(&mut *tx).await?;
    }
    Ok(())
}

async fn put_cursors(tx: &mut Connection, cursors: &[(String, Cursor)], at: Ts) -> Result<()> {
    for rows in portions(cursors) {
        let mut insert = QueryBuilder::new("INSERT INTO cursors (source, cursor, updated_ms) ");
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
