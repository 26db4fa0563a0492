//! Alertmanager's HTTP API, version 2: a Prometheus that has us as its Alertmanager, `amtool`, karma and Grafana talk to this.
//!
//! | route | is |
//! |---|---|
//! | `POST /api/v2/alerts` | alerts that fire, or are over; durable when it is answered |
//! | `GET /api/v2/alerts`, `/api/v2/alerts/groups` | what fires: those alerts, and our own incidents |
//! | `GET`, `POST /api/v2/silences`, `GET`, `DELETE /api/v2/silence/{id}` | silences, the same as everywhere else |
//! | `GET /api/v2/status`, `/api/v2/receivers` | who we are, and whom we tell |
//!
//! Shapes, defaults, filters and status codes are those of Alertmanager's OpenAPI document (`api/v2/openapi.yaml`); an error is a
//! JSON string, as there. What an alert means to us is the engine's matter.

mod alerts;
mod filter;
mod shown;
mod silences;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use stepwatch_kit::build_info;

use super::Api;
use super::error::ApiError;
use super::view::When;
use wire::{Cluster, ConfigText, Name, StatusView, VersionInfo};

/// Bytes of alerts in one request: Prometheus sends 256 at once.
const MAX_ALERTS_BODY: usize = 8 << 20;

type Result<T> = core::result::Result<T, Refused>;

/// An error as Alertmanager tells it.
#[derive(Debug)]
pub(super) struct Refused(StatusCode, String);

impl Refused {
    fn bad(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, why.into())
    }
}

impl From<ApiError> for Refused {
    fn from(e: ApiError) -> Self {
        Self(e.status, e.message)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route(
            "/api/v2/alerts",
            post(alerts::take).layer(DefaultBodyLimit::max(MAX_ALERTS_BODY)).get(alerts::list),
        )
        .route("/api/v2/alerts/groups", get(alerts::groups))
        .route("/api/v2/silences", get(silences::list).post(silences::put))
        .route("/api/v2/silence/{id}", get(silences::show).delete(silences::expire))
        .route("/api/v2/status", get(status))
        .route("/api/v2/receivers", get(receivers))
}

async fn status(State(api): State<Arc<Api>>) -> Json<StatusView> {
    let names = &api.runtime.board.routing().config.receivers;
    let first = names.first().map_or("none", String::as_str);
    let others = names.iter().skip(1).map(String::as_str);
    let list: Vec<String> =
        core::iter::once(first).chain(others).map(|name| format!("- name: {name:?}\n")).collect();
    Json(StatusView {
        cluster: Cluster { name: "", status: "disabled", peers: Vec::new() },
        // Ours is another language, and its secrets are nobody's business: what can be said in Alertmanager's.
        config: ConfigText {
            original: format!("route:\n  receiver: {first:?}\nreceivers:\n{}", list.concat()),
        },
        uptime: When(api.started),
        version_info: VersionInfo {
            branch: "",
            build_date: "",
            build_user: "",
            go_version: "",
            revision: build_info::GIT_SHA,
            version: build_info::VERSION,
        },
    })
}

async fn receivers(State(api): State<Arc<Api>>) -> Json<Vec<Name>> {
    let routing = api.runtime.board.routing();
    Json(routing.config.receivers.iter().map(|name| Name { name: name.clone() }).collect())
}
