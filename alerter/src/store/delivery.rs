//! The store's interface to the outbox. Every state change is one transaction that survives a power
//! failure.

use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::effect::{Action, Notification};
use stepwatch_respond::incident::State;
use stepwatch_respond::message::Message;

use super::error::{Result, StoreError};
use super::handle::{Store, StoreReader};
use super::outcome::DeliveryOutcome;
use super::plan::{LaneRow, is_held, plan, too_late};
use super::read::DeliveryState;
use super::reports::{is_report, report_of};
use super::rings::{Means, begun, last_rings, rings};
use super::rows::{json, put_alive, text_of, word};
use super::sql::{self, Connection, On, query, query_as, query_scalar};
use super::writer::Who;
use crate::notify::Ring;
use sqlx::AssertSqlSafe;

/// The longest wait of a message, and of a page. A row with a longer wait was written before the
/// clock was set back, and is due.
const WAIT_MAX: Span = Span::secs(27 * 3600);
const PAGE_WAIT_MAX: Span = Span::secs(15 * 60);

/// The prefix of the keys in `meta` with the end of a pause that a receiver asked for.
const PAUSE: &str = "pause/";

/// A lane with a message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueLane {
    pub incident: String,
    /// Whether the lane has a page.
    pub page: bool,
    /// When the oldest message of the lane was added.
    pub since: Ts,
}

/// A claimed row, with the data that its sender needs.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// The message. Its text may be newer than the stored one, but its key is the same.
    pub notification: Notification,
    pub ambiguous: bool,
    pub attempts: u32,
    pub created_at: Ts,
    /// The notifier's memory of this lane.
    pub memory: Option<String>,
    /// The notifier's memory of the latest other lane to this receiver. It is read only if it may
    /// help to find a message of a lane without a memory.
    pub neighbour: Option<String>,
    /// See [`crate::notify::Attempt`].
    pub ring: Option<Ring>,
    pub unsure: Vec<Ring>,
    /// The report as JSON, if the message is a report and not about an incident.
    pub report: Option<String>,
}

/// An outcome that the engine may not have recorded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unreported {
    pub idem_key: String,
    pub incident: String,
    pub receiver: String,
    pub action: Action,
    pub failed: Option<String>,
}

/// A page that its receiver has not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreached {
    pub idem_key: String,
    pub incident: String,
    pub receiver: String,
    pub since: Ts,
    /// The error of the last attempt.
    pub error: String,
    /// Whether no receiver has accepted any page of the incident.
    pub nobody: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueDepth {
    pub undone: u64,
    /// When the oldest page began to wait.
    pub oldest_page: Option<Ts>,
}

/// A condition on a row `o`: no receiver has accepted any page of its incident.
const NO_PAGE_DELIVERED: &str = "NOT EXISTS (SELECT 1 FROM outbox t WHERE t.incident = o.incident AND t.page = 1 \
    AND t.action = 'trigger' AND t.state = 'delivered')";
/// A condition on such a row: it is a permanently refused page, the last message of its lane, and
/// its incident is unanswered.
const REFUSED: &str = "o.state = 'failed' AND o.page = 1 AND o.action = 'trigger' \
    AND EXISTS (SELECT 1 FROM incidents i WHERE i.id = o.incident AND i.state = 'open' \
    AND (i.unsuppressed_ms IS NOT NULL OR o.despite_suppression = 1)) \
    AND NOT EXISTS (SELECT 1 FROM outbox t WHERE t.incident = o.incident AND t.page = 1 \
    AND t.action = 'trigger' AND t.state = 'delivered') \
    AND NOT EXISTS (SELECT 1 FROM outbox l WHERE l.incident = o.incident AND l.receiver = o.receiver AND l.seq > o.seq)";
