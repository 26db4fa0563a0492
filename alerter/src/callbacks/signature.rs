//! Verifies the signature of a callback over the raw bytes, before anything parses them.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use stepwatch_kit::config::Secret;
use subtle::ConstantTimeEq as _;

use crate::notify::hex;

/// The largest age of a signed request from Slack, and how far it may be in the future; an older
/// one could be a replay.
const SLACK_WINDOW_SECONDS: i64 = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forged {
    /// A header is missing or malformed.
    Malformed,
    TooOld,
    NoMatch,
}

/// Slack's `v0=<hex>` over `v0:<timestamp>:<body>`.
pub(super) fn slack(
    secret: &Secret,
    timestamp: Option<&str>,
    signature: Option<&str>,
    body: &[u8],
    now_seconds: i64,
) -> Result<(), Forged> {
    let (timestamp, signature) = timestamp.zip(signature).ok_or(Forged::Malformed)?;
    let at: i64 = timestamp.parse().map_err(|_| Forged::Malformed)?;
    if now_seconds.checked_sub(at).is_none_or(|age| age.abs() > SLACK_WINDOW_SECONDS) {
        return Err(Forged::TooOld);
    }
    let want = format!("v0={}", mac(secret, &[b"v0:", timestamp.as_bytes(), b":", body]));
    if same(&want, signature) { Ok(()) } else { Err(Forged::NoMatch) }
}

/// PagerDuty's `v1=<hex>[,v1=<hex>]` over the body. There are several during a secret rotation.
/// Unknown versions are ignored.
pub(super) fn pagerduty(secret: &Secret, signatures: Option<&str>, body: &[u8]) -> Result<(), Forged> {
    let signatures = signatures.ok_or(Forged::Malformed)?;
    let parts: Option<Vec<(&str, &str)>> = signatures.split(',').map(|s| s.trim().split_once('=')).collect();
    let parts = parts.ok_or(Forged::Malformed)?;
    let want = mac(secret, &[body]);
    let known = parts.iter().filter(|(version, _)| *version == "v1");
    // All signatures are compared, so that the duration reveals nothing.
    let good = known.fold(false, |good, (_, given)| same(&want, given) | good);
    if good { Ok(()) } else { Err(Forged::NoMatch) }
}

/// Headers without a valid signature: they never pass.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn fuzz(header: &str) {
    let secret = Secret::new("a dummy secret".to_owned());
    assert_ne!(slack(&secret, header.get(..10), Some(header), b"body", 1_795_227_416), Ok(()));
    assert_ne!(pagerduty(&secret, Some(header), b"body"), Ok(()));
}

fn mac(secret: &Secret, parts: &[&[u8]]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) else {
        // HMAC takes keys of any length; nothing matches an empty signature.
        return String::new();
    };
    parts.iter().for_each(|part| mac.update(part));
    hex(&mac.finalize().into_bytes())
}

fn same(want: &str, given: &str) -> bool {
    !want.is_empty() && bool::from(want.as_bytes().ct_eq(given.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.into())
    }

    #[test]
    fn slack_signs_version_time_and_body() {
        // printf 'v0:1531420618:payload=x' | openssl dgst -sha256 -hmac
        // 8f742231b10e8888abcd99yyyzzz85a5
        let secret = secret("8f742231b10e8888abcd99yyyzzz85a5");
        let good = format!("v0={}", mac(&secret, &[b"v0:1531420618:payload=x"]));
        let check = |ts, sig, body: &str, now| slack(&secret, ts, sig, body.as_bytes(), now);
        let (ts, sig) = (Some("1531420618"), Some(good.as_str()));
        assert_eq!(check(ts, sig, "payload=x", 1_531_420_618), Ok(()));
        assert_eq!(check(ts, sig, "payload=x", 1_531_420_918), Ok(()));
        assert_eq!(check(ts, sig, "payload=x", 1_531_420_919), Err(Forged::TooOld));
        assert_eq!(check(ts, sig, "payload=x", 1_531_420_317), Err(Forged::TooOld));
        assert_eq!(check(ts, sig, "payload=y", 1_531_420_618), Err(Forged::NoMatch));
        assert_eq!(check(Some("1531420619"), sig, "payload=x", 1_531_420_618), Err(Forged::NoMatch));
        assert_eq!(check(Some("soon"), sig, "payload=x", 0), Err(Forged::Malformed));
        assert_eq!(check(ts, None, "payload=x", 1_531_420_618), Err(Forged::Malformed));
        assert_eq!(check(Some("-9223372036854775808"), sig, "", 1_531_420_618), Err(Forged::TooOld));
    }

    #[test]
    fn pagerduty_may_send_several_signatures() {
        let (old, new) = (secret("old"), secret("new"));
        let body = br#"{"event":{}}"#;
        let both = format!("v1={}, v1={}", mac(&old, &[body]), mac(&new, &[body]));
        assert_eq!(pagerduty(&old, Some(&both), body), Ok(()));
        assert_eq!(pagerduty(&new, Some(&both), body), Ok(()));
        assert_eq!(pagerduty(&secret("other"), Some(&both), body), Err(Forged::NoMatch));
        assert_eq!(pagerduty(&new, Some(&both), b"{}"), Err(Forged::NoMatch));
        let unknown = format!("v2=abc,v1={}", mac(&new, &[body]));
        assert_eq!(pagerduty(&new, Some(&unknown), body), Ok(()));
        let only_unknown = format!("v2={}", mac(&new, &[body]));
        assert_eq!(pagerduty(&new, Some(&only_unknown), body), Err(Forged::NoMatch));
        assert_eq!(pagerduty(&new, Some("nonsense"), body), Err(Forged::Malformed));
        assert_eq!(pagerduty(&new, None, body), Err(Forged::Malformed));
    }

    proptest! {
        #[test]
        fn nothing_forged_passes(signature: String, body: Vec<u8>) {
            let key = secret("a secret that nobody guesses");
            prop_assert!(pagerduty(&key, Some(&signature), &body).is_err());
            prop_assert!(slack(&key, Some("1700000000"), Some(&signature), &body, 1_700_000_000).is_err());
        }
    }
}
