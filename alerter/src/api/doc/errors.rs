//! Errors, as the document tells of them.

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
                BTreeMap::from([told($status, concat!($($doc),*).trim())])
            }
        }
    )*};
}

errors! {
    /// What is asked for does not read, or may not be asked for; the error says what of it.
    BadRequest "400"
    /// There is no such thing.
    NotFound "404"
    /// It is not so, or not any more.
    Conflict "409"
    /// The body is too large.
    TooLarge "413"
    /// The body is not said to be `application/json`.
    NotJson "415"
    /// There are as many as the configuration allows.
    Full "429"
    /// The store did not answer; the alerter's log says why.
    Broken "500"
    /// The token that was sent may not do this.
    Forbidden "403"
}

/// Nobody is let in without a token, or a user's name and password.
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

/// When whoever asks must ask again; `error` is the shape of our own words for it.
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

fn told(status: &str, why: &str) -> (String, RefOr<Response>) {
    let response = ResponseBuilder::new().description(why).content("application/json", body()).build();
    (status.to_owned(), RefOr::T(response))
}

/// By us in JSON, or by the server in front of us in a line of text.
fn either(why: &str) -> RefOr<Response> {
    let response = ResponseBuilder::new().description(why).content("application/json", body());
    RefOr::T(response.content("text/plain", Content::new(Some(String::schema()))).build())
}
