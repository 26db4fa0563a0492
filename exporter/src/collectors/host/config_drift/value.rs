//! The published form of a setting: short and plain values unchanged, and the beginning of a hash
//! for all others.
//!
//! Two nodes are compared by it, and a person reads it; neither needs the contents of a file or a
//! list of paths. Possible secrets are filtered before: see [`is_secret`] and [`is_secret_value`].

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// The most characters of a value that is published unchanged.
const MAX_CHARS: usize = 64;
/// Twelve hex digits, which distinguish any two values and can be read aloud.
const HASH_BYTES: usize = 6;

/// Substrings that mark a name as that of a secret.
const SECRET: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASS",
    "PWD",
    "CRED",
    "AUTH",
    "PRIVATE",
    "COOKIE",
    "SESSION",
    "SIGNATURE",
    "CERT",
    "JWT",
    "BEARER",
    "DSN",
];
/// Substrings that do so only as whole words: `PATH` is no secret.
const SECRET_WORDS: &[&str] = &["PAT", "SAS", "PW"];
/// Prefixes that mark tokens: of Hugging Face, GitHub, GitLab, Slack, OpenAI, Amazon, Google,
/// NVIDIA, and JSON Web Tokens.
const TOKENS: &[&str] = &[
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xox",
    "sk-",
    "AKIA",
    "ASIA",
    "AIza",
    "nvapi-",
    "eyJ",
];
/// The fewest characters of a token.
const MIN_TOKEN: usize = 12;
/// Text before a secret within a value.
const GIVEN: &[&str] =
    &["token=", "sig=", "signature=", "key=", "password=", "passwd=", "pwd=", "secret=", "auth="];

/// InfiniBand calls partitions keys; they are no secrets.
const NO_SECRET: &[&str] = &["NCCL_IB_PKEY", "UCX_IB_PKEY"];

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

/// Whether a variable of this name may hold a secret. In doubt it does.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let has_word = name.split('_').any(|word| SECRET_WORDS.contains(&word));
    (has_word || SECRET.iter().any(|word| name.contains(word))) && !NO_SECRET.contains(&name.as_str())
}

/// Whether a value may hold a secret under any name: an address with a password or a query, or what
/// looks like a token. Then not even its hash is published, because a short password can be guessed
/// from it.
pub(super) fn is_secret_value(value: &str) -> bool {
    let of_somebody = value.split_once(':').is_some_and(|(_, rest)| rest.contains('@'));
    let asks = value.split_once("://").is_some_and(|(_, rest)| rest.contains('?'));
    let lower = value.to_ascii_lowercase();
    let mut words = value.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    let is_token = |word: &str| word.len() >= MIN_TOKEN && TOKENS.iter().any(|t| word.starts_with(t));
    of_somebody || asks || GIVEN.iter().any(|given| lower.contains(given)) || words.any(is_token)
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
    fn names_of_secrets() {
        for name in [
            "NCCL_API_KEY",
            "TORCH_HUB_TOKEN",
            "cuda_password",
            "UCX_AUTH",
            "FI_CREDENTIALS",
            "NCCL_NET_JWT",
            "TORCH_HF_PAT",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "NCCL_DEBUG",
            "OMP_NUM_THREADS",
            "UCX_TLS",
            "NCCL_IB_PKEY",
            "PYTORCH_CUDA_ALLOC_CONF",
            "NCCL_CONF_PATH",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn values_that_are_secrets() {
        for value in [
            "https://mirror/x?token=hf_abcdefghijkl",
            "https://mirror/x?anything",
            "ada:PW@proxy:3128",
            "http://ada:PW@proxy",
            "--dump_to=gs://b?sig=x",
            "--password=x",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.sig",
            "a,hf_abcdefghijkl",
        ] {
            assert!(is_secret_value(value), "{value}");
        }
        for value in [
            "mlx5_0:1,mlx5_1:1",
            "expandable_segments:True,max_split_size_mb:512",
            "=eth0,eth1",
            "--xla_gpu_enable_latency_hiding_scheduler=true",
            "/opt/amazon/ofi/lib:/usr/lib",
            "gs://bucket/dump",
            "tcp://10.0.0.1:3000",
            "^openib",
            "sk-lake",
            "",
        ] {
            assert!(!is_secret_value(value), "{value}");
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
