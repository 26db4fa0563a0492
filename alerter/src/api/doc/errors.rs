//! Errors, as the document tells of them.

use std::collections::BTreeMap;

use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

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

/// The alerter is stopping, its store is slow, or the request took too long: ask again.
pub(in crate::api) struct TooSlow;

impl IntoResponses for Unauthorized {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let why = "Nobody is let in without a token, or a user's name and password";
        BTreeMap::from([("401".to_owned(), either(why))])
    }
}

impl IntoResponses for TooSlow {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let why = "The alerter is stopping, its store is slow, or the request took too long: ask again";
        BTreeMap::from([("503".to_owned(), either(why))])
    }
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
    RefOr::T(response.content("text/plain", Content::new(Some(String::schema_of()))).build())
}

trait SchemaOf: utoipa::PartialSchema {
    fn schema_of() -> RefOr<utoipa::openapi::schema::Schema> {
        <Self as utoipa::PartialSchema>::schema()
    }
}

impl SchemaOf for String {}
