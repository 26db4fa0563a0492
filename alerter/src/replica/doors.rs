//! Who may use the endpoints of a replica that does not lead.
//!
//! The leader checks every request that is forwarded to it. The replica's own endpoints need the
//! same credentials as those of the leader, except that it knows no sessions.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, WWW_AUTHENTICATE};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use stepwatch_kit::admin::PROBES;
use stepwatch_kit::serve::{Pass, WebUser};
use stepwatch_kit::web_config::WebConfig;

use crate::access::{Keyring, Scope, presented};
use crate::config::Config;
use crate::signed_paths;
use crate::web;

#[derive(Debug)]
pub(super) struct Doors {
    keys: Keyring,
    /// Whether people log in with OpenID Connect.
    people: bool,
    /// Whether the web configuration has users.
    users: bool,
}

impl Doors {
    pub(super) fn new(config: &Config, web: Option<&WebConfig>) -> Arc<Self> {
        let (keys, people) = (config.keyring.clone(), config.oidc.is_some());
        Arc::new(Self { keys, people, users: web.is_some_and(WebConfig::has_users) })
    }

    /// The requests that need no user of the web configuration here.
    pub(super) fn pass(self: &Arc<Self>) -> Pass {
        let (needed, doors) = (Arc::clone(self), Arc::clone(self));
        let pass = Pass::new(
            move || needed.people || !needed.keys.is_empty(),
            move |headers| doors.lets_by(headers),
        );
        pass.with_login(signed_paths::is_open, web::login::instead)
    }

    /// Whether a request has a token, or a cookie, which only the leader can check.
    fn lets_by(&self, headers: &HeaderMap) -> bool {
        match presented(headers) {
            Some(token) => self.keys.find(&token).is_some(),
            None => !headers.contains_key(AUTHORIZATION) && headers.contains_key(COOKIE),
        }
    }

    /// Puts the replica's own routes behind the credentials.
    pub(super) fn protect(self: &Arc<Self>, own: Router) -> Router {
        own.route_layer(from_fn_with_state(Arc::clone(self), check))
    }

    /// Whether a request may use one of the replica's own endpoints; the error is the status.
    fn admits(&self, path: &str, headers: &HeaderMap, extensions: &Extensions) -> Result<(), StatusCode> {
        let asks = self.users || self.people || !self.keys.is_empty();
        if !asks || PROBES.contains(&path) || extensions.get::<WebUser>().is_some() {
            return Ok(());
        }
        let grant = presented(headers).and_then(|token| self.keys.find(&token));
        let grant = grant.ok_or(StatusCode::UNAUTHORIZED)?;
        let needed = if path == "/metrics" { Scope::Read } else { Scope::Admin };
        let may = grant.scopes.has(needed) && grant.token_scope.is_everything();
        if may { Ok(()) } else { Err(StatusCode::FORBIDDEN) }
    }
}

async fn check(State(doors): State<Arc<Doors>>, request: Request, next: Next) -> Response {
    match doors.admits(request.uri().path(), request.headers(), request.extensions()) {
        Ok(()) => next.run(request).await,
        Err(StatusCode::UNAUTHORIZED) => {
            let asks = [(WWW_AUTHENTICATE, "Bearer realm=\"stepwatch\"")];
            (StatusCode::UNAUTHORIZED, asks, "send `Authorization: Bearer TOKEN`\n").into_response()
        }
        Err(status) => (status, "the token does not permit this\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use stepwatch_kit::config::Secret;

    use super::*;
    use crate::access::{Grant, Scopes, TokenScope};

    fn doors(users: bool, tokens: &[(&str, Scope)]) -> Doors {
        let mut keys = Keyring::default();
        for (token, scope) in tokens {
            let scopes = Scopes::from_granted(&[*scope]);
            let grant = Grant { name: (*token).into(), scopes, token_scope: TokenScope::default() };
            keys.add(&Secret::new((*token).to_owned()), grant).unwrap();
        }
        Doors { keys, people: false, users }
    }

    fn bearing(token: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        HeaderMap::from_iter([(AUTHORIZATION, value)])
    }

    #[test]
    fn own_endpoints_need_the_credentials_of_the_leader() {
        let (nothing, nobody) = (HeaderMap::new(), Extensions::new());
        let mut user = Extensions::new();
        user.insert(WebUser("ann".into()));
        let open = doors(false, &[]);
        assert_eq!(open.admits("/-/reload", &nothing, &nobody), Ok(()));
        for closed in [doors(true, &[]), doors(false, &[("t-admin", Scope::Admin), ("t-read", Scope::Read)])]
        {
            for path in ["/metrics", "/-/reload", "/-/log-level"] {
                assert_eq!(closed.admits(path, &nothing, &nobody), Err(StatusCode::UNAUTHORIZED), "{path}");
                assert_eq!(closed.admits(path, &bearing("wrong"), &nobody), Err(StatusCode::UNAUTHORIZED));
                assert_eq!(closed.admits(path, &nothing, &user), Ok(()));
            }
            assert_eq!(closed.admits(PROBES[1], &nothing, &nobody), Ok(()));
        }
        let tokens = doors(false, &[("t-admin", Scope::Admin), ("t-read", Scope::Read)]);
        assert_eq!(tokens.admits("/-/reload", &bearing("t-admin"), &nobody), Ok(()));
        assert_eq!(tokens.admits("/-/reload", &bearing("t-read"), &nobody), Err(StatusCode::FORBIDDEN));
        assert_eq!(tokens.admits("/metrics", &bearing("t-read"), &nobody), Ok(()));
    }

    #[test]
    fn what_only_the_leader_can_check_is_forwarded() {
        let doors = doors(true, &[("t-read", Scope::Read)]);
        let session = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("stepwatch=1"))]);
        assert!(doors.lets_by(&bearing("t-read")) && doors.lets_by(&session));
        assert!(!doors.lets_by(&bearing("wrong")) && !doors.lets_by(&HeaderMap::new()));
    }
}
