//! Incidents by HTTP: the list, one incident, and its post-mortem. Actions of people are in
//! `incident_actions`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use stepwatch_model::Severity;
use stepwatch_respond::external::Alert;
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState, labels};
use stepwatch_respond::message::{self, Status};
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Broken, NotFound};
use super::doc::schema;
use super::error::ApiError;
use super::extract::{Asked, Named};
use super::state::Api;
use super::view::{IncidentDetail, IncidentList, IncidentView, LastSent, PostmortemView};
use crate::chart::Look;
use crate::clock::wall;
use crate::postmortem::{self, Account};
use crate::store::{Delivery, Filter, StoreError};

/// The default and maximum number of incidents in one answer.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1000;
/// The most incidents examined, latest first, for a token that sees only some of them.
const LIMITED_SCAN: u32 = 20_000;
/// A type that browsers display as text and never as HTML.
pub(super) const MARKDOWN: &str = "text/markdown; charset=utf-8";

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only incidents in this state; all unless given.
    #[param(inline)]
    state: Option<StateWanted>,
    /// Only of this run.
    run: Option<String>,
    /// Only of this node.
    node: Option<String>,
    #[param(value_type = Option<schema::Severity>, inline)]
    severity: Option<Severity>,
    /// The largest number of incidents, the latest first.
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
    /// Open or acknowledged, or resolved by hand while it still fires.
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
        let filter = Filter {
            state,
            unresolved,
            and_firing: unresolved,
            run,
            node,
            severity: self.severity,
            ..Filter::default()
        };
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

/// An incident, with its history and the messages about it.
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

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PostmortemQuery {
    #[serde(default)]
    #[param(inline)]
    format: PostmortemFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PostmortemFormat {
    #[default]
    Markdown,
    /// The same as numbers, with the text beside them.
    Json,
}

/// The post-mortem of an incident: the known facts, to be completed by people.
///
/// The impact, the times it took, the history, evidence and suspects, and who was notified, as
/// Markdown.
#[utoipa::path(
    get,
    path = "/api/v1/incidents/{id}/postmortem",
    operation_id = "getPostmortem",
    tag = "incidents",
    params(("id" = String, Path, description = "Its id, or any unique beginning of it"), PostmortemQuery),
    responses(
        (
            status = 200,
            description = "The account",
            content((String = "text/markdown"), (PostmortemView = "application/json"))
        ),
        BadRequest, NotFound, Broken
    )
)]
pub(super) async fn postmortem(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(id): Named,
    Asked(query): Asked<PostmortemQuery>,
) -> Result<Response> {
    let record = api.find(&caller, &id).await?;
    let timeline = api.store.timeline(&record.id).await?;
    let deliveries = api.store.deliveries(&record.id).await?;
    let chart = api.charts.svg(&record, Look::default()).await?;
    let account = Account {
        record: &record,
        timeline: &timeline,
        deliveries: &deliveries,
        chart: chart.as_deref(),
        now: wall(),
    };
    let markdown = postmortem::render(&account);
    if query.format == PostmortemFormat::Markdown {
        return Ok(([(header::CONTENT_TYPE, MARKDOWN)], markdown).into_response());
    }
    let impact = postmortem::impact(&account);
    let sent = api.last_sent(&record, &deliveries);
    let cost = impact.cost(&record);
    let incident = IncidentDetail::from_record(record, sent, cost, (timeline, deliveries));
    Ok(Json(PostmortemView { incident, impact, markdown }).into_response())
}

impl Api {
    /// The incident with this id, or with this unique prefix of an id.
    pub(crate) async fn find(&self, caller: &Caller, id: &str) -> Result<IncidentRecord> {
        let found = match self.store.incident(id).await {
            // A limited caller must not learn that other incidents exist.
            Err(StoreError::AmbiguousId(_)) if caller.token_scope().is_some() => None,
            found => found?,
        };
        let found = found.filter(|record| caller.sees(&record.labels));
        found.ok_or_else(|| ApiError::not_found(format!("there is no incident {id:?}")))
    }

