//! The gate, which checks every request and every response.
//!
//! For a request, the gate authenticates the caller; each route declares the scope that it
//! requires, and [`require`] checks it. For a response, the gate writes refusals into the audit
//! log, and changes for which no handler wrote an entry.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, USER_AGENT, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Json, Response};
use stepwatch_kit::admin::PROBES;
use stepwatch_kit::serve::WebUser;
use stepwatch_kit::web_config::WebConfig;

use super::caller::{Caller, Who};
use super::login::Reached;
use crate::access::sessions::{Credential, SessionId, Sessions};
use crate::access::{Keyring, Scope, presented};
use crate::api::error::{ApiError, Reason};
use crate::audit::{AuditLog, Door, Entry, Outcome};
use crate::metrics::GateMetrics;
use crate::oidc::{Attempts, Oidc};
use crate::{api, signed_paths};

/// The `User-Agent` of our own command line.
pub(crate) const CLI_AGENT: &str = concat!("stepwatch-alerter-cli/", env!("CARGO_PKG_VERSION"));
const CLI_NAME: &str = "stepwatch-alerter-cli/";

/// The header and the form field with the CSRF token of a session's request.
const CSRF_HEADER: &str = "x-csrf-token";
const CSRF_FIELD: &str = "csrf";
const FORM: &str = "application/x-www-form-urlencoded";
/// The most bytes of a form: its longest field is a silence's comment.
pub(crate) const MAX_FORM: usize = 64 << 10;

const LOGINS: &[&str] = &[signed_paths::LOGIN, signed_paths::LOGOUT];
const OPERATING: &str = "/-/";
const ALERTS: &str = "/api/v2/alerts";
/// The paths of read-only requests that have a body.
const PREVIEWS: &[&str] = &["/api/v1/silences/preview", "/silences/preview"];

/// The gate. Clones share its state.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: ArcSwap<Keyring>,
    audit: AuditLog,
    metrics: GateMetrics,
    sessions: Sessions,
    reached: ArcSwap<Reached>,
    oidc: ArcSwapOption<Oidc>,
    attempts: Attempts,
}

impl Gate {
    /// Creates the gate. `oidc` vouches for people, and `web` has the users; together with
    /// `external_url` it determines whether browsers use HTTPS.
    pub fn new(
        keys: Keyring,
        oidc: Option<Arc<Oidc>>,
        audit: AuditLog,
        metrics: GateMetrics,
        web: Option<WebConfig>,
        external_url: Option<&str>,
    ) -> Self {
        let reached = ArcSwap::from_pointee(Reached::new(web, external_url));
        let keys = ArcSwap::from_pointee(keys);
        let (sessions, oidc, attempts) = (Sessions::default(), ArcSwapOption::new(oidc), Attempts::new());
        Self(Arc::new(Inner { keys, audit, metrics, sessions, reached, oidc, attempts }))
    }

