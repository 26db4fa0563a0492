//! Incidents by HTTP: list, show, acknowledge, resolve.

use core::time::Duration;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use stepwatch_engine::incident::{IncidentRecord, State as IncidentState};
use stepwatch_engine::verdict::Severity;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::Api;
use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, Conflict, NotFound, NotJson, TooLarge};
use super::doc::schema;
use super::error::ApiError;
use super::extract::{Asked, Named, Sent};
use super::view::{By, IncidentDetail, IncidentList, IncidentView};
use crate::audit::Entry;
use crate::clock::wall;
use crate::postmortem::{self, Account};
use crate::runtime::{Answer, Command};
use crate::store::{Filter, StoreError};

/// Incidents in one answer: unless asked otherwise, and at most.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1000;
/// Incidents looked through, the latest first, for a token that sees only some of them.
const LIMITED_SCAN: u32 = 20_000;
/// Characters of the name of whoever acknowledges or resolves.
const MAX_BY: usize = 100;
/// How long an acknowledgement may take to become durable before the caller is told to ask again.
const DURABLE_WITHIN: Duration = Duration::from_secs(10);

/// Shown as it is by a browser, and never as HTML.
const MARKDOWN: &str = "text/markdown; charset=utf-8";

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only those that stand so; all unless given.
    #[param(inline)]
    state: Option<StateWanted>,
    /// Only of this run.
    run: Option<String>,
    /// Only of this node.
    node: Option<String>,
    #[param(value_type = Option<schema::Severity>, inline)]
    severity: Option<Severity>,
    /// At most so many, the latest first.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Which incidents.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StateWanted {
    Open,
    Acknowledged,
    Resolved,
    /// Open or acknowledged.
    Unresolved,
    All,
}

impl ListQuery {
    fn filter(self) -> Result<Filter> {
        let given = |v: Option<String>| v.filter(|v| !v.is_empty());
        let (run, node) = (given(self.run), given(self.node));
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(ApiError::bad_request(format!(
                "limit: must be a number from 1 to {LIMIT_MAX}, got {limit}"
            )));
        }
        let state = match self.state {
            Some(StateWanted::Open) => Some(IncidentState::Open),
            Some(StateWanted::Acknowledged) => Some(IncidentState::Acknowledged),
            Some(StateWanted::Resolved) => Some(IncidentState::Resolved),
            None | Some(StateWanted::Unresolved | StateWanted::All) => None,
        };
        let unresolved = matches!(self.state, Some(StateWanted::Unresolved));
        let filter = Filter { state, unresolved, run, node, severity: self.severity, ..Filter::default() };
        Ok(Filter { limit: Some(limit), ..filter })
    }
}

/// Incidents, the latest first.
#[utoipa::path(
    get,
    path = "/api/v1/incidents",
    operation_id = "listIncidents",
    tag = "incidents",
    params(ListQuery),
    responses((status = 200, description = "The incidents", body = IncidentList), BadRequest, Broken)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<IncidentList>> {
    let records = api.incidents(&caller, query.filter()?).await?;
    Ok(Json(IncidentList { incidents: records.into_iter().map(IncidentView::from).collect() }))
}

/// An incident, with its history and what was told about it.
#[utoipa::path(
    get,
    path = "/api/v1/incidents/{id}",
    operation_id = "getIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    responses(
        (status = 200, description = "The incident", body = IncidentDetail),
        BadRequest, NotFound, Broken
    )
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
) -> Result<Json<IncidentDetail>> {
    Ok(Json(api.detail(&caller, &id).await?))
}

/// What is known of an incident afterwards, to be completed by people.
///
/// The impact, the times it took, the history, evidence and suspects, and who was told, as Markdown.
#[utoipa::path(
    get,
    path = "/api/v1/incidents/{id}/postmortem",
    operation_id = "getPostmortem",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    responses(
        (status = 200, description = "The account", body = String, content_type = "text/markdown"),
        BadRequest, NotFound, Broken
    )
)]
pub(super) async fn postmortem(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
) -> Result<Response> {
    let record = api.find(&caller, &id).await?;
    let timeline = api.store.timeline(&record.id).await?;
    let deliveries = api.store.deliveries(&record.id).await?;
    let account = Account { record: &record, timeline: &timeline, deliveries: &deliveries, now: wall() };
    Ok(([(header::CONTENT_TYPE, MARKDOWN)], postmortem::render(&account)).into_response())
}

