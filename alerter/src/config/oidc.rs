//! `api.oidc:`: the OpenID Connect provider at which people log in, and the roles of its groups.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Span;
use url::Url;

use super::file::File;
use super::grant;
use crate::access::sessions::LONGEST;
use crate::access::{Glob, Scope, Scopes, TokenScope};
use crate::notify::{Mistake, SecretSource};
use crate::oidc;
use crate::signed_paths::OIDC_BACK;

const MAX_ROLES: usize = 100;
const MAX_SCOPES: usize = 20;
/// The most characters of a name: of a client, a group, a claim or a scope.
const MAX_NAME: usize = 256;
/// The limits of the longest session.
const MIN_SESSION: Span = Span::secs(300);
const MAX_SESSION: Span = LONGEST;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Oidc {
    /// The provider's name, an address below which its configuration is.
    pub issuer: String,
    pub client_id: String,
    /// Without a secret it is a public client, which PKCE alone protects.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    #[serde(default)]
    pub client_secret_env: Option<String>,
    /// What is asked for beside `openid`.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
    /// The claim with the groups of a person.
    #[serde(default = "default_groups_claim")]
    pub groups_claim: String,
    /// The longest session.
    #[serde(default = "default_session")]
    pub session: Span,
    /// The name of the provider on the login page.
    #[serde(default = "default_label")]
    pub label: String,
    /// The rights of groups; the first that a person has counts.
    pub roles: Vec<Role>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    pub group: String,
    pub scopes: Vec<Scope>,
    /// Limits the role to these runs; `*` matches any characters.
    #[serde(default)]
    pub runs: Vec<Glob>,
    /// Limits the role to these teams.
    #[serde(default)]
    pub teams: Vec<Glob>,
}

fn default_scopes() -> Vec<String> {
    ["profile", "email"].map(str::to_owned).into()
}

fn default_groups_claim() -> String {
    "groups".to_owned()
}

fn default_session() -> Span {
    Span::secs(12 * 3600)
}

fn default_label() -> String {
    "single sign-on".to_owned()
}

impl Oidc {
    fn source(&self) -> Result<Option<SecretSource>, Mistake> {
        let (file, env) = (self.client_secret_file.as_ref(), self.client_secret_env.as_ref());
        SecretSource::from_keys("client_secret", file, env)
    }

    fn secret(&self) -> Result<Option<Secret>, Mistake> {
        self.source()?.map(|source| source.read()).transpose()
    }
}

/// Checks everything except the secret.
pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let Some(oidc) = &file.api.oidc else { return };
    if let Err(why) = issuer(&oidc.issuer) {
        errors.push(format!("api.oidc.issuer: {why}"));
    }
    if let Err(mistake) = oidc.source() {
        errors.push(mistake.under("api.oidc").to_string());
    }
    for (key, text) in
        [("client_id", &oidc.client_id), ("groups_claim", &oidc.groups_claim), ("label", &oidc.label)]
    {
        if !is_name(text) {
            errors.push(format!("api.oidc.{key}: {text:?} must be 1 to {MAX_NAME} printable characters"));
        }
    }
    if oidc.scopes.len() > MAX_SCOPES {
        errors.push(format!("api.oidc.scopes: {} of them, at most {MAX_SCOPES}", oidc.scopes.len()));
    }
    for (i, scope) in oidc.scopes.iter().enumerate() {
        let plain = |b: u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
        if !is_name(scope) || !scope.bytes().all(plain) {
            errors.push(format!("api.oidc.scopes[{i}]: {scope:?} must be one word"));
        }
    }
    if !(MIN_SESSION..=MAX_SESSION).contains(&oidc.session) {
        errors.push("api.oidc.session: must be 5m to 30d".into());
    }
    if file.external_url.as_deref().and_then(address).is_none() {
        errors.push(
            "api.oidc: needs external_url, the address of this alerter to which the provider leads people back"
                .into(),
        );
    }
    roles(&oidc.roles, errors);
}

fn roles(roles: &[Role], errors: &mut Vec<String>) {
    if roles.is_empty() {
        errors.push("api.oidc.roles: is empty, so that nobody could log in".into());
    }
    if roles.len() > MAX_ROLES {
        errors.push(format!("api.oidc.roles: {} of them, at most {MAX_ROLES}", roles.len()));
    }
    let mut groups = BTreeSet::new();
    for (i, role) in roles.iter().enumerate() {
        let at = format!("api.oidc.roles[{i}]");
        let group = &role.group;
        if !is_name(group) {
            errors.push(format!("{at}.group: {group:?} must be 1 to {MAX_NAME} printable characters"));
        }
        if !groups.insert(group) {
            errors.push(format!("{at}.group: {group:?} already has a role"));
        }
        grant::check(&at, "a role", &role.scopes, [&role.runs, &role.teams], errors);
        if role.scopes.contains(&Scope::Ingest) {
            errors.push(format!("{at}.scopes: ingest is for programs, which have tokens"));
        }
    }
}

/// Reads the secret, and makes what logs people in.
pub(super) fn build(file: &File, errors: &mut Vec<String>) -> Option<Arc<oidc::Oidc>> {
    let oidc = file.api.oidc.as_ref()?;
    // A missing address and an ambiguous source of the secret are already reported.
    let external_url = file.external_url.as_deref()?;
    oidc.source().ok()?;
    let client_secret = match oidc.secret() {
        Ok(secret) => secret,
        Err(mistake) => {
            errors.push(mistake.under("api.oidc").to_string());
            return None;
        }
    };
    let role = |role: &Role| oidc::Role {
        group: role.group.clone(),
        scopes: Scopes::from_granted(&role.scopes),
        token_scope: TokenScope { runs: role.runs.clone(), teams: role.teams.clone() },
    };
    let settings = oidc::Settings {
        issuer: oidc.issuer.clone(),
        client_id: oidc.client_id.clone(),
        client_secret,
        redirect_uri: format!("{}{OIDC_BACK}", external_url.trim_end_matches('/')),
        scopes: oidc.scopes.clone(),
        groups_claim: oidc.groups_claim.clone(),
        session: oidc.session,
        label: oidc.label.clone(),
        roles: oidc.roles.iter().map(role).collect(),
    };
    let built = oidc::Oidc::new(settings).map_err(|why| errors.push(format!("api.oidc: {why}")));
    built.ok().map(Arc::new)
}

