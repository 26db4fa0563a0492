//! Queries for the API, the command line and the start.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::Severity;
use stepwatch_model::time::Ts;
use stepwatch_respond::effect::{Action, Notification, Path, TimelineEntry};
use stepwatch_respond::incident::{IncidentRecord, State};
use stepwatch_respond::message::Message;
use stepwatch_wire::Cursor;

use super::error::{Result, StoreError};
use super::handle::Store;
use super::rows::{list, name_of, portions, text_of, word};
use super::sql::{QueryBuilder, Row, query, query_as};

/// The default limit of incidents in one answer.
const INCIDENTS_DEFAULT: u32 = 100;

/// What a [`Delivery`] is read from; the condition on the incident follows, and then the order.
const DELIVERIES: &str = "SELECT incident, idem_key, receiver, seq, action, page, state, attempts, \
                          created_ms, next_ms, done_at, error, notification, ring \
                          FROM outbox WHERE incident";
const IN_ORDER: &str = " ORDER BY created_ms, receiver, seq";

/// A selection of incidents; the default is the latest of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    pub state: Option<State>,
    /// Excludes resolved incidents.
    pub unresolved: bool,
    /// Includes incidents that a person resolved and that still fire.
    pub and_firing: bool,
    pub run: Option<String>,
    /// Only runs whose names have one of these prefixes; all runs if there are none.
    pub run_prefixes: Vec<String>,
    pub node: Option<String>,
    pub severity: Option<Severity>,
    /// Excludes `info` incidents, which notify nobody.
    pub no_info: bool,
    /// Only incidents that this person acknowledged.
    pub acked_by: Option<String>,
    /// Only incidents that were resolved at this time or later.
    pub resolved_since: Option<Ts>,
    pub order: Order,
    /// The number of incidents to skip.
    pub offset: u32,
    /// The most incidents.
    pub limit: Option<u32>,
}

/// The order of incidents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The latest first.
    #[default]
    Latest,
    /// Unacknowledged incidents first; among them pages, then tickets; among these the latest.
    Urgent,
}

impl Order {
    /// The order in SQL.
    fn by(self) -> &'static str {
        match self {
            Self::Latest => " ORDER BY opened_at DESC, id DESC",
            Self::Urgent => {
                " ORDER BY CASE state WHEN 'open' THEN 0 WHEN 'acknowledged' THEN 1 ELSE 2 END, \
                 CASE severity WHEN 'page' THEN 0 WHEN 'ticket' THEN 1 ELSE 2 END, opened_at DESC, id DESC"
            }
        }
    }
}

/// One message to one receiver, and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Delivery {
    pub idem_key: String,
    pub receiver: String,
    pub seq: u32,
    pub action: Action,
    pub page: bool,
    pub state: DeliveryState,
    pub attempts: u32,
    pub created_at: Ts,
    /// When the message is tried again.
    pub next_at: Option<Ts>,
    /// The time of completion in RFC 3339.
    pub done_at: Option<String>,
    /// The error of the last failed attempt.
    pub error: Option<String>,
    /// The users for whom the message is, if the receiver is shared.
    pub users: Vec<String>,
    /// Why this receiver was chosen.
    pub path: Option<Path>,
    /// The number of the call within its incident and class, if the message may call a person.
    pub ring: Option<u32>,
    /// The service that repeats an earlier call in place of this one.
    pub left_to: Option<String>,
    /// The message; `None` if it can no longer be parsed.
    pub message: Option<Box<Message>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    Pending,
    /// The message is being sent.
    Attempting,
    /// The message was sent, and it is unknown whether it arrived: it is reconciled or repeated
    /// under the same key.
    Ambiguous,
    Delivered,
    /// The message was given up.
    Failed,
    /// A newer message of the same lane replaced it.
    Superseded,
}

impl Store {
    /// The parts of the engine's stored state.
    pub async fn load_state(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let sql = "SELECT key, value FROM engine_state ORDER BY key";
        Ok(query_as(sql).fetch_all(&*self.reader()?).await?)
    }

