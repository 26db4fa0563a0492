//! Errors of the OpenAPI document: a JSON string each, as Alertmanager's.

use std::collections::BTreeMap;

use utoipa::openapi::{Content, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, PartialSchema};

macro_rules! errors {
    ($($(#[doc = $doc:literal])* $name:ident $status:literal)*) => {$(
        $(#[doc = $doc])*
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
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
