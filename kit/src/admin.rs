//! The endpoints under `/-/` for operating a service: liveness, readiness, reload, log level.
//!
//! `POST /-/reload` or SIGHUP requests a reload, and the program does it. The program answers
//! whether its new configuration took effect; otherwise the old one stays.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::logging::LogControl;

/// The most reloads that wait while one runs; further requests would read the same files.
const WAITING_RELOADS: usize = 1;
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_FILTER_BYTES: usize = 4 << 10;
/// The `by` of a [`ReloadRequest`] that a signal made.
pub const BY_SIGNAL: &str = "SIGHUP";

const HEALTHY: &str = "/-/healthy";
const READY: &str = "/-/ready";
/// The paths that never need a password: a supervisor has none, and would take a 401 as a sign that
/// the process is unhealthy.
pub const PROBES: [&str; 2] = [HEALTHY, READY];

/// A request to read the configuration again. Reply with the result.
#[derive(Debug)]
pub struct ReloadRequest {
    /// The source of the request: `POST /-/reload` or `SIGHUP`.
    pub by: &'static str,
    pub reply: oneshot::Sender<Result<(), String>>,
}

/// The operating endpoints of a service.
#[derive(Debug, Clone)]
pub struct Admin {
    log: LogControl,
    reload: mpsc::Sender<ReloadRequest>,
    closed: Arc<Mutex<BTreeSet<String>>>,
    needs: Vec<Need>,
}

/// Returns what the service is waiting for at the moment, if anything.
#[derive(Clone)]
struct Need(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Need")
    }
}

/// Keeps the service from being ready until the latch is opened or dropped.
#[derive(Debug)]
pub struct Latch {
    name: String,
    closed: Arc<Mutex<BTreeSet<String>>>,
}

impl Admin {
    /// Listens for SIGHUP from now on. Must be called inside a Tokio runtime.
    pub fn new(log: LogControl) -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (reload, requests) = mpsc::channel(WAITING_RELOADS);
        match signal(SignalKind::hangup()) {
            Ok(hangups) => drop(tokio::spawn(reload_on_sighup(hangups, reload.clone()))),
            Err(err) => tracing::error!(%err, "cannot listen for SIGHUP: reload by POST /-/reload"),
        }
        (Self { log, reload, closed: Arc::default(), needs: Vec::new() }, requests)
    }

    /// Serves `/-/healthy`, `/-/ready`, `/-/reload` and `/-/log-level`.
    pub fn router(&self) -> Router {
        Router::new()
            .route(HEALTHY, get(|| async { "healthy\n" }))
            .route(READY, get(ready))
            .route("/-/reload", post(reload))
            .route("/-/log-level", get(log_level).put(set_log_level))
            .layer(DefaultBodyLimit::max(MAX_FILTER_BYTES))
            .with_state(self.clone())
    }

    /// Keeps the service from being ready while the latch is held. `name` says what it waits for.
    /// Two latches of one name share one condition, which is met when either is opened.
    pub fn latch(&self, name: &str) -> Latch {
        lock(&self.closed).insert(name.to_owned());
        Latch { name: name.to_owned(), closed: Arc::clone(&self.closed) }
    }

    /// Keeps the service from being ready while `waits_for` returns a text. The text is shown to
    /// every client, because readiness needs no password.
    #[must_use]
    pub fn needing(mut self, waits_for: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.needs.push(Need(Arc::new(waits_for)));
        self
    }

    pub fn is_ready(&self) -> bool {
        self.waits_for().is_empty()
    }

    fn waits_for(&self) -> Vec<String> {
        let closed = lock(&self.closed).iter().cloned().collect::<Vec<_>>();
        closed.into_iter().chain(self.needs.iter().filter_map(|need| (need.0)())).collect()
    }
}

impl Latch {
    pub fn open(&self) {
        lock(&self.closed).remove(&self.name);
    }
}

impl Drop for Latch {
    fn drop(&mut self) {
        self.open();
    }
}

fn lock(closed: &Mutex<BTreeSet<String>>) -> MutexGuard<'_, BTreeSet<String>> {
    closed.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn ready(State(admin): State<Admin>) -> Response {
    let waiting = admin.waits_for().join(", ");
    if waiting.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {waiting}\n")).into_response()
}

async fn reload(State(admin): State<Admin>) -> Response {
    match request_reload(&admin.reload, "POST /-/reload").await {
        Ok(()) => "reloaded\n".into_response(),
        Err((code, why)) => (code, format!("{why}\n")).into_response(),
    }
}

async fn log_level(State(admin): State<Admin>) -> String {
    admin.log.get() + "\n"
}

async fn set_log_level(State(admin): State<Admin>, filter: String) -> Response {
    let before = admin.log.get();
    match admin.log.set(&filter) {
        Ok(()) => {
            let now = admin.log.get();
            tracing::warn!(from = before, to = now, "log level changed");
            (now + "\n").into_response()
        }
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}

/// Requests a reload from the program and logs the result; `by` is the source of the request.
async fn request_reload(
    queue: &mpsc::Sender<ReloadRequest>,
    by: &'static str,
) -> Result<(), (StatusCode, String)> {
    let result = reload_by_program(queue, by).await;
    match &result {
        Ok(()) => tracing::info!(by, "reloaded"),
        Err((_, why)) => tracing::error!(by, why, "reload failed; the old configuration stays"),
    }
    result
}

async fn reload_by_program(
    queue: &mpsc::Sender<ReloadRequest>,
    by: &'static str,
) -> Result<(), (StatusCode, String)> {
    let (reply, answer) = oneshot::channel();
    let busy = |_| {
        (StatusCode::SERVICE_UNAVAILABLE, "another reload is waiting, or this program is stopping".into())
    };
    queue.try_send(ReloadRequest { by, reply }).map_err(busy)?;
    match tokio::time::timeout(RELOAD_TIMEOUT, answer).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(why))) => Err((StatusCode::INTERNAL_SERVER_ERROR, why)),
        Ok(Err(_)) => Err((StatusCode::SERVICE_UNAVAILABLE, "this program is stopping".into())),
        Err(_) => Err((StatusCode::GATEWAY_TIMEOUT, "the reload is taking long; see the log".into())),
    }
}

async fn reload_on_sighup(mut hangups: Signal, queue: mpsc::Sender<ReloadRequest>) {
    loop {
        tokio::select! {
            () = queue.closed() => return,
            got = hangups.recv() => if got.is_none() { return },
        }
        // The result is not needed here, because it is logged.
        let _ = request_reload(&queue, BY_SIGNAL).await;
    }
}

#[cfg(test)]
mod tests;