/// Takes an incident: its escalation stops. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/ack",
    operation_id = "acknowledgeIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now; `acked_by` names whoever was first", body = IncidentView),
        BadRequest, NotFound, Conflict, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn ack(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    let said = name(body)?;
    let record = api.find(&caller, &id).await?;
    if record.state == IncidentState::Resolved {
        return Err(resolved(&record));
    }
    let incident = record.id;
    let (by, entry) = (caller.signs(&said), caller.audit(&said, "ack", &incident));
    tracing::info!(incident, by, "acknowledge");
    let record = api.ask(entry, |reply| Command::Ack { incident: incident.clone(), by, reply }).await?;
    match record {
        Some(record) => Ok(Json((*record).into())),
        // It resolved between the look and the word.
        None => Err(resolved(&api.find(&caller, &incident).await?)),
    }
}

/// Closes an incident by hand. Durable when it is answered; one that is closed stays so.
#[utoipa::path(
    post,
    path = "/api/v1/incidents/{id}/resolve",
    operation_id = "resolveIncident",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it")),
    request_body = By,
    responses(
        (status = 200, description = "As it is now", body = IncidentView),
        BadRequest, NotFound, TooLarge, NotJson, Broken
    )
)]
pub(super) async fn resolve(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Sent(body): Sent<By>,
) -> Result<Json<IncidentView>> {
    let said = name(body)?;
    let record = api.find(&caller, &id).await?;
    if record.state == IncidentState::Resolved {
        return Ok(Json(record.into()));
    }
    let incident = record.id;
    let (by, entry) = (caller.signs(&said), caller.audit(&said, "resolve", &incident));
    tracing::info!(incident, by, "resolve");
    let record = api.ask(entry, |reply| Command::Resolve { incident: incident.clone(), by, reply }).await?;
    match record {
        Some(record) => Ok(Json((*record).into())),
        None => Ok(Json(api.find(&caller, &incident).await?.into())),
    }
}

pub(super) fn resolved(record: &IncidentRecord) -> ApiError {
    let when = record.resolved_at.map(|at| format!(" at {at}")).unwrap_or_default();
    ApiError::conflict(format!(
        "incident {} was resolved{when}: nothing is left to be done about it",
        record.id
    ))
}

pub(super) fn name(By { by }: By) -> Result<String> {
    if by.trim().is_empty() || by.chars().count() > MAX_BY || by.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!("by: must be a name of 1 to {MAX_BY} characters")));
    }
    Ok(by.trim().to_owned())
}

impl Api {
    /// The incident that an id, or the unique beginning of one, means.
    pub(super) async fn find(&self, caller: &Caller, id: &str) -> Result<IncidentRecord> {
        let found = match self.store.incident(id).await {
            // That there are others is not for everybody to know.
            Err(StoreError::AmbiguousId(_)) if caller.reach().is_some() => None,
            found => found?,
        };
        let found = found.filter(|record| caller.sees(&record.labels));
        found.ok_or_else(|| ApiError::not_found(format!("there is no incident {id:?}")))
    }

    pub(super) async fn detail(&self, caller: &Caller, id: &str) -> Result<IncidentDetail> {
        let record = self.find(caller, id).await?;
        let timeline = self.store.timeline(&record.id).await?;
        let deliveries = self.store.deliveries(&record.id).await?;
        Ok(IncidentDetail {
            incident: record.into(),
            timeline: timeline.into_iter().map(Into::into).collect(),
            deliveries: deliveries.into_iter().map(Into::into).collect(),
        })
    }

    /// What passes the filter and is the caller's to see.
    pub(super) async fn incidents(&self, caller: &Caller, mut filter: Filter) -> Result<Vec<IncidentRecord>> {
        let Some(reach) = caller.reach() else { return Ok(self.store.incidents(&filter).await?) };
        let limit = filter.limit.replace(LIMITED_SCAN);
        filter.run_prefixes = reach.run_prefixes();
        let mut records = self.store.incidents(&filter).await?;
        records.retain(|record| caller.sees(&record.labels));
        records.truncate(limit.unwrap_or(LIMIT_DEFAULT) as usize);
        Ok(records)
    }

    /// Hands a person's word to the runtime and waits until it is durable, together with who said it.
    pub(super) async fn ask(
        &self,
        entry: Entry,
        command: impl FnOnce(oneshot::Sender<Answer>) -> Command,
    ) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Audited { entry: Box::new(entry), command: Box::new(command(reply)) };
        let stopping = || ApiError::unavailable("the alerter is stopping; ask again when it is back");
        let asked = async {
            self.runtime.commands.send(command).await.map_err(|_| stopping())?;
            answer.await.map_err(|_| stopping())
        };
        tokio::time::timeout(DURABLE_WITHIN, asked).await.unwrap_or_else(|_| {
            Err(ApiError::unavailable("taken, but not yet durable: the store is slow or refuses; look again"))
        })
    }
}
