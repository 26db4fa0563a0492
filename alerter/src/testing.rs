//! Shared tools of this crate's tests: a scripted exporter, and a way to wait.

use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use stepwatch_fakes::{FakeWebhook, WebhookSink};
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_model::time::Span;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::app::{App, Ended, Options, RunError};
use crate::clock::wall;
use crate::store::{Commit, Store};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::mpsc;

/// A time limit far beyond the duration of any test, also on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Polls until `look` returns a value.
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The exporter's response to one request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A stream of these texts, followed by whatever [`FakeExporter::say`] adds.
    Open(Vec<String>),
    /// A stream of these texts that then ends.
    Closed(Vec<String>),
    Status(u16, &'static str),
    /// An HTML page.
    Html,
    /// The request is accepted and never answered.
    Mute,
}

/// An exporter that answers `GET /v1/stream` by its script; without one, with an open stream.
#[derive(Debug, Clone)]
pub(crate) struct FakeExporter {
    pub addr: SocketAddr,
    /// The value of `nodes` in its configuration.
    nodes: &'static str,
    state: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    script: VecDeque<Answer>,
    requests: Vec<Request>,
    open: Vec<mpsc::Sender<Bytes>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub query: Option<String>,
    pub authorization: Option<String>,
}

impl FakeExporter {
    pub(crate) async fn start(script: impl IntoIterator<Item = Answer>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let inner = Inner { script: script.into_iter().collect(), ..Inner::default() };
        let state = Arc::new(Mutex::new(inner));
        let router = Router::new().route("/v1/stream", get(stream)).with_state(Arc::clone(&state));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { addr, nodes: "", state }
    }

