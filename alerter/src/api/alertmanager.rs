//! Alertmanager's HTTP API, version 2, for Prometheus servers that use this alerter as their
//! Alertmanager, and for `amtool`, karma and Grafana.
//!
//! Shapes, defaults, filters and status codes are those of Alertmanager's OpenAPI document
//! (`api/v2/openapi.yaml`); an error is a JSON string, as in Alertmanager. The engine decides what
//! an alert means.

mod alerts;
mod errors;
mod filter;
mod inhibited;
mod listed;
mod shown;
mod silences;
mod sketch;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Json, Response};
use stepwatch_kit::build_info;
#[cfg(any(test, feature = "fuzz"))]
use stepwatch_model::time::Ts;
#[cfg(any(test, feature = "fuzz"))]
use stepwatch_respond::external::PostedAlert;
use utoipa::openapi::RefOr;
use utoipa::{IntoResponses as _, PartialSchema as _};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use super::auth::Caller;
use super::doc::errors::too_slow;
use super::state::Api;
use super::view::When;
use errors::Refused;
use wire::{Cluster, ConfigText, Name, StatusView, VersionInfo};

/// The most bytes of alerts in one request: Prometheus sends 256 alerts at once.
pub(crate) const MAX_ALERTS_BODY: usize = 8 << 20;

/// The prefix of the API's paths.
pub(super) const PREFIX: &str = "/api/v2/";
/// Precedes our own configuration, which is a comment to Alertmanager's clients.
const OURS: &str = "\n# The configuration of stepwatch-alerter, without comments and secrets:\n#\n";

/// Parses the alerts in a request body.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_alerts(body: &[u8], now: Ts) -> Vec<PostedAlert> {
    alerts::fuzz(body, now)
}

/// Parses the query of a list and the body of a silence.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz_queries(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(filter) = filter::Filter::parse(&text) {
        let labels = filter.matchers.iter().map(|m| (m.label().to_owned(), m.value().to_owned())).collect();
        let _ = (filter.wants(&labels, false, false), filter.wants_receiver(&text));
    }
    let posted = serde_json::from_slice::<wire::PostableSilence>(data);
    let wanted = posted.map_err(|_| ()).and_then(|posted| silences::wanted(posted).map_err(|_| ()));
    let _ = wanted.map(|w| w.matchers.iter().filter(|m| m.holds_of(&text)).count());
}

/// The error responses of authentication and of overload, for the OpenAPI document.
pub(super) fn refusals() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    let refused = errors::Unauthorized::responses().into_iter().chain(errors::Forbidden::responses());
    refused.chain(too_slow(String::schema())).collect()
}

/// An error response in Alertmanager's form.
pub(super) fn error(status: StatusCode, why: &str) -> Response {
    Refused(status, why.to_owned()).into_response()
}

pub(super) fn reading() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::default()
        .routes(routes!(alerts::list))
        .routes(routes!(alerts::groups))
        .routes(routes!(silences::list))
        .routes(routes!(silences::show))
        .routes(routes!(status))
        .routes(routes!(receivers))
}

pub(super) fn silencing() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::default().routes(routes!(silences::put)).routes(routes!(silences::expire))
}

pub(super) fn ingesting() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::default().routes(routes!(alerts::take).layer(DefaultBodyLimit::max(MAX_ALERTS_BODY)))
}

/// Version, configuration and status of this alerter.
#[utoipa::path(
    get,
    path = "/api/v2/status",
    operation_id = "alertmanagerGetStatus",
    tag = "alertmanager",
    responses((status = 200, description = "Version and configuration, as far as Alertmanager has words for them", body = StatusView))
)]
async fn status(State(api): State<Arc<Api>>, caller: Caller) -> Json<StatusView> {
    // Only callers without limits see the routes.
    let whole = caller.token_scope().is_none();
    let ours = whole.then(|| api.runtime.read_model.configuration());
    let ours: Vec<String> =
        ours.iter().flat_map(|text| text.lines()).map(|line| format!("# {line}\n")).collect();
    let ours = ours.concat();
    let sketch = sketch::render(&api.runtime.read_model.routing(), whole);
    Json(StatusView {
        cluster: Cluster { name: "", status: "disabled", peers: Vec::new() },
        // Our configuration has another format. First comes the part that Alertmanager's format can
        // express, for programs that parse it, and then the whole as a comment.
        config: ConfigText { original: format!("{sketch}{OURS}{ours}") },
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

/// The receivers.
#[utoipa::path(
    get,
    path = "/api/v2/receivers",
    operation_id = "alertmanagerListReceivers",
    tag = "alertmanager",
    responses((status = 200, description = "Names of receivers", body = Vec<Name>))
)]
async fn receivers(State(api): State<Arc<Api>>) -> Json<Vec<Name>> {
    let routing = api.runtime.read_model.routing();
    Json(routing.config.receivers.iter().map(|name| Name { name: name.clone() }).collect())
}