    /// The cursor of each source. A cursor that cannot be parsed is skipped: its source is read
    /// from its oldest record, which repeats records and loses none.
    pub async fn load_cursors(&self) -> Result<Vec<(String, Cursor)>> {
        let sql = "SELECT source, cursor FROM cursors ORDER BY source";
        let rows: Vec<(String, String)> = query_as(sql).fetch_all(&*self.reader()?).await?;
        let readable = rows.into_iter().filter_map(|(source, text)| {
            let cursor = text.parse().ok();
            if cursor.is_none() {
                tracing::warn!(source, cursor = text, "a cursor in the store does not read: left out");
            }
            Some((source, cursor?))
        });
        Ok(readable.collect())
    }

    /// The incidents that match the filter, in its order.
    pub async fn incidents(&self, filter: &Filter) -> Result<Vec<IncidentRecord>> {
        // Only ids are sorted, because the records are long.
        let mut query =
            QueryBuilder::new("SELECT id, record FROM incidents WHERE id IN (SELECT id FROM incidents");
        conditions(&mut query, filter);
        query.push(filter.order.by()).push(" LIMIT ");
        query.push_bind(i64::from(filter.limit.unwrap_or(INCIDENTS_DEFAULT)));
        query.push(" OFFSET ").push_bind(i64::from(filter.offset));
        query.push(")").push(filter.order.by());
        let rows = query.build().fetch_all(&*self.reader()?).await?;
        rows.iter().map(incident).collect()
    }

    /// Pages and tickets that were open in a period, latest first.
    pub(crate) async fn incidents_between(
        &self,
        from: Ts,
        to: Ts,
        run: Option<&str>,
        limit: u32,
    ) -> Result<Vec<IncidentRecord>> {
        let mut query = QueryBuilder::new("SELECT id, record FROM incidents WHERE opened_at < ");
        query.push_bind(text_of(to)).push(" AND (resolved_at IS NULL OR resolved_at >= ");
        query.push_bind(text_of(from)).push(") AND severity <> 'info'");
        if let Some(run) = run {
            query.push(" AND run = ").push_bind(run);
        }
        query.push(" ORDER BY opened_at DESC LIMIT ").push_bind(i64::from(limit));
        let rows = query.build().fetch_all(&*self.reader()?).await?;
        rows.iter().map(incident).collect()
    }

    /// The number of incidents that match the filter, regardless of its limit.
    pub async fn count_incidents(&self, filter: &Filter) -> Result<usize> {
        let mut query = QueryBuilder::new("SELECT count(*) FROM incidents");
        conditions(&mut query, filter);
        let count: i64 = query.build_query_as().fetch_one(&*self.reader()?).await?;
        Ok(usize::try_from(count).unwrap_or_default())
    }

    /// The incident with this id, or the only one whose id has this prefix.
    pub async fn incident(&self, id: &str) -> Result<Option<IncidentRecord>> {
        if id.is_empty() {
            return Ok(None);
        }
        // Uses the index: every id with this prefix lies between the prefix and its upper bound.
        let sql = "SELECT id, record FROM incidents WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT 2";
        let last = format!("{id}{}", char::MAX);
        let rows = query(sql).bind(id).bind(last).fetch_all(&*self.finder()?).await?;
        match rows.as_slice() {
            [] => Ok(None),
            [one] => incident(one).map(Some),
            // An id sorts before the ids of which it is a prefix.
            [first, ..] if first.try_get::<&str, _>("id")? == id => incident(first).map(Some),
            _ => Err(StoreError::AmbiguousId(id.to_owned())),
        }
    }

