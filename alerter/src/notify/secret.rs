//! The source of a secret: a file or the environment, never the configuration itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Secret;

/// Two keys of a configuration struct, `<what>_file` and `<what>_env`, as one value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecretSource {
    File(PathBuf),
    Env(String),
}

impl SecretSource {
    /// `what` is the stem of both keys. `Ok(None)` if neither is set.
    pub(crate) fn from_keys(
        what: &str,
        file: Option<&PathBuf>,
        env: Option<&String>,
    ) -> Result<Option<Self>, String> {
        match (file, env) {
            (Some(_), Some(_)) => Err(format!("{what}_file and {what}_env are both set, one is enough")),
            (Some(file), None) => Ok(Some(Self::File(file.clone()))),
            (None, Some(env)) => Ok(Some(Self::Env(env.clone()))),
            (None, None) => Ok(None),
        }
    }

    /// As [`SecretSource::from_keys`], for a secret that must be there.
    pub(crate) fn needed(what: &str, file: Option<&PathBuf>, env: Option<&String>) -> Result<Self, String> {
        Self::from_keys(what, file, env)?.ok_or_else(|| format!("{what}_file (or {what}_env) is missing"))
    }

    pub(crate) fn read(&self) -> Result<Secret, String> {
        let secret = match self {
            Self::File(path) => Secret::read(path)?,
            Self::Env(name) => match std::env::var(name) {
                Ok(value) => Secret::new(value),
                Err(_) => return Err(format!("the environment variable {name} is not set, or not text")),
            },
        };
        if secret.expose().trim().is_empty() {
            return Err(format!("the secret in {self} is empty"));
        }
        Ok(secret)
    }
}

/// An address that may itself be a secret: `url` in the configuration, or the contents of
/// `url_file` or `url_env`.
pub(crate) fn url_of(
    url: Option<&String>,
    file: Option<&PathBuf>,
    env: Option<&String>,
) -> Result<Option<Secret>, String> {
    let secret = match (url, SecretSource::from_keys("url", file, env)?) {
        (Some(_), Some(_)) => return Err("url: and url_file (or url_env) are both set, one is enough".into()),
        (Some(url), None) => Secret::new(url.clone()),
        (None, Some(source)) => source.read().map_err(|e| format!("url_file: {e}"))?,
        (None, None) => return Ok(None),
    };
    // The error does not contain the address: it may be a secret.
    let parsed = url::Url::parse(secret.expose()).ok();
    let web = parsed.filter(|u| matches!(u.scheme(), "http" | "https") && u.host().is_some());
    let parsed = web.ok_or("url: must start with https:// (or http://)")?;
    if url.is_some() && parsed.password().is_some() {
        return Err("url: has a password in it, which belongs into url_file".into());
    }
    Ok(Some(secret))
}

impl std::fmt::Display for SecretSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Env(name) => write!(f, "${name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_checked_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("url");
        let of = |text: &str| url_of(Some(&text.to_owned()), None, None);
        let from = |text: &str| {
            std::fs::write(&file, format!("{text}\n")).unwrap();
            url_of(None, Some(&file), None)
        };
        assert!(url_of(None, None, None).unwrap().is_none());
        for good in ["https://hc.example.com/ping/1", "http://127.0.0.1:1/x?y=z"] {
            assert_eq!(of(good).unwrap().unwrap().expose(), good);
            assert_eq!(from(good).unwrap().unwrap().expose(), good);
        }
        for bad in ["hc.example.com", "ftp://x.org/canary", "http://", "file:///canary"] {
            let errors = [of(bad).unwrap_err(), from(bad).unwrap_err()];
            assert!(
                errors.iter().all(|e| e.starts_with("url: ") && !e.contains("canary")),
                "{bad}: {errors:?}"
            );
        }
        assert!(of("https://me:canary@x.org").unwrap_err().contains("url_file"));
        assert!(from("https://me:canary@x.org").is_ok());
        let both = url_of(Some(&"http://x".into()), Some(&file), None);
        assert!(both.unwrap_err().contains("both set"));
    }

    #[test]
    fn one_source_that_holds_something() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "xoxb-1\n").unwrap();
        let source = SecretSource::needed("token", Some(&file), None).unwrap();
        assert_eq!(source.read().unwrap().expose(), "xoxb-1");
        std::fs::write(&file, "\n").unwrap();
        assert!(source.read().unwrap_err().contains("is empty"));
        std::fs::remove_file(&file).unwrap();
        assert!(source.read().unwrap_err().contains("token"));

        assert!(SecretSource::needed("token", None, None).unwrap_err().contains("token_env"));
        let both = SecretSource::from_keys("token", Some(&file), Some(&"TOKEN".to_owned()));
        assert!(both.unwrap_err().contains("both set"));
        let absent = SecretSource::Env("STEPWATCH_NO_SUCH_VARIABLE".into());
        assert!(absent.read().unwrap_err().contains("is not set"));
    }
}