    pub(super) fn keys(&self) -> arc_swap::Guard<Arc<Keyring>> {
        self.0.keys.load()
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub(super) fn reached(&self) -> Arc<Reached> {
        self.0.reached.load_full()
    }

    /// The OpenID Connect provider, if there is one.
    pub(crate) fn oidc(&self) -> Option<Arc<Oidc>> {
        self.0.oidc.load_full()
    }

    pub(super) fn attempts(&self) -> &Attempts {
        &self.0.attempts
    }

    pub(super) async fn write_audit(&self, entry: Entry) {
        self.0.audit.write(entry).await;
    }

    pub(super) fn count_refused(&self, reason: &'static str) {
        self.0.metrics.refused(reason);
    }

    /// Replaces the tokens, the provider of OpenID Connect, and the address that tells whether
    /// browsers use HTTPS. Removed tokens are refused from now on, also on open connections and in
    /// sessions, and so are people who have lost their role.
    pub fn replace(&self, keys: Keyring, oidc: Option<Arc<Oidc>>, external_url: Option<&str>) {
        let inner = &self.0;
        for grant in inner.keys.load().grants().filter(|old| !keys.grants().any(|new| new.name == old.name)) {
            inner.metrics.forget(&grant.name);
        }
        let keeps = |of: &Credential| match of {
            Credential::Token(hash) => keys.find_hash(hash).is_some(),
            Credential::User { .. } => true,
            Credential::Person { .. } => oidc.as_ref().is_some_and(|oidc| oidc.rights(of).is_some()),
        };
        inner.sessions.retain(keeps);
        inner.keys.store(Arc::new(keys));
        inner.oidc.store(oidc);
        inner.reached.store(Arc::new(Reached::new(self.reached().web.clone(), external_url)));
    }

    /// Whether requests need a token.
    pub fn has_tokens(&self) -> bool {
        !self.0.keys.load().is_empty()
    }

    /// Whether requests need a token, or a session of a person of OpenID Connect.
    pub fn needs_credentials(&self) -> bool {
        self.has_tokens() || self.0.oidc.load().is_some()
    }

    /// Whether a request has a valid token or session.
    pub fn knows(&self, headers: &HeaderMap) -> bool {
        presented(headers).is_some_and(|token| self.0.keys.load().find(&token).is_some())
            || (!headers.contains_key(AUTHORIZATION) && self.session_of(headers).is_some())
    }

    /// Puts all routes behind the gate.
    pub fn protect(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, pass))
    }

    /// The caller of a request; `None` if it is refused.
    fn identify(&self, request: &Request) -> Option<(Who, Option<SessionId>)> {
        if let Some(WebUser(name)) = request.extensions().get() {
            return Some((Who::User(name.clone()), None));
        }
        let headers = request.headers();
        // An explicit `Authorization` header takes precedence over a cookie.
        if !headers.contains_key(AUTHORIZATION)
            && let Some((id, who)) = self.session_of(headers)
        {
            if let Who::Token(grant) = &who {
                self.0.metrics.used(&grant.name);
            }
            return Some((who, Some(id)));
        }
        // Users had to give a password before this point, unless their session has just ended.
        if !self.needs_credentials() && !self.reached().has_users() {
            return Some((Who::Anybody, None));
        }
        let grant = self.0.keys.load().find(&presented(headers)?)?;
        self.0.metrics.used(&grant.name);
        Some((Who::Token(grant), None))
    }

    fn admit(
        &self,
        request: &Request,
        door: Door,
        remote: Option<IpAddr>,
    ) -> Result<Caller, (Caller, ApiError)> {
        let path = request.uri().path();
        let caller = |who| Caller::new(who, door, remote);
        // The handlers of signed paths check a signature instead.
        let open = PROBES.contains(&path) || signed_paths::is_open(path);
        if open || signed_paths::ALL.contains(&path) {
            return Ok(caller(Who::Anybody));
        }
        let Some((who, session)) = self.identify(request) else {
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
        let caller = session.into_iter().fold(caller(who), Caller::in_session);
        // The routes of the operating interface are not declared here.
        let needed = path.starts_with(OPERATING).then(|| caller.require(Scope::Admin));
        match needed.transpose() {
            Ok(_) => Ok(caller),
            Err(refused) => Err((caller, refused)),
        }
    }

    /// The audit entry of a request for which no handler wrote one.
    fn entry(&self, caller: &Caller, method: &Method, uri: &Uri, response: &Response) -> Option<Entry> {
        let (status, path) = (response.status(), uri.path());
        if status == StatusCode::FORBIDDEN {
            self.0.metrics.refused("scope");
        }
        // A successful form redirects to a page.
        let success = status.is_success() || status.is_redirection();
        let quiet = success && (path == ALERTS || signed_paths::ALL.contains(&path));
        if !changes(method) || PREVIEWS.contains(&path) || quiet || caller.is_audited() {
            return None;
        }
        let outcome = match status {
            _ if success && (path.starts_with(OPERATING) || LOGINS.contains(&path)) => Outcome::Done,
            _ if success => Outcome::Unchanged,
            status if status.is_client_error() => Outcome::Refused,
            _ => Outcome::Failed,
        };
        let reason = response.extensions().get::<Reason>().map_or("", |Reason(text)| text);
        let detail = match (success, reason) {
            (true, _) => reason.to_owned(),
            (false, "") => status.to_string(),
            (false, _) => format!("{}: {reason}", status.as_u16()),
        };
        Some(caller.entry(action(method, path), path).saying(&detail).came_to(outcome))
    }
}

