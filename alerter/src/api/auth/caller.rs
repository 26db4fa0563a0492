//! The caller of a request, for the handlers that need it.

use core::fmt;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use stepwatch_respond::matcher::{Labels, Matcher};

use crate::access::sessions::SessionId;
use crate::access::{Grant, Scope, Scopes, TokenScope};
use crate::api::error::ApiError;
use crate::audit::{Door, Entry};
use crate::notify::line;

/// The most characters of a name in a history; the engine limits the author of a silence to the
/// same.
const MAX_SIGNATURE: usize = 200;

#[derive(Debug, Clone)]
pub struct Caller {
    who: Who,
    door: Door,
    remote: Option<IpAddr>,
    /// The session of a logged-in browser.
    session: Option<Arc<SessionId>>,
    /// Whether the transaction of the request itself has written the audit entry.
    audited: Arc<AtomicBool>,
}

#[derive(Debug, Clone)]
pub(crate) enum Who {
    /// Any caller, because no tokens are configured.
    Anybody,
    /// A user of the web configuration.
    User(String),
    Token(Arc<Grant>),
    /// A person for whom an OpenID Connect provider vouched.
    Person {
        grant: Arc<Grant>,
        /// The provider's own identifier, which the audit log has beside the name.
        subject: Arc<str>,
    },
    /// A caller that the gate has not admitted.
    Nobody,
}

/// How an authenticated caller is called: `api:NAME` for a token, `user:NAME` for a user,
/// `oidc:NAME` for a person of OpenID Connect.
struct Actor<'a> {
    kind: &'static str,
    name: &'a str,
}

impl fmt::Display for Actor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

impl Caller {
    pub(super) fn new(who: Who, door: Door, remote: Option<IpAddr>) -> Self {
        Self { who, door, remote, session: None, audited: Arc::default() }
    }

    pub(super) fn in_session(self, id: SessionId) -> Self {
        Self { session: Some(Arc::new(id)), ..self }
    }

    pub(super) fn session(&self) -> Option<&SessionId> {
        self.session.as_deref()
    }

    /// The CSRF token for forms of the caller's session; `None` without a session.
    pub(crate) fn csrf(&self) -> Option<String> {
        self.session().map(SessionId::csrf)
    }

    /// A service that reports over a connection that the alerter opened.
    pub(crate) fn service(door: Door) -> Self {
        Self::new(Who::Anybody, door, None)
    }

    pub(crate) fn scopes(&self) -> Scopes {
        match &self.who {
            Who::Anybody | Who::User(_) => Scopes::all(),
            Who::Token(grant) | Who::Person { grant, .. } => grant.scopes,
            Who::Nobody => Scopes::default(),
        }
    }

    /// The limits of the caller's token or role; `None` if it has none.
    pub(crate) fn token_scope(&self) -> Option<&TokenScope> {
        match &self.who {
            Who::Token(grant) | Who::Person { grant, .. } => {
                Some(&grant.token_scope).filter(|limits| !limits.is_everything())
            }
            Who::Anybody | Who::User(_) | Who::Nobody => None,
        }
    }

    /// The name of a limited token; empty for every other caller.
    pub(in crate::api) fn limited_token(&self) -> &str {
        match &self.who {
            Who::Token(grant) if !grant.token_scope.is_everything() => &grant.name,
            _ => "",
        }
    }