/// A condition on a row `o`: it is permanently refused and no page, and no receiver has got a
/// message of its open incident.
const REFUSED_TICKET: &str = "o.state = 'failed' AND o.page = 0 AND o.action = 'trigger' \
    AND EXISTS (SELECT 1 FROM incidents i WHERE i.id = o.incident AND i.state = 'open' AND i.unsuppressed_ms IS NOT NULL) \
    AND NOT EXISTS (SELECT 1 FROM outbox t WHERE t.incident = o.incident AND t.action = 'trigger' \
    AND t.state IN ('pending', 'attempting', 'ambiguous', 'delivered')) \
    AND NOT EXISTS (SELECT 1 FROM outbox l WHERE l.incident = o.incident AND l.receiver = o.receiver AND l.seq > o.seq \
    AND l.action = 'trigger')";
/// For a row `o` and its incident `i`: since when the message could have been sent.
const SINCE: &str = "CASE WHEN i.unsuppressed_ms > o.created_ms THEN i.unsuppressed_ms ELSE o.created_ms END";
/// A condition on the rows `o` of a lane and their incident `i`: the lane is not held. It is the
/// same condition as in [`is_held`]; change both together.
const NOT_HELD: &str = "(MAX(CASE WHEN i.state <> 'resolved' AND i.unsuppressed_ms IS NULL THEN 1 ELSE 0 END) = 0 \
    OR MAX(CASE WHEN o.despite_suppression = 0 AND o.action IN ('trigger', 'update') THEN 1 ELSE 0 END) = 0 \
    OR MAX(CASE WHEN o.despite_suppression = 1 AND o.action = 'trigger' THEN 1 ELSE 0 END) = 1 \
    OR MAX(CASE WHEN o.action = 'ack' THEN 1 ELSE 0 END) = 1 \
    AND (EXISTS (SELECT 1 FROM outbox h WHERE h.incident = o.incident AND h.receiver = $1 \
    AND h.state IN ('delivered', 'ambiguous')) \
    OR EXISTS (SELECT 1 FROM lanes m WHERE m.incident = o.incident AND m.receiver = $1)))";

impl Store {
    /// Marks messages that were in flight when the process died as possibly arrived. Must be called
    /// once, before anything is sent.
    pub(crate) async fn recover_attempts(&self) -> Result<u64> {
        let sql = "UPDATE outbox SET state = 'ambiguous', attempts = attempts + 1, next_ms = 0, \
                   error = 'the alerter stopped while this was being sent' WHERE state = 'attempting'";
        let done = self.write(Who::Prompt, async |tx| {
            let recovered = query(sql).execute(&mut *tx).await?.rows_affected();
            Ok((recovered, last_rings(tx).await?))
        });
        let (recovered, rings) = done.await?;
        rings.iter().for_each(|(incident, ring)| self.note_ring(incident, *ring));
        Ok(recovered)
    }

    /// Outcomes that the engine may not have recorded, oldest first.
    pub(crate) async fn unreported(&self) -> Result<Vec<Unreported>> {
        let sql = "SELECT idem_key, incident, receiver, action, state, error FROM outbox \
                   WHERE reported = 0 AND state IN ('delivered', 'failed') ORDER BY done_at, seq";
        let rows = query(sql).fetch_all(&*self.reader()?).await?;
        rows.iter()
            .map(|row| {
                let failed = row.try_get::<&str, _>("state")? == "failed";
                let error: Option<String> = row.try_get("error")?;
                Ok(Unreported {
                    idem_key: row.try_get("idem_key")?,
                    incident: row.try_get("incident")?,
                    receiver: row.try_get("receiver")?,
                    action: word("action", row.try_get("action")?)?,
                    failed: failed.then(|| error.unwrap_or_default()),
                })
            })
            .collect()
    }

    /// Receivers with messages to send.
    pub(crate) async fn waiting_receivers(&self) -> Result<Vec<String>> {
        let sql =
            "SELECT DISTINCT receiver FROM outbox WHERE state IN ('pending', 'attempting', 'ambiguous')";
        Ok(query_scalar(sql).fetch_all(&*self.reader()?).await?)
    }

    /// The lanes of a receiver that may be tried now: those with a page first, then the first of
    /// each source, the second of each, and so on. Within a source its users take turns too. So a
    /// flood of one does not delay others. Only the first message of a lane is ever deferred, so
    /// the largest wait in a lane is the wait of the lane.
    pub(crate) async fn due_lanes(&self, receiver: &str, now: Ts, limit: usize) -> Result<Vec<DueLane>> {
        self.lanes_due(self.reader()?, receiver, now, limit).await
    }

