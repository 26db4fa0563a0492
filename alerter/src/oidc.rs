//! Login by OpenID Connect: the authorisation code flow with PKCE at one provider, whose groups
//! give roles.
//!
//! Nothing is asked of the provider before a person logs in. So the alerter starts without it, and
//! tokens and passwords work while it is down. What it says of itself and its keys are fetched when
//! they are needed, and kept for an hour.

mod attempt;
mod claims;
mod error;
mod provider;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use stepwatch_kit::config::Secret;
use stepwatch_model::time::Span;
use tokio::sync::Semaphore;

use crate::access::sessions::Credential;
use crate::access::{Grant, Scopes, TokenScope};
use crate::notify::http::Http;
pub(crate) use attempt::{Attempt, Attempts, MAX_AGE_SECONDS};
pub(crate) use error::LoginError;
use provider::Known;
pub(crate) use provider::is_here;

/// The most codes that are exchanged at once. Each is a few requests to the provider.
const MAX_EXCHANGES: usize = 16;
/// The longest time of all requests of one login.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of the provider, with the secret.
#[derive(Debug, Clone)]
pub struct Settings {
    pub issuer: String,
    pub client_id: String,
    /// `None` for a public client.
    pub client_secret: Option<Secret>,
    /// Our own address, to which the provider sends the browser back.
    pub redirect_uri: String,
    /// What is asked for beside `openid`.
    pub scopes: Vec<String>,
    pub groups_claim: String,
    /// The longest session.
    pub session: Span,
    /// The name of the provider on the login page.
    pub label: String,
    pub roles: Vec<Role>,
}

/// The rights of a group.
#[derive(Debug, Clone)]
pub struct Role {
    pub group: String,
    pub scopes: Scopes,
    pub token_scope: TokenScope,
}

/// A person whom the provider vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Person {
    /// The name in histories.
    pub(crate) name: String,
    /// The provider's own identifier, which never changes.
    pub(crate) subject: String,
    /// The groups that have a role.
    pub(crate) groups: Vec<String>,
}

/// One provider.
#[derive(Debug)]
pub struct Oidc {
    settings: Settings,
    http: Http,
    known: Known,
    exchanges: Semaphore,
}

impl Oidc {
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(settings: Settings) -> Result<Self, String> {
        // A service may repeat the request, in which the secret is encoded.
        let encoded = |secret: &Secret| Secret::new(claims::encoded(secret.expose()));
        let secrets = settings.client_secret.iter().flat_map(|secret| [secret.clone(), encoded(secret)]);
        let http = Http::new("the provider", secrets.collect())?;
        Ok(Self { settings, http, known: Known::default(), exchanges: Semaphore::new(MAX_EXCHANGES) })
    }

    pub(crate) fn label(&self) -> &str {
        &self.settings.label
    }

    pub(crate) fn session(&self) -> Span {
        self.settings.session
    }

    /// The provider and our client there, which a login in progress is bound to.
    pub(crate) fn identity(&self) -> String {
        format!("{}\0{}", self.settings.issuer, self.settings.client_id)
    }

    /// What a session of this person remembers.
    pub(crate) fn credential(&self, person: &Person) -> Credential {
        Credential::Person {
            issuer: self.settings.issuer.clone(),
            client_id: self.settings.client_id.clone(),
            subject: person.subject.clone(),
            name: person.name.clone(),
            groups: person.groups.clone(),
        }
    }

    /// The rights of the person of a session, in which the configuration may have changed; `None`
    /// if there are none any more. They are those of the first role, in the order of the
    /// configuration. Roles are not added up, because the scopes of one with the runs of another
    /// would allow what neither does.
    pub(crate) fn rights(&self, of: &Credential) -> Option<Arc<Grant>> {
        let Credential::Person { issuer, client_id, name, groups, .. } = of else { return None };
        if *issuer != self.settings.issuer || *client_id != self.settings.client_id {
            return None;
        }
        let role = self.settings.roles.iter().find(|role| groups.contains(&role.group))?;
        let (scopes, token_scope) = (role.scopes, role.token_scope.clone());
        Some(Arc::new(Grant { name: name.clone(), scopes, token_scope }))
    }

    /// The provider's address for this login.
    pub(crate) async fn authorization_url(&self, attempt: &Attempt) -> Result<String, LoginError> {
        let provider = self.provider().await?;
        let mut url = provider.authorization_endpoint.clone();
        let mut scope = String::from("openid");
        for name in self.settings.scopes.iter().filter(|name| *name != "openid") {
            scope.push(' ');
            scope.push_str(name);
        }
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", &self.settings.redirect_uri)
            .append_pair("scope", &scope)
            .append_pair("state", &attempt.state())
            .append_pair("nonce", &attempt.nonce())
            .append_pair("code_challenge", &attempt.challenge())
            .append_pair("code_challenge_method", "S256");
        Ok(url.into())
    }

    /// The person of the login to which the provider answered with `code`. `from` is the issuer
    /// that the answer names.
    pub(crate) async fn person(
        &self,
        code: &str,
        from: Option<&str>,
        attempt: &Attempt,
    ) -> Result<Person, LoginError> {
        let Ok(_place) = self.exchanges.try_acquire() else { return Err(LoginError::Busy) };
        let exchange = self.exchange(code, from, attempt);
        let late = |_| LoginError::Provider(format!("no login within {} s", EXCHANGE_TIMEOUT.as_secs()));
        tokio::time::timeout(EXCHANGE_TIMEOUT, exchange).await.map_err(late)?
    }

    async fn exchange(
        &self,
        code: &str,
        from: Option<&str>,
        attempt: &Attempt,
    ) -> Result<Person, LoginError> {
        let provider = self.provider().await?;
        if from.is_some_and(|from| from != provider.issuer) || (from.is_none() && provider.names_itself) {
            return Err(LoginError::Refused("the answer does not name the provider as its issuer".into()));
        }
        let tokens = self.tokens(&provider, code, &attempt.verifier()).await?;
        let (issuer, client_id) = (provider.issuer.as_str(), self.settings.client_id.as_str());
        let nonce = attempt.nonce();
        let expected = claims::Expected { issuer, client_id, nonce: &nonce };
        let mut claims = self.verified(&provider, &tokens.id_token, &expected).await?;
        let claim = &self.settings.groups_claim;
        let lacks = claims::groups(&claims, claim).is_none() || claims::name(&claims).is_none();
        let unlisted = claims::leaves_out(&claims, claim);
        if lacks && !unlisted {
            self.complete(&provider, &tokens, &mut claims).await?;
        }
        let subject = claims::subject(&claims);
        let name = claims::name(&claims).unwrap_or_else(|| claims::name_of_subject(&subject));
        let groups = claims::groups(&claims, claim).unwrap_or_default();
        let listed = groups.len();
        let has_role = |group: &String| self.settings.roles.iter().any(|role| role.group == *group);
        let groups: Vec<String> = groups.into_iter().filter(has_role).collect();
        if groups.is_empty() {
            return Err(LoginError::NoRole { name, subject, listed, unlisted });
        }
        Ok(Person { name, subject, groups })
    }
}
