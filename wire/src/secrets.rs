//! The rule of what may be a secret, by its name or by its value. In doubt it is one: what it
//! holds for a secret is neither published nor stored, and not even as a hash, because a short
//! password can be guessed from it.

/// Substrings that mark the name of a variable as that of a secret.
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
/// Words of the name of an argument that do so. Arguments of trainers are full of tokens,
/// tokenizers and keys of attention, so a substring says too little there.
const ARGUMENT_WORDS: &[&str] = &[
    "key",
    "keys",
    "apikey",
    "token",
    "secret",
    "secrets",
    "pass",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "pw",
    "cred",
    "creds",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "private",
    "cookie",
    "session",
    "signature",
    "cert",
    "jwt",
    "bearer",
    "dsn",
    "pat",
    "sas",
];
/// Substrings of the name of an argument that do so as well.
const ARGUMENT_PARTS: &[&str] = &["apikey", "accesskey", "secretkey", "password", "passwd", "authtoken"];
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

/// Whether a variable of this name may hold a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let has_word = name.split('_').any(|word| SECRET_WORDS.contains(&word));
    (has_word || SECRET.iter().any(|word| name.contains(word))) && !NO_SECRET.contains(&name.as_str())
}

/// Whether an argument, or a word that a trainer declares, may hold a secret by its name.
pub fn is_secret_argument(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = || name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    // Heads of attention have keys and values.
    let of_attention = words().any(|word| word == "value") || words().any(|word| word == "heads");
    let is_secret_word = |word: &str| ARGUMENT_WORDS.contains(&word) && !(of_attention && word == "key");
    let joined: String = words().collect();
    words().any(is_secret_word) || ARGUMENT_PARTS.iter().any(|part| joined.contains(part))
}

/// Whether a value may hold a secret under any name: an address with a password or a query, or what
/// looks like a token.
pub fn is_secret_value(value: &str) -> bool {
    let of_somebody = value.split_once(':').is_some_and(|(_, rest)| rest.contains('@'));
    let asks = value.split_once("://").is_some_and(|(_, rest)| rest.contains('?'));
    let lower = value.to_ascii_lowercase();
    let mut words = value.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
    let is_token = |word: &str| word.len() >= MIN_TOKEN && TOKENS.iter().any(|t| word.starts_with(t));
    of_somebody || asks || GIVEN.iter().any(|given| lower.contains(given)) || words.any(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn names_of_arguments_that_are_secrets() {
        for name in
            ["wandb-api-key", "hf_token", "db.password", "apiKey", "aws-secret-access-key", "auth", "PAT"]
        {
            assert!(is_secret_argument(name), "{name}");
        }
        for name in [
            "tokenizer-model",
            "tokens_per_batch",
            "num_key_value_heads",
            "passes",
            "author",
            "lr",
            "data-path",
            "keyword_filter",
        ] {
            assert!(!is_secret_argument(name), "{name}");
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
}
