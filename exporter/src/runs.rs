//! `GET /v1/runs`: every run that is followed, with the sources that report it and why they belong
//! to this run.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use crate::hub::Hub;
use crate::reply;

/// Where a running exporter serves its runs.
pub const RUNS: &str = "/v1/runs";

pub fn routes(hub: Hub) -> Router {
    Router::new().route(RUNS, get(runs)).with_state(hub)
}

async fn runs(State(hub): State<Hub>) -> Response {
    let body = serde_json::json!({ "node": hub.node(), "runs": hub.runs() });
    reply::json(axum::http::StatusCode::OK, &body)
}