    pub(super) async fn lanes_due(
        &self,
        reader: StoreReader<'_>,
        receiver: &str,
        now: Ts,
        limit: usize,
    ) -> Result<Vec<DueLane>> {
        let sql = format!(
            "WITH due AS (SELECT o.incident, MAX(o.page) AS page, MIN(o.created_ms) AS since_ms, \
             MAX(o.source) AS source, MAX(o.reporter) AS reporter FROM outbox o \
             LEFT JOIN incidents i ON i.id = o.incident \
             WHERE o.receiver = $1 AND o.state IN ('pending', 'attempting', 'ambiguous') GROUP BY o.incident \
             HAVING (MAX(o.next_ms) <= $2 OR MAX(o.next_ms) > CASE WHEN MAX(o.page) = 1 THEN $3 ELSE $5 END) \
             AND MAX(CASE WHEN o.state = 'attempting' THEN 1 ELSE 0 END) = 0 AND {NOT_HELD}), \
             of_users AS (SELECT *, ROW_NUMBER() OVER \
             (PARTITION BY page, reporter ORDER BY since_ms, incident) AS turn FROM due), \
             of_sources AS (SELECT *, ROW_NUMBER() OVER \
             (PARTITION BY page, source ORDER BY turn, since_ms, incident) AS source_turn FROM of_users) \
             SELECT incident, page, since_ms FROM of_sources \
             ORDER BY page DESC, source_turn, since_ms, incident LIMIT $4"
        );
        let rows: Vec<(String, i64, i64)> = query_as(AssertSqlSafe(sql))
            .bind(receiver)
            .bind(now.0)
            .bind((now + PAGE_WAIT_MAX).0)
            .bind(limit as i64)
            .bind((now + WAIT_MAX).0)
            .fetch_all(&*reader)
            .await?;
        Ok(rows
            .into_iter()
            .map(|(incident, page, since)| DueLane { incident, page: page != 0, since: Ts(since) })
            .collect())
    }

    /// The earliest time after `now` at which a lane is due.
    pub(crate) async fn next_due(&self, now: Ts) -> Result<Option<Ts>> {
        let sql = "SELECT MIN(lane_ms) FROM (SELECT MAX(next_ms) AS lane_ms FROM outbox \
                   WHERE state IN ('pending', 'attempting', 'ambiguous') GROUP BY receiver, incident) AS waiting \
                   WHERE lane_ms > $1";
        let next: Option<i64> = query_scalar(sql).bind(now.0).fetch_one(&*self.reader()?).await?;
        Ok(next.map(Ts))
    }

    pub(crate) async fn queue_depth(&self) -> Result<QueueDepth> {
        // A page that is held by a suppression does not wait for a receiver.
        let sql = format!(
            "SELECT COUNT(*), MIN(CASE WHEN o.page = 1 AND o.action = 'trigger' \
             AND (i.id IS NULL OR i.unsuppressed_ms IS NOT NULL OR o.despite_suppression = 1) THEN {SINCE} END) FROM outbox o \
             LEFT JOIN incidents i ON i.id = o.incident WHERE o.state IN ('pending', 'attempting', 'ambiguous')"
        );
        let (undone, oldest): (i64, Option<i64>) =
            query_as(AssertSqlSafe(sql)).fetch_one(&*self.reader()?).await?;
        let sql = format!(
            "SELECT MIN({SINCE}) FROM outbox o JOIN incidents i ON i.id = o.incident WHERE {REFUSED}"
        );
        let refused: Option<i64> = query_scalar(AssertSqlSafe(sql)).fetch_one(&*self.reader()?).await?;
        let oldest = oldest.into_iter().chain(refused).min();
        Ok(QueueDepth { undone: undone as u64, oldest_page: oldest.map(Ts) })
    }

