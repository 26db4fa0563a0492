//! `api:` and `audit:`: the tokens of the API, and how long the audit log is kept.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stepwatch_model::time::Span;

use super::file::File;
use super::grant;
use super::names::unique;
use super::oidc::{self, Oidc};
use crate::access::{Glob, Grant, Keyring, Scope, Scopes, TokenScope};
use crate::notify::{Mistake, SecretSource};

/// The length limits of a token. It must not be guessable, because hashes of tokens are fast to
/// compute.
const MIN_TOKEN: usize = 16;
const MAX_TOKEN: usize = 1024;
const MAX_TOKENS: usize = 1000;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Api {
    /// The tokens of the API. Without any, and without `oidc`, requests need no token.
    pub tokens: Vec<Token>,
    /// The provider at which people log in.
    pub oidc: Option<Oidc>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The name, which histories show as `api:NAME`.
    pub name: String,
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    #[serde(default)]
    pub token_env: Option<String>,
    pub scopes: Vec<Scope>,
    /// Limits the token to these runs; `*` matches any characters.
    #[serde(default)]
    pub runs: Vec<Glob>,
    /// Limits the token to these teams.
    #[serde(default)]
    pub teams: Vec<Glob>,
}

impl Api {
    pub(super) fn anchor(&mut self, base: &Path) {
        let tokens = self.tokens.iter_mut().filter_map(|t| t.token_file.as_mut());
        for path in tokens.chain(self.oidc.as_mut().and_then(|oidc| oidc.client_secret_file.as_mut())) {
            *path = base.join(&*path);
        }
    }

    /// Whether requests need a token or a person.
    pub(crate) fn asks(&self) -> bool {
        !self.tokens.is_empty() || self.oidc.is_some()
    }
}

/// Checks everything except the secrets.
pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let tokens = &file.api.tokens;
    unique("api.tokens", tokens.iter().map(|t| t.name.as_str()), errors);
    if tokens.len() > MAX_TOKENS {
        errors.push(format!("api.tokens: {} of them, at most {MAX_TOKENS}", tokens.len()));
    }
    for (i, token) in tokens.iter().enumerate() {
        let at = format!("api.tokens[{i}]");
        if let Err(mistake) = token.source() {
            errors.push(mistake.under(&at).to_string());
        }
        grant::check(&at, "a token", &token.scopes, [&token.runs, &token.teams], errors);
    }
    if file.audit.retention < Span::secs(86_400) {
        errors.push("audit.retention: must be at least 1d".into());
    }
    if file.audit.max_entries < 1000 {
        errors.push("audit.max_entries: must be at least 1000".into());
    }
}

/// Reads the secrets, and keeps their hashes.
pub(super) fn keyring(file: &File, errors: &mut Vec<String>) -> Keyring {
    let mut keyring = Keyring::default();
    for (i, token) in file.api.tokens.iter().enumerate() {
        // A missing or ambiguous source is already reported.
        let Ok(source) = token.source() else { continue };
        let key = if token.token_file.is_some() { "token_file" } else { "token_env" };
        let at = format!("api.tokens[{i}].{key}");
        let secret = match source.read() {
            Ok(secret) => secret,
            Err(mistake) => {
                errors.push(mistake.under(&format!("api.tokens[{i}]")).to_string());
                continue;
            }
        };
        let text = secret.expose();
        let length = text.chars().count();
        if !(MIN_TOKEN..=MAX_TOKEN).contains(&length) || !text.bytes().all(|b| b.is_ascii_graphic()) {
            errors.push(format!(
                "{at}: must hold {MIN_TOKEN} to {MAX_TOKEN} characters of ASCII without spaces, as `openssl rand -hex 32` makes them"
            ));
            continue;
        }
        let token_scope = TokenScope { runs: token.runs.clone(), teams: token.teams.clone() };
        let grant =
            Grant { name: token.name.clone(), scopes: Scopes::from_granted(&token.scopes), token_scope };
        if let Err(same) = keyring.add(&secret, grant) {
            errors.push(format!("{at}: holds the same token as {:?}; each needs its own", same.name));
        }
    }
    keyring
}

/// Warnings about allowed but probably unintended settings.
pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    let roles = file.api.oidc.iter().flat_map(|oidc| oidc.roles.iter().enumerate());
    let roles = roles.map(|(i, role)| (format!("api.oidc.roles[{i}]"), &role.teams));
    let tokens = file.api.tokens.iter().enumerate();
    for (at, teams) in tokens.map(|(i, token)| (format!("api.tokens[{i}]"), &token.teams)).chain(roles) {
        for (t, glob) in teams.iter().enumerate() {
            if !file.teams.iter().any(|team| glob.matches(&team.name)) {
                warnings.push(format!(
                    "{at}.teams[{t}]: there is no such team unless a run declares itself to be of it"
                ));
            }
        }
    }
    oidc::warnings(file, warnings);
}

impl Token {
    fn source(&self) -> Result<SecretSource, Mistake> {
        SecretSource::needed("token", self.token_file.as_ref(), self.token_env.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use crate::config::Config;

    /// Parses a configuration in a directory with token files; returns the messages that a person
    /// would see.
    fn parse(tokens: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let good = "0123456789abcdef";
        for (name, text) in
            [("good", good), ("same", good), ("short", "hunter2"), ("spaces", "0123456789 abcdef0")]
        {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let text = format!("api:\n  tokens:\n{tokens}");
        let parsed = Config::parse(&dir.path().join("alerter.yml"), &text);
        parsed.map_err(|e| e.to_string().replace(&dir.path().display().to_string(), ""))
    }

    #[test]
    fn tokens_are_read_and_forgotten() {
        let config = parse(
            "    - {name: ops, token_file: good, scopes: [admin]}\n    - {name: llama, token_env: CARGO_PKG_NAME, scopes: [ack, silence], runs: ['llama-*'], teams: [research]}\n",
        )
        .unwrap();
        let ops = config.keyring.find("0123456789abcdef").unwrap();
        assert_eq!(ops.name, "ops");
        let llama = config.keyring.grants().nth(1).unwrap();
        assert_eq!(llama.token_scope.to_string(), "runs llama-* of teams research");
        assert!(config.warnings.iter().any(|w| w.contains("api.tokens[1].teams[0]: there is no such team")));
        let shown = config.to_string();
        assert!(
            shown.contains("ops: admin") && shown.contains("llama: ack, silence, of runs llama-*"),
            "{shown}"
        );
        assert!(!format!("{config:?}{shown}").contains("0123456789abcdef"));
    }

    #[test]
    fn mistakes_are_pointed_at() {
        let all = [
            "    - {name: a, token_file: good, scopes: [reed]}\n",
            "    - {name: a, token: abc, scopes: [read]}\n",
            "    - {name: a, token_file: good, scopes: [read], runs: ['']}\n",
            "    - {name: a, token_file: good}\n",
            "    - {name: a b, scopes: []}\n    - {name: c, token_file: none, token_env: HOME, scopes: [read, read]}\n    - {name: c, token_file: none, scopes: [admin], runs: [x]}\n    - {name: d, token_file: short, scopes: [read]}\n    - {name: e, token_file: spaces, scopes: [read]}\n    - {name: f, token_file: good, scopes: [read]}\n    - {name: g, token_file: same, scopes: [read]}\naudit: {retention: 1h, max_entries: 1}\n",
        ];
        let mistakes = all.map(|text| parse(text).unwrap_err()).join("\n\n");
        assert!(!mistakes.contains("hunter2") && !mistakes.contains("0123456789"), "{mistakes}");
        assert_snapshot!(mistakes);
    }
}
