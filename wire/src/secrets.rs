//! The rule of what may be a secret, by its name or by its value. In doubt it is one: what it
//! holds for a secret is neither published nor stored, and not even as a hash, because a short
//! password can be guessed from it.

use crate::setting::{ARGUMENT, Topic, topic};

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
/// Substrings of the words of the name of an argument, or of what a trainer declares, that do so.
const PARTS: &[&str] = &[
    "access",
    "auth",
    "bearer",
    "cert",
    "cookie",
    "cred",
    "env",
    "export",
    "header",
    "jwt",
    "key",
    "licen",
    "login",
    "pass",
    "private",
    "pwd",
    "secret",
    "session",
    "signature",
    "token",
    "webhook",
];
/// Whole words that do so.
const WORDS: &[&str] = &["dsn", "otp", "pat", "pw", "sas", "sig", "var", "vars"];
/// Words that have such a part and mean something else.
const PLAIN: &[&str] = &[
    "author",
    "authors",
    "bypass",
    "certainty",
    "keyword",
    "keywords",
    "passes",
    "tokenization",
    "tokenize",
    "tokenized",
    "tokenizer",
    "tokenizers",
    "uncertainty",
];
/// Words beside which a token is one of a language model, tokens are a number of them, and keys
/// belong to attention or to the columns of a data set.
const OF_TOKEN: &[&str] = &[
    "audio",
    "bos",
    "cls",
    "dispatcher",
    "drop",
    "eos",
    "image",
    "level",
    "mask",
    "moe",
    "pad",
    "per",
    "special",
    "unk",
    "video",
    "vision",
];
const OF_TOKENS: &[&str] = &[
    "batch", "budget", "input", "max", "min", "moe", "new", "num", "per", "seen", "special", "total", "train",
];
const OF_KEY: &[&str] = &[
    "column", "dim", "head", "heads", "image", "label", "prompt", "query", "response", "reward", "text",
    "value", "video",
];
/// Words that have such a part, and with a number as their value count something.
const COUNTED: &[&str] = &["envs", "tokens"];
/// Prefixes that mark tokens: of Hugging Face, Weights & Biases, GitHub, GitLab, Slack, OpenAI and
/// its like, Stripe, Amazon, Google, NVIDIA, Alibaba, Databricks, Docker, npm, PyPI, Vault,
/// SendGrid, LangSmith, and JSON Web Tokens.
const TOKENS: &[&str] = &[
    "hf_",
    "wandb_v1_",
    "ghp_",
    "gho_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xox",
    "xapp-",
    "sk-",
    "sk_live_",
    "gsk_",
    "tgp_v1_",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "GOCSPX-",
    "nvapi-",
    "LTAI",
    "dapi",
    "dckr_pat_",
    "npm_",
    "pypi-",
    "hvs.",
    "SG.",
    "lsv2_",
    "eyJ",
];
/// The fewest characters of a token.
const MIN_TOKEN: usize = 12;
/// The most characters of a word that is shown under any name, of a number, of the value of a known
/// setting, and of one whose hash is shown.
const MAX_WORD: usize = 24;
const MAX_VALUE: usize = 64;
const MAX_HASHED: usize = 2048;
/// The fewest letters and digits in a row that may be a token.
const MAX_RUN: usize = 16;
/// The changes between capitals, small letters and digits within a token: names such as
/// `GPT2BPETokenizer` have fewer, and only known settings have such names.
const CHANGES: usize = 5;
/// How the names of classes of models end, which change as often.
const CLASSES: &[&str] = &["CausalLM", "Generation", "HeadModel", "Layer", "Block", "Tokenizer", "Fast"];
/// The length of the secret of an access key of Amazon, and the least number of changes in one: it
/// is in base64, whose slashes divide it into short words.
const ACCESS_SECRET: usize = 40;
const ACCESS_CHANGES: usize = 12;
/// Schemes of addresses that name an object and need no password.
const STORES: &[&str] = &["abfs", "abfss", "az", "file", "gs", "hdfs", "hf", "oci", "r2", "s3", "s3a"];
/// Words of names whose value may be the hash of a commit.
const OF_COMMIT: &[&str] = &["commit", "git", "rev", "revision", "sha"];
/// The values of switches, and those that are no secret under any name.
const SWITCHES: &[&str] = &["true", "false", "yes", "no", "on", "off", "none", "null", "given"];
const FLAGS: &[&str] = &["true", "false", "given"];
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
    is_secret_but_for(name, &[])
}

