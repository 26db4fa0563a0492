//! The `storage` section: SQLite in a file, or PostgreSQL for several replicas.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Span;

use crate::notify::{Mistake, SecretSource};
use crate::store::PostgresPlan;

/// The default path of the database.
const SQLITE: &str = "/var/lib/stepwatch/alerter.db";
/// The connections of one replica that may be configured.
const POOL: core::ops::RangeInclusive<u32> = 1..=64;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// The path of the database, on a local disk.
    pub sqlite: Option<PathBuf>,
    /// A database that several replicas share.
    pub postgres: Option<PostgresConfig>,
    /// How long resolved incidents are kept.
    pub retention: Span,
}

/// The database of replicas.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresConfig {
    /// `postgres://user@host/database`. With a password: `url_file` or `url_env`.
    pub url: Option<String>,
    pub url_file: Option<PathBuf>,
    pub url_env: Option<String>,
    /// Connections for reads of lists, beside two for lookups and one that writes.
    pub pool: u32,
    /// The address at which the other replicas reach this one. The default is the name of this
    /// machine and the port of `listen`.
    pub advertise_url: Option<String>,
    /// Like `advertise_url`, from an environment variable: on Kubernetes, each pod has its own.
    pub advertise_url_env: Option<String>,
}

impl Default for Storage {
    fn default() -> Self {
        Self { sqlite: None, postgres: None, retention: Span::secs(90 * 86_400) }
    }
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            url_env: None,
            pool: 4,
            advertise_url: None,
            advertise_url_env: None,
        }
    }
}

impl Storage {
    /// The path of the database of SQLite.
    pub fn sqlite(&self) -> &Path {
        self.sqlite.as_deref().unwrap_or(Path::new(SQLITE))
    }

    pub(super) fn anchor(&mut self, base: &Path) {
        if let Some(path) = &mut self.sqlite {
            *path = base.join(&*path);
        }
        if let Some(path) = self.postgres.as_mut().and_then(|postgres| postgres.url_file.as_mut()) {
            *path = base.join(&*path);
        }
    }

    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if self.retention < Span::secs(86_400) {
            errors.push("storage.retention: must be at least 1d".into());
        }
        if self.sqlite.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            errors.push("storage.sqlite: must name a file".into());
        }
        if self.sqlite.is_some() && self.postgres.is_some() {
            errors.push("storage: has sqlite and postgres, and takes one of them".into());
        }
        if let Some(postgres) = &self.postgres
            && !POOL.contains(&postgres.pool)
        {
            let (least, most) = (POOL.start(), POOL.end());
            errors.push(format!("storage.postgres.pool: must be from {least} to {most}"));
        }
    }

    /// Reads the secret of PostgreSQL; `None` if SQLite is used.
    pub(super) fn build(&self, errors: &mut Vec<String>) -> Option<PostgresPlan> {
        let plan = self.postgres.as_ref().map(PostgresConfig::build)?;
        plan.map_err(|mistake| errors.push(mistake.under("storage.postgres").to_string())).ok()
    }
}

impl PostgresConfig {
    /// Reads the secrets.
    pub fn build(&self) -> Result<PostgresPlan, Mistake> {
        let source = SecretSource::from_keys("url", self.url_file.as_ref(), self.url_env.as_ref())?;
        let url = match (&self.url, &source) {
            (Some(_), Some(_)) => {
                return Err("url and url_file or url_env are both set, one is enough".into());
            }
            (Some(url), None) => Secret::new(url.clone()),
            (None, Some(source)) => source.read()?,
            (None, None) => return Err("url_file (or url, or url_env) is missing".into()),
        };
        // The error does not contain the address, because it may be a secret.
        let parsed = url::Url::parse(url.expose().trim()).ok();
        let parsed = parsed.filter(|url| matches!(url.scheme(), "postgres" | "postgresql"));
        let Some(parsed) = parsed else {
            return Err(Mistake::at("url", "must start with postgres://"));
        };
        let has = |name: &str| parsed.query_pairs().any(|(key, _)| key == name);
        // sqlx does not know it, and would log its value.
        if has("sslpassword") {
            return Err(Mistake::at("url", "has sslpassword, which is not supported: use a key without one"));
        }
        if self.url.is_some() && (parsed.password().is_some() || has("password")) {
            return Err(Mistake::at("url", "has a password in it, which belongs into url_file"));
        }
        Ok(PostgresPlan { url, pool: self.pool, advertise_url: self.advertised()? })
    }

    fn advertised(&self) -> Result<Option<String>, Mistake> {
        let (key, url) = match (&self.advertise_url, &self.advertise_url_env) {
            (Some(_), Some(_)) => {
                return Err("advertise_url and advertise_url_env are both set, one is enough".into());
            }
            (Some(url), None) => ("advertise_url", url.clone()),
            (None, Some(name)) => {
                let missing = || Mistake::at("advertise_url_env", format!("the variable {name} is not set"));
                ("advertise_url_env", std::env::var(name).map_err(|_| missing())?)
            }
            (None, None) => return Ok(None),
        };
        let url = url.trim_end_matches('/').to_owned();
        let parsed = url::Url::parse(&url).ok();
        let fits = |u: &url::Url| matches!(u.scheme(), "http" | "https") && u.has_host() && u.path() == "/";
        if parsed.as_ref().is_some_and(fits) {
            return Ok(Some(url));
        }
        Err(Mistake::at(key, format!("{url:?} is no address such as http://10.0.0.7:9766")))
    }
}
