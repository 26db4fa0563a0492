//! Login and logout for people in a browser: a name and password of the web configuration, or a
//! token, begins a session; `login_oidc` is the other way in.

use std::net::SocketAddr;

use askama::Template;
use axum::extract::{ConnectInfo, RawQuery, Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, REFERER, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, RequestExt as _};
use url::{Position, Url, form_urlencoded};

use super::form::{Fields, is_local, see};
use super::page::{page, shown};
use crate::api::auth::{Gate, Refused};
use crate::api::error::ApiError;
use crate::oidc::Oidc;
use crate::signed_paths::{LOGIN, LOGOUT, OIDC};

/// The field of the query of a login to which a form without a session led, and what the page says.
const UNSENT: &str = "unsent";
const UNSENT_WORDS: &str = "You are not logged in, or your session has ended: what you sent was not done. \
                            Log in, and send it again.";

#[derive(Debug, Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    next: &'a str,
    name: &'a str,
    alarm: Option<&'a str>,
    /// Whether a token, or a name with a password, can be known.
    passwords: bool,
    /// The name of the OpenID Connect provider, and the link to it.
    provider: Option<&'a str>,
    link: &'a str,
}

/// `GET /login`
pub(super) async fn show(
    State(gate): State<Gate>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.as_deref().unwrap_or_default();
    let next = next_of(query);
    let next = next.as_str();
    if !gate.takes_logins() || gate.session_of(&headers).is_some() {
        return see(next);
    }
    let unsent = form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == UNSENT);
    login_page(&gate, StatusCode::OK, next, "", unsent.then_some(UNSENT_WORDS))
}

/// The page with every way to log in.
pub(super) fn login_page(
    gate: &Gate,
    status: StatusCode,
    next: &str,
    name: &str,
    alarm: Option<&str>,
) -> Response {
    let oidc = gate.oidc();
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("next", next).finish();
    let link = format!("{OIDC}?{query}");
    let provider = oidc.as_deref().map(Oidc::label);
    let passwords = gate.takes_passwords();
    page(status, &LoginPage { next, name, alarm, passwords, provider, link: &link })
}

/// `POST /login`
pub(super) async fn log_in(
    State(gate): State<Gate>,
    from: Option<Extension<ConnectInfo<SocketAddr>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let fields: Fields = request.extract().await?;
    let from = from.map(|Extension(info)| info.0.ip().to_canonical());
    let next = local(fields.get("next"));
    let (name, secret) = (fields.get("name"), fields.get("password"));
    match gate.log_in(name, secret, from).await {
        Ok(id) => {
            let mut response = see(next);
            if let Ok(cookie) = HeaderValue::from_str(&gate.cookie(&headers, Some(&id))) {
                response.headers_mut().append(SET_COOKIE, cookie);
            }
            Ok(response)
        }
        Err(refused) => Ok(refusal(&gate, next, name, &refused)),
    }
}

/// `POST /logout`
pub(super) async fn log_out(State(gate): State<Gate>, headers: HeaderMap) -> Response {
    gate.log_out(&headers);
    let mut response = see(LOGIN);
    if let Ok(cookie) = HeaderValue::from_str(&gate.cookie(&headers, None)) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

fn refusal(gate: &Gate, next: &str, name: &str, refused: &Refused) -> Response {
    let (status, text) = match refused {
        // The same sentence for every mistake, so that it does not help to guess.
        Refused::Wrong => {
            (StatusCode::UNAUTHORIZED, "That name and password, or token, is not known.".to_owned())
        }
        Refused::TooOften(seconds) => (
            StatusCode::TOO_MANY_REQUESTS,
            format!("Too many logins were refused. Try again in {seconds} s."),
        ),
        Refused::NoRandomness => {
            (StatusCode::SERVICE_UNAVAILABLE, "The system has no randomness for a session.".to_owned())
        }
    };
    let mut response = login_page(gate, status, next, name, Some(&text));
    if let Refused::TooOften(seconds) = refused {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*seconds));
    }
    shown(response, Some(format!("login of {name:?}: {text}")))
}

/// The page after the login that a query names.
pub(super) fn next_of(query: &str) -> String {
    let next = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "next");
    let next = next.map(|(_, path)| path.into_owned()).unwrap_or_default();
    local(&next).to_owned()
}

/// The local page after a login: never another site, and not the login itself.
pub(super) fn local(next: &str) -> &str {
    let ours = is_local(next) && !next.starts_with(LOGIN) && !next.starts_with(LOGOUT);
    if ours { next } else { "/" }
}