    /// Makes permanently refused messages due again, if no receiver has a message of their
    /// incident: pages refused before `pages`, and tickets before `tickets`. Returns their number.
    pub(crate) async fn revive(&self, receiver: &str, pages: Ts, tickets: Ts) -> Result<u64> {
        let sql = format!(
            "UPDATE outbox AS o SET state = 'pending', next_ms = 0, reported = 0, done_at = NULL \
             WHERE o.receiver = $1 AND (o.done_at <= $2 AND {REFUSED} OR o.done_at <= $3 AND {REFUSED_TICKET})"
        );
        self.write(Who::Prompt, async |tx| {
            let update = query(AssertSqlSafe(sql)).bind(receiver);
            let update = update.bind(text_of(pages)).bind(text_of(tickets));
            Ok(update.execute(tx).await?.rows_affected())
        })
        .await
    }

    /// Claims the first message of a lane and returns it; `None` if there is nothing to send.
    pub(crate) async fn claim(
        &self,
        incident: &str,
        receiver: &str,
        wakes: bool,
        now: Ts,
    ) -> Result<Option<Claim>> {
        self.claim_by(incident, receiver, Means { wakes, numbered: false }, now).await
    }

    /// Like [`Self::claim`], with the properties of the receiver.
    pub(crate) async fn claim_by(
        &self,
        incident: &str,
        receiver: &str,
        means: Means,
        now: Ts,
    ) -> Result<Option<Claim>> {
        let claim = self.write(Who::InTurn, async |tx| {
            // Messages that were sent from memory are recorded first.
            if self.holds(receiver, incident) {
                return Ok(None);
            }
            let rows = lane(tx, incident, receiver).await?;
            if rows.iter().any(|row| row.attempting) {
                return Ok(None);
            }
            let (standing, suppressed) = standing(tx, incident).await?;
            let mut lane: Vec<LaneRow> = rows.iter().map(|row| row.lane.clone()).collect();
            for row in &mut lane {
                row.held = suppressed && row.may_be_held();
            }
            let heard = heard(tx.into(), incident, receiver).await?;
            if standing != State::Resolved && is_held(&lane, heard) {
                return Ok(None);
            }
            let late = if means.numbered {
                too_late(&lane, standing, heard || begun(tx.into(), incident, receiver).await?)
            } else {
                0
            };
            let mut plan = plan(&lane[late..], standing, means.wakes, heard);
            plan.superseded += late;
            for (i, row) in lane[..plan.superseded].iter().enumerate() {
                let why = match (suppressed, i < late) {
                    (true, _) => "suppressed before it could be sent",
                    (false, true) => "over before it could be sent",
                    (false, false) => "already acknowledged",
                };
                let sql =
                    "UPDATE outbox SET state = 'superseded', done_at = $2, error = $3 WHERE idem_key = $1";
                let update = query(sql).bind(&row.notification.idem_key).bind(text_of(now)).bind(why);
                update.execute(&mut *tx).await?;
            }
            let Some(head) = rows.into_iter().nth(plan.superseded) else { return Ok(None) };
            attempt(tx, head, plan.words, means.numbered).await.map(Some)
        });
        let claim = claim.await?;
        if let Some(ring) = claim.as_ref().and_then(|claim| claim.ring) {
            self.note_ring(incident, ring);
        }
        Ok(claim)
    }

    /// Drops the first message of a lane because of a budget. False if it must be sent: a page, a
    /// report, or the answer or end of a message that was sent.
    pub(crate) async fn leave_out(&self, incident: &str, receiver: &str, now: Ts) -> Result<bool> {
        self.write(Who::InTurn, async |tx| {
            let rows = lane(tx, incident, receiver).await?;
            let Some(head) = rows.first().filter(|_| rows.iter().all(|r| !r.attempting)) else {
                return Ok(false);
            };
            let n = &head.lane.notification;
            let ends = matches!(n.action, Action::Ack | Action::Resolve);
            if n.page || is_report(incident) || head.lane.ambiguous || (ends && heard(tx.into(), incident, receiver).await?) {
                return Ok(false);
            }
            let sql = "UPDATE outbox SET state = 'superseded', done_at = $2, error = 'left out: the budget of this receiver is used up' \
                       WHERE idem_key = $1";
            query(sql).bind(&n.idem_key).bind(text_of(now)).execute(&mut *tx).await?;
            Ok(true)
        })
        .await
    }

