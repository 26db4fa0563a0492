//! Sessions at the gate. A login begins a session, and a cookie names it. It ends with the token or
//! the user that began it.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header::{COOKIE, HOST};
use stepwatch_kit::web_config::WebConfig;
use url::Url;

use super::caller::Who;
use super::gate::Gate;
use crate::access::sessions::{Credential, LoginKind, SessionId};
use crate::access::token_hash;
use crate::clock::wall;

/// The names of the cookie. Browsers accept the first only over HTTPS and for this host alone.
const SECURE_COOKIE: &str = "__Host-stepwatch";
const PLAIN_COOKIE: &str = "stepwatch";
/// The port that browsers leave out of an address.
const HTTPS_PORT: &str = ":443";

/// The reason why a login begins no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The name, password or token is wrong.
    Wrong,
    /// Too many logins from this address were refused: further ones are refused for this many
    /// seconds.
    TooOften(i64),
    NoRandomness,
}

/// How browsers reach this service.
#[derive(Debug, Clone, Default)]
pub(super) struct Reached {
    pub(super) web: Option<WebConfig>,
    /// The host of an `external_url` with HTTPS, if a proxy terminates TLS, with a port other than
    /// the default.
    pub(super) https_host: Option<String>,
}

impl Reached {
    pub(super) fn new(web: Option<WebConfig>, external_url: Option<&str>) -> Self {
        let url = external_url.and_then(|url| Url::parse(url).ok()).filter(|url| url.scheme() == "https");
        let https_host = url.and_then(|url| {
            let host = url.host_str()?;
            // There is none if it is the default.
            Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
        });
        Self { web, https_host }
    }

    /// Whether the browser of a request uses HTTPS.
    pub(super) fn is_secure(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(HOST).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let host = host.strip_suffix(HTTPS_PORT).unwrap_or(host);
        self.web.as_ref().is_some_and(WebConfig::is_tls)
            || self.https_host.as_ref().is_some_and(|https| https.eq_ignore_ascii_case(host))
    }

    fn cookie_name(&self, headers: &HeaderMap) -> &'static str {
        if self.is_secure(headers) { SECURE_COOKIE } else { PLAIN_COOKIE }
    }

    pub(super) fn has_users(&self) -> bool {
        self.web.as_ref().is_some_and(WebConfig::has_users)
    }
}

impl Gate {
    /// Whether any login is possible.
    pub(crate) fn takes_logins(&self) -> bool {
        self.takes_passwords() || self.oidc().is_some()
    }

    /// Whether the login takes a token, or a name with a password.
    pub(crate) fn takes_passwords(&self) -> bool {
        self.has_tokens() || self.reached().has_users()
    }

    /// Begins a session for a name and password of the web configuration, or for a token with any
    /// name.
    ///
    /// # Errors
    /// Neither is known, or too many logins were refused from this address.
    pub(crate) async fn log_in(
        &self,
        name: &str,
        secret: &str,
        from: Option<IpAddr>,
    ) -> Result<SessionId, Refused> {
        let now = wall();
        self.sessions().admits_login(LoginKind::Password, from, now).map_err(Refused::TooOften)?;
        let Some(credential) = self.credential(name, secret).await else {
            self.sessions().refused_login(LoginKind::Password, from, now);
            self.count_refused("login");
            return Err(Refused::Wrong);
        };
        tracing::info!(name, "a session begins");
        self.sessions().begin(credential, now).ok_or(Refused::NoRandomness)
    }

    async fn credential(&self, name: &str, secret: &str) -> Option<Credential> {
        if secret.is_empty() {
            return None;
        }
        if self.keys().find(secret).is_some() {
            return Some(Credential::Token(token_hash(secret)));
        }
        let reached = self.reached();
        let web = reached.web.as_ref().filter(|web| web.has_users())?;
        let mark = web.verify(name, secret.to_owned()).await?;
        Some(Credential::User { name: name.to_owned(), mark })
    }

    /// The session of a request, and its caller; `None` if the token, user or role is gone.
    pub(crate) fn session_of(&self, headers: &HeaderMap) -> Option<(SessionId, Who)> {
        let id = SessionId::parse(cookie(headers, self.reached().cookie_name(headers))?)?;
        let who = match self.sessions().find(&id, wall())? {
            Credential::Token(hash) => self.keys().find_hash(&hash).map(Who::Token),
            Credential::User { name, mark } => {
                let known = self.reached().web.as_ref().and_then(|web| web.mark(&name));
                (known == Some(mark)).then_some(Who::User(name))
            }
            of @ Credential::Person { .. } => self.person_of(&id, of),
        };
        if who.is_none() {
            self.sessions().end(&id);
        }
        Some((id, who?))
    }

    /// The person of a session. A reload may have taken the role, or shortened the sessions.
    fn person_of(&self, id: &SessionId, of: Credential) -> Option<Who> {
        let oidc = self.oidc()?;
        let age = wall() - self.sessions().begun(id)?;
        let grant = oidc.rights(&of).filter(|_| age < oidc.session())?;
        let Credential::Person { subject, .. } = of else { return None };
        Some(Who::Person { grant, subject: subject.into() })
    }

    pub(crate) fn log_out(&self, headers: &HeaderMap) {
        if let Some((id, _)) = self.session_of(headers) {
            self.sessions().end(&id);
        }
    }

    /// The `Set-Cookie` value that sets or removes the session.
    pub(crate) fn cookie(&self, headers: &HeaderMap, id: Option<&SessionId>) -> String {
        let name = self.reached().cookie_name(headers);
        let secure = if name == SECURE_COOKIE { "; Secure" } else { "" };
        let (value, age) = id.map_or(("", "; Max-Age=0"), |id| (id.expose(), ""));
        format!("{name}={value}; Path=/{age}{secure}; HttpOnly; SameSite=Lax")
    }
}

/// The value of a cookie; `None` if the request has two of this name.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    let mut found = lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(key, _)| *key == name);
    let (Some((_, value)), None) = (found.next(), found.next()) else { return None };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_of_https_is_told_by_the_name_that_people_use() {
        for url in ["https://Stepwatch.example.org/sub", "https://stepwatch.example.org:443"] {
            let reached = Reached::new(None, Some(url));
            let by = |host: &str| {
                let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
                reached.cookie_name(&headers)
            };
            for secure in ["stepwatch.example.org", "Stepwatch.example.org:443"] {
                assert_eq!(by(secure), SECURE_COOKIE, "{secure} of {url}");
            }
            for plain in ["stepwatch.example.org:9766", "127.0.0.1:9766", ""] {
                assert_eq!(by(plain), PLAIN_COOKIE, "{plain} of {url}");
            }
        }
        let reached = Reached::new(None, Some("https://stepwatch.example.org:8443/"));
        assert_eq!(reached.https_host.as_deref(), Some("stepwatch.example.org:8443"));
        let reached = Reached::new(None, Some("http://stepwatch.example.org"));
        assert_eq!(reached.https_host, None);
    }

    #[test]
    fn two_cookies_of_a_name_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "stepwatch=a; x=b".parse().unwrap());
        assert_eq!(cookie(&headers, "stepwatch"), Some("a"));
        headers.append(COOKIE, "stepwatch=c".parse().unwrap());
        assert_eq!(cookie(&headers, "stepwatch"), None);
    }
}
