//! What an ID token says, once it is known to be the provider's, for us, and of this login.

use std::collections::BTreeSet;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use url::form_urlencoded;

use crate::clock::wall;

/// Signatures by a key that only the provider has. Those by a shared secret (`HS256`) are not among
/// them: a public key, or a client's secret, is none.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
/// The seconds by which the provider's clock may differ from ours.
const LEEWAY_SECONDS: u64 = 60;
/// The most characters of a person's name. With `oidc:sub:` before it, it has at most the 100 that
/// an action on an incident takes.
const MAX_NAME: usize = 90;
/// The most bytes of a subject, which each session keeps. The standard has 255.
const MAX_SUBJECT: usize = 1024;

pub(super) type Claims = Map<String, Value>;

/// What the token must say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// None of the keys made the signature: the provider may have newer ones.
    Key(String),
    Token(String),
}

/// The claims of a valid ID token.
pub(super) fn verify(token: &str, keys: &[Jwk], expected: &Expected<'_>) -> Result<Claims, Wrong> {
    let unreadable = |err: Error| Wrong::Token(format!("the ID token cannot be read: {err}"));
    let header = decode_header(token).map_err(unreadable)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(Wrong::Token(format!("the ID token is signed with {:?}, which is refused", header.alg)));
    }
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY_SECONDS;
    validation.validate_nbf = true;
    validation.set_issuer(&[expected.issuer]);
    validation.set_audience(&[expected.client_id]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    let mut wrong = Wrong::Key("the provider has no key of the ID token".to_owned());
    for key in keys.iter().filter(|key| fits(key, &header)) {
        let Ok(key) = DecodingKey::from_jwk(key) else { continue };
        match decode::<Claims>(token, &key, &validation) {
            Ok(token) => return check(token.claims, expected),
            Err(err) if is_key(&err) => wrong = Wrong::Key(format!("the ID token is not valid: {err}")),
            Err(err) => return Err(Wrong::Token(format!("the ID token is not valid: {err}"))),
        }
    }
    Err(wrong)
}

/// Whether another key could have made the signature.
fn is_key(err: &Error) -> bool {
    use ErrorKind::{InvalidAlgorithm, InvalidKeyFormat, InvalidSignature};
    matches!(err.kind(), InvalidSignature | InvalidAlgorithm | InvalidKeyFormat)
}

/// Whether a key may have signed a token of this header.
fn fits(key: &Jwk, header: &Header) -> bool {
    let common = &key.common;
    let named = header.kid.is_none() || common.key_id == header.kid;
    let signs = common.public_key_use != Some(PublicKeyUse::Encryption);
    named && signs && common.key_algorithm.is_none_or(|alg| alg == KeyAlgorithm::from(header.alg))
}

/// The rules of OpenID Connect that go beyond those of any signed token.
fn check(claims: Claims, expected: &Expected<'_>) -> Result<Claims, Wrong> {
    let wrong = |why: &str| Err(Wrong::Token(format!("the ID token is not valid: {why}")));
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let subject = text("sub").unwrap_or_default();
    if text("iss") != Some(expected.issuer) || !(1..=MAX_SUBJECT).contains(&subject.len()) {
        return wrong("its issuer or subject is not one name");
    }
    let nonce = text("nonce").unwrap_or_default();
    if !bool::from(nonce.as_bytes().ct_eq(expected.nonce.as_bytes())) {
        return wrong("it belongs to another login (nonce)");
    }
    let several = claims.get("aud").and_then(Value::as_array).is_some_and(|aud| aud.len() > 1);
    let authorized = claims.contains_key("azp") || several;
    if authorized && text("azp") != Some(expected.client_id) {
        return wrong("it was issued to another client (azp)");
    }
    let latest = wall().as_secs_f64() + LEEWAY_SECONDS as f64;
    if claims.get("iat").and_then(Value::as_f64).is_none_or(|issued| issued > latest) {
        return wrong("it has no time of issue, or a future one (iat)");
    }
    Ok(claims)
}

/// The provider's identifier of the person; [`verify`] demands it.
pub(super) fn subject(claims: &Claims) -> String {
    claims.get("sub").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The name of the person in histories: the user name, or an address that the provider has
/// verified. `None` if neither is a plain name, which nobody can take for two.
pub(super) fn name(claims: &Claims) -> Option<String> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let email = text("email").filter(|_| is_email_verified(claims));
    [text("preferred_username"), email].into_iter().flatten().find(|name| is_plain(name)).map(str::to_owned)
}

/// A text as a plain name, of which no other text is the same.
pub(super) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// The name of a person who has no other. The colon keeps it from being another's plain name. A
/// long subject is its hash, so that histories have room for the name.
pub(super) fn name_of_subject(subject: &str) -> String {
    let name = encoded(subject);
    if name.len() <= MAX_NAME {
        return format!("sub:{name}");
    }
    format!("sub:sha256:{}", hex::encode(Sha256::digest(subject.as_bytes())))
}

