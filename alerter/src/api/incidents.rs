//! Incidents by HTTP: list, show, acknowledge, resolve.

use core::time::Duration;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stepwatch_engine::incident::{IncidentRecord, State as IncidentState};
use stepwatch_engine::verdict::Severity;
use tokio::sync::oneshot;

use super::Api;
use super::error::ApiError;
use super::view::{By, IncidentDetail, IncidentList, IncidentView};
use crate::runtime::{Answer, Command};
use crate::store::Filter;

/// Incidents in one answer: unless asked otherwise, and at most.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1000;
/// Characters of the name of whoever acknowledges or resolves.
const MAX_BY: usize = 100;
/// How long an acknowledgement may take to become durable before the caller is told to ask again.
const DURABLE_WITHIN: Duration = Duration::from_secs(10);

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<String>,
    run: Option<String>,
    node: Option<String>,
    severity: Option<String>,
    limit: Option<String>,
}

impl ListQuery {
    fn filter(self) -> Result<Filter> {
        let given = |v: Option<String>| v.filter(|v| !v.is_empty());
        let (run, node) = (given(self.run), given(self.node));
        let mut filter = Filter { run, node, limit: Some(LIMIT_DEFAULT), ..Filter::default() };
        match given(self.state).as_deref() {
            None | Some("all") => {}
            Some("unresolved") => filter.unresolved = true,
            Some(word) => {
                filter.state = Some(parse_word::<IncidentState>(
                    "state",
                    word,
                    "open acknowledged resolved unresolved all",
                )?)
            }
        }
        if let Some(word) = given(self.severity) {
            filter.severity = Some(parse_word::<Severity>("severity", &word, "page ticket info")?);
        }
        if let Some(limit) = given(self.limit) {
            let ok = limit.parse().ok().filter(|n| (1..=LIMIT_MAX).contains(n));
            filter.limit = Some(ok.ok_or_else(|| {
                ApiError::bad_request(format!("limit: must be a number from 1 to {LIMIT_MAX}, got {limit:?}"))
            })?);
        }
        Ok(filter)
    }
}

/// The serde name of a unit variant.
fn parse_word<T: DeserializeOwned>(key: &str, word: &str, all: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(word.to_owned()))
        .map_err(|_| ApiError::bad_request(format!("{key}: must be one of {all}, got {word:?}")))
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: core::result::Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<IncidentList>> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.body_text()))?;
    let records = api.store.incidents(&query.filter()?).await?;
    Ok(Json(IncidentList { incidents: records.into_iter().map(IncidentView::from).collect() }))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
) -> Result<Json<IncidentDetail>> {
    Ok(Json(api.detail(&id).await?))
}

pub(super) async fn ack(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<IncidentView>> {
    let by = by(&headers, &body)?;
    let record = api.find(&id).await?;
    if record.state == IncidentState::Resolved {
        return Err(resolved(&record));
    }
    let incident = record.id;
    tracing::info!(incident, by, "acknowledge");
    let record = api.ask(|reply| Command::Ack { incident: incident.clone(), by, reply }).await?;
    match record {
        Some(record) => Ok(Json((*record).into())),
        // It resolved between the look and the word.
        None => Err(resolved(&api.find(&incident).await?)),
    }
}

pub(super) async fn resolve(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<IncidentView>> {
    let by = by(&headers, &body)?;
    let record = api.find(&id).await?;
    if record.state == IncidentState::Resolved {
        return Ok(Json(record.into()));
    }
    let incident = record.id;
    tracing::info!(incident, by, "resolve");
    let record = api.ask(|reply| Command::Resolve { incident: incident.clone(), by, reply }).await?;
    match record {
        Some(record) => Ok(Json((*record).into())),
        None => Ok(Json(api.find(&incident).await?.into())),
    }
}

fn resolved(record: &IncidentRecord) -> ApiError {
    let when = record.resolved_at.map(|at| format!(" at {at}")).unwrap_or_default();
    ApiError::conflict(format!(
        "incident {} was resolved{when}: there is nothing left to acknowledge",
        record.id
    ))
}

/// A page in a browser can post a form across sites, but not this content type.
fn by(headers: &HeaderMap, body: &Bytes) -> Result<String> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !content_type.trim_start().to_ascii_lowercase().starts_with("application/json") {
        return Err(ApiError {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message: r#"send {"by": "your name"} with content-type: application/json"#.into(),
        });
    }
    let By { by } = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!(r#"the body must be {{"by": "your name"}}: {e}"#)))?;
    let by = by.trim().to_owned();
    if by.is_empty() || by.chars().count() > MAX_BY || by.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!("by: must be a name of 1 to {MAX_BY} characters")));
    }
    Ok(by)
}

impl Api {
    /// The incident that an id, or the unique beginning of one, means.
    pub(super) async fn find(&self, id: &str) -> Result<IncidentRecord> {
        let found = self.store.incident(id).await?;
        found.ok_or_else(|| ApiError::not_found(format!("there is no incident {id:?}")))
    }

    pub(super) async fn detail(&self, id: &str) -> Result<IncidentDetail> {
        let record = self.find(id).await?;
        let timeline = self.store.timeline(&record.id).await?;
        let deliveries = self.store.deliveries(&record.id).await?;
        Ok(IncidentDetail {
            incident: record.into(),
            timeline: timeline.into_iter().map(Into::into).collect(),
            deliveries: deliveries.into_iter().map(Into::into).collect(),
        })
    }

    /// Hands a person's word to the runtime and waits until it is durable.
    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Answer>) -> Command) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let stopping = || ApiError::unavailable("the alerter is stopping; ask again when it is back");
        let asked = async {
            self.runtime.commands.send(command(reply)).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        tokio::time::timeout(DURABLE_WITHIN, asked).await.unwrap_or_else(|_| {
            Err(ApiError::unavailable("taken, but not yet durable: the store is slow or refuses; look again"))
        })
    }
}
