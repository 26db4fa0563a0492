//! The web interface: one file and one template (`pages/`) per page, and the common frame
//! (`layout`).
//!
//! Pages show the API's answers, and their buttons do what the API does; they make no decisions.
//! Everything works with links and forms. The script (`assets/app.js`) refreshes a page, shows its
//! age, and handles keys. External values reach the HTML only through askama, which escapes them.

pub(crate) mod assets;
mod compress;
mod detectors;
mod error_page;
mod form;
mod format;
mod incident;
mod incidents;
mod layout;
pub(crate) mod login;
mod login_oidc;
mod node;
mod nodes;
mod oncall;
mod page;
mod receivers;
mod report;
mod run;
mod run_history;
mod runbooks;
mod runs;
mod silences;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::{self, Caller, Gate};
use crate::api::charts;
use crate::outbox::Receivers;
use crate::signed_paths::{LOGIN, LOGOUT, OIDC, OIDC_BACK};

pub(crate) use error_page::with_error_pages;

/// All pages, grouped by the scope that they require.
pub(crate) fn router(api: &Arc<Api>, gate: &Gate, receivers: watch::Receiver<Receivers>) -> Router {
    let read = Router::new()
        .route("/", get(incidents::show))
        .route("/incidents/{id}", get(incident::show))
        .route("/incidents/{id}/chart.svg", get(charts::svg))
        .route("/incidents/{id}/chart.png", get(charts::png))
        .route("/oncall", get(oncall::show))
        .route("/detectors", get(detectors::show))
        .route("/runbooks", get(runbooks::contents))
        .route("/runbooks/{kind}", get(runbooks::show))
        .route("/silences", get(silences::show))
        .route("/silences/new", get(silences::form))
        .route("/silences/preview", post(silences::try_out))
        .route("/runs", get(runs::show))
        .route("/runs/{run}", get(run::show))
        .route("/report", get(report::show))
        .route("/nodes", get(nodes::show))
        .route("/nodes/{node}", get(node::show));
    let ack = Router::new()
        .route("/incidents/ack", post(incidents::acknowledge))
        .route("/incidents/{id}/{action}", post(incident::act));
    let silence = Router::new()
        .route("/silences", post(silences::create))
        .route("/silences/{id}/{action}", post(silences::act))
        .route("/oncall/overrides", post(oncall::take_over))
        .route("/oncall/overrides/{id}/remove", post(oncall::remove));
    let groups = [(Scope::Read, read), (Scope::Ack, ack), (Scope::Silence, silence)];
    let groups = groups.map(|(scope, routes)| routes.route_layer(from_fn(requiring(scope))));
    let open = Router::new()
        .route("/assets/{hash}/{name}", get(assets::serve))
        .route(LOGIN, get(login::show).post(login::log_in))
        .route(LOGOUT, post(login::log_out))
        .route(OIDC, get(login_oidc::leave))
        .route(OIDC_BACK, get(login_oidc::arrive))
        .with_state(gate.clone());
    let pages = groups.into_iter().fold(Router::new(), Router::merge).with_state(Arc::clone(api));
    let all = pages.merge(receivers::router(api, receivers)).merge(open);
    all.layer(from_fn(compress::compress))
}

/// A layer that refuses callers without the scope.
fn requiring(
    scope: Scope,
) -> impl Fn(Caller, Request, Next) -> BoxFuture<'static, Response> + Clone + Send + Sync + 'static {
    move |caller, request, next| Box::pin(auth::require(scope, caller, request, next))
}