    /// The history of an incident, oldest first.
    pub async fn timeline(&self, id: &str) -> Result<Vec<TimelineEntry>> {
        let sql = "SELECT at_ms, actor, what, suppressed FROM timeline WHERE incident = $1 ORDER BY seq";
        let rows: Vec<(i64, String, String, Option<String>)> =
            query_as(sql).bind(id).fetch_all(&*self.finder()?).await?;
        let entry = |(at, actor, what, suppressed)| TimelineEntry {
            incident: id.to_owned(),
            at: Ts(at),
            actor,
            what,
            suppressed,
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    /// The messages about an incident with their receivers and outcomes, in order of sending.
    pub async fn deliveries(&self, id: &str) -> Result<Vec<Delivery>> {
        let mut select = QueryBuilder::new(DELIVERIES);
        select.push(" = ").push_bind(id).push(IN_ORDER);
        let rows = select.build().fetch_all(&*self.finder()?).await?;
        rows.iter().map(delivery).collect()
    }

    /// The same of several incidents; one without messages is not among them.
    pub(crate) async fn deliveries_of(&self, ids: &[&str]) -> Result<BTreeMap<String, Vec<Delivery>>> {
        let mut all: BTreeMap<String, Vec<Delivery>> = BTreeMap::new();
        for ids in portions(ids) {
            let mut select = QueryBuilder::new(DELIVERIES);
            select.push(" IN ");
            list(&mut select, ids);
            select.push(IN_ORDER);
            for row in select.build().fetch_all(&*self.reader()?).await? {
                all.entry(row.try_get("incident")?).or_default().push(delivery(&row)?);
            }
        }
        Ok(all)
    }
}

fn conditions(query: &mut QueryBuilder<'_>, filter: &Filter) {
    query.push(" WHERE 1 = 1");
    if let Some(state) = filter.state {
        query.push(" AND state = ").push_bind(name_of(&state));
    }
    if filter.unresolved {
        let firing = if filter.and_firing { " OR reopens_ms IS NOT NULL" } else { "" };
        query.push(" AND (state <> 'resolved'").push(firing).push(")");
    }
    if let Some(run) = &filter.run {
        query.push(" AND run = ").push_bind(run.clone());
    }
    if !filter.run_prefixes.is_empty() {
        query.push(" AND (1 = 0");
        for prefix in &filter.run_prefixes {
            let length = prefix.chars().count() as i64;
            query
                .push(" OR substr(run, 1, CAST(")
                .push_bind(length)
                .push(" AS INTEGER)) = ")
                .push_bind(prefix.clone());
        }
        query.push(")");
    }
    if let Some(node) = &filter.node {
        query.push(" AND replace(nodes, ").push_bind(format!(",{node},")).push(", '') <> nodes");
    }
    if let Some(severity) = filter.severity {
        query.push(" AND severity = ").push_bind(severity.as_str());
    }
    if filter.no_info {
        query.push(" AND severity <> 'info'");
    }
    if let Some(person) = &filter.acked_by {
        query.push(" AND acked_by = ").push_bind(person.clone());
    }
    if let Some(since) = filter.resolved_since {
        query.push(" AND resolved_at >= ").push_bind(text_of(since));
    }
}

fn incident(row: &Row) -> Result<IncidentRecord> {
    let record: &str = row.try_get("record")?;
    serde_json::from_str(record).map_err(|source| {
        let id = row.try_get("id").unwrap_or("?");
        StoreError::Damaged { what: format!("incident {id}"), source }
    })
}

fn delivery(row: &Row) -> Result<Delivery> {
    let state: DeliveryState = word("delivery state", row.try_get("state")?)?;
    let next_ms: i64 = row.try_get("next_ms")?;
    let waits = matches!(state, DeliveryState::Pending | DeliveryState::Ambiguous) && next_ms > 0;
    let notification: Option<Notification> = serde_json::from_str(row.try_get("notification")?).ok();
    let (users, path, left_to, message) = notification
        .map_or((Vec::new(), None, None, None), |n| (n.users, n.path, n.left_to, Some(Box::new(n.message))));
    Ok(Delivery {
        idem_key: row.try_get("idem_key")?,
        receiver: row.try_get("receiver")?,
        seq: row.try_get::<i64, _>("seq")? as u32,
        action: word("action", row.try_get("action")?)?,
        page: row.try_get::<i64, _>("page")? != 0,
        state,
        attempts: row.try_get::<i64, _>("attempts")? as u32,
        created_at: Ts(row.try_get("created_ms")?),
        next_at: waits.then_some(Ts(next_ms)),
        done_at: row.try_get("done_at")?,
        error: row.try_get("error")?,
        users,
        path,
        ring: row.try_get::<Option<i64>, _>("ring")?.map(|n| n as u32),
        left_to,
        message,
    })
}
