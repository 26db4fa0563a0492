//! Silences by HTTP: ask for one, see them, end one, and see beforehand what one would keep quiet.

use core::time::Duration;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stepwatch_engine::matcher::{Labels, Matcher, all_hold};
use stepwatch_engine::silence::{Phase, Refusal, Silence, Wanted};
use stepwatch_engine::time::{Span, Ts};
use tokio::sync::oneshot;

use super::Api;
use super::error::ApiError;
use super::view::{IncidentView, PreviewView, SilenceList, SilenceView, When, WishView};
use crate::clock::wall;
use crate::runtime::{Command, Outside, fresh_id};
use crate::store::Filter;

/// How long a silence may take to become durable before the caller is told to ask again.
const DURABLE_WITHIN: Duration = Duration::from_secs(10);
/// How far back a preview looks, unless asked otherwise, and at most.
const PREVIEW_DAYS: u32 = 7;
const PREVIEW_DAYS_MAX: u32 = 90;
/// Incidents that a preview looks through.
const PREVIEW_INCIDENTS: u32 = 5000;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewWish {
    matchers: Vec<Matcher>,
    days: Option<u32>,
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: core::result::Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<SilenceList>> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let now = wall();
    let wanted: fn(Phase) -> bool = match query.state.as_deref() {
        None | Some("" | "unexpired") => |p| p != Phase::Expired,
        Some("all") => |_| true,
        Some("active") => |p| p == Phase::Active,
        Some("pending") => |p| p == Phase::Pending,
        Some("expired") => |p| p == Phase::Expired,
        Some(word) => {
            let all = "active pending expired unexpired all";
            return Err(ApiError::bad_request(format!("state: must be one of {all}, got {word:?}")));
        }
    };
    let mut silences = api.runtime.board.silences(now);
    silences.retain(|s| wanted(s.phase(now)));
    silences.sort_by_key(|s| (s.phase(now) == Phase::Expired, s.ends_at));
    let quiet = api.quiet().await?;
    let view = |s: &Arc<Silence>| SilenceView::of(s, now, &quiet);
    Ok(Json(SilenceList { silences: silences.iter().map(view).collect() }))
}

