//! The list of incidents: unacknowledged ones first, then acknowledged ones, then those that ended
//! in the last day.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use stepwatch_model::Severity;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::incident::{IncidentRecord, State as IncidentState};
use url::form_urlencoded;

use super::form::{Fields, remember, see};
use super::format::{ago, clock, until};
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::api::extract::Asked;
use crate::api::incident_actions::Said;
use crate::api::view::IncidentView;
use crate::clock::wall;
use crate::money::money;
use crate::runtime::IncidentAction;
use crate::store::{Filter, Order};

/// The number of incidents per page.
const PAGE: u32 = 50;
/// The last page that can be requested.
const MAX_PAGE: u32 = 1000;
/// The most ended incidents below the open ones.
const MAX_ENDED: u32 = 20;
/// The most unreachable exporters that are named.
const MAX_DOWN: usize = 5;
const LATELY: Span = Span::secs(86_400);

/// The query of the URL. An empty form field counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Query {
    state: Wanted,
    severity: String,
    run: String,
    node: String,
    /// `yes` for incidents that the caller acknowledged, or empty.
    mine: String,
    /// The page number, from 1.
    page: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Wanted {
    /// Open or acknowledged incidents, and those resolved by a person that still fire.
    #[default]
    Unresolved,
    Open,
    Acknowledged,
    Resolved,
    All,
}

/// A filter that one click sets or removes.
#[derive(Debug, Clone)]
pub(super) struct Chip {
    label: &'static str,
    href: String,
    on: bool,
}

/// An incident in a list.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) severity: &'static str,
    pub(super) state: &'static str,
    pub(super) standing: &'static str,
    pub(super) title: String,
    pub(super) place: String,
    pub(super) summary: String,
    pub(super) suspect: Option<String>,
    pub(super) since: String,
    pub(super) opened: String,
    pub(super) owner: Option<String>,
    /// Whether the incident is unacknowledged and needs a person.
    pub(super) nobody: bool,
    pub(super) suppression: Option<String>,
    pub(super) next: Option<String>,
    pub(super) cost: Option<String>,
    pub(super) can_ack: bool,
}

#[derive(Debug, Template)]
#[template(path = "incidents.html")]
struct Page {
    frame: Frame,
    query: Query,
    states: Vec<Chip>,
    severities: Vec<Chip>,
    mine: Option<Chip>,
    rows: Vec<Row>,
    ended: Vec<Row>,
    /// The numbers of the first and the last row, and the total.
    first: usize,
    last: usize,
    total: usize,
    newer: Option<String>,
    older: Option<String>,
    runs: usize,
    heard: Option<String>,
    /// For callers who may see all exporters: how many respond, the total, and the names of the
    /// others.
    sources: Option<(usize, usize, String)>,
    filtered: bool,
    /// Whether the caller may acknowledge.
    acts: bool,
}

/// `GET /`
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(query): Asked<Query>,
) -> Result<Response> {
    list(&api, &caller, &headers, query, None).await
}

