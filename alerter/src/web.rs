//! The pages for people: one file a page, one template a page (`pages/`), and the frame that all
//! have (`layout`).
//!
//! A page shows what the API answers, and its buttons do what the API does: nothing here decides.
//! Everything works by links and forms; the script (`assets/app.js`) renews a page, says how old it
//! is, and takes keys. Values from outside reach the HTML through askama alone, which escapes them.

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
mod node;
mod nodes;
mod oncall;
mod receivers;
mod run;
mod run_history;
mod runbooks;
mod runs;
mod silences;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::{self, Caller, Gate};
use crate::api::charts;
use crate::api::error::{ApiError, Reason, Shown};
use crate::outbox::Receivers;
use crate::signed_paths::{LOGIN, LOGOUT};

pub(crate) use error_page::with_error_pages;

type Result<T> = core::result::Result<T, ApiError>;

/// Scripts, styles and pictures are our own files, no other page may frame ours, and forms lead
/// here.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Every page, under the scope that it needs.
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
        .route("/nodes", get(nodes::show))
        .route("/nodes/{node}", get(node::show));
    let ack = Router::new()
        .route("/incidents/ack", post(incidents::acknowledge))
        .route("/incidents/{id}/{action}", post(incident::act));
    let silence = Router::new()
        .route("/silences", post(silences::create))
        .route("/silences/{id}/{action}", post(silences::act));
    let groups = [(Scope::Read, read), (Scope::Ack, ack), (Scope::Silence, silence)];
    let groups = groups.map(|(scope, routes)| routes.route_layer(from_fn(requiring(scope))));
    let open = Router::new()
        .route("/assets/{hash}/{name}", get(assets::serve))
        .route(LOGIN, get(login::show).post(login::log_in))
        .route(LOGOUT, post(login::log_out))
        .with_state(gate.clone());
    let pages = groups.into_iter().fold(Router::new(), Router::merge).with_state(Arc::clone(api));
    let all = pages.merge(receivers::router(api, receivers)).merge(open);
    all.layer(from_fn(compress::compress))
}

/// Refuses callers without the scope.
fn requiring(
    scope: Scope,
) -> impl Fn(Caller, Request, Next) -> BoxFuture<'static, Response> + Clone + Send + Sync + 'static {
    move |caller, request, next| Box::pin(auth::require(scope, caller, request, next))
}

/// A page that says itself why a request was refused, if one was: for the audit log.
fn shown(mut page: Response, reason: Option<String>) -> Response {
    if let Some(reason) = reason {
        page.extensions_mut().insert(Reason(reason));
        page.extensions_mut().insert(Shown);
    }
    page
}

/// A page, in the headers that keep a browser from doing more than showing it.
fn page(status: StatusCode, template: &impl Template) -> Response {
    let html = match template.render() {
        Ok(html) => html,
        Err(err) => {
            tracing::error!(%err, "a page cannot be rendered");
            return ApiError::unavailable("this page cannot be shown; see the alerter's log").into_response();
        }
    };
    let mut response = (status, Html(html)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // `no-referrer` would send forms with `Origin: null`, which is refused.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