    /// Records the outcome of a claimed row at `at`, and the notifier's memory.
    pub(crate) async fn settle(
        &self,
        n: &Notification,
        outcome: &DeliveryOutcome,
        memory: Option<&str>,
        at: Ts,
    ) -> Result<()> {
        let row = RowKey { incident: &n.incident, receiver: &n.receiver, idem_key: &n.idem_key };
        self.write(Who::InTurn, async |tx| settle_row(tx, row, outcome, memory, at).await).await?;
        if memory.is_some() {
            self.inner.changed.notify_one();
        }
        Ok(())
    }

    /// Stores a new text of a message that is being sent.
    pub(crate) async fn reword(&self, n: &Notification) -> Result<()> {
        let text = json("notification", n)?;
        let sql = "UPDATE outbox SET notification = $2 WHERE idem_key = $1";
        self.write(Who::InTurn, async |tx| {
            query(sql).bind(&n.idem_key).bind(&text).execute(tx).await?;
            Ok(())
        })
        .await
    }

    /// Pages that have waited since before `before`, of unacknowledged incidents.
    pub(crate) async fn unreached(&self, before: Ts) -> Result<Vec<Unreached>> {
        let sql = format!(
            "SELECT o.idem_key, o.incident, o.receiver, {SINCE} AS since_ms, COALESCE(o.error, ''), {NO_PAGE_DELIVERED} \
             FROM outbox o JOIN incidents i ON i.id = o.incident \
             WHERE o.page = 1 AND o.action = 'trigger' AND i.state = 'open' \
             AND (i.unsuppressed_ms IS NOT NULL OR o.despite_suppression = 1) \
             AND (o.state IN ('pending', 'attempting', 'ambiguous') OR {REFUSED}) AND {SINCE} <= $1 \
             ORDER BY since_ms"
        );
        let rows: Vec<(String, String, String, i64, String, bool)> =
            query_as(AssertSqlSafe(sql)).bind(before.0).fetch_all(&*self.reader()?).await?;
        let page = |(idem_key, incident, receiver, since, error, nobody)| Unreached {
            idem_key,
            incident,
            receiver,
            since: Ts(since),
            error,
            nobody,
        };
        Ok(rows.into_iter().map(page).collect())
    }

    /// Writes a heartbeat that other programs can read.
    pub(crate) async fn touch(&self, now: Ts) -> Result<()> {
        self.write(Who::Heart, async |tx| put_alive(tx, now).await).await?;
        self.note_recorded(now);
        Ok(())
    }

    /// The time of the last [`Store::touch`] or commit; `None` if there was none.
    pub(crate) async fn alive_at(&self) -> Result<Option<Ts>> {
        let sql = "SELECT value FROM meta WHERE key = 'alive_at'";
        let text: Option<String> = query_scalar(sql).fetch_optional(&*self.reader()?).await?;
        let at = text.and_then(|t| t.parse::<jiff::Timestamp>().ok());
        Ok(at.map(|t| Ts(t.as_millisecond())))
    }

    /// Ends the waits of a receiver's messages, except for a pause that it asked for.
    pub(crate) async fn release(&self, receiver: &str, asked_until: Option<Ts>) -> Result<()> {
        self.write(Who::Prompt, async |tx| {
            let sql = "UPDATE outbox SET next_ms = $2 WHERE receiver = $1 AND next_ms > $2 \
                       AND state IN ('pending', 'ambiguous')";
            let until = asked_until.unwrap_or(Ts(0));
            query(sql).bind(receiver).bind(until.0).execute(&mut *tx).await?;
            if asked_until.is_none() {
                query("DELETE FROM meta WHERE key = $1").bind(pause_of(receiver)).execute(&mut *tx).await?;
            }
            Ok(())
        })
        .await
    }

