//! The requests to the provider: its configuration, its keys, the exchange of a code, and what it
//! knows of a person.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::Jwk;
use reqwest::RequestBuilder;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::{Host, Url, form_urlencoded};

use super::claims::{self, Claims, Expected, Wrong};
use super::{LoginError, Oidc};
use crate::notify::line;

/// How long the configuration and the keys of the provider are used.
const KEPT: Duration = Duration::from_hours(1);
/// The time after a failure in which the same thing is not fetched again.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two fetches because a key is missing.
const KEYS_PAUSE: Duration = Duration::from_secs(10);
/// The most keys of a provider.
const MAX_KEYS: usize = 100;
/// The most bytes of an ID token.
const MAX_TOKEN: usize = 256 << 10;
/// The most characters of a provider's own words in an error.
const MAX_WORDS: usize = 200;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// What is known of the provider. Each part has its own lock, so that whoever begins a login does
/// not wait for keys that are slow to come.
#[derive(Debug, Default)]
pub(super) struct Known {
    provider: Mutex<Fetched<Arc<Provider>>>,
    keys: Mutex<Keys>,
}

/// What was fetched last.
#[derive(Debug)]
struct Fetched<T> {
    last: Option<(Instant, T)>,
    /// The last failure, and why.
    failed: Option<(Instant, String)>,
}

#[derive(Debug, Default)]
struct Keys {
    fetched: Fetched<Arc<[Jwk]>>,
    /// The last fetch because a key was missing.
    missed: Option<Instant>,
}

impl<T> Default for Fetched<T> {
    fn default() -> Self {
        Self { last: None, failed: None }
    }
}

impl<T: Clone> Fetched<T> {
    fn young(&self) -> Option<T> {
        self.last.as_ref().filter(|(at, _)| at.elapsed() < KEPT).map(|(_, last)| last.clone())
    }

    /// The reason of a failure that is too recent to ask again.
    fn failure(&self) -> Option<String> {
        self.failed.as_ref().filter(|(at, _)| at.elapsed() < PAUSE).map(|(_, why)| why.clone())
    }

    /// Keeps what was fetched, or that it failed.
    fn keep(&mut self, fetched: Result<T, String>) -> Result<T, String> {
        match &fetched {
            Ok(new) => self.last = Some((Instant::now(), new.clone())),
            Err(why) => self.failed = Some((Instant::now(), why.clone())),
        }
        fetched
    }

    /// The last one, however old; an error if there is none.
    fn last_or(&self, why: String) -> Result<T, LoginError> {
        self.last.as_ref().map(|(_, last)| last.clone()).ok_or(LoginError::Provider(why))
    }
}

/// What the provider says of itself.
#[derive(Debug)]
pub(super) struct Provider {
    /// Its name, exactly as it stands in its tokens.
    pub(super) issuer: String,
    /// Whether its answers to a browser name it (RFC 9207).
    pub(super) names_itself: bool,
    pub(super) authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    userinfo_endpoint: Option<Url>,
    /// Whether it takes our secret in a header, or else in the form.
    takes_basic: bool,
}

#[derive(Debug, Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    authorization_response_iss_parameter_supported: Option<bool>,
}

/// The answer to a code.
pub(super) struct Tokens {
    pub(super) id_token: String,
    access_token: Option<String>,
}

impl Oidc {
    /// The provider's configuration. While it cannot be renewed, the last one is used.
    pub(super) async fn provider(&self) -> Result<Arc<Provider>, LoginError> {
        let mut known = self.known.provider.lock().await;
        if let Some(provider) = known.young() {
            return Ok(provider);
        }
        if let Some(why) = known.failure() {
            return known.last_or(why);
        }
        let fetched = self.discover().await.map(Arc::new);
        known.keep(fetched).or_else(|why| known.last_or(why))
    }

