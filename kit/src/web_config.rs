//! TLS, client certificates, basic authentication and a rate limit, configured by the file that
//! every Prometheus exporter takes (`--web.config.file`).
//!
//! The file, and the certificates it names, are read again when they change, so that certificates
//! rotate without a restart. A changed file is rejected and the old one stays if it is invalid, or
//! would turn TLS or authentication off: a half-written file must not open the port to everybody.

mod auth;
mod file;
mod rate;
mod tls;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use axum::http::header::Entry;
use axum::response::Response;
use rustls::ServerConfig;

use crate::config::{self, ConfigError};

use auth::Users;
use file::{ClientAuthType, WebFile};
use rate::Bucket;

/// The current web configuration. Clones share it.
#[derive(Debug, Clone)]
pub struct WebConfig(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    current: ArcSwap<Loaded>,
    /// The states of the files when last read, successfully or not.
    seen: Mutex<Vec<FileState>>,
}

#[derive(Debug)]
struct Loaded {
    tls: Option<Tls>,
    users: Users,
    headers: HeaderMap,
    bucket: Option<Arc<Bucket>>,
}

/// The TLS configuration for ports with HTTP/1.1, and for ports with HTTP/2 besides it.
#[derive(Debug)]
struct Tls {
    http1: Arc<ServerConfig>,
    both: Arc<ServerConfig>,
    demands_certificates: bool,
}

/// The state of a file, which differs after it is rewritten, replaced, removed or created.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    path: PathBuf,
    state: Option<(SystemTime, u64, u64)>,
}

impl WebConfig {
    /// Reads the file and all files that it names.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let (loaded, seen) = read(path);
        let current = ArcSwap::from_pointee(loaded?);
        Ok(Self(Arc::new(Shared { path: path.to_owned(), current, seen: Mutex::new(seen) })))
    }

    /// Whether connections are encrypted. This cannot change without a restart.
    pub fn is_tls(&self) -> bool {
        self.0.current.load().tls.is_some()
    }

    pub(crate) fn tls(&self, http2: bool) -> Option<Arc<ServerConfig>> {
        let loaded = self.fresh();
        let tls = loaded.tls.as_ref()?;
        Some(Arc::clone(if http2 { &tls.both } else { &tls.http1 }))
    }

    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0.current.load().headers {
            if let Entry::Vacant(entry) = headers.entry(name) {
                entry.insert(value.clone());
            }
        }
    }

    /// Whether every request needs a password or a certificate.
    pub fn authenticates(&self) -> bool {
        let loaded = self.0.current.load();
        !loaded.users.is_empty() || loaded.tls.as_ref().is_some_and(|tls| tls.demands_certificates)
    }

    /// Whether the rate limit admits a request; otherwise the seconds until it will.
    pub(crate) fn admit(&self) -> Result<(), u64> {
        let loaded = self.fresh();
        loaded.bucket.as_ref().map_or(Ok(()), |bucket| bucket.take())
    }

    /// Checks the `Authorization` header, and returns the user; `None` if no users are listed. This
    /// is done on every request, so that a removed user is refused at once, also on open
    /// connections.
    pub(crate) async fn authorize(&self, headers: &HeaderMap) -> Result<Option<String>, Response> {
        let loaded = self.fresh();
        loaded.users.authorize(headers).await
    }

    /// Whether the file lists users.
    pub fn has_users(&self) -> bool {
        !self.0.current.load().users.is_empty()
    }

    /// Checks a name and a password. Returns [`Self::mark`] if they are correct.
    pub async fn verify(&self, name: &str, password: String) -> Option<[u8; 32]> {
        let loaded = self.fresh();
        if loaded.users.admits(name, password).await { loaded.users.mark(name) } else { None }
    }

    /// Identifies a user with the current password. It changes with the password, and is `None`
    /// once the user is removed.
    pub fn mark(&self, name: &str) -> Option<[u8; 32]> {
        self.fresh().users.mark(name)
    }

    fn fresh(&self) -> Arc<Loaded> {
        let shared = &self.0;
        let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.iter().any(|file| *file != FileState::read(&file.path)) {
            let (loaded, now_seen) = read(&shared.path);
            *seen = now_seen;
            match loaded.and_then(|loaded| shared.accept(loaded)) {
                Ok(()) => tracing::info!(file = %shared.path.display(), "web configuration reloaded"),
                Err(err) => tracing::error!(%err, "web configuration not reloaded; the old one stays"),
            }
        }
        shared.current.load_full()
    }
}

impl Shared {
    fn accept(&self, mut loaded: Loaded) -> Result<(), ConfigError> {
        let old = self.current.load();
        let refused = |what| Err(ConfigError::new(self.path.display().to_string(), what));
        if old.tls.is_some() && loaded.tls.is_none() {
            return refused("the changed file has no tls_server_config: switching TLS off takes a restart");
        }
        if old.tls.is_none() && loaded.tls.is_some() {
            return refused("the changed file has a tls_server_config: switching TLS on takes a restart");
        }
        if !old.users.is_empty() && loaded.users.is_empty() {
            return refused("the changed file has no users: switching authentication off takes a restart");
        }
        // A rotated certificate must not refill the bucket.
        if let Some(bucket) = &old.bucket
            && loaded.bucket.as_ref().is_some_and(|new| new.limit() == bucket.limit())
        {
            loaded.bucket = Some(Arc::clone(bucket));
        }
        self.current.store(Arc::new(loaded));
        Ok(())
    }
}

impl FileState {
    fn read(path: &Path) -> Self {
        let state = std::fs::metadata(path).ok().and_then(|m| Some((m.modified().ok()?, m.len(), m.ino())));
        Self { path: path.to_owned(), state }
    }
}

/// Reads all files. Also returns the files to watch, which are known even if their content is
/// invalid.
fn read(path: &Path) -> (Result<Loaded, ConfigError>, Vec<FileState>) {
    // The states are taken before reading, so that a change in between causes another reload.
    let mut seen = vec![FileState::read(path)];
    let file: WebFile = match config::load(path) {
        Ok(file) => file,
        Err(err) => return (Err(err.without_values()), seen),
    };
    let base = path.parent().unwrap_or(Path::new("."));
    if let Some(tls) = &file.tls_server_config {
        seen.extend(tls.files().map(|file| FileState::read(&base.join(file))));
    }
    (build(&file, path, base), seen)
}

fn build(file: &WebFile, path: &Path, base: &Path) -> Result<Loaded, ConfigError> {
    let name = path.display().to_string();
    let tls = match &file.tls_server_config {
        Some(section) => {
            let http1 = tls::server_config(section, base).map_err(|why| ConfigError::new(&name, why))?;
            let mut both = ServerConfig::clone(&http1);
            both.alpn_protocols.insert(0, b"h2".to_vec());
            let demands_certificates = section.client_auth_type == ClientAuthType::RequireAndVerifyClientCert;
            Some(Tls { http1, both: Arc::new(both), demands_certificates })
        }
        None => None,
    };
    let headers = file.http_server_config.header_map().map_err(|why| ConfigError::new(&name, why))?;
    let bucket = Bucket::full(file.rate_limit).map(Arc::new);
    Ok(Loaded { tls, users: Users::new(file.basic_auth_users.clone()), headers, bucket })
}

#[cfg(test)]
mod tests;