    /// The current pauses that receivers asked for.
    pub(crate) async fn pauses(&self, now: Ts) -> Result<Vec<(String, Ts)>> {
        let sql = "SELECT key, value FROM meta WHERE key LIKE 'pause/%'";
        let rows: Vec<(String, String)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let until = |text: &str| text.parse::<i64>().ok().map(Ts);
        let pauses = rows.iter().filter_map(|(key, value)| Some((key.strip_prefix(PAUSE)?, until(value)?)));
        Ok(pauses
            .filter(|(_, until)| *until > now && *until <= now + WAIT_MAX)
            .map(|(receiver, until)| (receiver.to_owned(), until))
            .collect())
    }

    /// Whether a page about this incident may be given up: the incident is acknowledged or over.
    pub(crate) async fn answered(&self, incident: &str) -> Result<bool> {
        let sql = "SELECT state FROM incidents WHERE id = $1";
        let state: Option<String> = query_scalar(sql).bind(incident).fetch_optional(&*self.reader()?).await?;
        Ok(state.is_some_and(|s| s != "open"))
    }
}

/// The key of a row of the outbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowKey<'a> {
    pub incident: &'a str,
    pub receiver: &'a str,
    pub idem_key: &'a str,
}

pub(super) async fn settle_row(
    tx: &mut Connection,
    row: RowKey<'_>,
    outcome: &DeliveryOutcome,
    memory: Option<&str>,
    at: Ts,
) -> Result<()> {
    if let Some(memory) = memory {
        let sql = "INSERT INTO lanes (incident, receiver, memory, updated_ms) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (incident, receiver) DO UPDATE SET memory = excluded.memory, \
                   updated_ms = excluded.updated_ms";
        let insert = query(sql).bind(row.incident).bind(row.receiver);
        insert.bind(memory).bind(at.0).execute(&mut *tx).await?;
    }
    if let DeliveryOutcome::Retry { pause: Some(until), .. } = outcome {
        let sql = "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        query(sql).bind(pause_of(row.receiver)).bind(until.0.to_string()).execute(&mut *tx).await?;
    }
    let (state, next, error) = match outcome {
        DeliveryOutcome::Delivered => ("delivered", None, None),
        DeliveryOutcome::Failed { error } => ("failed", None, Some(error)),
        DeliveryOutcome::Retry { next, ambiguous, error, .. } => {
            let state = if *ambiguous { "ambiguous" } else { "pending" };
            (state, Some(next.0), Some(error))
        }
    };
    let sql = "UPDATE outbox SET state = $2, next_ms = $3, attempts = attempts + $4, error = COALESCE($5, error), \
               done_at = $6 WHERE idem_key = $1";
    query(sql)
        .bind(row.idem_key)
        .bind(state)
        .bind(next.unwrap_or(0))
        .bind(i64::from(outcome.counts()))
        .bind(error)
        .bind(next.is_none().then(|| text_of(at)))
        .execute(&mut *tx)
        .await?;
    Ok(())
}

fn pause_of(receiver: &str) -> String {
    format!("{PAUSE}{receiver}")
}

struct Row {
    lane: LaneRow,
    attempting: bool,
    attempts: u32,
    created_at: Ts,
    ring: Option<u32>,
}

/// Claims the first message of a lane, with `words` as its text if given.
async fn attempt(tx: &mut Connection, head: Row, words: Option<Message>, numbered: bool) -> Result<Claim> {
    let Row { lane: LaneRow { mut notification, ambiguous, .. }, attempts, created_at, ring, .. } = head;
    let memory = memory(tx, &notification.incident, &notification.receiver).await?;
    let searches = ambiguous && memory.is_none();
    let neighbour = if searches { neighbour(tx, &notification.receiver).await? } else { None };
    let (ring, unsure) =
        if numbered { rings(tx.into(), &notification, ring).await? } else { (None, Vec::new()) };
    let sql = "UPDATE outbox SET state = 'attempting', ring = $2 WHERE idem_key = $1";
    let update = query(sql).bind(&notification.idem_key);
    update.bind(ring.map(|ring| i64::from(ring.number))).execute(&mut *tx).await?;
    if let Some(words) = words {
        notification.message = words;
    }
    let report = report_of(tx, &notification.incident).await?;
    Ok(Claim { notification, ambiguous, attempts, created_at, memory, neighbour, ring, unsure, report })
}

