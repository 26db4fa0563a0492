//! Errors as pages: a person in a browser gets a sentence, and not JSON.

use askama::Template;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn};
use axum::response::Response;

use super::login;
use super::page::page;
use crate::api::error::{Reason, Shown};
use crate::signed_paths;

#[derive(Debug, Template)]
#[template(path = "error.html")]
struct ErrorPage<'a> {
    status: StatusCode,
    reason: &'a str,
}

/// Converts the errors of pages to error pages, including those of the gate.
pub(crate) fn with_error_pages(router: Router) -> Router {
    router.layer(from_fn(dress))
}

async fn dress(request: Request, next: Next) -> Response {
    let of_people = is_page(request.uri().path());
    let login = login::instead(request.method(), request.uri(), request.headers());
    let response = next.run(request).await;
    if response.status() == StatusCode::UNAUTHORIZED
        && let Some(login) = login
    {
        return login;
    }
    let failed = response.status().is_client_error() || response.status().is_server_error();
    let shown = response.extensions().get::<Shown>().is_some();
    match response.extensions().get::<Reason>().cloned() {
        Some(Reason(reason)) if of_people && !shown && failed => error_page(response, &reason),
        _ => response,
    }
}

/// Replaces the body; the status and the headers stay.
fn error_page(response: Response, reason: &str) -> Response {
    let status = response.status();
    let mut dressed = page(status, &ErrorPage { status, reason });
    for (name, value) in response.headers() {
        let ours = dressed.headers().contains_key(name) && name != WWW_AUTHENTICATE;
        if !ours && name != CONTENT_LENGTH {
            dressed.headers_mut().append(name, value.clone());
        }
    }
    dressed.extensions_mut().insert(Reason(reason.to_owned()));
    dressed
}

/// Whether the path is for people and not for programs.
pub(super) fn is_page(path: &str) -> bool {
    let of_programs = ["/api/", "/-/", signed_paths::ASSETS];
    path != "/metrics"
        && !signed_paths::ALL.contains(&path)
        && !of_programs.iter().any(|prefix| path.starts_with(prefix))
}
