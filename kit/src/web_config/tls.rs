//! Converts the TLS section of the file into a rustls configuration.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::file::{ClientAuthType, TlsSection, TlsVersion};

pub(super) fn server_config(section: &TlsSection, base: &Path) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(provider(section)?);
    let certificates = certificates("cert_file", &base.join(&section.cert_file))?;
    let key_path = base.join(&section.key_file);
    let key = PrivateKeyDer::from_pem_file(&key_path)
        .map_err(|err| format!("tls_server_config.key_file: {}: {err}", key_path.display()))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(section)?)
        .map_err(|err| format!("tls_server_config: {err}"))?;
    let builder = match ClientAuth::new(section, base, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(Arc::new(verifier)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|err| format!("tls_server_config: cert_file and key_file: {err}"))?;
    config.ignore_client_order = section.prefer_server_cipher_suites;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn provider(section: &TlsSection) -> Result<CryptoProvider, String> {
    let mut provider = aws_lc_rs::default_provider();
    if !section.cipher_suites.is_empty() {
        let all = provider.cipher_suites;
        let name = |suite: &rustls::SupportedCipherSuite| go_name(&format!("{:?}", suite.suite()));
        provider.cipher_suites = choose("cipher_suites", &section.cipher_suites, &all, name)?;
    }
    if !section.curve_preferences.is_empty() {
        let all = provider.kx_groups;
        let name =
            |group: &&'static dyn rustls::crypto::SupportedKxGroup| go_name(&format!("{:?}", group.name()));
        provider.kx_groups = choose("curve_preferences", &section.curve_preferences, &all, name)?;
    }
    Ok(provider)
}

/// Returns the items of `all` that are named, in the order of the names.
fn choose<T: Clone>(
    key: &str,
    wanted: &[String],
    all: &[T],
    name: impl Fn(&T) -> String,
) -> Result<Vec<T>, String> {
    wanted
        .iter()
        .map(|want| {
            all.iter().find(|item| name(item) == *want).cloned().ok_or_else(|| {
                let names = all.iter().map(&name).collect::<Vec<_>>().join(", ");
                format!("tls_server_config.{key}: unknown {want:?}, expected one of {names}")
            })
        })
        .collect()
}

/// The name of an item in Go's crypto/tls, which the file uses.
fn go_name(rustls_name: &str) -> String {
    if let Some(suite) = rustls_name.strip_prefix("TLS13_") {
        return format!("TLS_{suite}");
    }
    match rustls_name {
        "secp256r1" => "CurveP256".into(),
        "secp384r1" => "CurveP384".into(),
        "secp521r1" => "CurveP521".into(),
        other => other.into(),
    }
}

fn versions(section: &TlsSection) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let min = section.min_version.unwrap_or(TlsVersion::Tls12);
    let max = section.max_version.unwrap_or(TlsVersion::Tls13);
    let offered = [(TlsVersion::Tls13, &TLS13), (TlsVersion::Tls12, &TLS12)];
    let versions: Vec<_> =
        offered.into_iter().filter(|(v, _)| (min..=max).contains(v)).map(|(_, version)| version).collect();
    if versions.is_empty() {
        return Err("tls_server_config: min_version is above max_version".into());
    }
    Ok(versions)
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |why: &dyn std::fmt::Display| format!("tls_server_config.{key}: {}: {why}", path.display());
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|err| bad(&err))?;
    if certificates.is_empty() { Err(bad(&"no certificate in the file")) } else { Ok(certificates) }
}

/// Checks client certificates in one of four ways.
#[derive(Debug)]
struct ClientAuth {
    /// Verifies the chain up to the client CA. If it is `None`, any certificate is accepted whose
    /// key the client holds.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    mandatory: bool,
    /// Names of which the certificate must have one; empty for any.
    allowed_names: Vec<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ClientAuth {
    fn new(section: &TlsSection, base: &Path, provider: Arc<CryptoProvider>) -> Result<Option<Self>, String> {
        use ClientAuthType as T;
        let how = section.client_auth_type;
        let verified = matches!(how, T::VerifyClientCertIfGiven | T::RequireAndVerifyClientCert);
        let at = "tls_server_config:";
        if !verified && section.client_ca_file.is_some() {
            return Err(format!("{at} client_ca_file does nothing with client_auth_type {how:?}"));
        }
        if !verified && !section.client_allowed_sans.is_empty() {
            return Err(format!("{at} client_allowed_sans does nothing with client_auth_type {how:?}"));
        }
        if how == T::NoClientCert {
            return Ok(None);
        }
        let chain = match &section.client_ca_file {
            Some(ca) => Some(chain_verifier(&base.join(ca), Arc::clone(&provider))?),
            None if verified => return Err(format!("{at} client_auth_type {how:?} needs a client_ca_file")),
            None => None,
        };
        let mandatory = matches!(how, T::RequireAnyClientCert | T::RequireAndVerifyClientCert);
        let allowed_names =
            section.client_allowed_sans.iter().map(|name| san(name)).collect::<Result<_, _>>()?;
        Ok(Some(Self { chain, mandatory, allowed_names, provider }))
    }
}

fn san(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned()).map_err(|_| {
        format!("tls_server_config.client_allowed_sans: {name:?} is neither a DNS name nor an IP address")
    })
}

fn chain_verifier(ca: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    let bad =
        |why: &dyn std::fmt::Display| format!("tls_server_config.client_ca_file: {}: {why}", ca.display());
    for certificate in certificates("client_ca_file", ca)? {
        roots.add(certificate).map_err(|err| bad(&err))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|err| bad(&err))
}

impl ClientCertVerifier for ClientAuth {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.as_ref().map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain.verify_client_cert(end_entity, intermediates, now)?;
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let named = |name| verify_server_name(&certificate, name).is_ok();
        if self.allowed_names.is_empty() || self.allowed_names.iter().any(named) {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
