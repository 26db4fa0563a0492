//! Form submissions, and the redirects after them.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use url::form_urlencoded;

use crate::api::auth::{Caller, MAX_FORM};
use crate::api::error::ApiError;

const FORM: &str = "application/x-www-form-urlencoded";
/// The cookie with the name of a person who needs no token.
const NAME: &str = "stepwatch-name";
/// The lifetime of the cookie in seconds.
const NAME_FOR: u32 = 365 * 86_400;
/// The name in histories of a person without a name.
const NAMELESS: &str = "web";

/// The fields of a form in their order.
#[derive(Debug)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The first value of a field, trimmed; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    pub(super) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.trim())
    }

    /// The name for histories: the authenticated name, or else the name in the form.
    pub(super) fn person(&self, caller: &Caller) -> String {
        let given = Some(self.get("by")).filter(|by| !by.is_empty()).unwrap_or(NAMELESS);
        caller.actor().unwrap_or_else(|| given.to_owned())
    }

    /// The page to which the form redirects, if it is local.
    pub(super) fn back(&self) -> Option<&str> {
        Some(self.get("back")).filter(|path| is_local(path))
    }
}

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let content_type = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        if content_type.split(';').next().is_none_or(|essence| !essence.trim().eq_ignore_ascii_case(FORM)) {
            let message = format!("send a form with content-type: {FORM}");
            return Err(ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message });
        }
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|e| ApiError { status: e.status(), message: e.body_text() })?;
        if body.len() > MAX_FORM {
            let message = format!("a form has at most {MAX_FORM} bytes");
            return Err(ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, message });
        }
        Ok(Self(form_urlencoded::parse(&body).into_owned().collect()))
    }
}

/// Whether a path stays on this server, unlike `//host` and `/\host`.
pub(super) fn is_local(path: &str) -> bool {
    let mut chars = path.chars();
    chars.next() == Some('/')
        && !matches!(chars.next(), Some('/' | '\\'))
        && path.chars().all(|c| c.is_ascii_graphic() && c != '\\')
}

/// Redirects a browser to a page with `GET`.
pub(super) fn see(path: &str) -> Response {
    let location = HeaderValue::from_str(path).unwrap_or(HeaderValue::from_static("/"));
    (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
}

/// Stores the name of a person who needs no token in a cookie.
pub(super) fn remember(mut response: Response, caller: &Caller, fields: &Fields) -> Response {
    let name = fields.get("by");
    if caller.actor().is_none() && !name.is_empty() && name != NAMELESS {
        let name: String = form_urlencoded::byte_serialize(name.as_bytes()).collect();
        let cookie = format!("{NAME}={name}; Path=/; Max-Age={NAME_FOR}; HttpOnly; SameSite=Lax");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
    }
    response
}

/// The name in the cookie.
pub(super) fn remembered(headers: &HeaderMap) -> String {
    let value = cookie(headers, NAME).unwrap_or_default();
    let pair = format!("by={value}");
    form_urlencoded::parse(pair.as_bytes()).next().map(|(_, name)| name.into_owned()).unwrap_or_default()
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_server_are_followed() {
        for good in ["/", "/incidents/abc", "/?state=open&run=a%20b"] {
            assert!(is_local(good), "{good}");
        }
        for bad in
            ["", "incidents", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "/ a"]
        {
            assert!(!is_local(bad), "{bad}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; stepwatch-name=Ann+B%C3%A4r".parse().unwrap());
        headers.append(COOKIE, "b=2".parse().unwrap());
        assert_eq!((cookie(&headers, "a"), cookie(&headers, "b")), (Some("1"), Some("2")));
        assert_eq!(cookie(&headers, "c"), None);
        assert_eq!(remembered(&headers), "Ann Bär");
        assert_eq!(remembered(&HeaderMap::new()), "");
    }
}
