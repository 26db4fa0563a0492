//! The gate: every request passes it, on its way in and on its way out.
//!
//! On the way in it finds out who calls; what a route needs is said where the route is declared,
//! and asked for by [`require`]. On the way out it writes what was refused, and what no handler has
//! written itself, into the audit log.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CACHE_CONTROL, USER_AGENT, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use stepwatch_kit::admin::PROBES;
use stepwatch_kit::serve::WebUser;

use super::caller::{Caller, Who};
use super::keyring::{Keyring, presented};
use super::scope::Scope;
use crate::api::error::{ApiError, Reason};
use crate::audit::{AuditLog, Door, Entry, Outcome};
use crate::{api, callbacks};

/// What our own command line calls itself.
pub(crate) const CLI_AGENT: &str = concat!("stepwatch-alerter-cli/", env!("CARGO_PKG_VERSION"));
const CLI_NAME: &str = "stepwatch-alerter-cli/";

const OPERATING: &str = "/-/";
const ALERTS: &str = "/api/v2/alerts";
/// A question that takes a body.
const PREVIEW: &str = "/api/v1/silences/preview";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    token: String,
}

#[derive(Debug, Clone, Default)]
pub struct GateMetrics {
    refused: Family<Refusal, Counter>,
    used: Family<TokenLabel, Counter>,
}

/// Clones share it.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: ArcSwap<Keyring>,
    audit: AuditLog,
    metrics: GateMetrics,
}

impl GateMetrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "api_refused",
            "Requests that were let in nowhere: unknown (no token, or one that is not known), scope (a token without the scope or \
             with limits)",
            self.refused.clone(),
        );
        registry.register("api_token_requests", "Requests by token", self.used.clone());
    }

    fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Refusal { reason }).inc();
    }
}

impl Gate {
    pub fn new(keys: Keyring, audit: AuditLog, metrics: GateMetrics) -> Self {
        Self(Arc::new(Inner { keys: ArcSwap::from_pointee(keys), audit, metrics }))
    }

    /// Takes over other tokens; those that are gone are refused from now on, on open connections
    /// too.
    pub fn replace(&self, keys: Keyring) {
        let inner = &self.0;
        for grant in inner.keys.load().grants().filter(|old| !keys.grants().any(|new| new.name == old.name)) {
            inner.metrics.used.remove(&TokenLabel { token: grant.name.clone() });
        }
        inner.keys.store(Arc::new(keys));
    }

    /// Whether a token is needed at all.
    pub fn has_tokens(&self) -> bool {
        !self.0.keys.load().is_empty()
    }

    /// Whether a request carries a token in force.
    pub fn knows(&self, headers: &HeaderMap) -> bool {
        presented(headers).is_some_and(|token| self.0.keys.load().find(&token).is_some())
    }