fn is_plain(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._@+-".contains(c))
}

fn is_email_verified(claims: &Claims) -> bool {
    claims.get("email_verified").is_some_and(|v| *v == Value::Bool(true) || v == "true")
}

/// The groups; `None` if the claims have none, unlike a person who is in no group.
pub(super) fn groups(claims: &Claims, claim: &str) -> Option<BTreeSet<String>> {
    let found = find(claims, claim)?;
    if claim == "email" && !is_email_verified(claims) {
        return Some(BTreeSet::new());
    }
    match found {
        Value::String(one) => Some(BTreeSet::from([one.clone()])),
        Value::Array(all) => Some(all.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => None,
    }
}

/// A claim by its name, which may contain dots, or else by its path in nested objects.
fn find<'a>(claims: &'a Claims, claim: &str) -> Option<&'a Value> {
    if let Some(found) = claims.get(claim) {
        return Some(found);
    }
    let (first, rest) = claim.split_once('.')?;
    rest.split('.').try_fold(claims.get(first)?, |value, key| value.get(key))
}

/// Whether the provider says that it left out the groups, as Entra does beyond 200 of them.
pub(super) fn leaves_out(claims: &Claims, claim: &str) -> bool {
    let named = claims.get("_claim_names").is_some_and(|names| names.get(claim).is_some());
    find(claims, claim).is_none() && (named || claims.get("hasgroups") == Some(&Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: Value) -> Claims {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_name_is_one_that_nobody_takes_for_another() {
        let of = |value: Value| name(&claims(value));
        assert_eq!(of(json!({"preferred_username": "ann"})).as_deref(), Some("ann"));
        assert_eq!(
            of(json!({"preferred_username": "ann@corp.example"})).as_deref(),
            Some("ann@corp.example")
        );
        for odd in ["", "ann (bob)", "api:ops", "sub:00u1", "ann\n", "аnn", "a/b", &"a".repeat(91)] {
            let both = json!({"preferred_username": odd, "email": "ann@x.org", "email_verified": true});
            assert_eq!(of(both).as_deref(), Some("ann@x.org"), "{odd:?}");
        }
        for unverified in [json!(false), json!("false"), json!(null), json!(1)] {
            assert_eq!(of(json!({"email": "bob@x.org", "email_verified": unverified})), None);
        }
        assert_eq!(of(json!({"email": "bob@x.org"})), None, "anybody may claim it");
        assert_eq!(of(json!({"email": "bob@x.org", "email_verified": "true"})).as_deref(), Some("bob@x.org"));
        assert_eq!(encoded("auth0|a b"), "auth0%7Ca+b");
        assert_ne!(encoded("a b"), encoded("a+b"));
        assert_eq!(name_of_subject("auth0|a"), "sub:auth0%7Ca");
        assert_eq!(name_of_subject(&"a".repeat(90)), format!("sub:{}", "a".repeat(90)));
        let long = "a".repeat(91);
        let hashed = name_of_subject(&long);
        assert!(hashed.starts_with("sub:sha256:") && hashed.len() == 75, "{hashed}");
        assert_ne!(hashed, name_of_subject(&format!("{long}b")));
    }

    #[test]
    fn groups_are_where_each_provider_puts_them() {
        let of = |value: Value, claim: &str| {
            groups(&claims(value), claim).map(|all| all.into_iter().collect::<Vec<_>>())
        };
        let some = |all: &[&str]| Some(all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(json!({"groups": ["a", "b", "a", 1]}), "groups"), some(&["a", "b"]));
        assert_eq!(of(json!({"groups": "a"}), "groups"), some(&["a"]));
        assert_eq!(of(json!({"groups": []}), "groups"), some(&[]));
        assert_eq!(of(json!({}), "groups"), None);
        assert_eq!(of(json!({"groups": {"a": true}}), "groups"), None);
        let nested = json!({"realm_access": {"roles": ["ops"]}, "https://x.org/groups": ["ops"]});
        assert_eq!(of(nested.clone(), "realm_access.roles"), some(&["ops"]));
        assert_eq!(of(nested.clone(), "https://x.org/groups"), some(&["ops"]));
        assert_eq!(of(nested, "realm_access.groups"), None);
        let address = |verified: bool| json!({"email": "ann@x.org", "email_verified": verified});
        assert_eq!(of(address(true), "email"), some(&["ann@x.org"]));
        assert_eq!(of(address(false), "email"), some(&[]), "anybody may claim it");
    }

    #[test]
    fn groups_that_are_left_out_are_told_from_none() {
        let left_out = |value: Value| leaves_out(&claims(value), "groups");
        assert!(left_out(json!({"_claim_names": {"groups": "src1"}, "_claim_sources": {}})));
        assert!(left_out(json!({"hasgroups": true})));
        assert!(!left_out(json!({"_claim_names": {"other": "src1"}})));
        assert!(!left_out(json!({"hasgroups": true, "groups": []})));
        assert!(!left_out(json!({})));
    }
}
