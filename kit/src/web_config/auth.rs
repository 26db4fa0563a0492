//! Basic authentication against bcrypt hashes.
//!
//! bcrypt is slow on purpose, and a scraper authenticates on every request, so matches are cached.
//! An entry only means "this password has this hash", under a digest of both. So a wrong password
//! can never match the entry of another user (CVE-2022-46146), and a changed hash invalidates the
//! entry of its password. Only matches are cached, so guessing does not fill the cache.
//!
//! An unknown user costs the same as a known one: the password is compared with some user's hash,
//! then refused.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// The most concurrent bcrypt checks, so that guesses do not use the CPU of a training job.
const CONCURRENT_HASHES: usize = 1;
/// The most cached matches; the cache is cleared at this size. One per user and program is enough.
const MAX_REMEMBERED: usize = 1024;
/// The most characters of a header; bcrypt reads only 72 bytes of a password.
const MAX_CREDENTIALS: usize = 1024;

/// A well-formed bcrypt hash.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BcryptHash(Arc<str>);

/// The users with their hashes; an empty list admits everybody.
#[derive(Debug)]
pub(super) struct Users {
    hashes: BTreeMap<String, BcryptHash>,
    matches: Mutex<HashSet<[u8; 32]>>,
    /// Makes the digests useless outside this process.
    salt: [u8; 32],
    /// Chooses the hash that an unknown user's password is compared with. It is always the same one
    /// for a name, as for a real user, and an outsider cannot predict it.
    decoy: RandomState,
    hashing: Arc<Semaphore>,
}

impl BcryptHash {
    pub(super) fn parse(text: String) -> Result<Self, String> {
        // The error does not repeat the text, because it may be a password.
        text.parse::<bcrypt::HashParts>()
            .map_err(|_| "not a bcrypt hash; make one with `htpasswd -nBC 10 USER`".to_owned())?;
        Ok(Self(text.into()))
    }

    fn matches(&self, password: &[u8]) -> bool {
        bcrypt::verify(password, &self.0).unwrap_or(false)
    }
}

impl std::fmt::Debug for BcryptHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<secret>")
    }
}

