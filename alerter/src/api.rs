//! The HTTP API of the alerter.
//!
//! Every route is declared once, beside its handler (`#[utoipa::path]`), and listed below under the
//! scope that it requires. The OpenAPI document is made from these declarations: `GET
//! /api/v1/openapi.json` serves it and `docs/openapi.json` is a copy. The web pages are not in it:
//! they are in `crate::web`, and use the same answers.
//!
//! Reads use the store's readers and copies that the runtime publishes, so that many dashboards
//! cannot delay a page. Errors are `{"error": "..."}`.

mod alertmanager;
pub mod attempts;
pub mod audit;
pub mod auth;
pub(crate) mod charts;
pub mod checkpoint_stages;
pub mod doc;
pub(crate) mod error;
pub mod events;
pub(crate) mod extract;
pub mod incident_actions;
mod incidents;
mod made;
pub mod nodes;
pub mod oncall;
pub(crate) mod oncall_overrides;
pub mod ranks;
mod replicas;
mod report;
pub mod series;
mod silences;
mod state;
#[cfg(test)]
mod tests;
pub mod view;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Json, Response};
use stepwatch_kit::{build_info, exposition};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;

pub use crate::access::Scope;
use crate::clock::wall;
use crate::store::Filter;
pub(crate) use alertmanager::MAX_ALERTS_BODY;
use auth::Caller;
use error::ApiError;
pub use state::Api;
use view::{RunList, RunView, SourceList, SourceView, Status, StoreState, When};
pub(crate) use write::MAX_WRITE_BODY;

#[cfg(any(test, feature = "fuzz"))]
pub(crate) use alertmanager::{fuzz_alerts, fuzz_queries};

impl Api {
    pub fn router(self: Arc<Self>) -> Router {
        Router::from(routes()).fallback(unknown).method_not_allowed_fallback(wrong_method).with_state(self)
    }

    pub(crate) fn run_views(&self, caller: &Caller) -> RunList {
        let (view, now, routing) = (self.runtime.views.get(), wall(), self.runtime.read_model.routing());
        let seen = view
            .runs
            .iter()
            .filter(|r| caller.token_scope().is_none_or(|scope| scope.admits(&routing.labels(r))));
        let runs = seen.map(|r| RunView::from_snapshot(r, now, self.runtime.series.latest(&r.run))).collect();
        RunList { runs, hidden: if caller.token_scope().is_some() { 0 } else { view.runs_hidden } }
    }

    /// The status for a caller. A caller whose token is limited sees only its own runs and teams,
    /// and neither the exporters nor the queues of others.
    async fn status(&self, caller: &Caller) -> Result<Status, ApiError> {
        let view = self.runtime.views.get();
        let mut status = Status {
            version: build_info::VERSION.to_owned(),
            revision: build_info::GIT_SHA.to_owned(),
            started_at: When(self.started),
            sources: None,
            sources_up: None,
            runs: 0,
            open_incidents: 0,
            pending_effects: None,
            store: if view.store_refuses { StoreState::Refuses } else { StoreState::Ok },
            next_deadline_at: None,
            next_deadline: None,
            leader: None,
        };
        if caller.token_scope().is_some() {
            status.runs = self.run_views(caller).runs.len();
            let open = Filter { unresolved: true, ..Filter::default() };
            status.open_incidents = self.count(caller, &open).await?;
            return Ok(status);
        }
        let sources = self.sources.views();
        Ok(Status {
            sources: Some(sources.len()),
            sources_up: Some(sources.iter().filter(|s| s.up).count()),
            runs: view.runs.len() + view.runs_hidden,
            open_incidents: view.open_incidents,
            pending_effects: Some(view.pending_effects),
            next_deadline_at: view.next_deadline.map(|(at, _)| When(at)),
            next_deadline: view.next_deadline.map(|(_, why)| why.to_owned()),
            leader: self.leader(),
            ..status
        })
    }
}

/// An error in the format of the API that serves this path.
pub(crate) fn error_of(path: &str, status: StatusCode, why: &str) -> Response {
    if path.starts_with(alertmanager::PREFIX) {
        return alertmanager::error(status, why);
    }
    ApiError { status, message: why.to_owned() }.into_response()
}

fn writing() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::default().routes(routes!(write::take).layer(DefaultBodyLimit::max(MAX_WRITE_BODY)))
}