    async fn discover(&self) -> Result<Provider, String> {
        let issuer = bare(&self.settings.issuer);
        let request = self.http.client().get(format!("{issuer}/.well-known/openid-configuration"));
        let document = self.fetch(request, "its configuration").await?;
        let document: Document =
            serde_json::from_value(document).map_err(|err| format!("its configuration: {err}"))?;
        // Its tokens have this name, and a document of another provider would be believed for them.
        if bare(&document.issuer) != issuer {
            return Err(format!(
                "it calls itself {:?}, which api.oidc.issuer must be",
                line(&document.issuer, MAX_WORDS)
            ));
        }
        let address = |key: &str, text: &str| endpoint(issuer, key, text);
        let methods = document.token_endpoint_auth_methods_supported;
        let userinfo = document.userinfo_endpoint.as_deref();
        Ok(Provider {
            authorization_endpoint: address("authorization_endpoint", &document.authorization_endpoint)?,
            token_endpoint: address("token_endpoint", &document.token_endpoint)?,
            jwks_uri: address("jwks_uri", &document.jwks_uri)?,
            userinfo_endpoint: userinfo.map(|text| address("userinfo_endpoint", text)).transpose()?,
            // A header is the default of the standard.
            takes_basic: methods.is_none_or(|all| all.iter().any(|method| method == "client_secret_basic")),
            names_itself: document.authorization_response_iss_parameter_supported == Some(true),
            issuer: document.issuer,
        })
    }

    /// Exchanges the code of a login.
    pub(super) async fn tokens(
        &self,
        provider: &Provider,
        code: &str,
        verifier: &str,
    ) -> Result<Tokens, LoginError> {
        let request = self.token_request(provider, code, verifier);
        let failed = |error: String| LoginError::Provider(format!("the exchange of a code: {error}"));
        let answer = self.http.send(request).await.map_err(|failure| failed(failure.error))?;
        let body = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
        let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
        // The standard has 400, and some answer 403.
        if answer.status.is_client_error() && text("error").as_deref() == Some("invalid_grant") {
            return Err(LoginError::Refused("the provider does not take the code (invalid_grant)".into()));
        }
        if !answer.status.is_success() {
            return Err(failed(self.http.refused(&answer).error));
        }
        let id_token = text("id_token").filter(|token| token.len() <= MAX_TOKEN);
        let id_token = id_token.ok_or_else(|| failed("the answer has no ID token".into()))?;
        Ok(Tokens { id_token, access_token: text("access_token") })
    }

    fn token_request(&self, provider: &Provider, code: &str, verifier: &str) -> RequestBuilder {
        let client_id = self.settings.client_id.as_str();
        let mut request = self.http.client().post(provider.token_endpoint.clone());
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code")
            .append_pair("code", code)
            .append_pair("redirect_uri", &self.settings.redirect_uri)
            .append_pair("code_verifier", verifier);
        let secret = self.settings.client_secret.as_ref();
        if let Some(secret) = secret.filter(|_| provider.takes_basic) {
            // Both are encoded first (RFC 6749, 2.3.1).
            let secret = claims::encoded(secret.expose());
            request = request.basic_auth(claims::encoded(client_id), Some(secret));
        } else {
            form.append_pair("client_id", client_id);
            if let Some(secret) = secret {
                form.append_pair("client_secret", secret.expose());
            }
        }
        request.header(CONTENT_TYPE, FORM).header(ACCEPT, JSON).body(form.finish())
    }

    /// The claims of an ID token. A key that is not known makes the keys be fetched again, because
    /// providers change them.
    pub(super) async fn verified(
        &self,
        provider: &Provider,
        token: &str,
        expected: &Expected<'_>,
    ) -> Result<Claims, LoginError> {
        let mut verified = claims::verify(token, &self.keys(provider, false).await?, expected);
        if matches!(verified, Err(Wrong::Key(_))) {
            verified = claims::verify(token, &self.keys(provider, true).await?, expected);
        }
        verified.map_err(|wrong| match wrong {
            Wrong::Key(why) | Wrong::Token(why) => LoginError::Refused(why),
        })
    }

