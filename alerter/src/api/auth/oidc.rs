//! Login by OpenID Connect at the gate: the cookie of a login in progress, and the session that it
//! ends with.

use std::net::IpAddr;
use std::sync::LazyLock;

use axum::http::HeaderMap;
use stepwatch_kit::log_throttle::LogThrottle;
use url::form_urlencoded;

use super::gate::Gate;
use super::login::cookie;
use crate::access::sessions::{LoginKind, SessionId};
use crate::audit::{Door, Entry, Outcome};
use crate::clock::wall;
use crate::notify::line;
use crate::oidc::{LoginError, MAX_AGE_SECONDS, Person};
use crate::signed_paths::OIDC_BACK;

/// The names of the cookie. Browsers accept the first only over HTTPS and for this host alone.
const SECURE_COOKIE: &str = "__Host-stepwatch-login";
const PLAIN_COOKIE: &str = "stepwatch-login";
/// The most bytes of a code; those of Entra have about 1500.
const MAX_CODE: usize = 8192;
/// The most characters of a refusal's code.
const MAX_REASON: usize = 64;

/// Limits the log lines about a provider that does not answer.
static UNANSWERED: LazyLock<LogThrottle> = LazyLock::new(LogThrottle::default);

/// The first half of a login: where the browser goes, and the cookie with which it returns.
#[derive(Debug)]
pub(crate) struct Leave {
    pub(crate) to: String,
    pub(crate) cookie: String,
}

/// What the provider sends back with the browser.
#[derive(Debug, Default)]
struct Answer {
    code: String,
    state: String,
    error: String,
    issuer: Option<String>,
}

impl Answer {
    fn parse(query: &str) -> Self {
        let mut answer = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "code" => answer.code = value.into_owned(),
                "state" => answer.state = value.into_owned(),
                "error" => answer.error = value.into_owned(),
                "iss" => answer.issuer = Some(value.into_owned()),
                _ => {}
            }
        }
        answer
    }
}

impl Gate {
    /// Begins a login at the provider, which leads to the path `next`. `None` if there is no
    /// provider.
    pub(crate) async fn leave(&self, headers: &HeaderMap, next: &str) -> Option<Result<Leave, LoginError>> {
        let oidc = self.oidc()?;
        let Some(attempt) = self.attempts().begin(next, wall()) else {
            return Some(Err(LoginError::NoRandomness));
        };
        let to = oidc.authorization_url(&attempt).await.inspect_err(log);
        let sealed = self.attempts().seal(&attempt, &oidc.identity());
        let cookie = self.attempt_cookie(headers, Some(&sealed));
        Some(to.map(|to| Leave { to, cookie }))
    }

    /// Ends a login with the provider's answer: a session, and the path to which the login leads.
    pub(crate) async fn arrive(
        &self,
        headers: &HeaderMap,
        query: &str,
        remote: Option<IpAddr>,
    ) -> Result<(SessionId, String), LoginError> {
        let entry = |actor: &str| Entry::new(Door::Api, actor, "login", OIDC_BACK).from(remote);
        match self.arrival(headers, query, remote).await {
            Ok((id, person, next)) => {
                let entry = entry(&format!("oidc:{}", person.name));
                self.write_audit(entry.of_subject(&person.subject)).await;
                Ok((id, next))
            }
            Err(err) => {
                log(&err);
                // A provider that is down refuses nobody, and is in the log.
                if let LoginError::Denied(_) | LoginError::Refused(_) | LoginError::NoRole { .. } = &err {
                    self.count_refused("login");
                    let entry = match &err {
                        LoginError::Refused(why) => entry("").saying(why),
                        LoginError::NoRole { subject, .. } => {
                            entry("").of_subject(subject).saying(&err.to_string())
                        }
                        err => entry("").saying(&err.to_string()),
                    };
                    self.write_audit(entry.came_to(Outcome::Refused)).await;
                }
                Err(err)
            }
        }
    }

    async fn arrival(
        &self,
        headers: &HeaderMap,
        query: &str,
        remote: Option<IpAddr>,
    ) -> Result<(SessionId, Person, String), LoginError> {
        let now = wall();
        let oidc = self.oidc().ok_or(LoginError::Stale)?;
        let sealed = cookie(headers, self.attempt_cookie_name(headers)).ok_or(LoginError::Stale)?;
        let attempt = self.attempts().open(sealed, &oidc.identity(), now).ok_or(LoginError::Stale)?;
        let answer = Answer::parse(query);
        if !attempt.is_answered_by(&answer.state) {
            return Err(LoginError::Stale);
        }
        if !answer.error.is_empty() {
            return Err(LoginError::Denied(reason(&answer.error)));
        }
        if answer.code.is_empty() || answer.code.len() > MAX_CODE {
            return Err(LoginError::Refused("the answer has no code".into()));
        }
        self.sessions().admits_login(LoginKind::Code, remote, now).map_err(LoginError::TooOften)?;
        let person = oidc.person(&answer.code, answer.issuer.as_deref(), &attempt).await;
        if let Err(LoginError::Refused(_)) = &person {
            self.sessions().refused_login(LoginKind::Code, remote, now);
        }
        let person = person?;
        // The session of whoever used this browser before.
        self.log_out(headers);
        let id = self.sessions().begin_for(oidc.credential(&person), oidc.session(), wall());
        let id = id.ok_or(LoginError::NoRandomness)?;
        tracing::info!(name = person.name, subject = line(&person.subject, 200), "a session begins");
        Ok((id, person, attempt.next().to_owned()))
    }

    /// The `Set-Cookie` value that sets or removes the login in progress.
    pub(crate) fn attempt_cookie(&self, headers: &HeaderMap, sealed: Option<&str>) -> String {
        let name = self.attempt_cookie_name(headers);
        let secure = if name == SECURE_COOKIE { "; Secure" } else { "" };
        let (value, age) = sealed.map_or(("", 0), |sealed| (sealed, MAX_AGE_SECONDS));
        // `Lax`, because the provider's site leads back.
        format!("{name}={value}; Path=/; Max-Age={age}{secure}; HttpOnly; SameSite=Lax")
    }

    fn attempt_cookie_name(&self, headers: &HeaderMap) -> &'static str {
        if self.reached().is_secure(headers) { SECURE_COOKIE } else { PLAIN_COOKIE }
    }
}

/// The code of a refusal, without anything else that whoever wrote the address put there.
fn reason(error: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    error.chars().filter(plain).take(MAX_REASON).collect()
}

fn log(err: &LoginError) {
    if let LoginError::Provider(why) = err
        && let Some(count) = UNANSWERED.count(1)
    {
        tracing::warn!(
            count,
            why,
            "the OpenID Connect provider does not answer as it should: nobody can log in there"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_address_only_a_code_is_repeated() {
        assert_eq!(reason("access_denied"), "access_denied");
        assert_eq!(reason("<b>call +1 555</b>"), "bcall1555b");
        assert_eq!(reason(&"x".repeat(500)).len(), MAX_REASON);
    }
}
