//! Errors in the OpenAPI document.

use std::collections::BTreeMap;

use utoipa::openapi::{Content, Header, Ref, RefOr, Response, ResponseBuilder, Schema};
use utoipa::{IntoResponses, PartialSchema as _, ToSchema as _};

use crate::api::view::ErrorBody;

macro_rules! errors {
    ($($(#[doc = $doc:literal])* $name:ident $status:literal)*) => {$(
        $(#[doc = $doc])*
        pub(in crate::api) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([described($status, concat!($($doc),*).trim())])
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
    /// The present state does not allow it.
    Conflict "409"
    /// The body is too large.
    TooLarge "413"
    /// The content type of the body is not `application/json`.
    NotJson "415"
    /// The content type or encoding of the body is not one that is read here.
    Unsupported "415"
    /// The configured limit is reached.
    Full "429"
    /// The store did not answer; the reason is in the alerter's log.
    Broken "500"
    /// The token that was sent may not do this.
    Forbidden "403"
}

/// A token is needed, or a user's name and password.
pub(in crate::api) struct Unauthorized;

/// See [`too_slow`].
pub(in crate::api) struct TooSlow;

impl IntoResponses for Unauthorized {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let why = "Nobody is let in without a token, or a user's name and password";
        BTreeMap::from([("401".to_owned(), either(why))])
    }
}

impl IntoResponses for TooSlow {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        too_slow(RefOr::Ref(Ref::from_schema_name(ErrorBody::name())))
    }
}

/// Responses after which the caller must retry; `error` is the schema of our own errors.
pub(in crate::api) fn too_slow(error: RefOr<Schema>) -> BTreeMap<String, RefOr<Response>> {
    let why = "The alerter is stopping, its store is slow, the request took too long, or others of its kind have taken all the \
               room there is for them: ask again";
    let mut after = Header::new(String::schema());
    after.description = Some("Seconds until it is worth asking again, where the room was taken".into());
    let response =
        ResponseBuilder::new().description(why).content("application/json", Content::new(Some(error)));
    let response = response.content("text/plain", Content::new(Some(String::schema())));
    BTreeMap::from([("503".to_owned(), RefOr::T(response.header("Retry-After", after).build()))])
}

fn body() -> Content {
    Content::new(Some(RefOr::Ref(Ref::from_schema_name(ErrorBody::name()))))
}

fn described(status: &str, why: &str) -> (String, RefOr<Response>) {
    let response = ResponseBuilder::new().description(why).content("application/json", body()).build();
    (status.to_owned(), RefOr::T(response))
}

/// A response with our JSON, or with a line of text from the proxy in front of this server.
fn either(why: &str) -> RefOr<Response> {
    let response = ResponseBuilder::new().description(why).content("application/json", body());
    RefOr::T(response.content("text/plain", Content::new(Some(String::schema()))).build())
}
