//! Tests what is sent unencrypted: invalid certificates, and relays without encryption.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stepwatch_fakes::{Encryption, FakeSmtp};
use tempfile::TempDir;

use super::super::*;
use crate::notify::tests::page;

/// A private certificate authority.
struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec!["authority".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        std::fs::write(dir.path().join("password"), FakeSmtp::PASSWORD).unwrap();
        Self { dir, issuer }
    }

    /// The TLS configuration of a server with this name.
    fn server(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Arc::new(config)
    }

    fn email(&self, relay: &FakeSmtp, tls: TlsMode, trusted: bool) -> Email {
        let config = Config {
            to: vec!["oncall@example.com".into()],
            from: "stepwatch@example.com".into(),
            smarthost: relay.addr().to_string(),
            tls,
            ca_file: trusted.then(|| self.dir.path().join("ca.pem")),
            username: Some(FakeSmtp::USER.into()),
            password_file: Some(self.dir.path().join("password")),
            ..Config::default()
        };
        config.build().unwrap()
    }
}

async fn send(email: &Email) -> Result<Receipt, Failure> {
    let n = page("mail", 1, Action::Trigger);
    email.send(Attempt::first(&n)).await
}

/// Nothing confidential was sent unencrypted.
fn kept_secret(relay: &FakeSmtp) {
    relay.with(|s| {
        assert_eq!(s.mails.len(), 0);
        let is_mail = |verb: &String| !["EHLO", "STARTTLS", "QUIT", "RSET", "NOOP"].contains(&verb.as_str());
        assert!(!s.in_the_clear.iter().any(is_mail), "in the clear: {:?}", s.in_the_clear);
    });
}

#[tokio::test]
async fn mail_is_encrypted_from_the_first_byte_or_once_asked() {
    let authority = Authority::new();
    let server = authority.server("127.0.0.1");
    for (encryption, tls) in [
        (Encryption::Always(server.clone()), TlsMode::Tls),
        (Encryption::OnRequest(server), TlsMode::Starttls),
    ] {
        let relay = FakeSmtp::start_with(encryption).await;
        send(&authority.email(&relay, tls, true)).await.unwrap();
        relay.with(|s| {
            assert_eq!((s.mails.len(), s.refused.as_slice()), (1, &[][..]));
            let clear: &[&str] = if tls == TlsMode::Tls { &[] } else { &["EHLO", "STARTTLS"] };
            assert_eq!(s.in_the_clear, clear);
        });
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    for (server, trusted, why) in [
        (stranger.server("127.0.0.1"), true, "of another authority"),
        (authority.server("127.0.0.1"), false, "of an authority that nobody configured"),
        (authority.server("relay.example.com"), true, "of another host"),
    ] {
        for (encryption, tls) in [
            (Encryption::Always(server.clone()), TlsMode::Tls),
            (Encryption::OnRequest(server.clone()), TlsMode::Starttls),
        ] {
            let relay = FakeSmtp::start_with(encryption).await;
            let failure = send(&authority.email(&relay, tls, trusted)).await.expect_err(why);
            assert_eq!(
                (failure.class, failure.ambiguous),
                (FailureClass::Transient, false),
                "{why}: {}",
                failure.error
            );
            assert!(failure.error.to_lowercase().contains("certificate"), "{why}: {}", failure.error);
            kept_secret(&relay);
        }
    }
}

#[tokio::test]
async fn a_relay_that_is_kept_from_encrypting_is_sent_no_mail() {
    let authority = Authority::new();
    for encryption in [Encryption::Stripped, Encryption::Refused] {
        let relay = FakeSmtp::start_with(encryption.clone()).await;
        let failure =
            send(&authority.email(&relay, TlsMode::Starttls, true)).await.expect_err("in the clear");
        assert!(!failure.ambiguous, "{encryption:?}: {failure:?}");
        assert!(!failure.error.contains(FakeSmtp::PASSWORD), "{}", failure.error);
        kept_secret(&relay);
    }
    // A relay that does not encrypt, although TLS is expected from the first byte.
    let relay = FakeSmtp::start_with(Encryption::Never).await;
    let failure = send(&authority.email(&relay, TlsMode::Tls, true)).await.expect_err("in the clear");
    assert!(!failure.ambiguous, "{failure:?}");
    kept_secret(&relay);
}
