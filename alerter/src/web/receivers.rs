//! The page of receivers: whether messages arrive, what waits, and a test button.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{get, post};
use tokio::sync::watch;

use super::format::ago;
use super::layout::{Frame, Place};
use super::page::{Result, page, shown};
use super::requiring;
use crate::access::Scope;
use crate::api::Api;
use crate::api::auth::Caller;
use crate::api::error::ApiError;
use crate::clock::wall;
use crate::notify::trial;
use crate::outbox::Receivers;
use crate::store::ReceiverState;

#[derive(Debug)]
struct ReceiverRow {
    name: String,
    kind: &'static str,
    delivered: Option<String>,
    waiting: usize,
    oldest: Option<String>,
    failed: usize,
    error: Option<(String, String)>,
}

#[derive(Debug, Template)]
#[template(path = "receivers.html")]
struct ReceiversPage {
    frame: Frame,
    rows: Vec<ReceiverRow>,
    said: Option<String>,
    may_test: bool,
}

#[derive(Debug, Clone)]
struct Sources {
    api: Arc<Api>,
    receivers: watch::Receiver<Receivers>,
}

/// The page, and its buttons.
pub(super) fn router(api: &Arc<Api>, receivers: watch::Receiver<Receivers>) -> Router {
    let read = Router::new().route("/receivers", get(show)).route_layer(from_fn(requiring(Scope::Read)));
    let admin = Router::new()
        .route("/receivers/{name}/test", post(test))
        .route_layer(from_fn(requiring(Scope::Admin)));
    read.merge(admin).with_state(Sources { api: Arc::clone(api), receivers })
}

/// `GET /receivers`
async fn show(State(from): State<Sources>, caller: Caller) -> Result<Response> {
    list(&from, &caller, Ok(None)).await
}

/// `POST /receivers/{name}/test`: sends a test incident and resolves it.
async fn test(State(from): State<Sources>, caller: Caller, Path(name): Path<String>) -> Result<Response> {
    caller.require_everything()?;
    let notifier = from.receivers.borrow().get(&name).cloned();
    let notifier = notifier.ok_or_else(|| ApiError::not_found(format!("there is no receiver {name:?}")))?;
    tracing::info!(receiver = name, by = caller.actor(), "a test of a receiver");
    let said = match trial::try_out(notifier.as_ref(), trial::test_message(&name, wall())).await {
        Ok(None) => Ok(Some(format!("{name}: the test was delivered and resolved."))),
        Ok(Some(doubt)) => Ok(Some(format!(
            "{name}: the test was delivered. A message whose answer is lost would be sent twice: {doubt}"
        ))),
        Err(why) => {
            Err(ApiError { status: StatusCode::BAD_GATEWAY, message: format!("{name}: the test {why}") })
        }
    };
    list(&from, &caller, said).await
}

async fn list(
    from: &Sources,
    caller: &Caller,
    said: core::result::Result<Option<String>, ApiError>,
) -> Result<Response> {
    // Errors of services contain channels and addresses of everybody.
    caller.require_everything()?;
    let mut states = from.api.store.receiver_states().await?;
    let receivers = from.receivers.borrow().clone();
    let row = |(name, notifier): (&String, &Arc<dyn crate::notify::Notifier>)| {
        ReceiverRow::of(name, notifier.kind(), states.remove(name).unwrap_or_default())
    };
    let rows = receivers.iter().map(row).collect();
    let (status, said, alarm) = match said {
        Ok(said) => (StatusCode::OK, said, None),
        Err(why) => (why.status, None, Some(why.message)),
    };
    let frame = Frame::new(&from.api, caller, Place::Receivers, "Receivers", "/receivers").await?;
    let may_test = caller.scopes().has(Scope::Admin);
    let list = ReceiversPage { frame: Frame { alarm: alarm.clone(), ..frame }, rows, said, may_test };
    Ok(shown(page(status, &list), alarm))
}

impl ReceiverRow {
    fn of(name: &str, kind: &'static str, state: ReceiverState) -> Self {
        let now = wall();
        let delivered = state.delivered_at.and_then(|at| at.parse::<jiff::Timestamp>().ok());
        Self {
            name: name.to_owned(),
            kind,
            delivered: delivered.map(|at| ago(now, stepwatch_model::Ts(at.as_millisecond()))),
            waiting: state.waiting,
            oldest: state.oldest.map(|at| (now - at).to_string()),
            failed: state.failed,
            error: state.error.map(|(at, error)| (ago(now, at), error)),
        }
    }
}