/// The login page, for a browser that requests a page or sends a form without credentials. The
/// script of a page gets a refusal without a challenge, which would open a browser dialog; programs
/// get the refusal itself.
pub(crate) fn instead(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    if headers.contains_key(AUTHORIZATION) || !super::error_page::is_page(uri.path()) {
        return None;
    }
    if headers.contains_key("hx-request") {
        return Some((StatusCode::UNAUTHORIZED, "the session has ended\n").into_response());
    }
    let accepts = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !accepts.contains("text/html") {
        return None;
    }
    let mut query = form_urlencoded::Serializer::new(String::new());
    match *method {
        Method::GET => {
            let wanted = uri.path_and_query().map_or("/", |path| path.as_str());
            query.append_pair("next", wanted);
        }
        // The session that was to end has ended.
        Method::POST if uri.path() == LOGOUT => return Some(see(LOGIN)),
        // The login itself says what was wrong.
        Method::POST if uri.path() != LOGIN => {
            // A challenge would open a dialog for a password, which people of a provider lack.
            let page = page_of_form(headers).unwrap_or_else(|| "/".to_owned());
            query.append_pair("next", &page).append_pair(UNSENT, "yes");
        }
        _ => return None,
    }
    Some(see(&format!("{LOGIN}?{}", query.finish())))
}

/// The path of the page with the form that a browser sends.
fn page_of_form(headers: &HeaderMap) -> Option<String> {
    let page = Url::parse(headers.get(REFERER)?.to_str().ok()?).ok()?;
    let path = &page[Position::BeforePath..Position::AfterQuery];
    (local(path) == path).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_sent_to_the_login_and_a_program_is_not() {
        let html = HeaderMap::from_iter([(ACCEPT, "text/html,*/*".parse().unwrap())]);
        let to = |path: &str, headers: &HeaderMap| {
            let response = instead(&Method::GET, &path.parse().unwrap(), headers)?;
            Some(response.headers()["location"].to_str().unwrap().to_owned())
        };
        assert_eq!(
            to("/incidents/abc?x=1&y=2", &html).as_deref(),
            Some("/login?next=%2Fincidents%2Fabc%3Fx%3D1%26y%3D2")
        );
        for path in ["/api/v1/incidents", "/metrics", "/-/reload"] {
            assert_eq!(to(path, &html), None, "{path}");
        }
        assert_eq!(to("/", &HeaderMap::new()), None, "a program");
        let mut wrong = html.clone();
        wrong.insert(AUTHORIZATION, "Bearer wrong".parse().unwrap());
        assert_eq!(to("/", &wrong), None);
        let mut script = html.clone();
        script.insert("hx-request", "true".parse().unwrap());
        let refused = instead(&Method::GET, &"/".parse().unwrap(), &script).unwrap();
        assert!(refused.status() == 401 && !refused.headers().contains_key("www-authenticate"));
        assert!(instead(&Method::DELETE, &"/".parse().unwrap(), &html).is_none());
    }

    #[test]
    fn a_form_without_a_session_leads_to_the_login_and_back_to_its_page() {
        let to = |referer: Option<&str>| {
            let mut headers = HeaderMap::from_iter([(ACCEPT, "text/html,*/*".parse().unwrap())]);
            if let Some(page) = referer {
                headers.insert(REFERER, page.parse().unwrap());
            }
            let response = instead(&Method::POST, &"/incidents/abc/ack".parse().unwrap(), &headers).unwrap();
            assert!(!response.headers().contains_key("www-authenticate"));
            (response.status().as_u16(), response.headers()["location"].to_str().unwrap().to_owned())
        };
        let page = "https://stepwatch.example.org/incidents/abc?x=1#top";
        assert_eq!(to(Some(page)), (303, "/login?next=%2Fincidents%2Fabc%3Fx%3D1&unsent=yes".to_owned()));
        for none in [None, Some("nonsense"), Some("https://x.org//evil.example"), Some("data:text/html,x")] {
            assert_eq!(to(none).1, "/login?next=%2F&unsent=yes", "{none:?}");
        }
        assert!(instead(&Method::POST, &"/incidents/abc/ack".parse().unwrap(), &HeaderMap::new()).is_none());
        let html = HeaderMap::from_iter([(ACCEPT, "text/html,*/*".parse().unwrap())]);
        assert!(instead(&Method::POST, &"/login".parse().unwrap(), &html).is_none());
        let ended = instead(&Method::POST, &"/logout".parse().unwrap(), &html).unwrap();
        assert_eq!(ended.headers()["location"], "/login");
    }

    #[test]
    fn after_the_login_comes_a_page_of_ours() {
        for (next, to) in [
            ("/incidents/abc", "/incidents/abc"),
            ("", "/"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/login?next=/login", "/"),
            ("/logout", "/"),
        ] {
            assert_eq!(local(next), to);
        }
    }
}
