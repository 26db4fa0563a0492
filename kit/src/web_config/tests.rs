use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::*;
use crate::admin::Admin;
use crate::logging::LogControl;
use crate::serve::{Limits, Pass, ServeMetrics, WebUser, bind, serve};
use crate::shutdown::{Shutdown, Trigger};

/// The certificates of one test: an authority, a server, and two clients of which it signed one.
struct Pki {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

fn issuer(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key as one PEM text.
fn identity(issuer: &CertifiedIssuer<'static, KeyPair>, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

impl Pki {
    fn new() -> Self {
        let pki = Self { dir: tempfile::tempdir().unwrap(), authority: issuer("authority") };
        pki.write("ca.pem", &pki.authority.pem());
        pki.new_server_certificate();
        pki
    }

    fn new_server_certificate(&self) {
        let (cert, key) = identity(&self.authority, "localhost");
        self.write("cert.pem", &cert);
        self.write("key.pem", &key);
    }

    /// Replaces a file atomically: a reader sees the old file or the new one.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let new = self.dir.path().join(format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    fn web(&self, text: &str) -> WebConfig {
        WebConfig::load(&self.write("web.yml", text)).unwrap()
    }

    fn web_error(&self, text: &str) -> String {
        let err = WebConfig::load(&self.write("web.yml", text)).unwrap_err().to_string();
        err.replace(&self.dir.path().display().to_string(), "")
    }

    fn client(&self, identity: Option<&(String, String)>) -> reqwest::Client {
        let root = reqwest::Certificate::from_pem(self.authority.pem().as_bytes()).unwrap();
        let mut builder = reqwest::Client::builder().no_proxy().tls_certs_only([root]).tls_info(true);
        if let Some((cert, key)) = identity {
            builder =
                builder.identity(reqwest::Identity::from_pem(format!("{cert}{key}").as_bytes()).unwrap());
        }
        builder.build().unwrap()
    }
}

struct Running {
    addr: SocketAddr,
    trigger: Trigger,
    metrics: ServeMetrics,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.trigger.fire();
    }
}

async fn start(web: WebConfig) -> Running {
    let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (trigger, shutdown) = Shutdown::manual();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let limits = Limits::default();
    let metrics = limits.metrics.clone();
    tokio::spawn(serve(listener, router, limits, Some(web), shutdown));
    Running { addr, trigger, metrics }
}

impl Running {
    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}/", self.addr.port())
    }

    async fn admits(&self, client: &reqwest::Client) -> bool {
        let response = client.get(self.url("https")).send().await;
        response.is_ok_and(|response| response.status() == 200)
    }
}

const TLS: &str = "tls_server_config: {cert_file: cert.pem, key_file: key.pem";

fn hash(password: &str) -> String {
    bcrypt::hash(password, 4).unwrap()
}

#[tokio::test]
async fn tls_is_spoken_and_plain_text_is_not() {
    let pki = Pki::new();
    let server = start(pki.web(&format!("{TLS}, min_version: TLS13}}\n"))).await;
    assert!(server.admits(&pki.client(None)).await);
    assert!(pki.client(None).get(server.url("http")).send().await.is_err());
}

#[tokio::test]
async fn each_client_auth_type_admits_whom_it_says() {
    let pki = Pki::new();
    let ours = identity(&pki.authority, "node1");
    let strangers = identity(&issuer("somebody"), "node1");
    let ca = ", client_ca_file: ca.pem";
    for (kind, ca, want) in [
        ("NoClientCert", "", [true, true, true]),
        ("RequestClientCert", "", [true, true, true]),
        ("RequireAnyClientCert", "", [false, true, true]),
        ("VerifyClientCertIfGiven", ca, [true, true, false]),
        ("RequireAndVerifyClientCert", ca, [false, true, false]),
    ] {
        let server = start(pki.web(&format!("{TLS}, client_auth_type: {kind}{ca}}}\n"))).await;
        let clients = [pki.client(None), pki.client(Some(&ours)), pki.client(Some(&strangers))];
        let mut got = [false; 3];
        for (got, client) in got.iter_mut().zip(&clients) {
            *got = server.admits(client).await;
        }
        assert_eq!(got, want, "{kind}: nobody, ours, a stranger");
    }
}

#[tokio::test]
async fn client_names_are_checked() {
    let pki = Pki::new();
    let text = format!(
        "{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem, \
         client_allowed_sans: [prometheus.example, 10.0.0.1]}}\n"
    );
    let server = start(pki.web(&text)).await;
    for (name, want) in [("prometheus.example", true), ("10.0.0.1", true), ("other.example", false)] {
        let client = pki.client(Some(&identity(&pki.authority, name)));
        assert_eq!(server.admits(&client).await, want, "{name}");
    }
}