    /// Puts everything behind the gate.
    pub fn protect(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, pass))
    }

    /// `None` for whoever is not let in.
    fn identify(&self, request: &Request) -> Option<Who> {
        if let Some(WebUser(name)) = request.extensions().get() {
            return Some(Who::User(name.clone()));
        }
        let keys = self.0.keys.load();
        if keys.is_empty() {
            return Some(Who::Anybody);
        }
        let grant = keys.find(&presented(request.headers())?)?;
        self.0.metrics.used.get_or_create(&TokenLabel { token: grant.name.clone() }).inc();
        Some(Who::Token(grant))
    }

    fn admit(
        &self,
        request: &Request,
        door: Door,
        remote: Option<IpAddr>,
    ) -> Result<Caller, (Caller, ApiError)> {
        let path = request.uri().path();
        let caller = |who| Caller::new(who, door, remote);
        // Whoever serves these asks for a signature instead.
        if PROBES.contains(&path) || callbacks::PATHS.contains(&path) {
            return Ok(caller(Who::Anybody));
        }
        let Some(who) = self.identify(request) else {
            self.0.metrics.refused("unknown");
            let what = if presented(request.headers()).is_some() {
                "that token is not known"
            } else {
                "no token was sent"
            };
            let message =
                format!("{what}: send `Authorization: Bearer TOKEN`, or the token as the password of Basic");
            return Err((caller(Who::Nobody), ApiError { status: StatusCode::UNAUTHORIZED, message }));
        };
        let caller = caller(who);
        // These are not ours to declare.
        let needed = path.starts_with(OPERATING).then(|| caller.require(Scope::Admin));
        match needed.transpose() {
            Ok(_) => Ok(caller),
            Err(refused) => Err((caller, refused)),
        }
    }

    /// What nobody else has written.
    fn entry(&self, caller: &Caller, method: &Method, uri: &Uri, response: &Response) -> Option<Entry> {
        let (status, path) = (response.status(), uri.path());
        if status == StatusCode::FORBIDDEN {
            self.0.metrics.refused("scope");
        }
        let quiet = status.is_success() && (path == ALERTS || callbacks::PATHS.contains(&path));
        if !changes(method) || path == PREVIEW || quiet || caller.has_told() {
            return None;
        }
        let outcome = match status {
            status if status.is_success() && path.starts_with(OPERATING) => Outcome::Done,
            status if status.is_success() => Outcome::Unchanged,
            status if status.is_client_error() => Outcome::Refused,
            _ => Outcome::Failed,
        };
        let reason = response.extensions().get::<Reason>().map_or("", |Reason(text)| text);
        let detail = match (status.is_success(), reason) {
            (true, _) => reason.to_owned(),
            (false, "") => status.to_string(),
            (false, _) => format!("{}: {reason}", status.as_u16()),
        };
        Some(caller.entry(action(method, path), path).saying(&detail).came_to(outcome))
    }
}

async fn pass(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let door = door(uri.path(), request.headers());
    let admitted = gate.admit(&request, door, remote);
    let (caller, response) = match admitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller.clone());
            (caller, next.run(request).await)
        }
        Err((caller, refused)) => (caller, refusal(uri.path(), refused)),
    };
    if let Some(entry) = gate.entry(&caller, &method, &uri, &response) {
        gate.0.audit.write(entry).await;
    }
    response
}

/// Lets through who has the scope, for the routes that are declared under it.
pub(in crate::api) async fn require(scope: Scope, caller: Caller, request: Request, next: Next) -> Response {
    match caller.require(scope) {
        Ok(()) => next.run(request).await,
        Err(refused) => refusal(request.uri().path(), refused),
    }
}

/// In the shape that whoever asks such a path expects.
pub(in crate::api) fn refusal(path: &str, error: ApiError) -> Response {
    let (status, reason) = (error.status, Reason(error.message.clone()));
    let mut response = if path.starts_with(api::alertmanager::PREFIX) {
        (status, Json(error.message)).into_response()
    } else if path.starts_with("/api/") {
        error.into_response()
    } else if path.starts_with(OPERATING) || path == "/metrics" {
        (status, error.message + "\n").into_response()
    } else {
        api::page::refused(error)
    };
    response.extensions_mut().insert(reason);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::UNAUTHORIZED {
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"stepwatch\""));
        // What makes a browser ask.
        headers.append(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"stepwatch\", charset=\"UTF-8\""),
        );
    }
    response
}

fn door(path: &str, headers: &HeaderMap) -> Door {
    let [slack, pagerduty] = callbacks::PATHS else { return Door::Api };
    let agent = headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    match path {
        path if path == *slack => Door::Slack,
        path if path == *pagerduty => Door::PagerDuty,
        path if path.starts_with(OPERATING) => Door::Operator,
        path if path.starts_with(api::alertmanager::PREFIX) => Door::Alertmanager,
        _ if agent.starts_with(CLI_NAME) => Door::Cli,
        _ => Door::Api,
    }
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The word for a request that no handler has named.
fn action(method: &Method, path: &str) -> &'static str {
    let last = path.rsplit('/').next().unwrap_or_default();
    match (method, last) {
        (_, "ack") => "ack",
        (_, "unack") => "unack",
        (_, "resolve") => "resolve",
        (_, "escalate") => "escalate",
        (_, "notes") => "note",
        (_, "alerts") => "alerts",
        (_, "reload") => "reload",
        (_, "log-level") => "log-level",
        (&Method::POST, "silences") => "silence",
        (&Method::DELETE, _) => "expire",
        _ if callbacks::PATHS.contains(&path) => "callback",
        _ => "request",
    }
}