    pub(crate) fn name(&self) -> String {
        self.addr.to_string()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Appends to the open streams.
    pub(crate) async fn say(&self, text: &str) {
        let open = wait_for("a reader of the stream", async || {
            let mut inner = self.state.lock().unwrap();
            inner.open.retain(|s| !s.is_closed());
            (!inner.open.is_empty()).then(|| inner.open.clone())
        })
        .await;
        for stream in open {
            let _ = stream.send(Bytes::copy_from_slice(text.as_bytes())).await;
        }
    }
}

async fn stream(
    State(state): State<Arc<Mutex<Inner>>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).map(|v| v.to_str().unwrap().to_owned());
    let answer = {
        let mut inner = state.lock().unwrap();
        inner.requests.push(Request { query, authorization });
        inner.script.pop_front().unwrap_or(Answer::Open(Vec::new()))
    };
    let (texts, stays) = match answer {
        Answer::Open(texts) => (texts, true),
        Answer::Closed(texts) => (texts, false),
        Answer::Status(code, text) => return (StatusCode::from_u16(code).unwrap(), text).into_response(),
        Answer::Html => return axum::response::Html("<p>hello").into_response(),
        Answer::Mute => std::future::pending().await,
    };
    let (sender, receiver) = mpsc::channel(texts.len() + 64);
    for text in texts {
        sender.try_send(Bytes::from(text)).unwrap();
    }
    if stays {
        state.lock().unwrap().open.push(sender);
    }
    let body = futures_util::stream::unfold(receiver, async |mut r| {
        Some((Ok::<_, std::io::Error>(r.recv().await?), r))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(body)).into_response()
}

/// A step record as an exporter writes it.
pub(crate) fn step(seq: u64, run: &str, step: i64) -> String {
    format!(
        "{{\"c\":\"b1:{seq}\",\"k\":\"step\",\"run\":\"{run}\",\"rank\":0,\"world\":8,\"step\":{step},\"m\":{{\"loss\":2.5}}}}\n"
    )
}

/// The record that opens an incident at once, with `rank_dead: {page_after: 0s}`.
pub(crate) fn rank_dead(seq: u64, run: &str, rank: u32) -> String {
    format!(
        "{{\"c\":\"b1:{seq}\",\"k\":\"event\",\"name\":\"rank_dead\",\"run\":\"{run}\",\"rank\":{rank},\"text\":\"closed its socket\"}}\n"
    )
}

/// The whole service in this process, with one exporter and one webhook receiver named `hook`.
pub(crate) struct TestApp {
    pub dir: TempDir,
    pub url: String,
    pub exporter: FakeExporter,
    pub hook: FakeWebhook,
    stop: Trigger,
    task: JoinHandle<Result<Ended, RunError>>,
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), WebhookSink::SECRET).unwrap();
        Self::on(dir, FakeExporter::start([]).await, FakeWebhook::start().await, "").await
    }

    /// Starts the service with more lines in its configuration, of which the first may be
    /// receivers, and additional files; `web.yml` is its web configuration.
    pub(crate) async fn start_with(more: &str, files: &[(&str, String)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), WebhookSink::SECRET).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Self::on(dir, FakeExporter::start([]).await, FakeWebhook::start().await, more).await
    }

    /// Starts the service with more lines in its configuration and a clock that is ahead of the
    /// wall clock.
    pub(crate) async fn start_ahead(more: &str, by: Span) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), WebhookSink::SECRET).unwrap();
        let store = Store::open(dir.path().join("alerter.db")).await.unwrap();
        store.commit(&Commit { at: wall() + by, ..Commit::default() }).await.unwrap();
        store.close().await;
        unlocked(&dir).await;
        Self::on(dir, FakeExporter::start([]).await, FakeWebhook::start().await, more).await
    }

    /// Starts the service with an exporter that reports for many nodes.
    pub(crate) async fn start_with_many_nodes(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), WebhookSink::SECRET).unwrap();
        let exporter = FakeExporter { nodes: ", nodes: many", ..FakeExporter::start([]).await };
        Self::on(dir, exporter, FakeWebhook::start().await, more).await
    }

    /// Starts the service with these files, of which `secret` is the webhook's.
    pub(crate) async fn on(dir: TempDir, exporter: FakeExporter, hook: FakeWebhook, more: &str) -> Self {
        std::fs::write(dir.path().join("alerter.yml"), config(dir.path(), &exporter, &hook, more)).unwrap();
        let web_config = Some(dir.path().join("web.yml")).filter(|path| path.exists());
        let options = Options {
            config: dir.path().join("alerter.yml"),
            listen: None,
            web_config,
            new_store: false,
            stand_back: Duration::ZERO,
        };
        let app = Box::pin(App::start(options, LogControl::detached())).await.unwrap();
        let url = format!("http://{}", app.addr());
        let (stop, shutdown) = Shutdown::manual();
        let task = tokio::spawn(app.run(shutdown));
        Self { dir, url, exporter, hook, stop, task }
    }

    /// Stops the service as SIGTERM does, and starts another with the same files.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with("").await
    }

    /// Restarts the service with more lines in its configuration.
    pub(crate) async fn restart_with(self, more: &str) -> Self {
        self.stop.fire();
        self.task.await.unwrap().unwrap();
        unlocked(&self.dir).await;
        Self::on(self.dir, self.exporter, self.hook, more).await
    }

    /// Adds lines to the configuration.
    pub(crate) fn reconfigure(&self, more: &str) {
        let text = config(self.dir.path(), &self.exporter, &self.hook, more);
        std::fs::write(self.dir.path().join("alerter.yml"), text).unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        answer(reqwest::get(format!("{}{path}", self.url)).await.unwrap()).await
    }

    pub(crate) async fn json(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, content_type: &str, body: &str) -> (u16, String) {
        let request = reqwest::Client::new().post(format!("{}{path}", self.url));
        let request = request.header("content-type", content_type).body(body.to_owned());
        answer(request.send().await.unwrap()).await
    }

    /// Opens an incident, and returns its id when it is in the store.
    pub(crate) async fn page(&self, run: &str) -> String {
        self.exporter.say(&(step(1, run, 41) + &rank_dead(2, run, 3))).await;
        let path = format!("/api/v1/incidents?run={run}&state=open");
        wait_for("the incident", async || {
            self.json(&path).await["incidents"][0]["id"].as_str().map(str::to_owned)
        })
        .await
    }
}

/// Waits until nobody has the store. A check of its files, which holds its lock, may be in
/// progress; in a real process it ends with the process.
async fn unlocked(dir: &TempDir) {
    wait_for("the lock of the store", async || {
        let file = File::open(dir.path().join("alerter.db.lock")).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()
    })
    .await;
}

async fn answer(response: reqwest::Response) -> (u16, String) {
    (response.status().as_u16(), response.text().await.unwrap())
}

fn config(dir: &std::path::Path, exporter: &FakeExporter, hook: &FakeWebhook, more: &str) -> String {
    format!(
        "listen: \"127.0.0.1:0\"\nstorage: {{sqlite: alerter.db}}\n\
         detectors: {{rank_dead: {{page_after: 0s}}}}\n\
         sources:\n  - exporters: {{static: [\"{}\"]{}}}\n\
         receivers:\n  - name: hook\n    webhook: {{url: \"{}/hook\", secret_file: {}/secret}}\n{more}",
        exporter.name(),
        exporter.nodes,
        hook.url(),
        dir.display()
    )
}
