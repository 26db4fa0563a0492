//! A login in progress. It is in a cookie of the browser, signed, so that logins that are begun and
//! never finished take no memory, and none can push out another.
//!
//! The cookie has one random value, from which state, nonce and PKCE verifier are derived. The
//! signature limits its age, keeps the path to which the login leads, and binds it to the provider
//! and our client there, because a reload may change either.

use core::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use stepwatch_model::time::{Span, Ts};
use subtle::ConstantTimeEq as _;

/// The longest time between the two halves of a login.
const MAX_AGE: Span = Span::secs(600);
pub(crate) const MAX_AGE_SECONDS: i64 = MAX_AGE.0 / 1000;
/// The most characters of a path to which a login leads; browsers keep cookies of 4096.
const MAX_NEXT: usize = 2000;
/// The number of random bytes.
const BYTES: usize = 32;

/// The key that signs attempts. It lives as long as the process.
pub(crate) struct Attempts(Option<[u8; BYTES]>);

/// A login that a browser has begun.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    random: String,
    begun: Ts,
    next: String,
}

impl fmt::Debug for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Attempts {
    pub(crate) fn new() -> Self {
        Self(random())
    }

    /// Begins a login that leads to the path `next`. `None` if the system has no randomness.
    pub(crate) fn begin(&self, next: &str, now: Ts) -> Option<Attempt> {
        self.0.as_ref()?;
        let next = if next.len() > MAX_NEXT { "/" } else { next };
        Some(Attempt { random: hex::encode(random()?), begun: now, next: next.to_owned() })
    }

    /// The value of the cookie, for a login at this provider.
    pub(crate) fn seal(&self, attempt: &Attempt, at: &str) -> String {
        let next = URL_SAFE_NO_PAD.encode(&attempt.next);
        let text = format!("{}.{}.{next}", attempt.random, attempt.begun.0);
        let mac = self.mac(&text, at).unwrap_or_default();
        format!("{text}.{mac}")
    }

    /// The login of a cookie; `None` if this process did not sign it for this provider, or too long
    /// ago.
    pub(crate) fn open(&self, cookie: &str, at: &str, now: Ts) -> Option<Attempt> {
        let (text, mac) = cookie.rsplit_once('.')?;
        if !bool::from(self.mac(text, at)?.as_bytes().ct_eq(mac.as_bytes())) {
            return None;
        }
        let mut parts = text.split('.');
        let (random, begun, next) = (parts.next()?, parts.next()?, parts.next()?);
        let begun = Ts(begun.parse().ok()?);
        let age = now - begun;
        if !(Span::ZERO..MAX_AGE).contains(&age) {
            return None;
        }
        let next = String::from_utf8(URL_SAFE_NO_PAD.decode(next).ok()?).ok()?;
        Some(Attempt { random: random.to_owned(), begun, next })
    }

    fn mac(&self, text: &str, at: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0?).ok()?;
        mac.update(text.as_bytes());
        mac.update(b"\0");
        mac.update(at.as_bytes());
        Some(hex::encode(mac.finalize().into_bytes()))
    }
}

impl Attempt {
    /// The path to which the login leads.
    pub(crate) fn next(&self) -> &str {
        &self.next
    }

    /// The value that the provider's answer must repeat.
    pub(crate) fn state(&self) -> String {
        hex::encode(self.derived("state"))
    }

    pub(crate) fn is_answered_by(&self, state: &str) -> bool {
        self.state().as_bytes().ct_eq(state.as_bytes()).into()
    }

    /// The value that the ID token must repeat.
    pub(super) fn nonce(&self) -> String {
        hex::encode(self.derived("nonce"))
    }

    /// What only we can present with the code (PKCE).
    pub(super) fn verifier(&self) -> String {
        hex::encode(self.derived("verifier"))
    }

    /// The hash of the verifier.
    pub(super) fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.verifier().as_bytes()))
    }

    fn derived(&self, purpose: &str) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(b"stepwatch oidc ");
        digest.update(purpose.as_bytes());
        digest.update(b"\0");
        digest.update(self.random.as_bytes());
        digest.finalize().into()
    }
}

fn random() -> Option<[u8; BYTES]> {
    let mut random = [0; BYTES];
    getrandom::fill(&mut random).ok()?;
    Some(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Ts = Ts(1_795_227_416_980);
    const AT: &str = "https://id.example.org\0stepwatch";

    #[test]
    fn a_cookie_is_good_for_ten_minutes_and_for_this_process() {
        let attempts = Attempts::new();
        let begun = attempts.begin("/incidents/abc?x=1", NOW).unwrap();
        let cookie = attempts.seal(&begun, AT);
        let opened = attempts.open(&cookie, AT, NOW + Span::secs(599)).unwrap();
        assert!(opened == begun && opened.next() == "/incidents/abc?x=1");
        assert!(attempts.open(&cookie, AT, NOW + Span::secs(600)).is_none(), "too old");
        assert!(attempts.open(&cookie, AT, NOW + Span::secs(-1)).is_none(), "of the future");
        assert!(Attempts::new().open(&cookie, AT, NOW).is_none(), "of another process");
        for other in ["https://id.example.org\0other", "https://evil.example.org\0stepwatch", ""] {
            assert!(attempts.open(&cookie, other, NOW).is_none(), "begun at another provider: {other:?}");
        }
        let later = cookie.replace(&NOW.0.to_string(), &(NOW.0 + 1).to_string());
        for forged in ["", "...", "a.1.b.c", &later, &cookie[..cookie.len() - 1]] {
            assert!(attempts.open(forged, AT, NOW).is_none(), "{forged}");
        }
        assert!(cookie.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)), "{cookie}");
        assert!(!format!("{attempts:?}{begun:?}").contains(&cookie[..16]));
    }

    #[test]
    fn what_is_derived_differs_and_says_nothing_of_the_rest() {
        let attempts = Attempts::new();
        let [a, b] = [(); 2].map(|()| attempts.begin("/", NOW).unwrap());
        let all = [a.state(), a.nonce(), a.verifier(), a.challenge(), b.state(), b.nonce(), b.verifier()];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(a.is_answered_by(&a.state()) && !a.is_answered_by(&b.state()) && !a.is_answered_by(""));
        assert!((43..=128).contains(&a.verifier().len()), "RFC 7636");
        assert_eq!(attempts.begin(&"x".repeat(3000), NOW).unwrap().next(), "/");
    }

    #[test]
    fn the_challenge_is_the_hash_of_the_verifier() {
        let attempt = Attempt { random: "00".into(), begun: NOW, next: "/".into() };
        // printf 'stepwatch oidc verifier\0' and "00", sha256, hex; of that sha256, base64url.
        assert_eq!(attempt.verifier(), "4a1c327ee88a4721052607d348ddc9bced53ac9367a545a56d7424c250965797");
        assert_eq!(attempt.challenge(), "BXlH_BK02YdoCNGdNJlgfdTr_0noHRxBl3BrXMa2awE");
    }
}
