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
    "credit",
    "keyframe",
    "keyframes",
    "keypoint",
    "keypoints",
    "keyword",
    "keywords",
    "passage",
    "passages",
    "passes",
    "tiktoken",
    "tokenization",
    "tokenize",
    "tokenized",
    "tokenizer",
    "tokenizers",
    "uncertainty",
];
/// Words right before or after which a token is one of a language model, tokens are a number of
/// them, and keys belong to attention or to the columns of a data set. Those that are further off
/// tell nothing: `reward_model.api_key`.
const OF_TOKEN: &[&str] = &[
    "audio",
    "bos",
    "cls",
    "decoder",
    "dispatcher",
    "drop",
    "eod",
    "eos",
    "image",
    "len",
    "length",
    "level",
    "mask",
    "max",
    "min",
    "moe",
    "num",
    "pad",
    "per",
    "sep",
    "special",
    "start",
    "stop",
    "unk",
    "video",
    "vision",
];
const OF_TOKENS: &[&str] = &[
    "batch", "batched", "budget", "input", "max", "min", "moe", "new", "num", "per", "seen", "special",
    "total", "train",
];
const OF_KEY: &[&str] = &[
    "answer", "chosen", "column", "dim", "fn", "head", "heads", "image", "images", "input", "label",
    "messages", "output", "proj", "prompt", "query", "rejected", "response", "reward", "solution", "target",
    "text", "tools", "value", "video", "videos",
];
/// Words beside which a key or a token is a secret, whatever is on its other side.
const OF_SERVICES: &[&str] = &["api", "aws", "azure", "bot", "hf", "hub", "openai", "ssh", "wandb"];
/// Words that have such a part, and with a number as their value count something.
const COUNTED: &[&str] = &["envs", "tokens"];
/// Words that have such a part, and the values with which they tell where a run belongs: routes
/// select by `env="prod"`.
const OF_ENVIRONMENT: &[&str] = &["env", "environment"];
const ENVIRONMENTS: &[&str] =
    &["dev", "development", "prod", "production", "qa", "sandbox", "stage", "staging", "test", "testing"];
/// Prefixes that mark tokens: of Weights & Biases, GitHub, GitLab, Slack, OpenAI and
/// its like, Stripe, Amazon, Google, NVIDIA, Alibaba, Databricks, Docker, npm, PyPI, Vault,
/// SendGrid, LangSmith, and JSON Web Tokens.
const TOKENS: &[&str] = &[
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
/// The prefix of the tokens of Hugging Face, and the fewest letters and digits that follow without
/// a break. Tokens have 34, and folders such as `hf_checkpoints` begin like one.
const HUB: &str = "hf_";
const MIN_HUB: usize = 20;
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
    // A group of a configuration tells nothing of what is in another one.
    let mut parts = name.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | ' '));
    parts.any(|part| {
        let words: Vec<&str> = words(part).collect();
        let mut numbered = words.iter().enumerate();
        numbered.any(|(at, word)| is_secret_word(&words, at, word) && !plain.contains(word))
    })
}

fn is_secret_word(words: &[&str], at: usize, word: &str) -> bool {
    let before = at.checked_sub(1).and_then(|at| words.get(at));
    let beside = |of: &[&str]| before.into_iter().chain(words.get(at + 1)).any(|word| of.contains(word));
    let is_plain = match word {
        "token" | "tokens" | "key" | "keys" if beside(OF_SERVICES) => false,
        "token" => beside(OF_TOKEN),
        "tokens" => beside(OF_TOKENS),
        "key" | "keys" => beside(OF_KEY),
        other => PLAIN.contains(&other),
    };
    !is_plain && (WORDS.contains(&word) || PARTS.iter().any(|part| word.contains(part)))
}

/// Whether a text may be a secret, by its name or by itself. `true` and `false` are none under any
/// name, and neither is the number of tokens or environments, or the word for one.
pub fn is_secret_text(name: &str, text: &str) -> bool {
    let plain: &[&str] = if is_numbers(text) {
        COUNTED
    } else if is_one_of(ENVIRONMENTS, text) {
        OF_ENVIRONMENT
    } else {
        &[]
    };
    (!is_one_of(FLAGS, text) && is_secret_but_for(name, plain)) || is_secret_value(text)
}

/// Whether a value may hold a secret under any name: an address with a password or a query, a
/// secret with its name, or what looks like a token.
pub fn is_secret_value(value: &str) -> bool {
    // An image of a container may be named by its hash.
    let is_password = |(at, _): (usize, &str)| value.get(at..).is_some_and(|v| !v.starts_with("@sha256:"));
    let of_somebody = value
        .find(':')
        .is_some_and(|colon| value.match_indices('@').any(|found| found.0 > colon && is_password(found)));
    let asks = value.split_once("://").is_some_and(|(_, rest)| rest.contains('?'));
    let names_secret = |(at, mark): (usize, &str)| {
        let before = value.get(..at).unwrap_or_default().trim_end_matches(['"', '\'', ' ']);
        let name = before.rsplit(|c: char| !is_of_name(c)).next().unwrap_or_default();
        // A list of folders is divided by colons as well.
        let is_folder = mark == ":" && before.strip_suffix(name).is_some_and(|rest| rest.ends_with('/'));
        !is_folder && is_secret_argument(name)
    };
    let mut words = value.split(|c: char| !is_of_name(c));
    let is_token = |word: &str| {
        is_of_hub(word) || (word.len() >= MIN_TOKEN && TOKENS.iter().any(|t| word.starts_with(t)))
    };
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

fn is_of_hub(word: &str) -> bool {
    let rest = word.strip_prefix(HUB).unwrap_or_default();
    rest.bytes().take_while(u8::is_ascii_alphanumeric).count() >= MIN_HUB
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
/// plain value of a known setting.
pub fn shown(key: &str, value: &str) -> Shown {
    let name = key.strip_prefix(ARGUMENT).unwrap_or(key);
    if is_secret_text(name, value) {
        return Shown::Nothing;
    }
    // `-p` may be anything, and often is a password.
    if is_numbers(value) && !name.eq_ignore_ascii_case("p") {
        return Shown::Value;
    }
    if name.len() < 2 && !is_one_of(FLAGS, value) {
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
/// name objects of a store, be a list of quoted words, or a pattern of layers: `([0]*3+[1]*58)`.
fn is_plain(value: &str, is_place: bool) -> bool {
    let plain = |b: u8| {
        b.is_ascii_alphanumeric()
            || matches!(b, b'_' | b'.' | b'-' | b'/' | b'+' | b'*' | b'|' | b'(' | b')' | b'[' | b']')
            || matches!(b, b'\'' | b'"')
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
mod tests;
