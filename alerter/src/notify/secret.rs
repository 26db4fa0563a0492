//! The source of a secret: a file or an environment variable, but never the configuration itself.

use std::path::PathBuf;

use stepwatch_kit::config::Secret;

use super::mistake::Mistake;

/// Two keys of a configuration struct, `<what>_file` and `<what>_env`, as one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSource {
    /// The key that is set.
    key: String,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    File(PathBuf),
    Env(String),
}

impl SecretSource {
    /// Reads the keys `<what>_file` and `<what>_env`. `Ok(None)` if neither is set.
    pub(crate) fn from_keys(
        what: &str,
        file: Option<&PathBuf>,
        env: Option<&String>,
    ) -> Result<Option<Self>, Mistake> {
        let source = |key: &str, place| Some(Self { key: format!("{what}_{key}"), place });
        match (file, env) {
            (Some(_), Some(_)) => {
                Err(format!("{what}_file and {what}_env are both set, one is enough").into())
            }
            (Some(file), None) => Ok(source("file", Place::File(file.clone()))),
            (None, Some(env)) => Ok(source("env", Place::Env(env.clone()))),
            (None, None) => Ok(None),
        }
    }

    /// Like [`SecretSource::from_keys`], for a required secret.
    pub(crate) fn needed(what: &str, file: Option<&PathBuf>, env: Option<&String>) -> Result<Self, Mistake> {
        Self::from_keys(what, file, env)?
            .ok_or_else(|| format!("{what}_file (or {what}_env) is missing").into())
    }

    pub(crate) fn read(&self) -> Result<Secret, Mistake> {
        let secret = match &self.place {
            Place::File(path) => Secret::read(path).map_err(|why| self.mistake(why))?,
            Place::Env(name) => std::env::var(name).map(Secret::new).map_err(|_| {
                self.mistake(format!("the environment variable {name} is not set, or not text"))
            })?,
        };
        if secret.expose().trim().is_empty() {
            return Err(self.mistake(format!("the secret in {self} is empty")));
        }
        Ok(secret)
    }

    /// A mistake under the key of the secret.
    pub(crate) fn mistake(&self, why: impl Into<String>) -> Mistake {
        Mistake::at(&self.key, why)
    }
}

/// An address that may be a secret: `url` in the configuration, or the contents of `url_file` or
/// `url_env`.
pub(crate) fn url_of(
    url: Option<&String>,
    file: Option<&PathBuf>,
    env: Option<&String>,
) -> Result<Option<Secret>, Mistake> {
    let source = SecretSource::from_keys("url", file, env)?;
    let key = source.as_ref().map_or("url", |source| &source.key);
    let secret = match (url, &source) {
        (Some(_), Some(_)) => return Err(format!("url and {key} are both set, one is enough").into()),
        (Some(url), None) => Secret::new(url.clone()),
        (None, Some(source)) => source.read()?,
        (None, None) => return Ok(None),
    };
    // The error does not contain the address, because it may be a secret.
    let parsed = url::Url::parse(secret.expose()).ok();
    let web = parsed.filter(|u| matches!(u.scheme(), "http" | "https") && u.host().is_some());
    let parsed = web.ok_or_else(|| Mistake::at(key, "must start with https:// (or http://)"))?;
    if url.is_some() && parsed.password().is_some() {
        return Err(Mistake::at(key, "has a password in it, which belongs into url_file"));
    }
    Ok(Some(secret))
}

impl std::fmt::Display for SecretSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Env(name) => write!(f, "${name}"),
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
            assert_eq!(errors.each_ref().map(|e| e.key.as_deref()), [Some("url"), Some("url_file")], "{bad}");
            assert!(errors.iter().all(|e| !e.text.contains("canary")), "{bad}: {errors:?}");
        }
        assert!(of("https://me:canary@x.org").unwrap_err().text.contains("url_file"));
        assert!(from("https://me:canary@x.org").is_ok());
        let both = url_of(Some(&"http://x".into()), Some(&file), None);
        assert!(both.unwrap_err().text.contains("both set"));
    }

    #[test]
    fn one_source_that_holds_something() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "xoxb-1\n").unwrap();
        let source = SecretSource::needed("token", Some(&file), None).unwrap();
        assert_eq!(source.read().unwrap().expose(), "xoxb-1");
        std::fs::write(&file, "\n").unwrap();
        assert!(source.read().unwrap_err().text.contains("is empty"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(source.read().unwrap_err().key.as_deref(), Some("token_file"));

        assert!(SecretSource::needed("token", None, None).unwrap_err().text.contains("token_env"));
        let both = SecretSource::from_keys("token", Some(&file), Some(&"TOKEN".to_owned()));
        assert!(both.unwrap_err().text.contains("both set"));
        let absent = SecretSource::needed("token", None, Some(&"STEPWATCH_NO_SUCH_VARIABLE".into())).unwrap();
        assert!(absent.read().unwrap_err().text.contains("is not set"));
    }
}
