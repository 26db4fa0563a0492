//! The `exporters` source of the configuration: the targets, and the connection to them.

use core::time::Duration;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stepwatch_kit::config::Secret;
use stepwatch_model::time::Span;

use super::guard::Guarded;
use super::target::{Target, shown_url};

/// The timeouts of a TCP connect, and of the head of a response.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One entry under `sources`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exporters {
    #[serde(rename = "static")]
    pub fixed: Vec<String>,
    /// Globs of Prometheus target files, JSON or YAML, relative to the configuration file.
    pub file_sd: Vec<String>,
    /// URLs that answer with a JSON list of target groups.
    pub http_sd: Vec<String>,
    /// DNS names; each resolved address is one exporter.
    pub dns: Vec<String>,
    /// Interval of `http_sd` and `dns` queries.
    pub refresh: Span,
    /// Whether the targets report only their own node.
    pub nodes: Nodes,
    pub scheme: Scheme,
    pub basic_auth: Option<BasicAuth>,
    pub tls: Tls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    #[default]
    Http,
    Https,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nodes {
    /// Only records about the exporter's own node are accepted.
    #[default]
    Own,
    /// The exporter also forwards events of other nodes.
    Many,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BasicAuth {
    pub username: String,
    pub password_file: PathBuf,
}

/// TLS settings, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The certificates that replace the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate and key for the exporter.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl Default for Exporters {
    fn default() -> Self {
        Self {
            fixed: Vec::new(),
            file_sd: Vec::new(),
            http_sd: Vec::new(),
            dns: Vec::new(),
            refresh: Span::secs(30),
            nodes: Nodes::Own,
            scheme: Scheme::Http,
            basic_auth: None,
            tls: Tls::default(),
        }
    }
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl Exporters {
    /// Makes every path absolute, relative to `base`, the directory of the configuration file.
    pub(crate) fn anchor(&mut self, base: &Path) {
        for pattern in &mut self.file_sd {
            *pattern = base.join(&*pattern).to_string_lossy().into_owned();
        }
        let auth = self.basic_auth.iter_mut().map(|a| &mut a.password_file);
        let tls = &mut self.tls;
        for path in
            auth.chain([&mut tls.ca_file, &mut tls.cert_file, &mut tls.key_file].into_iter().flatten())
        {
            *path = base.join(&*path);
        }
    }

    /// Adds an error with the key for every mistake in the entry.
    pub(crate) fn check(&self, errors: &mut Vec<String>) {
        let lists = [&self.fixed, &self.file_sd, &self.http_sd, &self.dns];
        if lists.iter().all(|l| l.is_empty()) {
            errors.push("names no target: give at least one of static, file_sd, http_sd, dns".into());
        }
        for (key, list) in [("static", &self.fixed), ("dns", &self.dns)] {
            errors.extend(list.iter().filter_map(|t| Some(format!("{key}: {}", Target::parse(t).err()?))));
        }
        for pattern in &self.file_sd {
            if let Err(e) = glob::Pattern::new(pattern) {
                errors.push(format!("file_sd: {pattern:?} is not a glob: {e}"));
            }
        }
        for text in &self.http_sd {
            if !url::Url::parse(text).is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.has_host()) {
                errors.push(format!("http_sd: {:?} is not an http:// or https:// URL", shown_url(text)));
            }
        }
        if self.refresh < Span::secs(1) {
            errors.push("refresh: must be at least 1s".into());
        }
        if self.tls.cert_file.is_some() != self.tls.key_file.is_some() {
            errors.push("tls: cert_file and key_file go together".into());
        }
        if self.tls != Tls::default() && self.scheme == Scheme::Http {
            errors.push("tls: is set and `scheme` is http; expected `scheme: https`".into());
        }
        if errors.is_empty()
            && let Err(e) = self.connection()
        {
            errors.push(e);
        }
    }

    /// Creates the connection of the entry's targets. Reads the secrets and certificates.
    pub(crate) fn connection(&self) -> Result<Connection, String> {
        let read = |key: &str, path: &Path| {
            std::fs::read(path).map_err(|e| format!("tls: {key} {}: {e}", path.display()))
        };
        let mut builder = client_builder().dns_resolver(Guarded);
        match &self.tls.ca_file {
            Some(path) => {
                let pem = read("ca_file", path)?;
                let certs = reqwest::Certificate::from_pem_bundle(&pem)
                    .map_err(|e| format!("tls: ca_file {}: {e}", path.display()))?;
                builder = builder.tls_certs_only(certs);
            }
            // Loading the system's certificates is slow, and fails in a container without any.
            None if self.scheme == Scheme::Http => builder = builder.tls_certs_only([]),
            None => {}
        }
        if let (Some(cert), Some(key)) = (&self.tls.cert_file, &self.tls.key_file) {
            let mut pem = read("cert_file", cert)?;
            pem.push(b'\n');
            pem.extend(read("key_file", key)?);
            let identity = reqwest::Identity::from_pem(&pem)
                .map_err(|e| format!("tls: cert_file and key_file do not make an identity: {e}"))?;
            builder = builder.identity(identity);
        }
        let client = builder.build().map_err(|e| format!("tls: {}", crate::errors::innermost(&e)))?;
        let auth = match &self.basic_auth {
            Some(auth) => {
                let secret = Secret::read(&auth.password_file).map_err(|e| format!("basic_auth: {e}"))?;
                Some((auth.username.clone(), secret))
            }
            None => None,
        };
        Ok(Connection { client, scheme: self.scheme, auth, many_nodes: self.nodes == Nodes::Many })
    }
}

