//! The tokens in force, as hashes. The tokens themselves are dropped after they were read.

use core::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use stepwatch_kit::config::Secret;
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::scope::Scopes;
use super::token_scope::TokenScope;

/// The longest `Authorization` header that is parsed; a longer one has no token.
const MAX_CREDENTIALS: usize = 2048;

/// One token: its name, its scopes, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub name: String,
    pub scopes: Scopes,
    pub token_scope: TokenScope,
}

#[derive(Debug, Clone, Default)]
pub struct Keyring {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    hash: [u8; 32],
    grant: Arc<Grant>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.grant, f)
    }
}

impl Keyring {
    /// Adds a token. The error is the grant that already has the same token.
    pub(crate) fn add(&mut self, token: &Secret, grant: Grant) -> Result<(), Arc<Grant>> {
        if let Some(same) = self.find(token.expose()) {
            return Err(same);
        }
        self.keys.push(Key { hash: token_hash(token.expose()), grant: Arc::new(grant) });
        Ok(())
    }

    /// Whether there are no tokens, so that requests need none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.keys.iter().map(|key| &*key.grant)
    }

    /// The grant of a token. Every key is compared in full, so that the time it takes reveals
    /// nothing about the keys.
    pub fn find(&self, token: &str) -> Option<Arc<Grant>> {
        self.find_hash(&token_hash(token))
    }

    /// The grant of a token by its hash, as [`token_hash`] computes it.
    pub(crate) fn find_hash(&self, given: &[u8; 32]) -> Option<Arc<Grant>> {
        let (mut at, mut found) = (0u32, Choice::from(0));
        for (i, key) in self.keys.iter().enumerate() {
            let same = key.hash.ct_eq(given);
            at.conditional_assign(&(i as u32), same);
            found |= same;
        }
        let key = self.keys.get(at as usize).filter(|_| bool::from(found));
        key.map(|key| Arc::clone(&key.grant))
    }
}

/// Hashes a token. A fast hash suffices, because the configuration demands tokens that are too long
/// to be guessed.
pub(crate) fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The token of a request: `Bearer TOKEN`, or `Basic` with the token as the password of any user,
/// since browsers and old programs support nothing else.
pub(crate) fn presented(headers: &HeaderMap) -> Option<String> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    // With two headers, a proxy and this program could each use another one.
    let (Some(header), None) = (given.next(), given.next()) else { return None };
    let (scheme, rest) = header.to_str().ok()?.split_once(' ')?;
    let rest = rest.trim();
    if rest.is_empty() || rest.len() > MAX_CREDENTIALS {
        return None;
    }
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
    Some(decoded.split_once(':')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant(name: &str) -> Grant {
        Grant { name: name.into(), scopes: Scopes::all(), token_scope: TokenScope::default() }
    }

    #[test]
    fn a_token_is_found_by_itself_alone() {
        let mut ring = Keyring::default();
        assert!(ring.find("").is_none());
        for name in ["alpha", "beta", "gamma"] {
            ring.add(&Secret::new(format!("token-of-{name}")), grant(name)).unwrap();
        }
        for name in ["alpha", "beta", "gamma"] {
            assert_eq!(ring.find(&format!("token-of-{name}")).unwrap().name, name);
        }
        for bad in ["", "token-of-", "token-of-alph", "token-of-alphaa", "alpha"] {
            assert!(ring.find(bad).is_none(), "{bad}");
        }
        let same = ring.add(&Secret::new("token-of-beta".into()), grant("delta")).unwrap_err();
        assert_eq!(same.name, "beta");
        assert!(!format!("{ring:?}").contains("token-of"));
    }

    #[test]
    fn a_bearer_or_the_password_of_anybody() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            presented(&headers)
        };
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer  abc "]).as_deref(), Some("abc"));
        assert_eq!(of(&[&basic("me:abc")]).as_deref(), Some("abc"));
        assert_eq!(of(&[&basic(":a:bc")]).as_deref(), Some("a:bc"));
        for bad in [
            "abc",
            "Bearer ",
            "Digest abc",
            "Basic !!",
            &basic("abc"),
            &format!("Bearer {}", "x".repeat(3000)),
        ] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
        assert_eq!(of(&["Bearer abc", "Bearer abc"]), None);
        assert_eq!(of(&[]), None);
    }

    proptest! {
        #[test]
        fn never_panics(header in "(Basic |Bearer )?[ -~]{0,60}") {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            let _ = presented(&headers);
        }
    }
}
