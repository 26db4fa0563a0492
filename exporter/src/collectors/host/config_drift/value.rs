//! The published form of a setting: short and plain values unchanged, and the beginning of a hash
//! for all others.
//!
//! Two nodes are compared by it, and a person reads it; neither needs the contents of a file or a
//! list of paths. Possible secrets are filtered before ([`stepwatch_wire::secrets`]).

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// The most characters of a value that is published unchanged.
const MAX_CHARS: usize = 64;
/// Twelve hex digits, which distinguish any two values and can be read aloud.
const HASH_BYTES: usize = 6;

/// Settings by name; sorted, so that equal ones have equal fingerprints.
pub(super) type Settings = BTreeMap<String, String>;

pub(super) fn shown(value: &str) -> String {
    let value = value.trim();
    let plain = value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) && value.len() <= MAX_CHARS;
    if plain { value.to_owned() } else { hash(value.as_bytes()) }
}

pub(super) fn hash(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..HASH_BYTES])
}

pub(super) fn fingerprint(settings: &Settings) -> String {
    let mut all = Sha256::new();
    for (key, value) in settings {
        for part in [key.as_bytes(), b"\0", value.as_bytes(), b"\n"] {
            all.update(part);
        }
    }
    hex::encode(&all.finalize()[..HASH_BYTES])
}

/// The distinct kinds of devices, as `a, b`. Their numbers are left out, so that one missing device
/// does not change the setting.
pub(super) fn kinds(words: impl IntoIterator<Item = String>) -> Option<String> {
    let kinds: BTreeSet<String> = words.into_iter().filter(|w| !w.is_empty()).collect();
    (!kinds.is_empty()).then(|| kinds.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_plain_or_hashed() {
        assert_eq!(shown(" mlx5_0,mlx5_1\n"), "mlx5_0,mlx5_1");
        for hidden in ["a".repeat(MAX_CHARS + 1), "söme".into(), "a\nb".into()] {
            let value = shown(&hidden);
            assert!(value.len() == 12 && value.bytes().all(|b| b.is_ascii_hexdigit()), "{value}");
        }
    }

    #[test]
    fn devices_are_listed_by_kind() {
        let words = ["b", "a", "b", ""].map(str::to_owned);
        assert_eq!(kinds(words).as_deref(), Some("a, b"));
        assert_eq!(kinds([]), None);
    }

    proptest::proptest! {
        #[test]
        fn values_are_labels(value: String) {
            let shown = shown(&value);
            proptest::prop_assert!(shown.len() <= MAX_CHARS && shown.is_ascii(), "{shown}");
        }

        #[test]
        fn a_fingerprint_is_of_the_settings(a: BTreeMap<String, String>, key in "[a-z]{1,5}") {
            let mut b = a.clone();
            b.insert(key, "another".into());
            proptest::prop_assert_eq!(fingerprint(&a) == fingerprint(&b), a == b);
        }
    }
}