/// `POST /incidents/ack`: acknowledges the selected incidents, or the one whose button was pressed.
pub(super) async fn acknowledge(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response> {
    let one = Some(fields.get("one")).filter(|id| !id.is_empty());
    let chosen: Vec<&str> = one.map_or_else(|| fields.all("id").collect(), |one| vec![one]);
    if chosen.len() > PAGE as usize {
        return Err(ApiError::bad_request(format!("id: at most {PAGE} incidents at once")));
    }
    let mut failed = chosen.is_empty().then(|| ApiError::bad_request("choose at least one incident"));
    for id in chosen {
        let said = Said::new(IncidentAction::Ack, fields.person(&caller))?;
        if let Err(why) = api.answer(&caller, id, said).await {
            failed = Some(ApiError { message: format!("{id}: {}", why.message), ..why });
        }
    }
    match failed {
        None => Ok(remember(see(fields.back().unwrap_or("/")), &caller, &fields)),
        Some(why) => list(&api, &caller, &headers, Query::default(), Some(why)).await,
    }
}

async fn list(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    query: Query,
    alarm: Option<ApiError>,
) -> Result<Response> {
    let (now, at) = (wall(), query.page.unwrap_or(1));
    if !(1..=MAX_PAGE).contains(&at) {
        return Err(ApiError::bad_request(format!("page: must be a number from 1 to {MAX_PAGE}, got {at}")));
    }
    let filter = query.filter(caller)?;
    let total = api.count(caller, &filter).await?;
    let records =
        api.incidents(caller, Filter { limit: Some(PAGE), offset: (at - 1) * PAGE, ..filter }).await?;
    let ended = if query.state == Wanted::Unresolved && at == 1 {
        let lately = Filter {
            state: Some(IncidentState::Resolved),
            unresolved: false,
            and_firing: false,
            order: Order::Latest,
            resolved_since: Some(now.earlier(LATELY)),
            limit: Some(MAX_ENDED),
            ..query.filter(caller)?
        };
        let over = |r: &IncidentRecord| r.reopens_at().is_none();
        api.incidents(caller, lately).await?.into_iter().filter(over).collect()
    } else {
        Vec::new()
    };
    let seen = api.run_views(caller);
    let heard = seen.runs.iter().map(|run| run.last_heard_at.0).max();
    let first = ((at - 1) * PAGE) as usize;
    let last = first + records.len();
    let row = |record| Row::from_record(api, caller, record, now);
    let frame = Frame::new(api, caller, Place::Incidents, "Incidents", &query.at(at)).await?.of(headers);
    let (status, reason) = alarm.map_or((StatusCode::OK, None), |why| (why.status, Some(why.message)));
    let list = Page {
        frame: Frame { alarm: reason.clone(), ..frame },
        states: query.states(),
        severities: query.severities(),
        mine: caller.actor().map(|_| query.mine_chip()),
        rows: records.into_iter().map(row).collect(),
        ended: ended.into_iter().map(row).collect(),
        first: first + 1,
        last,
        total,
        newer: (at > 1).then(|| query.at(at - 1)),
        older: (last < total && at < MAX_PAGE).then(|| query.at(at + 1)),
        runs: seen.runs.len() + seen.hidden,
        heard: heard.map(|heard| ago(now, heard)),
        sources: caller.token_scope().is_none().then(|| sources(api)),
        acts: caller.scopes().has(Scope::Ack),
        filtered: query != Query { page: query.page, ..Query::default() },
        query,
    };
    Ok(shown(page(status, &list), reason))
}

impl Query {
    fn filter(&self, caller: &Caller) -> Result<Filter> {
        let given = |v: &String| Some(v.trim().to_owned()).filter(|v| !v.is_empty());
        let severity = given(&self.severity).map(|word| match word.as_str() {
            "page" => Ok(Severity::Page),
            "ticket" => Ok(Severity::Ticket),
            "info" => Ok(Severity::Info),
            other => {
                Err(ApiError::bad_request(format!("severity: must be page, ticket or info, got {other:?}")))
            }
        });
        let unresolved = self.state == Wanted::Unresolved;
        Ok(Filter {
            state: match self.state {
                Wanted::Open => Some(IncidentState::Open),
                Wanted::Acknowledged => Some(IncidentState::Acknowledged),
                Wanted::Resolved => Some(IncidentState::Resolved),
                Wanted::Unresolved | Wanted::All => None,
            },
            unresolved,
            and_firing: unresolved,
            severity: severity.transpose()?,
            run: given(&self.run),
            node: given(&self.node),
            acked_by: (!self.mine.is_empty()).then(|| caller.signs("")),
            order: match self.state {
                Wanted::Resolved | Wanted::All => Order::Latest,
                _ => Order::Urgent,
            },
            ..Filter::default()
        })
    }

    /// The URL of the list with these filters.
    fn at(&self, page: u32) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if self.state != Wanted::default() {
            query.append_pair("state", self.state.as_str());
        }
        let texts =
            [("severity", &self.severity), ("run", &self.run), ("node", &self.node), ("mine", &self.mine)];
        for (key, value) in texts.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(key, value);
        }
        if page > 1 {
            query.append_pair("page", &page.to_string());
        }
        let query = query.finish();
        if query.is_empty() { "/".to_owned() } else { format!("/?{query}") }
    }

    fn states(&self) -> Vec<Chip> {
        let all = [
            (Wanted::Unresolved, "Unresolved"),
            (Wanted::Open, "Unacknowledged"),
            (Wanted::Acknowledged, "Acknowledged"),
            (Wanted::Resolved, "Resolved"),
            (Wanted::All, "All"),
        ];
        let chip = |(state, label)| Chip {
            label,
            href: Self { state, ..self.clone() }.at(1),
            on: self.state == state,
        };
        all.map(chip).into()
    }

    fn severities(&self) -> Vec<Chip> {
        let chip = |severity: Severity, label| {
            let (word, on) = (severity.as_str(), self.severity == severity.as_str());
            let wanted = if on { String::new() } else { word.to_owned() };
            Chip { label, href: Self { severity: wanted, ..self.clone() }.at(1), on }
        };
        vec![chip(Severity::Page, "Page"), chip(Severity::Ticket, "Ticket"), chip(Severity::Info, "Info")]
    }

    fn mine_chip(&self) -> Chip {
        let on = !self.mine.is_empty();
        let wanted = if on { String::new() } else { "yes".to_owned() };
        Chip { label: "Mine", href: Self { mine: wanted, ..self.clone() }.at(1), on }
    }
}

