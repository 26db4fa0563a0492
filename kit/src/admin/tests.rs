use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt;

use super::*;

async fn call(admin: &Admin, method: &str, path: &str, body: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let response = admin.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn ready_when_every_latch_is_open() {
    let (admin, _requests) = Admin::new(LogControl::detached());
    assert_eq!(call(&admin, "GET", "/-/ready", "").await.0, StatusCode::OK);
    let store = admin.latch("store");
    let page = admin.latch("first page");
    let (status, why) = call(&admin, "GET", "/-/ready", "").await;
    assert_eq!((status, why.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "waiting for first page, store\n"));
    store.open();
    assert_eq!(call(&admin, "GET", "/-/ready", "").await.1, "waiting for first page\n");
    drop(page);
    assert!(admin.is_ready());
    assert_eq!(call(&admin, "GET", "/-/ready", "").await.0, StatusCode::OK);
    assert_eq!(call(&admin, "GET", "/-/healthy", "").await.0, StatusCode::OK);
}

/// A log writer that keeps the lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Collects the log lines of this process from all threads. A subscriber of one thread would race
/// with other tests, because whether a call site is enabled is decided once per process.
static LOG: std::sync::LazyLock<Log> = std::sync::LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    log
});

#[tokio::test]
async fn a_reload_answers_and_logs_what_came_of_it() {
    let log = std::sync::LazyLock::force(&LOG);
    let (admin, mut requests) = Admin::new(LogControl::detached());
    let program = tokio::spawn(async move {
        for answer in [Ok(()), Err("exporter.yml:1:1: unknown field `x`".to_owned())] {
            let request: ReloadRequest = requests.recv().await.unwrap();
            request.reply.send(answer).unwrap();
        }
        // Takes the third request and stops without an answer.
        drop(requests.recv().await);
    });
    assert_eq!(call(&admin, "POST", "/-/reload", "").await, (StatusCode::OK, "reloaded\n".into()));
    let (status, why) = call(&admin, "POST", "/-/reload", "").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(why, "exporter.yml:1:1: unknown field `x`\n");
    assert_eq!(call(&admin, "POST", "/-/reload", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
    program.await.unwrap();
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("reloaded by=\"POST /-/reload\""), "{said}");
    assert!(said.contains("ERROR") && said.contains("exporter.yml:1:1: unknown field"), "{said}");
    assert_eq!(call(&admin, "POST", "/-/reload", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(call(&admin, "GET", "/-/reload", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_hangup_asks_for_a_reload() {
    let (_admin, mut requests) = Admin::new(LogControl::detached());
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
    let got = tokio::time::timeout(Duration::from_secs(10), requests.recv()).await.unwrap();
    assert!(got.unwrap().reply.send(Ok(())).is_ok());
}

#[tokio::test]
async fn the_log_level_goes_round() {
    let (admin, _requests) = Admin::new(LogControl::detached());
    assert_eq!(call(&admin, "GET", "/-/log-level", "").await.1, "info\n");
    assert_eq!(call(&admin, "PUT", "/-/log-level", "debug\n").await, (StatusCode::OK, "debug\n".into()));
    assert_eq!(call(&admin, "GET", "/-/log-level", "").await.1, "debug\n");
    let (status, why) = call(&admin, "PUT", "/-/log-level", "kit=loudly").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(why.contains("trace"), "{why}");
    let huge = "a".repeat(MAX_FILTER_BYTES + 1);
    assert_eq!(call(&admin, "PUT", "/-/log-level", &huge).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(call(&admin, "GET", "/-/log-level", "").await.1, "debug\n");
}

#[tokio::test]
async fn not_ready_while_something_is_waited_for() {
    let full = Arc::new(Mutex::new(None));
    let asked = Arc::clone(&full);
    let (admin, _requests) = Admin::new(LogControl::detached());
    let admin = admin.needing(move || asked.lock().unwrap().clone());
    assert!(admin.is_ready());
    *full.lock().unwrap() = Some("room on the disk".to_owned());
    let latch = admin.latch("a start");
    let (status, why) = call(&admin, "GET", "/-/ready", "").await;
    assert_eq!(
        (status, why.as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for a start, room on the disk\n")
    );
    latch.open();
    *full.lock().unwrap() = None;
    assert_eq!(call(&admin, "GET", "/-/ready", "").await.0, StatusCode::OK);
}