    /// The provider's keys; `again` if one is missing among them. While they cannot be renewed, the
    /// last ones are used: the token comes from the provider itself, over TLS.
    async fn keys(&self, provider: &Provider, again: bool) -> Result<Arc<[Jwk]>, LoginError> {
        let mut known = self.known.keys.lock().await;
        let again = again && known.missed.is_none_or(|at| at.elapsed() >= KEYS_PAUSE);
        if let Some(keys) = known.fetched.young().filter(|_| !again) {
            return Ok(keys);
        }
        let known = &mut *known;
        let fetched = if let Some(why) = known.fetched.failure() {
            Err(why)
        } else {
            let fetched = self.fetch_keys(provider).await;
            known.fetched.keep(fetched)
        };
        match fetched {
            Ok(keys) => {
                if again {
                    known.missed = Some(Instant::now());
                }
                Ok(keys)
            }
            Err(why) if again => Err(LoginError::Provider(why)),
            Err(why) => known.fetched.last_or(why),
        }
    }

    async fn fetch_keys(&self, provider: &Provider) -> Result<Arc<[Jwk]>, String> {
        let request = self.http.client().get(provider.jwks_uri.clone()).header(ACCEPT, JSON);
        let set = self.fetch(request, "its keys").await?;
        // Keys of kinds that we do not know are for others.
        let all = set.get("keys").and_then(Value::as_array).into_iter().flatten();
        let readable = all.filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
        Ok(readable.take(MAX_KEYS).collect())
    }

    /// Adds what the provider says of a person beside the ID token.
    pub(super) async fn complete(
        &self,
        provider: &Provider,
        tokens: &Tokens,
        claims: &mut Claims,
    ) -> Result<(), LoginError> {
        let (Some(url), Some(token)) = (&provider.userinfo_endpoint, &tokens.access_token) else {
            return Ok(());
        };
        let request = self.http.client().get(url.clone()).header(ACCEPT, JSON).bearer_auth(token);
        let more = self.fetch(request, "its userinfo").await.map_err(LoginError::Provider)?;
        let same = more.get("sub").is_some_and(|sub| claims.get("sub") == Some(sub));
        let Value::Object(more) = more else {
            return Err(LoginError::Provider("its userinfo is no object".into()));
        };
        if !same {
            return Err(LoginError::Refused("the userinfo is of another person than the ID token".into()));
        }
        for (key, value) in more {
            claims.entry(key).or_insert(value);
        }
        Ok(())
    }

    /// The JSON that the provider answers. Errors do not show it, because it may have a token.
    async fn fetch(&self, request: RequestBuilder, what: &str) -> Result<Value, String> {
        let answer = self.http.send(request).await.map_err(|failure| format!("{what}: {}", failure.error))?;
        if !answer.status.is_success() {
            return Err(format!("{what}: HTTP {}", answer.status));
        }
        let broken = |err: serde_json::Error| {
            format!("{what}: no JSON, by line {} and column {}", err.line(), err.column())
        };
        serde_json::from_slice(&answer.body).map_err(broken)
    }
}

/// An address that the provider names. Only a provider on this machine may name one without https,
/// and only on this machine: codes, tokens and our secret go there.
pub(super) fn endpoint(issuer: &str, key: &str, text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|err| format!("its {key} is no address: {err}"))?;
    let local = issuer.starts_with("http://") && url.scheme() == "http" && is_here(&url);
    if url.scheme() == "https" || local {
        return Ok(url);
    }
    Err(format!("its {key} does not begin with https://"))
}

/// Whether an address is of this machine.
pub(crate) fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// A name without the slash at its end, which people add and leave out.
fn bare(issuer: &str) -> &str {
    issuer.strip_suffix('/').unwrap_or(issuer)
}