/// The same, where some words are no secrets.
fn is_secret_but_for(name: &str, plain: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    let words = || words(&name);
    let beside = |of: &[&str]| words().any(|word| of.contains(&word));
    let is_plain = |word: &str| match word {
        "token" => beside(OF_TOKEN),
        "tokens" => beside(OF_TOKENS),
        "key" | "keys" => beside(OF_KEY),
        other => PLAIN.contains(&other),
    };
    let is_secret_word = |word: &str| WORDS.contains(&word) || PARTS.iter().any(|part| word.contains(part));
    words().any(|word| is_secret_word(word) && !is_plain(word) && !plain.contains(&word))
}

/// Whether a value may hold a secret under any name: an address with a password or a query, a
/// secret with its name, or what looks like a token.
pub fn is_secret_value(value: &str) -> bool {
    let of_somebody = value.split_once(':').is_some_and(|(_, rest)| rest.contains('@'));
    let asks = value.split_once("://").is_some_and(|(_, rest)| rest.contains('?'));
    let names_secret = |(at, mark): (usize, &str)| {
        let before = value.get(..at).unwrap_or_default().trim_end_matches(['"', '\'', ' ']);
        let name = before.rsplit(|c: char| !is_of_name(c)).next().unwrap_or_default();
        // A list of folders is divided by colons as well.
        let is_folder = mark == ":" && before.strip_suffix(name).is_some_and(|rest| rest.ends_with('/'));
        !is_folder && is_secret_argument(name)
    };
    let mut words = value.split(|c: char| !is_of_name(c));
    let is_token = |word: &str| word.len() >= MIN_TOKEN && TOKENS.iter().any(|t| word.starts_with(t));
    of_somebody
        || asks
        || value.match_indices(['=', ':']).any(names_secret)
        || has_secret_option(value)
        || words.any(is_token)
        || value.split(|c: char| !is_of_base64(c)).any(is_access_secret)
}

/// Whether a word that stands where a name should may be a secret itself.
pub fn is_secret_name(name: &str) -> bool {
    is_secret_value(name) || !runs(name).all(is_of_words)
}

/// Whether a value is a command line with a secret: the option of one, or `Bearer`, and a word.
fn has_secret_option(value: &str) -> bool {
    let mut words = value.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let is_option = word.starts_with('-') && !word.contains('=') && is_secret_argument(word);
        let names = is_option || word.eq_ignore_ascii_case("bearer");
        if names && words.peek().is_some() {
            return true;
        }
    }
    false
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn is_of_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '+')
}

/// Whether a word looks like the secret of an access key of Amazon.
fn is_access_secret(word: &str) -> bool {
    let has = |of: fn(&u8) -> bool| word.bytes().any(|b| of(&b));
    word.len() == ACCESS_SECRET
        && !word.starts_with('/')
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && changes(word) >= ACCESS_CHANGES
}

/// How much of a setting is published or stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Value,
    /// A hash of it: it is plain and too long.
    Hash,
    /// That it is set.
    Name,
    Nothing,
}

/// How much may be shown of an argument (`arg.lr`), or of what a trainer declares. A number, a
/// switch and a short plain word are shown under each name that is not that of a secret, and a
/// plain value of a known setting. `true` and `false` are shown under any name, and the number of
/// tokens or environments.
pub fn shown(key: &str, value: &str) -> Shown {
    let name = key.strip_prefix(ARGUMENT).unwrap_or(key);
    let (is_flag, is_number) = (is_one_of(FLAGS, value), is_numbers(value));
    let counted: &[&str] = if is_number { COUNTED } else { &[] };
    if (!is_flag && is_secret_but_for(name, counted)) || is_secret_value(value) {
        return Shown::Nothing;
    }
    // `-p` may be anything, and often is a password.
    if is_number && !name.eq_ignore_ascii_case("p") {
        return Shown::Value;
    }
    if name.len() < 2 && !is_flag {
        return Shown::Nothing;
    }
    let is_word = value.len() <= MAX_WORD
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
        && runs(value).all(|run| !is_mixed(run));
    if is_word || is_one_of(SWITCHES, value) || is_commit(name, value) {
        return Shown::Value;
    }
    let topic = topic(key);
    let is_place = topic == Topic::Place;
    if topic == Topic::Other || !is_plain(value, is_place) {
        return Shown::Name;
    }
    match value.len() {
        ..=MAX_VALUE => Shown::Value,
        ..=MAX_HASHED if !is_place => Shown::Hash,
        _ => Shown::Name,
    }
}