impl Wanted {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unresolved => "unresolved",
            Self::Open => "open",
            Self::Acknowledged => "acknowledged",
            Self::Resolved => "resolved",
            Self::All => "all",
        }
    }
}

impl Row {
    pub(super) fn from_record(api: &Api, caller: &Caller, record: IncidentRecord, now: Ts) -> Self {
        let cost = cost_so_far(api, &record, now).map(money);
        let row = Self::from_view(caller, IncidentView::from(record), now);
        Self { cost: cost.filter(|_| row.state != "resolved"), ..row }
    }

    /// Creates a row without the cost.
    pub(super) fn from_view(caller: &Caller, view: IncidentView, now: Ts) -> Self {
        let over = view.state == IncidentState::Resolved;
        Self {
            severity: view.severity.as_str(),
            state: match view.state {
                IncidentState::Open => "open",
                IncidentState::Acknowledged => "acknowledged",
                IncidentState::Resolved => "resolved",
            },
            standing: view.standing(),
            place: view.place(),
            suspect: view.suspects.first().map(|suspect| suspect.what()),
            since: ago(
                now,
                if over { view.resolved_at.unwrap_or(view.opened_at).0 } else { view.opened_at.0 },
            ),
            opened: clock(view.opened_at.0),
            nobody: view.state == IncidentState::Open
                && view.severity != Severity::Info
                && view.suppression.is_none(),
            owner: view.acked_by.clone(),
            suppression: view.suppression.as_ref().map(|s| s.words.clone()),
            next: view.next_escalation_at.filter(|_| !over).map(|at| until(now, at.0)),
            cost: None,
            can_ack: view.state == IncidentState::Open && caller.scopes().has(Scope::Ack),
            id: view.id,
            title: view.title,
            summary: view.summary,
        }
    }
}

/// The number of exporters that respond, the total, and the names of the others.
fn sources(api: &Api) -> (usize, usize, String) {
    let all = api.sources.views();
    let up = all.iter().filter(|source| source.up).count();
    let down: Vec<_> = all.iter().filter(|source| !source.up).map(|s| s.source.as_ref()).collect();
    let more = down.len().saturating_sub(MAX_DOWN);
    let names = down.into_iter().take(MAX_DOWN).collect::<Vec<_>>().join(", ");
    let names = if more > 0 { format!("{names} and {more} more") } else { names };
    (up, all.len(), names)
}

/// The cost of the run's GPUs since the incident opened, if the price and their number are known.
fn cost_so_far(api: &Api, record: &IncidentRecord, now: Ts) -> Option<f64> {
    let routing = api.runtime.read_model.routing();
    let rate = routing.config.cost_per_gpu_hour.filter(|_| record.costs_a_run())?;
    let view = api.runtime.views.get();
    let gpus = view.runs.iter().find(|run| run.run == record.run)?.gpus?;
    Some(rate * f64::from(gpus) * (now - record.opened_at).as_secs_f64() / 3600.0)
}