impl Users {
    pub(super) fn new(hashes: BTreeMap<String, BcryptHash>) -> Self {
        let mut salt = [0; 32];
        if let Err(err) = getrandom::fill(&mut salt) {
            // The salt is a second protection: the cache cannot be read from outside.
            tracing::warn!(%err, "no randomness for the memory of passwords");
        }
        Self {
            hashes,
            matches: Mutex::default(),
            salt,
            decoy: RandomState::new(),
            hashing: Arc::new(Semaphore::new(CONCURRENT_HASHES)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Returns the user, or `None` if everybody is admitted; otherwise the 401.
    pub(super) async fn authorize(&self, headers: &HeaderMap) -> Result<Option<String>, Response> {
        if self.is_empty() {
            return Ok(None);
        }
        let Some((user, password)) = credentials(headers) else { return Err(denied()) };
        if self.admits(&user, password).await { Ok(Some(user)) } else { Err(denied()) }
    }

    /// A digest of the user's password hash. It must stay in memory.
    pub(super) fn mark(&self, user: &str) -> Option<[u8; 32]> {
        self.hashes.get(user).map(|hash| Sha256::digest(hash.0.as_bytes()).into())
    }

    /// Whether the password is the user's.
    pub(super) async fn admits(&self, user: &str, password: String) -> bool {
        let (hash, known) = match self.hashes.get(user) {
            Some(hash) => (hash, true),
            None => match self.hashes.values().nth(self.decoy_index(user)) {
                Some(hash) => (hash, false),
                None => return false,
            },
        };
        let digest = self.digest(hash, &password);
        if self.remembered().contains(&digest) {
            return known;
        }
        let Ok(permit) = Arc::clone(&self.hashing).acquire_owned().await else { return false };
        let guessed = hash.clone();
        // The permit is moved into the work, so that a client that hangs up does not free it early.
        let matched = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            guessed.matches(password.as_bytes())
        });
        let matched = matched.await.unwrap_or(false);
        if matched && known {
            let mut remembered = self.remembered();
            if remembered.len() >= MAX_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(digest);
        }
        matched && known
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashSet<[u8; 32]>> {
        self.matches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decoy_index(&self, user: &str) -> usize {
        self.decoy.hash_one(user) as usize % self.hashes.len().max(1)
    }

    /// A bcrypt hash has a fixed length, so hash and password cannot be confused.
    fn digest(&self, hash: &BcryptHash, password: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(self.salt);
        digest.update(hash.0.as_bytes());
        digest.update(password.as_bytes());
        digest.finalize().into()
    }
}

fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > MAX_CREDENTIALS {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn denied() -> Response {
    let mut response = (StatusCode::UNAUTHORIZED, "Unauthorized\n").into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
    response
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The cheapest cost of bcrypt, because these tests do not test bcrypt itself.
    const COST: u32 = 4;

    fn users(list: &[(&str, &str)]) -> Users {
        let hash = |password: &str| BcryptHash::parse(bcrypt::hash(password, COST).unwrap()).unwrap();
        Users::new(list.iter().map(|(user, password)| ((*user).to_owned(), hash(password))).collect())
    }

    async fn status(users: &Users, header: &str) -> Option<StatusCode> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, header.parse().unwrap());
        users.authorize(&headers).await.err().map(|response| response.status())
    }

    fn basic(pair: &str) -> String {
        format!("Basic {}", STANDARD.encode(pair))
    }

    #[tokio::test]
    async fn the_right_password_of_the_right_user() {
        let users = users(&[("alice", "wonder:land"), ("bob", "builder")]);
        let denied = Some(StatusCode::UNAUTHORIZED);
        // The first check uses bcrypt, the second the cache.
        for _ in 0..2 {
            assert_eq!(status(&users, &basic("alice:wonder:land")).await, None);
            assert_eq!(status(&users, &basic("bob:builder")).await, None);
            for bad in ["alice:builder", "bob:wonder:land", "alice:", "carol:builder", ":builder", "bob", ""]
            {
                assert_eq!(status(&users, &basic(bad)).await, denied, "{bad}");
            }
        }
        for header in ["Bearer abc", "Basic", "Basic !!!", "basic", "Basic Zm9v"] {
            assert_eq!(status(&users, header).await, denied, "{header}");
        }
        assert!(users.authorize(&HeaderMap::new()).await.is_err());
    }

    #[tokio::test]
    async fn the_memory_of_one_user_admits_no_other() {
        // CVE-2022-46146: a cache with the concatenation of user, hash and password as key can
        // return a match for a user who does not exist.
        let users = users(&[("alice", "secret")]);
        assert_eq!(status(&users, &basic("alice:secret")).await, None);
        let hash = users.hashes["alice"].0.to_string();
        for crafted in ["bob:secret".to_owned(), format!("alice{hash}:secret"), format!("ali:ce{hash}secret")]
        {
            assert_eq!(status(&users, &basic(&crafted)).await, Some(StatusCode::UNAUTHORIZED), "{crafted}");
        }
        assert_eq!(users.remembered().len(), 1);
    }

    /// The sequence of CVE-2022-46146, by an attacker who has read every hash and has an account. A
    /// first request leaves a match under a key that a second one, with another user, hash and
    /// password, also has.
    #[tokio::test]
    async fn a_match_that_was_led_into_the_memory_admits_nobody() {
        let users = users(&[("alice", "secret"), ("mallory", "own")]);
        let [alice, mallory] = ["alice", "mallory"].map(|name| users.hashes[name].0.to_string());
        let denied = Some(StatusCode::UNAUTHORIZED);
        // These passwords are correct for whichever hash an unknown user is compared with.
        for known in ["own", "secret"] {
            let unknown = format!("alice{alice}");
            assert_eq!(status(&users, &basic(&format!("{unknown}:{known}"))).await, denied);
        }
        assert_eq!(status(&users, &basic("mallory:own")).await, None);
        for hash in [&alice, &mallory] {
            for known in ["own", "secret"] {
                assert_eq!(status(&users, &basic(&format!("alice:{hash}{known}"))).await, denied);
            }
        }
        assert_eq!(users.remembered().len(), 1, "only that mallory has mallory's password");
    }

    #[tokio::test]
    async fn guesses_are_not_remembered() {
        let users = users(&[("alice", "secret")]);
        for guess in 0..20 {
            assert!(status(&users, &basic(&format!("alice:{guess}"))).await.is_some());
        }
        assert_eq!(users.remembered().len(), 0);
    }

    #[tokio::test]
    async fn nobody_listed_means_everybody() {
        assert!(users(&[]).authorize(&HeaderMap::new()).await.is_ok_and(|user| user.is_none()));
    }

    #[test]
    fn a_hash_is_checked_and_never_shown() {
        let err = BcryptHash::parse("hunter2".into()).unwrap_err();
        assert!(!err.contains("hunter2"), "{err}");
        let hash = BcryptHash::parse(bcrypt::hash("x", COST).unwrap()).unwrap();
        assert_eq!(format!("{hash:?}"), "<secret>");
    }

    proptest! {
        #[test]
        fn never_panics(header in "(Basic )?[ -~]{0,40}") {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            let _ = credentials(&headers);
        }
    }
}