fn is_one_of(words: &[&str], value: &str) -> bool {
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// The words of a name.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

/// Whether a value is a number, or a list of them.
fn is_numbers(value: &str) -> bool {
    let mut parts = value
        .split([',', ' ', '[', ']', '(', ')'])
        .filter(|part| !part.is_empty())
        .map(|part| part.len() <= MAX_WORD && part.parse::<f64>().is_ok())
        .peekable();
    value.len() <= MAX_VALUE && parts.peek().is_some() && parts.all(|is_number| is_number)
}

/// Whether the value of a known setting is plain. That of a place may be an address, and any may
/// name objects of a store.
fn is_plain(value: &str, is_place: bool) -> bool {
    let plain = |b: u8| {
        b.is_ascii_alphanumeric()
            || matches!(b, b'_' | b'.' | b'-' | b'/' | b'+' | b'(' | b')' | b'[' | b']')
            || (is_place && matches!(b, b':' | b'@'))
    };
    let object = |part: &str| match part.split_once("://") {
        Some((scheme, rest)) if STORES.contains(&scheme) => rest.bytes().all(plain),
        _ => part.bytes().all(plain),
    };
    value.split([' ', ',']).all(object) && runs(value).all(is_of_words)
}

fn is_commit(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_hash = (7..=40).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash && words(&name).any(|word| OF_COMMIT.contains(&word))
}

/// The letters and digits in a row that are long enough for a token.
fn runs(value: &str) -> impl Iterator<Item = &str> {
    words(value).filter(|run| run.len() >= MAX_RUN)
}

/// Whether letters and digits are words rather than a token.
fn is_of_words(run: &str) -> bool {
    !is_mixed(run) || changes(run) < CHANGES || CLASSES.iter().any(|class| run.ends_with(class))
}

fn is_mixed(run: &str) -> bool {
    run.bytes().any(|b| b.is_ascii_digit()) && run.bytes().any(|b| b.is_ascii_alphabetic())
}

/// How often a run changes between capitals, small letters and digits.
fn changes(run: &str) -> usize {
    let class = |b: u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    run.bytes().zip(run.bytes().skip(1)).filter(|(a, b)| class(*a) != class(*b)).count()
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
            "wandb-api-key hf_token db.password apiKey aws-secret-access-key auth PAT wandbkey hftoken clientsecret \
             privatekey accountkey sshkey hf_login userpass passcode env env_vars export headers otel-headers \
             slack_webhook tokenizer_key DB_PASS AWS_ACCESS api_tokens"
                .split_whitespace()
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
            "moe-token-dispatcher-type",
            "pad_token_id",
            "num_tokens",
            "model.key_dim",
            "data.prompt_key",
            "data.image_key",
            "loss.token_level",
            "image_token_index",
            "pin_memory",
        ] {
            assert!(!is_secret_argument(name), "{name}");
        }
    }

    #[test]
    fn names_that_are_secrets_themselves() {
        for name in ["dXNlcjpodW50ZXIy", "hf_abcdefghijkl", "3f2b8c1d9a7e6f5b4c3d"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["actor.optim.adam_beta1", "model/optimizer", "use_qk_norm", "bf16", "data.train_files"] {
            assert!(!is_secret_name(name), "{name}");
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
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "ya29.a0AfB_byCd3fGh",
            "wandb_v1_abcdefgh",
            "s3://bucket/token=hunter2",
            "--quiet --hf-token hunter2",
            "Bearer hunter2",
        ] {
            assert!(is_secret_value(value), "{value}");
        }
        for value in [
            "mlx5_0:1,mlx5_1:1",
            "expandable_segments:True,max_split_size_mb:512",
            "=eth0,eth1",
            "--xla_gpu_enable_latency_hiding_scheduler=true",
            "/opt/amazon/ofi/lib:/usr/lib",
            "/opt/venv:/home/ada/private:/usr/lib",
            "gs://bucket/dump",
            "tcp://10.0.0.1:3000",
            "^openib",
            "sk-lake",
            "/data/processed/RedPajama/Shards/TrainA1",
            "--xla_a=1 --max-tokens 8",
            "--xla_of=keys --xla_b=2",
            "",
        ] {
            assert!(!is_secret_value(value), "{value}");
        }
    }

    #[test]
    fn what_is_no_secret_by_name_and_value_is_shown() {
        use Shown::{Hash, Name, Nothing, Value};
        const LONG: &str =
            "/lustre/fsw/portfolios/llm/users/ada/datasets/slimpajama/tokenized/en_text_document";
        for (key, value, expected) in [
            ("arg.lr", "3e-4", Value),
            ("arg.frobnicate", "[1,2, 3]", Value),
            ("arg.frobnicate", "alltoall", Value),
            ("arg.tokenizer-type", "GPT2BPETokenizer", Value),
            ("arg.tokenizer-type", "GPTSentencePieceTokenizer", Value),
            ("arg.moe-token-dispatcher-type", "alltoall", Value),
            ("arg.data-path", "/data/c4", Value),
            ("arg.fsdp", "full_shard auto_wrap", Value),
            ("arg.pin_memory", "True", Value),
            ("arg.max_new_tokens", "512", Value),
            ("arg.model.kv_key_dim", "128", Value),
            ("git_sha", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Value),
            ("email", "ada@example.org", Value),
            ("team", "ML infrastructure", Value),
            ("client", "stepwatch-python/1.4.0", Value),
            ("version", "2.9.0+cu128", Value),
            ("arg.n", "8", Value),
            ("arg.p", "hunter2", Nothing),
            ("arg.p", "123456", Nothing),
            ("arg.password", "123456", Nothing),
            ("arg.token", "123456", Nothing),
            ("arg.p", "given", Value),
            ("arg.use_auth_token", "True", Value),
            ("arg.global-tokens", "4194304", Value),
            ("arg.tokens", "hunter2", Nothing),
            ("arg.num_envs", "4096", Value),
            ("arg.fsdp_transformer_layer_cls_to_wrap", "Qwen2DecoderLayer", Value),
            ("arg.model_class", "Qwen2MoeForCausalLM", Value),
            ("arg.data-path", "s3://bucket/c4", Value),
            ("arg.data-path", "0.5 s3://bucket/c4 0.5 gs://bucket/pile", Value),
            ("arg.data-path", "https://mirror/c4", Name),
            ("arg.data.s3", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Nothing),
            ("arg.data-path", LONG, Hash),
            ("arg.output-dir", LONG, Name),
            ("arg.frobnicate", LONG, Name),
            ("arg.comet", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Name),
            ("arg.model", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Name),
            ("arg.comet", "3f2b8c1d9a7e6f5b", Name),
            ("arg.db", "{user:ada,password:hunter2}", Nothing),
            ("arg.storage_options", r#"{"key":"minio","secret":"minio123"}"#, Nothing),
            ("arg.model", "{a:hunter2}", Name),
            ("arg.slack", "https://hooks.slack.com/services/T1/B2/x", Name),
        ] {
            assert_eq!(shown(key, value), expected, "{key} {value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_name_of_a_secret_shows_no_value(
            before in "((my|db|hub|x1)[-_.])?",
            word in "api_?key|[a-z]{1,5}key|hf_?token|client_?secret|user_?pass|passcode|[a-z]{1,5}_?login|webhook\
                |credentials?|authorization|license|otel-headers|env|env_vars|session|bearer|pwd",
            value in "[ -~]{0,40}",
        ) {
            proptest::prop_assume!(!is_one_of(FLAGS, &value));
            let name = format!("arg.{before}{word}");
            proptest::prop_assert_eq!(shown(&name, &value), Shown::Nothing);
        }

        #[test]
        fn what_is_shown_is_short_and_no_token(
            name in "[a-z]{2,9}(_[a-z]{2,9})?",
            value: String,
            hex in "[0-9a-f]{32,64}",
        ) {
            if shown(&name, &value) == Shown::Value {
                proptest::prop_assert!(value.len() <= 64 && value.is_ascii());
            }
            let is_commit = OF_COMMIT.iter().any(|word| name.contains(word));
            let is_number = hex.parse::<f64>().is_ok();
            let is_likely = is_mixed(&hex) && changes(&hex) >= CHANGES;
            if !is_commit && !is_number && is_likely {
                proptest::prop_assert_ne!(shown(&name, &hex), Shown::Value);
            }
        }
    }
}
