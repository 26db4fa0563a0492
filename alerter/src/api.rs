//! The alerter's own HTTP interface.
//!
//! | route | is |
//! |---|---|
//! | `GET /api/v1/incidents?state=&run=&node=&severity=&limit=` | incidents, the latest first |
//! | `GET /api/v1/incidents/{id}` | one, with its history and deliveries; any unique beginning of the id does |
//! | `POST /api/v1/incidents/{id}/ack` `{"by":"alice"}` | escalation stops; durable when it is answered |
//! | `POST /api/v1/incidents/{id}/resolve` `{"by":"alice"}` | closed by hand |
//! | `GET /api/v1/silences?state=` | silences; `/{id}` is one |
//! | `POST /api/v1/silences` | asks for one, with an author and a reason; durable when it is answered |
//! | `DELETE /api/v1/silences/{id}` | ends one |
//! | `POST /api/v1/silences/preview` `{"matchers":[...]}` | what it would keep quiet |
//! | `/api/v2/*` | Alertmanager's API (`api/alertmanager.rs`) |
//! | `GET /api/v1/oncall?schedule=&at=&days=` | who is on call, and when who is |
//! | `GET /api/v1/runs`, `/api/v1/sources`, `/api/v1/status` | what is watched, through whom, and how we are |
//! | `GET /metrics` | the alerter's own metrics |
//! | `GET /`, `/incidents/{id}` | the same for eyes |
//!
//! Reading comes from the store's readers and from copies that the runtime publishes, so that a thousand dashboards cannot delay
//! a page. Errors are `{"error": "..."}`.

mod alertmanager;
mod error;
mod html;
mod incidents;
pub mod oncall;
mod page;
mod silences;
#[cfg(test)]
mod tests;
pub mod view;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use prometheus_client::registry::Registry;
use stepwatch_engine::time::Ts;
use stepwatch_kit::{build_info, exposition};

use crate::clock::wall;
use crate::ingest::SourceTable;
use crate::runtime::RuntimeHandle;
use crate::store::Store;
use error::ApiError;
use view::{RunList, RunView, SourceList, SourceView, Status, When};

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    pub store: Store,
    pub runtime: RuntimeHandle,
    pub sources: SourceTable,
    pub registry: Arc<Registry>,
    pub started: Ts,
}

impl Api {
    pub fn router(self) -> Router {
        Router::new()
            .route("/", get(page::overview))
            .route("/incidents/{id}", get(page::incident))
            .route("/assets/page.css", get(page::style))
            .route("/api/v1/incidents", get(incidents::list))
            .route("/api/v1/incidents/{id}", get(incidents::show))
            .route("/api/v1/incidents/{id}/ack", post(incidents::ack))
            .route("/api/v1/incidents/{id}/resolve", post(incidents::resolve))
            .route("/api/v1/silences", get(silences::list).post(silences::add))
            .route("/api/v1/silences/preview", post(silences::preview))
            .route("/api/v1/silences/{id}", get(silences::show).delete(silences::expire))
            .route("/api/v1/oncall", get(oncall::show))
            .route("/api/v1/runs", get(runs))
            .route("/api/v1/sources", get(sources))
            .route("/api/v1/status", get(status))
            .merge(alertmanager::routes())
            .route("/metrics", get(metrics))
            .fallback(unknown)
            .method_not_allowed_fallback(wrong_method)
            .with_state(Arc::new(self))
    }

    fn run_views(&self) -> RunList {
        let (view, now) = (self.runtime.views.get(), wall());
        RunList { runs: view.runs.iter().map(|r| RunView::of(r, now)).collect(), hidden: view.runs_hidden }
    }

    fn status(&self) -> Status {
        let view = self.runtime.views.get();
        let sources = self.sources.views();
        Status {
            version: build_info::VERSION,
            revision: build_info::GIT_SHA,
            started_at: When(self.started),
            sources: sources.len(),
            sources_up: sources.iter().filter(|s| s.up).count(),
            runs: view.runs.len() + view.runs_hidden,
            open_incidents: view.open_incidents,
            pending_effects: view.pending_effects,
            store: if view.store_refuses { "refuses commits" } else { "ok" },
            next_deadline_at: view.next_deadline.map(|(at, _)| When(at)),
            next_deadline: view.next_deadline.map(|(_, why)| why),
        }
    }
}

async fn runs(State(api): State<Arc<Api>>) -> Json<RunList> {
    Json(api.run_views())
}

async fn sources(State(api): State<Arc<Api>>) -> Json<SourceList> {
    Json(SourceList { sources: api.sources.views().into_iter().map(SourceView::from).collect() })
}

async fn status(State(api): State<Arc<Api>>) -> Json<Status> {
    Json(api.status())
}

async fn metrics(State(api): State<Arc<Api>>, headers: HeaderMap) -> Response {
    exposition::respond(&exposition::Encoded::from_registry(&api.registry), exposition::Form::asked(&headers))
}

async fn unknown(uri: axum::http::Uri) -> Response {
    ApiError::not_found(format!("there is nothing at {}", uri.path())).into_response()
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    ApiError::method(format!("{} does not take {method}", uri.path())).into_response()
}
