//! The response with a page: its headers, and the reason for a refusal.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};

use crate::api::error::{ApiError, Reason, Shown};

pub(super) type Result<T> = core::result::Result<T, ApiError>;

/// Scripts, styles and images are our own files, other pages must not frame ours, and forms lead
/// here.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Marks a page that shows the reason for a refusal itself, for the audit log.
pub(super) fn shown(mut page: Response, reason: Option<String>) -> Response {
    if let Some(reason) = reason {
        page.extensions_mut().insert(Reason(reason));
        page.extensions_mut().insert(Shown);
    }
    page
}

/// A page with headers that restrict what the browser does with it.
pub(super) fn page(status: StatusCode, template: &impl Template) -> Response {
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