    pub(crate) async fn detail(&self, caller: &Caller, id: &str) -> Result<IncidentDetail> {
        let record = self.find(caller, id).await?;
        let timeline = self.store.timeline(&record.id).await?;
        let deliveries = self.store.deliveries(&record.id).await?;
        let sent = self.last_sent(&record, &deliveries);
        let (timeline_of, deliveries_of) = (&timeline, &deliveries);
        let account = Account {
            record: &record,
            timeline: timeline_of,
            deliveries: deliveries_of,
            chart: None,
            now: wall(),
        };
        let cost = postmortem::impact(&account).cost(&record);
        Ok(IncidentDetail::from_record(record, sent, cost, (timeline, deliveries)))
    }

    /// The content of the last message while the incident fired; if there was none, of a message
    /// sent now.
    pub(crate) fn last_sent(&self, record: &IncidentRecord, deliveries: &[Delivery]) -> LastSent {
        let sent = deliveries.iter().rev().filter_map(|d| d.message.as_deref());
        if let Some(m) = sent.clone().find(|m| m.status != Status::Resolved).or_else(|| sent.clone().next()) {
            let described = m.facts.iter().find(|fact| fact.label == message::DESCRIPTION);
            return LastSent {
                description: described.map(|fact| fact.text.clone()),
                links: m.links.clone(),
                advice: m.details.advice.clone(),
                plan: m.details.plan.as_deref().cloned(),
            };
        }
        let alert = self.alert_of(record);
        let alert = alert.as_deref();
        let config = &self.runtime.read_model.routing().config;
        LastSent {
            description: message::description(record, alert),
            links: message::links(record, alert, config),
            ..LastSent::default()
        }
    }

    /// The firing alert of another program that made the incident.
    fn alert_of(&self, record: &IncidentRecord) -> Option<Arc<Alert>> {
        let name = record.alert()?;
        let own = |label: &str| labels::OURS.contains(&label) && label != labels::ALERTNAME;
        let alike = |alert: &Alert| {
            let agree = |label: &str, value: Option<&String>| {
                alert.labels.get(label).is_none_or(|said| value.is_some_and(|value| *said == **value))
            };
            let mut shared = record.labels.iter().filter(|(label, _)| !own(label.as_str()));
            // A caller that is limited to one run or team must not see the text about another.
            alert.name() == name
                && ["run", "team"].iter().all(|label| agree(label, record.labels.get(*label)))
                && shared.all(|(label, value)| agree(label, Some(value)))
        };
        self.runtime
            .read_model
            .alerts(wall())
            .into_iter()
            .map(|firing| firing.alert)
            .find(|alert| alike(alert))
    }

    /// Incidents that match the filter and that the caller may see.
    pub(crate) async fn incidents(&self, caller: &Caller, mut filter: Filter) -> Result<Vec<IncidentRecord>> {
        let Some(token_scope) = caller.token_scope() else { return Ok(self.store.incidents(&filter).await?) };
        let limit = filter.limit.replace(LIMITED_SCAN);
        let offset = core::mem::take(&mut filter.offset) as usize;
        filter.run_prefixes = token_scope.run_prefixes();
        let records = self.store.incidents(&filter).await?;
        let seen = records.into_iter().filter(|record| caller.sees(&record.labels));
        Ok(seen.skip(offset).take(limit.unwrap_or(LIMIT_DEFAULT) as usize).collect())
    }

    /// The number of incidents that match the filter and that the caller may see.
    pub(crate) async fn count(&self, caller: &Caller, filter: &Filter) -> Result<usize> {
        if caller.token_scope().is_none() {
            return Ok(self.store.count_incidents(filter).await?);
        }
        let all = Filter { limit: Some(LIMITED_SCAN), offset: 0, ..filter.clone() };
        Ok(self.incidents(caller, all).await?.len())
    }
}
