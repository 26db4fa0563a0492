//! Login by OpenID Connect: the way to the provider, and the way back.

use std::net::SocketAddr;

use axum::Extension;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;

use super::form::see;
use super::login::{local, login_page, next_of};
use super::page::shown;
use crate::api::auth::Gate;
use crate::oidc::LoginError;
use crate::signed_paths::LOGIN;

/// `GET /login/oidc`
pub(super) async fn leave(
    State(gate): State<Gate>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let next = next_of(query.as_deref().unwrap_or_default());
    match gate.leave(&headers, &next).await {
        None => see(LOGIN),
        Some(Ok(leave)) => with_cookie(see(&leave.to), &leave.cookie),
        Some(Err(err)) => refusal(&gate, &next, &err),
    }
}

/// `GET /login/oidc/callback`
pub(super) async fn arrive(
    State(gate): State<Gate>,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let from = from.map(|Extension(info)| info.0.ip().to_canonical());
    let response = match gate.arrive(&headers, query.as_deref().unwrap_or_default(), from).await {
        Ok((id, next)) => with_cookie(see(local(&next)), &gate.cookie(&headers, Some(&id))),
        // Somebody went back to an address of before the login.
        Err(LoginError::Stale) if gate.session_of(&headers).is_some() => return see("/"),
        // The cookie is of a login in another tab, which goes on.
        Err(LoginError::Stale) => return refusal(&gate, "/", &LoginError::Stale),
        Err(err) => refusal(&gate, "/", &err),
    };
    with_cookie(response, &gate.attempt_cookie(&headers, None))
}

fn refusal(gate: &Gate, next: &str, err: &LoginError) -> Response {
    let status = match err {
        LoginError::Stale => StatusCode::BAD_REQUEST,
        LoginError::Denied(_) | LoginError::Refused(_) | LoginError::NoRole { .. } => StatusCode::FORBIDDEN,
        LoginError::Provider(_) => StatusCode::BAD_GATEWAY,
        LoginError::TooOften(_) => StatusCode::TOO_MANY_REQUESTS,
        LoginError::Busy | LoginError::NoRandomness => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut text = err.to_string();
    if matches!(err, LoginError::Provider(_)) && gate.takes_passwords() {
        text.push_str(" A token or a name with its password still works.");
    }
    let mut response = login_page(gate, status, next, "", Some(&text));
    if let LoginError::TooOften(seconds) = err {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*seconds));
    }
    shown(response, Some(text))
}

fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}
