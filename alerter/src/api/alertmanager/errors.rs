//! Errors in Alertmanager's form, a JSON string each: the answers, and their entries in the OpenAPI
//! document.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use utoipa::openapi::{self, Content, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, PartialSchema};

use crate::api::error::{ApiError, Reason};

pub(super) type Result<T> = core::result::Result<T, Refused>;

/// An error in Alertmanager's form.
#[derive(Debug)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

impl Refused {
    pub(super) fn bad(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, why.into())
    }
}

impl From<ApiError> for Refused {
    fn from(e: ApiError) -> Self {
        Self(e.status, e.message)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let reason = Reason(self.1.clone());
        let mut response = (self.0, Json(self.1)).into_response();
        response.extensions_mut().insert(reason);
        response
    }
}

macro_rules! errors {
    ($($(#[doc = $doc:literal])* $name:ident $status:literal)*) => {$(
        $(#[doc = $doc])*
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
                let body = Content::new(Some(String::schema()));
                let response = ResponseBuilder::new().description(concat!($($doc),*).trim());
                let response = response.content("application/json", body).build();
                BTreeMap::from([($status.to_owned(), RefOr::T(response))])
            }
        }
    )*};
}

errors! {
    /// The request is malformed, or asks for something that is not allowed; the error has the
    /// reason.
    BadRequest "400"
    /// It does not exist.
    NotFound "404"
    /// The body is too large.
    TooLarge "413"
    /// The content type of the body is not `application/json`.
    NotJson "415"
    /// A token is needed, or a user's name and password.
    Unauthorized "401"
    /// The token that was sent may not do this, or not about all of it.
    Forbidden "403"
    /// The configured limit is reached.
    Full "429"
    /// The store did not answer; the reason is in the alerter's log.
    Broken "500"
}