    fn known(&self) -> Option<Actor<'_>> {
        let (kind, name) = match &self.who {
            Who::Token(grant) => ("api", &grant.name),
            Who::User(name) => ("user", name),
            Who::Person { grant, .. } => ("oidc", &grant.name),
            Who::Anybody | Who::Nobody => return None,
        };
        Some(Actor { kind, name })
    }

    /// The authenticated name; `None` if requests need no token.
    pub(crate) fn actor(&self) -> Option<String> {
        self.known().map(|actor| actor.to_string())
    }

    /// The name in histories: the authenticated name first, then the name that the request gives.
    pub(crate) fn signs(&self, by: &str) -> String {
        let Some(known) = self.known() else { return by.to_owned() };
        let actor = known.to_string();
        if by.is_empty() || by == known.name || by == actor {
            return actor;
        }
        // A client that changes a silence sends its author back, already signed by this caller.
        let by = by.strip_prefix(&format!("{actor} (")).and_then(|by| by.strip_suffix(')')).unwrap_or(by);
        let room = MAX_SIGNATURE.saturating_sub(actor.chars().count() + 3);
        format!("{actor} ({})", line(by, room))
    }

    pub(super) fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes().has(scope) {
            return Ok(());
        }
        let who = self.actor().unwrap_or_else(|| "nobody".into());
        Err(forbidden(format!("this needs a token with the scope {scope}, which {who} does not have")))
    }

    /// Refuses callers with limits, for answers that cannot be limited to runs or teams.
    pub(crate) fn require_everything(&self) -> Result<(), ApiError> {
        match self.token_scope() {
            None => Ok(()),
            Some(token_scope) => Err(forbidden(format!(
                "this shows everything, and the token is limited to {token_scope}: it needs one without limits"
            ))),
        }
    }

    /// Whether the caller may see an object with these labels.
    pub(crate) fn sees(&self, labels: &Labels) -> bool {
        self.token_scope().is_none_or(|scope| scope.admits(labels))
    }

    /// Whether everything that a silence of these matchers can match is within the caller's limits.
    pub(crate) fn may_silence(&self, matchers: &[Matcher]) -> Result<(), ApiError> {
        self.token_scope().map_or(Ok(()), |scope| scope.holds(matchers).map_err(forbidden))
    }

    /// The audit entry for an action, to be written in the action's transaction.
    pub(crate) fn audit(&self, by: &str, action: &str, target: &str) -> Entry {
        self.audited.store(true, Ordering::Relaxed);
        self.signed(by, action, target)
    }

    pub(super) fn is_audited(&self) -> bool {
        self.audited.load(Ordering::Relaxed)
    }

    /// The audit entry for a refused action, or for one that the engine does not decide.
    pub(super) fn entry(&self, action: &str, target: &str) -> Entry {
        self.signed("", action, target)
    }

    fn signed(&self, by: &str, action: &str, target: &str) -> Entry {
        let entry = Entry::new(self.door, &self.signs(by), action, target).from(self.remote);
        if let Who::Person { subject, .. } = &self.who { entry.of_subject(subject) } else { entry }
    }
}

fn forbidden(message: String) -> ApiError {
    ApiError { status: StatusCode::FORBIDDEN, message }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    /// A request that did not pass the gate has no rights.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let known = parts.extensions.get::<Self>().cloned();
        Ok(known.unwrap_or_else(|| Self::new(Who::Nobody, Door::Api, None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, scopes: &[Scope]) -> Caller {
        let grant = Grant {
            name: name.into(),
            scopes: Scopes::from_granted(scopes),
            token_scope: TokenScope::default(),
        };
        Caller::new(Who::Token(Arc::new(grant)), Door::Api, None)
    }

    #[test]
    fn the_name_that_is_known_comes_first() {
        let ops = token("ops", &[Scope::Ack]);
        assert_eq!(ops.signs("alice"), "api:ops (alice)");
        for same in ["", "ops", "api:ops"] {
            assert_eq!(ops.signs(same), "api:ops");
        }
        assert_eq!(ops.signs("api:ops (alice)"), "api:ops (alice)");
        assert_eq!(ops.signs("api:root"), "api:ops (api:root)", "nobody passes for another");
        assert_eq!(ops.signs(&"x".repeat(500)).chars().count(), MAX_SIGNATURE);
        assert_eq!(Caller::new(Who::User("ann".into()), Door::Api, None).signs("bob"), "user:ann (bob)");
        assert_eq!(Caller::new(Who::Anybody, Door::Api, None).signs("bob"), "bob");
    }

    #[test]
    fn what_a_person_did_names_the_subject() {
        let grant = Grant {
            name: "ann".into(),
            scopes: Scopes::from_granted(&[Scope::Ack]),
            token_scope: TokenScope::default(),
        };
        let who = Who::Person { grant: Arc::new(grant), subject: "00u1".into() };
        let ann = Caller::new(who, Door::Api, None);
        let entry = ann.audit("bob", "ack", "01J9ZC");
        assert_eq!((entry.actor.as_str(), entry.detail.as_str()), ("oidc:ann (bob)", "subject 00u1"));
        let entry = ann.entry("reload", "/-/reload").saying("403: why");
        assert_eq!((entry.actor.as_str(), entry.detail.as_str()), ("oidc:ann", "subject 00u1: 403: why"));
        assert_eq!(token("ops", &[]).audit("", "ack", "01J9ZC").detail, "");
    }

    #[test]
    fn what_is_missing_is_named() {
        let err = token("ops", &[Scope::Silence]).require(Scope::Ack).unwrap_err();
        assert_eq!(err.status, 403);
        assert_eq!(err.message, "this needs a token with the scope ack, which api:ops does not have");
        assert!(token("ops", &[Scope::Silence]).require(Scope::Read).is_ok());
        let nobody = Caller::new(Who::Nobody, Door::Api, None);
        assert!(Scope::ALL.into_iter().all(|s| nobody.require(s).is_err()));
        assert!(
            Scope::ALL.into_iter().all(|s| Caller::new(Who::Anybody, Door::Api, None).require(s).is_ok())
        );
    }
}