pub(super) async fn show(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Json<SilenceView>> {
    let found = api.runtime.board.silence(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(SilenceView::of(&found, wall(), &api.quiet().await?)))
}

pub(super) async fn add(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<SilenceView>> {
    let wish: WishView = json_body(&headers, &body)?;
    let now = wall();
    let starts_at = wish.starts_at.map(|at| at.0);
    let ends_at = match (wish.ends_at, wish.duration) {
        (Some(at), None) => at.0,
        (None, Some(length)) => starts_at.unwrap_or(now) + length,
        _ => return Err(ApiError::bad_request("give one of ends_at and duration")),
    };
    let wanted = Wanted {
        id: wish.id,
        matchers: wish.matchers,
        starts_at,
        ends_at,
        created_by: wish.created_by,
        comment: wish.comment,
        expire_on_resolve: wish.expire_on_resolve,
    };
    let silence = api.silence(wanted).await?;
    Ok(Json(SilenceView::of(&silence, wall(), &api.quiet().await?)))
}

pub(super) async fn expire(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Json<SilenceView>> {
    let id = api.silence_named(&id)?;
    api.expire(&id).await?;
    let now = api.runtime.board.silence(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(SilenceView::of(&now, wall(), &[])))
}

/// What a silence with these matchers would have kept quiet.
pub(super) async fn preview(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<PreviewView>> {
    let wish: PreviewWish = json_body(&headers, &body)?;
    let days = wish.days.unwrap_or(PREVIEW_DAYS);
    if days > PREVIEW_DAYS_MAX {
        return Err(ApiError::bad_request(format!("days: at most {PREVIEW_DAYS_MAX}, got {days}")));
    }
    if wish.matchers.is_empty() {
        return Err(ApiError::bad_request("matchers: give at least one"));
    }
    let since = Ts(wall().0.saturating_sub(Span::secs(i64::from(days) * 86_400).0));
    let filter = Filter { limit: Some(PREVIEW_INCIDENTS), ..Filter::default() };
    let records = api.store.incidents(&filter).await?;
    let complete = records.len() < PREVIEW_INCIDENTS as usize
        || records.last().is_some_and(|oldest| oldest.opened_at < since);
    let matching = records.into_iter().filter(|r| r.resolved_at.is_none() || r.opened_at >= since);
    let matching = matching.filter(|r| all_hold(&wish.matchers, &r.labels));
    let (open, recent): (Vec<_>, Vec<_>) = matching.partition(|r| r.resolved_at.is_none());
    let alerts = api.runtime.board.alerts(wall());
    let alerts: Vec<Labels> =
        alerts.iter().map(|f| f.alert.labels.to_labels()).filter(|l| all_hold(&wish.matchers, l)).collect();
    Ok(Json(PreviewView {
        open: open.into_iter().map(IncidentView::from).collect(),
        recent: recent.into_iter().map(IncidentView::from).collect(),
        alerts,
        days,
        complete,
    }))
}

/// A page in a browser can post a form across sites, but not this content type.
pub(super) fn json_body<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !content_type.trim_start().to_ascii_lowercase().starts_with("application/json") {
        return Err(ApiError {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message: "send JSON with content-type: application/json".into(),
        });
    }
    serde_json::from_slice(body).map_err(|e| ApiError::bad_request(format!("the body does not read: {e}")))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no silence {id:?}"))
}

impl Api {
    /// Asks for a silence, and waits until it is durable.
    pub(super) async fn silence(&self, wanted: Wanted) -> Result<Box<Silence>> {
        let fresh = fresh_id().map_err(|_| ApiError::unavailable("the system has no randomness"))?;
        tracing::info!(by = wanted.created_by, comment = wanted.comment, "silence");
        let wanted = Box::new(wanted);
        let silenced = self.outside(|reply| Outside::Silence { wanted, fresh, reply }).await?;
        silenced.map_err(|refusal| match refusal {
            Refusal::Unknown(why) => ApiError::not_found(why),
            Refusal::Invalid(why) => ApiError::bad_request(why),
            Refusal::Full(why) => ApiError { status: StatusCode::TOO_MANY_REQUESTS, message: why },
        })
    }

    /// Ends a silence, and waits until that is durable.
    pub(super) async fn expire(&self, id: &str) -> Result<Box<Silence>> {
        tracing::info!(id, "end a silence");
        let had = self.outside(|reply| Outside::Expire { id: id.to_owned(), reply }).await?;
        had.ok_or_else(|| unknown(id))
    }

    /// The silence that an id, or the unique beginning of one, means.
    fn silence_named(&self, id: &str) -> Result<String> {
        let all = self.runtime.board.silences(wall());
        let mut named = all.iter().filter(|s| !id.is_empty() && s.id.starts_with(id));
        match (named.next(), named.next()) {
            (Some(one), None) => Ok(one.id.clone()),
            (Some(_), Some(_)) if all.iter().any(|s| s.id == id) => Ok(id.to_owned()),
            (Some(_), Some(_)) => Err(ApiError::bad_request(format!(
                "{id:?} begins the ids of more than one silence: give more characters"
            ))),
            (None, _) => Err(unknown(id)),
        }
    }

    /// Open incidents that somebody silenced: by the silence, the incident.
    async fn quiet(&self) -> Result<Vec<(String, String)>> {
        let filter = Filter { unresolved: true, limit: Some(PREVIEW_INCIDENTS), ..Filter::default() };
        let open = self.store.incidents(&filter).await?;
        Ok(open.into_iter().filter_map(|r| Some((r.quiet?.by, r.id))).collect())
    }

    /// Hands something to the runtime and waits for its answer.
    pub(super) async fn outside<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Outside) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let stopping = || ApiError::unavailable("the alerter is stopping; ask again when it is back");
        let asked = async {
            let command = Command::Outside(command(reply));
            self.runtime.commands.send(command).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        tokio::time::timeout(DURABLE_WITHIN, asked).await.unwrap_or_else(|_| {
            Err(ApiError::unavailable("taken, but not yet durable: the store is slow or refuses; look again"))
        })
    }
}

impl SilenceView {
    fn of(s: &Silence, now: Ts, quiet: &[(String, String)]) -> Self {
        Self {
            id: s.id.clone(),
            state: s.phase(now),
            matchers: s.matchers.clone(),
            starts_at: When(s.starts_at),
            ends_at: When(s.ends_at),
            created_by: s.created_by.clone(),
            comment: s.comment.clone(),
            updated_at: When(s.updated_at),
            expire_on_resolve: s.expire_on_resolve,
            planned_by: s.planned_by.clone(),
            incidents: quiet.iter().filter(|(by, _)| *by == s.id).map(|(_, id)| id.clone()).collect(),
        }
    }
}