/// The connection to a set of exporters.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    client: reqwest::Client,
    scheme: Scheme,
    auth: Option<(String, Secret)>,
    pub(super) many_nodes: bool,
}

impl Connection {
    pub(crate) fn get(&self, target: &Target, path_and_query: &str) -> reqwest::RequestBuilder {
        let request = self.client.get(format!("{}://{target}{path_and_query}", self.scheme.as_str()));
        match &self.auth {
            Some((user, password)) => request.basic_auth(user, Some(password.expose())),
            None => request,
        }
    }
}

/// A client without proxies from the environment, and without redirects, which could carry a
/// credential elsewhere.
pub(crate) fn client_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("stepwatch-alerter/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .referer(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(e: &Exporters) -> Vec<String> {
        let mut errors = Vec::new();
        e.check(&mut errors);
        errors
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let e = Exporters {
            fixed: vec!["http://a:1".into()],
            file_sd: vec!["x/[".into()],
            http_sd: vec!["ftp://x".into()],
            refresh: Span::ZERO,
            tls: Tls { cert_file: Some("c.pem".into()), ..Tls::default() },
            ..Exporters::default()
        };
        let all = errors(&e).join("\n");
        for part in ["static: target", "file_sd:", "http_sd:", "refresh:", "go together", "scheme: https"] {
            assert!(all.contains(part), "{part} in\n{all}");
        }
        assert!(errors(&Exporters::default())[0].contains("names no target"));
    }

    #[test]
    fn unreadable_secrets_are_found_before_the_start() {
        let auth = BasicAuth { username: "u".into(), password_file: "/nonexistent/secret".into() };
        let e = Exporters { fixed: vec!["a".into()], basic_auth: Some(auth), ..Exporters::default() };
        assert!(errors(&e)[0].contains("/nonexistent/secret"), "{:?}", errors(&e));
        let tls = Tls { ca_file: Some("/nonexistent/ca.pem".into()), ..Tls::default() };
        let e = Exporters { fixed: vec!["a".into()], scheme: Scheme::Https, tls, ..Exporters::default() };
        assert!(errors(&e)[0].contains("/nonexistent/ca.pem"), "{:?}", errors(&e));
    }

    #[test]
    fn paths_are_relative_to_the_configuration_file() {
        let mut e = Exporters {
            file_sd: vec!["targets/*.json".into(), "/abs/*.yml".into()],
            tls: Tls { ca_file: Some("ca.pem".into()), ..Tls::default() },
            ..Exporters::default()
        };
        e.anchor(Path::new("/etc/stepwatch"));
        assert_eq!(e.file_sd, ["/etc/stepwatch/targets/*.json", "/abs/*.yml"]);
        assert_eq!(e.tls.ca_file.as_deref(), Some(Path::new("/etc/stepwatch/ca.pem")));
    }
}