/// All routes, grouped by the scope that they require.
fn routes() -> OpenApiRouter<Arc<Api>> {
    let read = OpenApiRouter::default()
        .routes(routes!(incidents::list))
        .routes(routes!(incidents::show))
        .routes(routes!(incidents::postmortem))
        .routes(routes!(charts::svg))
        .routes(routes!(silences::list))
        .routes(routes!(silences::show))
        .routes(routes!(silences::preview))
        .routes(routes!(oncall::show))
        .routes(routes!(oncall_overrides::list))
        .routes(routes!(runs))
        .routes(routes!(report::show))
        .routes(routes!(series::show))
        .routes(routes!(events::follow))
        .routes(routes!(ranks::show))
        .routes(routes!(attempts::show))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show))
        .routes(routes!(sources))
        .routes(routes!(replicas::list))
        .routes(routes!(status))
        .routes(routes!(metrics))
        .routes(routes!(doc::show))
        .merge(alertmanager::reading());
    let ack = OpenApiRouter::default()
        .routes(routes!(incident_actions::ack))
        .routes(routes!(incident_actions::resolve))
        .routes(routes!(incident_actions::escalate))
        .routes(routes!(incident_actions::unack))
        .routes(routes!(incident_actions::note));
    let silence = OpenApiRouter::default()
        .routes(routes!(silences::add))
        .routes(routes!(silences::expire))
        .routes(routes!(oncall_overrides::add))
        .routes(routes!(oncall_overrides::swap))
        .routes(routes!(oncall_overrides::remove))
        .merge(alertmanager::silencing());
    let groups = [
        (Scope::Read, read),
        (Scope::Ack, ack),
        (Scope::Silence, silence),
        (Scope::Ingest, alertmanager::ingesting().merge(writing())),
        (Scope::Admin, OpenApiRouter::default().routes(routes!(audit::list))),
    ];
    let groups = groups.map(|(scope, routes)| {
        let gate =
            move |caller: Caller, request: Request, next: Next| auth::require(scope, caller, request, next);
        doc::needing(scope, routes).route_layer(from_fn(gate))
    });
    groups.into_iter().fold(OpenApiRouter::default(), OpenApiRouter::merge)
}

/// Runs that are watched, with their latest step.
#[utoipa::path(
    get,
    path = "/api/v1/runs",
    operation_id = "listRuns",
    tag = "state",
    responses((status = 200, description = "The runs", body = RunList))
)]
async fn runs(State(api): State<Arc<Api>>, caller: Caller) -> Json<RunList> {
    Json(api.run_views(&caller))
}

/// Exporters that are read, and the last position read.
#[utoipa::path(
    get,
    path = "/api/v1/sources",
    operation_id = "listSources",
    tag = "state",
    responses((status = 200, description = "The exporters", body = SourceList))
)]
async fn sources(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<SourceList>, ApiError> {
    caller.require_everything()?;
    let view = api.runtime.views.get();
    let judged = |s: crate::ingest::SourceSnapshot| {
        let refused = view.refused.get(s.source.as_ref());
        SourceView::from(s).judged(refused)
    };
    Ok(Json(SourceList { sources: api.sources.views().into_iter().map(judged).collect() }))
}

/// The state of the alerter; for a token with limits it counts only what the token may see.
#[utoipa::path(
    get,
    path = "/api/v1/status",
    operation_id = "getStatus",
    tag = "state",
    responses((status = 200, description = "Its state", body = Status), doc::errors::Broken)
)]
async fn status(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Status>, ApiError> {
    Ok(Json(api.status(&caller).await?))
}

/// The alerter's own metrics.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "state",
    responses((
        status = 200,
        description = "In the text format of Prometheus or OpenMetrics, whichever is asked for",
        content((String = "text/plain"), (String = "application/openmetrics-text"))
    ))
)]
async fn metrics(State(api): State<Arc<Api>>, caller: Caller, headers: HeaderMap) -> Response {
    if let Err(limited) = caller.require_everything() {
        return auth::refusal("/metrics", limited);
    }
    exposition::respond(&exposition::Encoded::from_registry(&api.registry), exposition::Form::asked(&headers))
}

async fn unknown(uri: axum::http::Uri) -> Response {
    ApiError::not_found(format!("there is nothing at {}", uri.path())).into_response()
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    ApiError::method(format!("{} does not take {method}", uri.path())).into_response()
}
