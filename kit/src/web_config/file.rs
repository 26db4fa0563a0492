//! The contents of the file: the keys of the Prometheus exporter toolkit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer};

use super::auth::BcryptHash;
use super::rate::RateLimit;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebFile {
    pub(super) tls_server_config: Option<TlsSection>,
    pub(super) http_server_config: HttpSection,
    /// The password hashes, by user name.
    pub(super) basic_auth_users: BTreeMap<String, BcryptHash>,
    pub(super) rate_limit: RateLimit,
}

/// The section about TLS. Paths are relative to the directory of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsSection {
    pub(super) cert_file: PathBuf,
    pub(super) key_file: PathBuf,
    #[serde(default)]
    pub(super) client_auth_type: ClientAuthType,
    #[serde(default)]
    pub(super) client_ca_file: Option<PathBuf>,
    /// DNS names and IP addresses. A client certificate must have one of them.
    #[serde(default)]
    pub(super) client_allowed_sans: Vec<String>,
    #[serde(default)]
    pub(super) min_version: Option<TlsVersion>,
    #[serde(default)]
    pub(super) max_version: Option<TlsVersion>,
    #[serde(default)]
    pub(super) cipher_suites: Vec<String>,
    #[serde(default)]
    pub(super) curve_preferences: Vec<String>,
    #[serde(default = "yes")]
    pub(super) prefer_server_cipher_suites: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) enum ClientAuthType {
    #[default]
    NoClientCert,
    /// Requests a certificate, but accepts any or none.
    RequestClientCert,
    /// Requires a certificate, signed by anybody.
    #[serde(alias = "RequireClientCert")]
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

/// The TLS versions. Older ones are not offered, because no current scraper needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) enum TlsVersion {
    #[serde(rename = "TLS12")]
    Tls12,
    #[serde(rename = "TLS13")]
    Tls13,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpSection {
    /// Accepted because files are shared with other exporters; it has no effect.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: BTreeMap<ResponseHeader, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum ResponseHeader {
    #[serde(rename = "Content-Security-Policy")]
    ContentSecurityPolicy,
    #[serde(rename = "Strict-Transport-Security")]
    StrictTransportSecurity,
    #[serde(rename = "X-Content-Type-Options")]
    XContentTypeOptions,
    #[serde(rename = "X-Frame-Options")]
    XFrameOptions,
    #[serde(rename = "X-XSS-Protection")]
    XXssProtection,
}

impl TlsSection {
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert_file, &self.key_file].into_iter().chain(&self.client_ca_file).map(PathBuf::as_path)
    }
}

impl HttpSection {
    pub(super) fn header_map(&self) -> Result<HeaderMap, String> {
        self.headers
            .iter()
            .map(|(name, value)| {
                let value = HeaderValue::from_str(value)
                    .map_err(|_| format!("http_server_config.headers: {value:?} is not a header value"))?;
                Ok((name.header(), value))
            })
            .collect()
    }
}

impl ResponseHeader {
    fn header(self) -> HeaderName {
        use axum::http::header;
        match self {
            Self::ContentSecurityPolicy => header::CONTENT_SECURITY_POLICY,
            Self::StrictTransportSecurity => header::STRICT_TRANSPORT_SECURITY,
            Self::XContentTypeOptions => header::X_CONTENT_TYPE_OPTIONS,
            Self::XFrameOptions => header::X_FRAME_OPTIONS,
            Self::XXssProtection => header::X_XSS_PROTECTION,
        }
    }
}

impl<'de> Deserialize<'de> for BcryptHash {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

fn yes() -> bool {
    true
}