/// Warnings about allowed but probably unintended settings.
pub(super) fn warnings(file: &File, warnings: &mut Vec<String>) {
    if file.api.oidc.is_none() {
        return;
    }
    if file.api.tokens.is_empty() {
        warnings.push(
            "api.oidc: except as a user of --web.config.file, no program can send alerts, write or scrape: add \
             api.tokens"
                .into(),
        );
    }
    let url = file.external_url.as_deref().and_then(address);
    if url.is_some_and(|url| url.scheme() == "http" && !oidc::is_here(&url)) {
        warnings.push(
            "external_url: with http, the codes and sessions of logins can be read on the way (api.oidc)"
                .into(),
        );
    }
}

fn issuer(text: &str) -> Result<(), String> {
    let url = address(text).ok_or("must be an address that begins with https://")?;
    if url.scheme() == "http" && !oidc::is_here(&url) {
        return Err("must begin with https://; only a provider on this machine may have http://".into());
    }
    let bare = url.query().is_none() && url.fragment().is_none();
    if !bare || !url.username().is_empty() || url.password().is_some() {
        return Err(
            "must be the plain address of the provider, without a user, a query and a fragment".into()
        );
    }
    Ok(())
}

fn address(text: &str) -> Option<Url> {
    Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "canary-of-the-client").unwrap();
        let parsed = Config::parse(&dir.path().join("alerter.yml"), text);
        parsed.map_err(|e| e.to_string().replace(&dir.path().display().to_string(), ""))
    }

    const GOOD: &str = "external_url: https://stepwatch.example.org/\napi:\n  tokens: [{name: prometheus, token_file: secret, scopes: [read]}]\n  oidc:\n    issuer: https://id.example.org/realms/ml\n    client_id: stepwatch\n    client_secret_file: secret\n    roles:\n      - {group: ml-oncall, scopes: [ack, silence]}\n      - {group: research, scopes: [read], runs: ['llama-*']}\n";

    #[test]
    fn the_defaults_and_what_is_shown() {
        let config = parse(GOOD).unwrap();
        let shown = config.to_string();
        for line in [
            "login      https://id.example.org/realms/ml for stepwatch, for 12h at most",
            "group ml-oncall: ack, silence",
            "group research: read, of runs llama-*",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        assert!(config.shown.contains("https://id.example.org/realms/ml"), "{}", config.shown);
        assert!(!format!("{config:?}{shown}{}", config.shown).contains("canary"));
        assert!(
            config.oidc.is_some() && !config.warnings.iter().any(|w| w.contains("oidc")),
            "{:?}",
            config.warnings
        );
        let plain = GOOD.replace("https://stepwatch", "http://stepwatch");
        assert!(parse(&plain).unwrap().warnings.iter().any(|w| w.contains("can be read on the way")));
        let local = GOOD.replace("https://id.example.org", "http://127.0.0.1:8080");
        assert!(parse(&local).is_ok(), "a provider on this machine");
        let people = GOOD.replace("  tokens: [{name: prometheus, token_file: secret, scopes: [read]}]\n", "");
        let lonely = parse(&people).unwrap().warnings;
        assert!(lonely.iter().any(|w| w.ends_with("write or scrape: add api.tokens")), "{lonely:?}");
    }

    #[test]
    fn mistakes_are_pointed_at() {
        let all = [
            GOOD.replace("ml-oncall, scopes: [ack, silence]", "a, scopes: [ack], team: x"),
            GOOD.replace("client_id", "client"),
            GOOD.replace("external_url: https://stepwatch.example.org/\n", ""),
            GOOD.replace("https://id.example.org/realms/ml", "http://id.example.org"),
            GOOD.replace("realms/ml", "realms/ml?x=1"),
            GOOD.replace("client_secret_file: secret", "client_secret_file: none"),
            GOOD.replace(
                "    roles:",
                "    client_secret_env: HOME\n    session: 1m\n    scopes: ['a b']\n    roles:",
            ),
            GOOD.replace("research, scopes: [read]", "ml-oncall, scopes: [ingest, admin]"),
        ];
        let wanted = [
            "unknown field `team`",
            "unknown field `client`",
            "api.oidc: needs external_url",
            "api.oidc.issuer: must begin with https://",
            "api.oidc.issuer: must be the plain address",
            "api.oidc.client_secret_file: cannot read the secret",
            "client_secret_file and client_secret_env are both set",
            "api.oidc.roles[1].group: \"ml-oncall\" already has a role",
        ];
        for (text, wanted) in all.iter().zip(wanted) {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.contains(wanted) && !mistake.contains("canary"), "{wanted}: {mistake}");
        }
        let many = parse(&all[6]).unwrap_err();
        for wanted in ["api.oidc.session: must be 5m to 30d", "api.oidc.scopes[0]: \"a b\" must be one word"]
        {
            assert!(many.contains(wanted), "{many}");
        }
        let role = parse(&all[7]).unwrap_err();
        for wanted in
            ["roles[1].scopes: ingest is for programs", "roles[1].runs: a role with the scope admin"]
        {
            assert!(role.contains(wanted), "{role}");
        }
    }
}