#[tokio::test]
async fn users_are_asked_and_headers_added() {
    let pki = Pki::new();
    let text = format!(
        "basic_auth_users:\n  alice: {}\nhttp_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n",
        hash("secret")
    );
    let server = start(pki.web(&text)).await;
    let client = pki.client(None);
    let url = server.url("http");
    let denied = client.get(&url).send().await.unwrap();
    assert_eq!(denied.status(), 401);
    assert_eq!(denied.headers()["www-authenticate"], "Basic");
    assert_eq!(denied.headers()["x-frame-options"], "deny");
    assert_eq!(client.get(&url).basic_auth("alice", Some("guess")).send().await.unwrap().status(), 401);
    assert_eq!(client.get(&url).basic_auth("mallory", Some("secret")).send().await.unwrap().status(), 401);
    let admitted = client.get(&url).basic_auth("alice", Some("secret")).send().await.unwrap();
    assert_eq!(admitted.status(), 200);
    assert_eq!(admitted.headers()["x-frame-options"], "deny");
}

/// A Kubernetes probe has no password.
#[tokio::test]
async fn probes_are_open_beside_the_users_and_nothing_else_is() {
    let pki = Pki::new();
    let users = format!("basic_auth_users: {{alice: {}}}\n", hash("secret"));
    let web = pki.web(&format!("{users}rate_limit: {{interval: 1h, burst: 5}}\n"));
    let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (trigger, shutdown) = Shutdown::manual();
    let (admin, _reloads) = Admin::new(LogControl::detached());
    let task = tokio::spawn(serve(listener, admin.router(), Limits::default(), Some(web), shutdown));
    let client = pki.client(None);
    let status =
        async |path: &str| client.get(format!("{url}{path}")).send().await.unwrap().status().as_u16();
    assert_eq!((status("/-/healthy").await, status("/-/ready").await), (200, 200));
    for closed in ["/-/log-level", "/-/healthy/", "/-//ready", "/metrics", "/"] {
        assert_eq!(status(closed).await, 401, "{closed}");
    }
    assert_eq!(status("/").await, 429, "the sixth in an hour");
    assert_eq!((status("/-/healthy").await, status("/-/ready").await), (200, 200));
    trigger.fire();
    task.await.unwrap().unwrap();
}

/// A program's own tokens are accepted besides the users, and are distinguished from them.
#[tokio::test]
async fn a_pass_admits_beside_the_users() {
    let pki = Pki::new();
    let web = pki.web(&format!("basic_auth_users: {{alice: {}}}\n", hash("secret")));
    let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (trigger, shutdown) = Shutdown::manual();
    let pass = Pass::new(|| true, |headers| headers.get("authorization").is_some_and(|v| v == "Bearer good"));
    let limits = Limits { pass: Some(pass), ..Limits::default() };
    let who = get(|user: Option<axum::Extension<WebUser>>| async { user.map_or("pass".into(), |u| u.0.0) });
    let task = tokio::spawn(serve(listener, Router::new().route("/", who), limits, Some(web), shutdown));
    let client = pki.client(None);
    let basic = client.get(&url).basic_auth("alice", Some("secret")).send().await.unwrap();
    assert_eq!(basic.text().await.unwrap(), "alice");
    let token = client.get(&url).bearer_auth("good").send().await.unwrap();
    assert_eq!(token.text().await.unwrap(), "pass");
    assert_eq!(client.get(&url).bearer_auth("bad").send().await.unwrap().status(), 401);
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    trigger.fire();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_changed_file_takes_effect_on_open_connections() {
    let pki = Pki::new();
    let server = start(pki.web(&format!("basic_auth_users: {{alice: {}}}\n", hash("one")))).await;
    let client = pki.client(None);
    let status = async |password: &str| {
        client.get(server.url("http")).basic_auth("alice", Some(password)).send().await.unwrap().status()
    };
    assert_eq!(status("one").await, 200);
    pki.write("web.yml", &format!("basic_auth_users: {{alice: {}, bob: {}}}\n", hash("two"), hash("b")));
    assert_eq!(status("one").await, 401);
    assert_eq!(status("two").await, 200);
    // A file that is invalid, or would turn authentication off, changes nothing.
    for bad in ["basic_auth_users: {alice: two}\n", "basic_auth_users: {\n", "", "{}\n"] {
        pki.write("web.yml", bad);
        assert_eq!(status("two").await, 200, "{bad}");
        assert_eq!(status("one").await, 401, "{bad}");
    }
    std::fs::remove_file(pki.dir.path().join("web.yml")).unwrap();
    assert_eq!(status("one").await, 401);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_before_anything_else() {
    let pki = Pki::new();
    let users = format!("basic_auth_users: {{alice: {}}}\n", hash("one"));
    let limited = |burst: u32| format!("{users}rate_limit: {{interval: 1h, burst: {burst}}}\n");
    let server = start(pki.web(&limited(2))).await;
    let client = pki.client(None);
    let ask = async |password: &str| {
        client.get(server.url("http")).basic_auth("alice", Some(password)).send().await.unwrap()
    };
    // A wrong password takes a token as well.
    assert_eq!(
        (ask("bad").await.status(), ask("one").await.status()),
        (401.try_into().unwrap(), 200.try_into().unwrap())
    );
    let refused = ask("one").await;
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()),
        (429, "3600")
    );
    let mut registry = prometheus_client::registry::Registry::default();
    server.metrics.register(&mut registry, "test");
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    assert!(page.contains("test_http_requests_rate_limited_total 1\n"), "{page}");
    // The same limit keeps its bucket; another limit begins with a full one.
    pki.write("web.yml", &format!("{}# rotated\n", limited(2)));
    assert_eq!(ask("one").await.status(), 429);
    pki.write("web.yml", &limited(1));
    assert_eq!((ask("one").await.status().as_u16(), ask("one").await.status().as_u16()), (200, 429));
    pki.write("web.yml", &format!("{users}rate_limit: {{interval: 0, burst: 1}}\n"));
    assert_eq!((ask("one").await.status().as_u16(), ask("one").await.status().as_u16()), (200, 200));
}

