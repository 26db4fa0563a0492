//! The OpenAPI document of all routes, generated from the declarations of the handlers.
//!
//! This module has only the common parts: the title, authentication, and the errors that any route
//! can return. A route is declared under the scope that it requires ([`Scope`]); the same
//! declaration puts the scope into the document.

pub(super) mod errors;
pub(crate) mod examples;
pub mod schema;

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::{IntoResponses, Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

use super::alertmanager;
use super::state::Api;
use super::view::ErrorBody;
use crate::access::Scope;
use errors::{Forbidden, TooSlow, Unauthorized};

/// Names of the security schemes.
pub(crate) const BEARER: &str = "bearerToken";
const BASIC: &str = "basicAuth";
pub(crate) const SLACK: &str = "slackSignature";
pub(crate) const PAGERDUTY: &str = "pagerdutySignature";

#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Stepwatch alerter",
        description = "Incidents of training runs and nodes: what is wrong, who was notified, and the answers of people. \
            Times are RFC 3339 in UTC. Numbers that are not finite are the strings `NaN`, `Infinity`, `-Infinity`.\n\n\
            Who may call what is decided by the configuration: without any, everybody may do everything. The role that is \
            listed with an operation's security requirement is the scope that a token needs for it.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "This alerter")),
    tags(
        (name = "incidents", description = "What is wrong, and answering for it"),
        (name = "silences", description = "Keeping incidents quiet for a while, on purpose and with a reason"),
        (name = "on call", description = "Who is on call, and when who is"),
        (name = "state", description = "What is watched, through whom, and how the alerter is"),
        (name = "alertmanager", description = "Alertmanager's API, version 2: for Prometheus, `amtool`, karma and Grafana"),
        (name = "callbacks", description = "What services post to us, each signed by the service"),
    ),
    components(schemas(ErrorBody)),
    modifiers(&Schemes)
)]
struct Base;

/// The security schemes of the document.
struct Schemes;

impl Modify for Schemes {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let http = |scheme, what: &str| {
            let mut http = Http::new(scheme);
            http.description = Some(what.to_owned());
            SecurityScheme::Http(http)
        };
        let signature = |header: &str, what: &str| {
            SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(header, what)))
        };
        let scopes = Scope::ALL.map(|s| format!("`{}`", s.as_str())).join(", ");
        let token = format!("A token of the configuration; its scopes, of {scopes}, say what it may do");
        let bearer = http(HttpAuthScheme::Bearer, &token);
        components.add_security_scheme(BEARER, bearer);
        components.add_security_scheme(BASIC, http(HttpAuthScheme::Basic, "A user of `--web.config.file`, who may do everything, or a token as the password of any user"));
        let slack =
            "HMAC-SHA256 of time and body under the app's signing secret, with `X-Slack-Request-Timestamp`";
        components.add_security_scheme(SLACK, signature("X-Slack-Signature", slack));
        let pagerduty = "HMAC-SHA256 of the body under the subscription's secret";
        components.add_security_scheme(PAGERDUTY, signature("X-PagerDuty-Signature", pagerduty));
    }
}

/// The part of the document that the API contributes.
pub fn of_api() -> utoipa::openapi::OpenApi {
    let api: OpenApiRouter<Arc<Api>> = super::routes();
    Base::openapi().merge_from(api.into_openapi())
}

/// This document.
#[utoipa::path(
    get,
    path = "/api/v1/openapi.json",
    operation_id = "getOpenApi",
    tag = "state",
    responses((status = 200, description = "An OpenAPI document, version 3.1", body = serde_json::Value))
)]
pub(super) async fn show(State(api): State<Arc<Api>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], api.document.clone()).into_response()
}

/// Adds to every operation its required scope and the errors of authentication.
pub(super) fn needing<S>(scope: Scope, mut routes: OpenApiRouter<S>) -> OpenApiRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    for (path, item) in &mut routes.get_openapi_mut().paths.paths {
        let refusals = if path.starts_with(alertmanager::PREFIX) {
            alertmanager::refusals()
        } else {
            Unauthorized::responses().into_iter().chain(Forbidden::responses()).collect()
        };
        for operation in operations(item) {
            let proofs = [BEARER, BASIC].map(|scheme| SecurityRequirement::new(scheme, [scope.as_str()]));
            operation.security = Some(proofs.to_vec());
            for (status, response) in refusals.clone().into_iter().chain(TooSlow::responses()) {
                operation.responses.responses.entry(status).or_insert(response);
            }
        }
    }
    routes
}

pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
    [get, put, post, delete, options, head, patch, trace].into_iter().flatten()
}