async fn lane(tx: &mut Connection, incident: &str, receiver: &str) -> Result<Vec<Row>> {
    let sql = "SELECT idem_key, state, attempts, created_ms, notification, error, ring FROM outbox WHERE receiver = $2 \
               AND incident = $1 AND state IN ('pending', 'attempting', 'ambiguous') ORDER BY seq";
    let found = query(sql).bind(incident).bind(receiver).fetch_all(&mut *tx).await?;
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        match read(row) {
            Ok(row) => rows.push(row),
            Err(StoreError::Damaged { source, .. }) => give_up_unreadable(tx, row, &source).await?,
            Err(err) => return Err(err),
        }
    }
    Ok(rows)
}

/// Gives up a row that cannot be parsed, so that it does not block its lane.
async fn give_up_unreadable(tx: &mut Connection, row: &sql::Row, err: &serde_json::Error) -> Result<()> {
    let key: &str = row.try_get("idem_key")?;
    tracing::error!(%err, key, "a notification in the store does not read: given up");
    let sql = "UPDATE outbox SET state = 'failed', error = $2 WHERE idem_key = $1";
    query(sql).bind(key).bind(format!("does not read: {err}")).execute(tx).await?;
    Ok(())
}

fn read(row: &sql::Row) -> Result<Row> {
    let state: DeliveryState = word("delivery state", row.try_get("state")?)?;
    let notification = serde_json::from_str(row.try_get("notification")?)
        .map_err(|source| StoreError::Damaged { what: "a notification".to_owned(), source })?;
    Ok(Row {
        lane: LaneRow {
            notification,
            ambiguous: state == DeliveryState::Ambiguous,
            held: false,
            // Attempts that were refused by a rate limit are not counted, but have an error.
            failed: row.try_get::<Option<&str>, _>("error")?.is_some(),
        },
        attempting: state == DeliveryState::Attempting,
        attempts: row.try_get::<i64, _>("attempts")? as u32,
        created_at: Ts(row.try_get("created_ms")?),
        ring: row.try_get::<Option<i64>, _>("ring")?.map(|n| n as u32),
    })
}

/// The state of the incident, and whether it is suppressed. An incident that is not in the store (a
/// test message) counts as open.
async fn standing(tx: &mut Connection, incident: &str) -> Result<(State, bool)> {
    let sql = "SELECT state, unsuppressed_ms IS NULL FROM incidents WHERE id = $1";
    let found: Option<(String, bool)> = query_as(sql).bind(incident).fetch_optional(tx).await?;
    found.map_or(Ok((State::Open, false)), |(state, suppressed)| {
        Ok((word("incident state", &state)?, suppressed))
    })
}

/// Whether the receiver has, or may have, a message of the incident. A notifier's memory counts
/// too: if only some recipients have a message, its row still waits.
pub(super) async fn heard(on: On<'_>, incident: &str, receiver: &str) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM outbox WHERE incident = $1 AND receiver = $2 \
               AND state IN ('delivered', 'ambiguous')) \
               OR EXISTS (SELECT 1 FROM lanes WHERE incident = $1 AND receiver = $2)";
    Ok(query_scalar(sql).bind(incident).bind(receiver).fetch_one(on).await?)
}

async fn memory(tx: &mut Connection, incident: &str, receiver: &str) -> Result<Option<String>> {
    let sql = "SELECT memory FROM lanes WHERE incident = $1 AND receiver = $2";
    Ok(query_scalar(sql).bind(incident).bind(receiver).fetch_optional(tx).await?)
}

async fn neighbour(tx: &mut Connection, receiver: &str) -> Result<Option<String>> {
    let sql = "SELECT memory FROM lanes WHERE receiver = $1 ORDER BY updated_ms DESC LIMIT 1";
    Ok(query_scalar(sql).bind(receiver).fetch_optional(tx).await?)
}