#[tokio::test]
async fn certificates_rotate_without_a_restart() {
    let pki = Pki::new();
    let server = start(pki.web(&format!("{TLS}}}\n"))).await;
    let certificate = async || {
        let response = pki.client(None).get(server.url("https")).send().await.unwrap();
        response.extensions().get::<reqwest::tls::TlsInfo>().unwrap().peer_certificate().unwrap().to_vec()
    };
    let first = certificate().await;
    assert_eq!(certificate().await, first);
    // A certificate without its key is rejected; with the key it is accepted.
    let (cert, key) = identity(&pki.authority, "localhost");
    pki.write("cert.pem", &cert);
    assert_eq!(certificate().await, first);
    pki.write("key.pem", &key);
    assert_ne!(certificate().await, first);
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_cut() {
    let pki = Pki::new();
    let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (trigger, shutdown) = Shutdown::manual();
    let limits = Limits { tls_handshake_timeout: Duration::from_millis(100), ..Limits::default() };
    let web = pki.web(&format!("{TLS}}}\n"));
    let task = tokio::spawn(serve(listener, Router::new(), limits, Some(web), shutdown));
    let mut silent = tokio::net::TcpStream::connect(addr).await.unwrap();
    let before = Instant::now();
    let mut byte = [0; 1];
    let closed = tokio::io::AsyncReadExt::read(&mut silent, &mut byte);
    let _ = tokio::time::timeout(Duration::from_secs(20), closed).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(100));
    trigger.fire();
    task.await.unwrap().unwrap();
}

#[test]
fn mistakes_are_named() {
    let pki = Pki::new();
    pki.write("empty.pem", "");
    let other = KeyPair::generate().unwrap();
    pki.write("other.pem", &other.serialize_pem());
    let mistakes = [
        "tls_server_config: {cert_file: cert.pem}\n".to_owned(),
        format!("{TLS}, client_auth_type: Maybe}}\n"),
        format!("{TLS}, min_version: TLS10}}\n"),
        format!("{TLS}, min_version: TLS13, max_version: TLS12}}\n"),
        format!("{TLS}, client_ca_file: ca.pem}}\n"),
        format!("{TLS}, client_auth_type: RequireAndVerifyClientCert}}\n"),
        format!("{TLS}, client_auth_type: RequestClientCert, client_allowed_sans: [a]}}\n"),
        format!("{TLS}, client_auth_type: VerifyClientCertIfGiven, client_ca_file: empty.pem}}\n"),
        format!("{TLS}, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}}\n"),
        format!("{TLS}, curve_preferences: [CurveP1]}}\n"),
        "tls_server_config: {cert_file: empty.pem, key_file: key.pem}\n".to_owned(),
        "tls_server_config: {cert_file: none.pem, key_file: key.pem}\n".to_owned(),
        "tls_server_config: {cert_file: cert.pem, key_file: other.pem}\n".to_owned(),
        "basic_auth_users:\n  alice: hunter2\n".to_owned(),
        "http_server_config:\n  headers:\n    X-Powered-By: us\n".to_owned(),
        "tls_config: {}\n".to_owned(),
        "rate_limit: {interval: 1s}\n".to_owned(),
        "rate_limit:\n  interval: 1d\n  burst: 5\n".to_owned(),
        "rate_limit: {burst: 5, per: 1s}\n".to_owned(),
    ];
    let shown = mistakes.map(|text| pki.web_error(&text)).join("\n\n");
    assert!(!shown.contains("hunter2"));
    insta::assert_snapshot!(shown);
}

#[test]
fn suites_and_curves_are_chosen_by_their_go_names() {
    let pki = Pki::new();
    let web = pki.web(&format!(
        "{TLS}, cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256], \
         curve_preferences: [X25519, CurveP256]}}\n"
    ));
    let tls = web.tls(false).unwrap();
    assert_eq!(tls.alpn_protocols, [b"http/1.1".to_vec()]);
    assert_eq!(web.tls(true).unwrap().alpn_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
    let provider = tls.crypto_provider();
    assert_eq!(provider.cipher_suites.len(), 2);
    assert_eq!(format!("{:?}", provider.kx_groups[1].name()), "secp256r1");
}
