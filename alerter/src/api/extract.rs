//! Extractors of request parts. Every invalid request gets an error in the API's format.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// The parsed query.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

/// The one variable segment of the path.
#[derive(Debug)]
pub(crate) struct Named(pub(crate) String);

/// The parsed JSON body.
#[derive(Debug)]
pub(crate) struct Sent<T>(pub(crate) T);

/// The most values in a list: a value of two bytes takes a hundred times as much memory.
/// Alertmanager's clients send a few thousand.
const MAX_VALUES: usize = 32_768;

/// A JSON list as the body: the valid elements, and the invalid ones with the reason.
#[derive(Debug)]
pub(crate) struct Each<T>(pub(crate) Vec<Result<T, (serde_json::Value, serde_json::Error)>>);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|e| ApiError::bad_request(reason(&e.body_text())))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|e| ApiError::bad_request(reason(&e.body_text())))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let sent = serde_json::from_slice(&body(request, state).await?);
        sent.map(Self).map_err(|e| unreadable(&e))
    }
}

/// Each element is parsed separately, so that an invalid one does not affect the others.
impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Each<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        Self::read(&body(request, state).await?)
    }
}

impl<T: DeserializeOwned> Each<T> {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        if values(body) > MAX_VALUES {
            let why = format!("the body has more than {MAX_VALUES} values; send it in parts");
            return Err(ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, message: why });
        }
        match serde_json::from_slice::<Vec<T>>(body) {
            Ok(all) => Ok(Self(all.into_iter().map(Ok).collect())),
            Err(e) if e.is_data() => {
                let all: Vec<serde_json::Value> = serde_json::from_slice(body).map_err(|e| unreadable(&e))?;
                let read = |value: serde_json::Value| T::deserialize(&value).map_err(|e| (value, e));
                Ok(Self(all.into_iter().map(read).collect()))
            }
            Err(e) => Err(unreadable(&e)),
        }
    }
}

/// The approximate number of values in a JSON text.
fn values(text: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'{' | b'[' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    // A page in a browser can post a form across sites, but not this content type.
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    if !content_type.is_some_and(is_json) {
        return Err(ApiError {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message: "send JSON with content-type: application/json".into(),
        });
    }
    Bytes::from_request(request, state).await.map_err(unreceived)
}

fn unreadable(err: &serde_json::Error) -> ApiError {
    ApiError::bad_request(format!("the body does not read: {err}"))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// The reason `state: unknown variant ...`, without the prefix of the extractor.
fn reason(text: &str) -> &str {
    text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text)
}

fn unreceived(rejection: BytesRejection) -> ApiError {
    ApiError { status: rejection.status(), message: rejection.body_text() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_too_many_values_is_refused_before_it_is_read() {
        let read = |one: &str, count: usize| {
            let body = format!("[{}]", vec![one; count].join(","));
            Each::<serde_json::Map<String, serde_json::Value>>::read(body.as_bytes())
                .map(|Each(all)| all.len())
        };
        assert_eq!(read("{}", 16_000).unwrap(), 16_000);
        let text = r#"{"a": "\\\",{[{[{[,,,,,,"}"#;
        assert_eq!(read(text, 16_000).unwrap(), 16_000, "texts are one value each");
        for (one, count) in [("{}", 17_000), ("0", 40_000), ("[]", 20_000)] {
            assert_eq!(read(one, count).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE, "{one}");
        }
    }

    #[test]
    fn the_content_type_of_json() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["", "text/plain", "application/jsonp", "application/x-www-form-urlencoded"] {
            assert!(!is_json(no), "{no}");
        }
    }
}
