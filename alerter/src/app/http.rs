//! What the service serves over HTTP, and to whom.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use prometheus_client::registry::Registry;
use stepwatch_kit::admin::{Admin, ReloadRequest};
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::serve::{Hosts, Limits, Pass};
use stepwatch_kit::web_config::WebConfig;
use tokio::sync::mpsc;

use crate::access::Keyring;
use crate::api::auth::Gate;
use crate::api::{Api, MAX_ALERTS_BODY};
use crate::audit::AuditLog;
use crate::bulkhead::{self, Bulkhead};
use crate::callbacks::Callbacks;
use crate::config::File;
use crate::metrics::{Metrics, PROGRAM};
use crate::oidc::Oidc;
use crate::outbox::OutboxHandle;
use crate::runtime::RuntimeHandle;
use crate::signed_paths;
use crate::store::Store;
use crate::web;

/// The operating endpoints. The process is not ready while the store refuses writes.
pub(super) fn administer(store: &Store, log: LogControl) -> (Admin, mpsc::Receiver<ReloadRequest>) {
    let (admin, reloads) = Admin::new(log);
    let store = store.clone();
    let waits = move || {
        store.look_soon();
        store.refusal_in_public().map(|why| format!("the store to take commits: {why}"))
    };
    (admin.needing(waits), reloads)
}

/// The callbacks of notification services.
pub(super) fn callbacks(
    store: &Store,
    handle: &RuntimeHandle,
    outbox: &OutboxHandle,
    metrics: &Metrics,
    audit: &AuditLog,
) -> Callbacks {
    let (receivers, heard) = (outbox.receivers(), metrics.callbacks.clone());
    Callbacks::new(store.clone(), handle.clone(), receivers, heard, audit.clone())
}

/// The gate for tokens, users of the web configuration, people of OpenID Connect, and sessions.
pub(super) fn gate(
    keyring: Keyring,
    oidc: Option<Arc<Oidc>>,
    audit: &AuditLog,
    metrics: &Metrics,
    web: Option<&WebConfig>,
    file: &File,
) -> Gate {
    let (metrics, url) = (metrics.gate.clone(), file.external_url.as_deref());
    Gate::new(keyring, oidc, audit.clone(), metrics, web.cloned(), url)
}

/// The request limits. Callbacks are exempt because they are signed, and a token is accepted
/// instead of a user of the web configuration.
pub(super) fn limits(gate: &Gate, file: &File, registry: &mut Registry) -> Limits {
    let (needed, gate) = (gate.clone(), gate.clone());
    let pass = Pass::new(move || needed.needs_credentials(), move |headers| gate.knows(headers));
    let pass = Some(pass.with_login(signed_paths::is_open, web::login::instead));
    let hosts = Hosts::new(&file.web, file.external_url.as_deref());
    // Requests with alerts have the largest bodies; every other route has a smaller limit of its
    // own.
    let body_bytes = MAX_ALERTS_BODY;
    let never_413 = &[bulkhead::REMOTE_WRITE];
    let limits =
        Limits { signed_paths: signed_paths::ALL, never_413, body_bytes, pass, hosts, ..Limits::default() };
    limits.metrics.register(registry, PROGRAM);
    limits
}

/// All routes, behind the gate.
pub(super) fn router(
    api: &Arc<Api>,
    gate: &Gate,
    outbox: &OutboxHandle,
    callbacks: &Callbacks,
    bulkhead: Bulkhead,
    operating: Router,
) -> Router {
    let pages = web::router(api, gate, outbox.receivers());
    let router = bulkhead.before(Arc::clone(api).router().merge(pages).merge(callbacks.router()));
    let router = web::with_error_pages(gate.clone().protect(router.merge(operating)));
    router.layer(DefaultBodyLimit::max(Limits::default().body_bytes))
}

/// Logs once if anybody on another machine may do everything.
pub(super) fn warn_if_open(addr: SocketAddr, file: &File, web: Option<&WebConfig>) {
    let asks = file.api.asks() || web.is_some_and(WebConfig::authenticates);
    if !asks && !addr.ip().is_loopback() {
        tracing::warn!(
            %addr,
            "whoever reaches this address can read incidents, acknowledge, silence and reload: set api.tokens or api.oidc, or \
             --web.config.file with users or client certificates (docs/security.md)"
        );
    }
}
