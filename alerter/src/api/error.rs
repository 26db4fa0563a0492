//! Errors of the API: a status for programs, and a sentence for people.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use stepwatch_kit::log_throttle::LogThrottle;

use super::view::ErrorBody;
use crate::runtime::Unanswered;
use crate::store::StoreError;

/// Limits the log lines about requests that the store did not answer.
static UNANSWERED: LazyLock<LogThrottle> = LazyLock::new(LogThrottle::default);

/// A response extension with the error sentence, for the audit log.
#[derive(Debug, Clone)]
pub(crate) struct Reason(pub(crate) String);

/// A response extension: the response is a page that already shows the reason.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown;

#[derive(Debug)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
}

impl ApiError {
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    pub(crate) fn method(message: impl Into<String>) -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, message: message.into() }
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, message: message.into() }
    }

    pub(super) fn full(message: impl Into<String>) -> Self {
        Self { status: StatusCode::TOO_MANY_REQUESTS, message: message.into() }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, message: message.into() }
    }
}

impl From<Unanswered> for ApiError {
    fn from(why: Unanswered) -> Self {
        Self::unavailable(match why {
            Unanswered::Stopping => "the alerter is stopping; ask again when it is back",
            Unanswered::NotDurable => "taken, but not yet durable: the store is slow or refuses; look again",
        })
    }
}

impl From<StoreError> for ApiError {
    fn from(err: StoreError) -> Self {
        if let StoreError::AmbiguousId(_) = err {
            return Self::bad_request(err.to_string());
        }
        // Paths and SQL are for the operator's log, not for the caller. While the store does not
        // answer, repeated requests would fill the log.
        if let Some(count) = UNANSWERED.count(1) {
            tracing::error!(
                count,
                err = &err as &dyn std::error::Error,
                "the store did not answer a request"
            );
        }
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: "the store did not answer; see the alerter's log".into(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let reason = Reason(self.message.clone());
        let mut response = (self.status, Json(ErrorBody { error: self.message })).into_response();
        response.extensions_mut().insert(reason);
        response
    }
}