async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let door = door(uri.path(), request.headers());
    let admitted = gate.admit(&request, door, remote);
    let (caller, response) = match admitted {
        Ok(caller) => match ours(&caller, request).await {
            Ok(mut request) => {
                request.extensions_mut().insert(caller.clone());
                (caller, next.run(request).await)
            }
            Err(forged) => (caller, refusal(uri.path(), forged)),
        },
        Err((caller, refused)) => (caller, refusal(uri.path(), refused)),
    };
    if let Some(entry) = gate.entry(&caller, &method, &uri, &response) {
        gate.0.audit.write(entry).await;
    }
    response
}

/// Checks that a changing request of a session comes from one of our own pages: it must have the
/// CSRF token, in a header or in a form field.
async fn ours(caller: &Caller, request: Request) -> Result<Request, ApiError> {
    let Some(session) = caller.session().filter(|_| changes(request.method())) else { return Ok(request) };
    let forged = || ApiError {
        status: StatusCode::FORBIDDEN,
        message: "this was not sent by a page of your session (X-CSRF-Token): load the page again".into(),
    };
    if let Some(shown) = request.headers().get(CSRF_HEADER) {
        let made = shown.to_str().is_ok_and(|csrf| session.made(csrf));
        return if made { Ok(request) } else { Err(forged()) };
    }
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if request.uri().path().starts_with("/api/") || !content_type.starts_with(FORM) {
        return Err(forged());
    }
    let (parts, body) = request.into_parts();
    let too_large = |_| ApiError {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        message: format!("a form has at most {MAX_FORM} bytes, and arrives in time"),
    };
    let body = axum::body::to_bytes(body, MAX_FORM).await.map_err(too_large)?;
    let mut fields = url::form_urlencoded::parse(&body);
    if !fields.any(|(name, value)| name == CSRF_FIELD && session.made(&value)) {
        return Err(forged());
    }
    Ok(Request::from_parts(parts, body.into()))
}

/// Refuses callers without the scope, for the routes that are declared under it.
pub(crate) async fn require(scope: Scope, caller: Caller, request: Request, next: Next) -> Response {
    match caller.require(scope) {
        Ok(()) => next.run(request).await,
        Err(refused) => refusal(request.uri().path(), refused),
    }
}

/// The refusal in the format of the API that serves this path.
pub(in crate::api) fn refusal(path: &str, error: ApiError) -> Response {
    let (status, reason) = (error.status, Reason(error.message.clone()));
    let mut response = if path.starts_with(api::alertmanager::PREFIX) {
        (status, Json(error.message)).into_response()
    } else if path.starts_with(OPERATING) || path == "/metrics" {
        (status, error.message + "\n").into_response()
    } else {
        error.into_response()
    };
    response.extensions_mut().insert(reason);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::UNAUTHORIZED {
        headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"stepwatch\""));
        // The header makes a browser ask for a password.
        headers.append(
            WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"stepwatch\", charset=\"UTF-8\""),
        );
    }
    response
}

fn door(path: &str, headers: &HeaderMap) -> Door {
    let [slack, pagerduty] = signed_paths::ALL else { return Door::Api };
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

/// The name of an action for a request whose handler named none.
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
        (_, "login") => "login",
        (_, "logout") => "logout",
        (&Method::POST, "silences") => "silence",
        (&Method::POST, "overrides") => "override",
        (&Method::POST, "swap") => "swap",
        (&Method::DELETE, _) => "expire",
        _ if signed_paths::ALL.contains(&path) => "callback",
        _ => "request",
    }
}
