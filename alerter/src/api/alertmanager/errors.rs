//! Errors, as the document tells of them: a JSON string each, as Alertmanager's.

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
    /// What is asked for does not read, or may not be asked for; the error says what of it.
    BadRequest "400"
    /// There is no such thing.
    NotFound "404"
    /// The body is too large.
    TooLarge "413"
    /// The body is not said to be `application/json`.
    NotJson "415"
    /// Nobody is let in without a token, or a user's name and password.
    Unauthorized "401"
    /// The token that was sent may not do this, or not about all of it.
    Forbidden "403"
    /// There are as many as the configuration allows.
    Full "429"
    /// The store did not answer; the alerter's log says why.
    Broken "500"
}
