//! Prometheus remote write.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use stepwatch_remote_write::decode::Totals;
use stepwatch_wire::words;

use super::auth::Caller;
use super::doc::errors::{BadRequest, Forbidden, TooSlow, Unsupported};
use super::error::ApiError;
use super::state::Api;
use crate::remote_write::{Refusal, Written, negotiation};

/// The most bytes of a compressed body: senders send less than one megabyte.
pub(crate) const MAX_WRITE_BODY: usize = 8 << 20;
/// The header with the tenant of samples, if several share this alerter.
const TENANT: &str = "x-scope-orgid";
const MAX_TENANT: usize = 64;

/// Takes samples of a Prometheus, or of any other sender of remote write 1.0 or 2.0. They are
/// judged, and what they led to is durable, when this is answered.
///
/// Samples that can never be taken (labels that are none, a time far ahead of this machine's clock)
/// are answered with 400, and the others are taken all the same. Whatever may be taken later is
/// answered with 503 and `Retry-After`. Nothing is answered with 413 or 429, which senders repeat
/// for ever or not at all.
#[utoipa::path(
    post,
    path = "/api/v1/write",
    operation_id = "remoteWrite",
    tag = "remote_write",
    request_body(content = Vec<u8>, content_type = "application/x-protobuf", description = "A WriteRequest of 1.0 or a Request of 2.0, compressed with snappy"),
    responses(
        (status = 204, description = "All of it is taken", headers(
            ("X-Prometheus-Remote-Write-Samples-Written" = u64),
            ("X-Prometheus-Remote-Write-Histograms-Written" = u64),
            ("X-Prometheus-Remote-Write-Exemplars-Written" = u64)
        )),
        BadRequest, Forbidden, Unsupported, TooSlow
    )
)]
pub(super) async fn take(
    State(api): State<Arc<Api>>,
    caller: Caller,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    let response = answer(&api, &caller, &headers, body).await;
    api.remote_write.answered(response.status().as_u16());
    response
}

async fn answer(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    // Only the labels of a sample name its run, so a token that is limited to some runs is refused.
    if let Err(limited) = caller.require_everything() {
        return limited.into_response();
    }
    let version = match negotiation::version(headers) {
        Ok(version) => version,
        Err(message) => {
            return ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message }.into_response();
        }
    };
    let tenant = headers.get(TENANT).map_or(Ok(""), |value| value.to_str()).unwrap_or("\u{fffd}");
    let tenant = words::line(tenant.trim()).into_owned();
    if tenant.chars().count() > MAX_TENANT || !tenant.is_ascii() {
        let why = format!("{TENANT} must be at most {MAX_TENANT} characters of ASCII");
        return ApiError::bad_request(why).into_response();
    }
    let body = match body {
        Ok(body) => body,
        // A sender would repeat the request forever after a 413.
        Err(e) => return ApiError::bad_request(e.body_text()).into_response(),
    };
    match api.remote_write.take(version, body, tenant).await {
        Ok(written) => answered(written),
        Err(Refusal::Malformed(why)) => ApiError::bad_request(why).into_response(),
        Err(Refusal::Later(why)) => {
            let mut response = ApiError::unavailable(why).into_response();
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
    }
}

fn answered(written: Written) -> Response {
    let Written { totals, refused, why, .. } = written;
    let mut response = match why {
        Some(why) => ApiError::bad_request(format!("{refused} samples refused, the others are taken: {why}"))
            .into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    };
    let Totals { samples, histograms, exemplars, .. } = totals;
    // Without these headers, a sender of 2.0 assumes a receiver of 1.0.
    for (name, count) in [
        ("x-prometheus-remote-write-samples-written", samples.saturating_sub(refused)),
        ("x-prometheus-remote-write-histograms-written", histograms),
        ("x-prometheus-remote-write-exemplars-written", exemplars),
    ] {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(count));
    }
    response
}
