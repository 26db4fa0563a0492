//! Socket Mode: Slack sends clicks through a connection that the alerter opens, so that no address
//! must be reachable for Slack.
//!
//! Slack ends a connection at times and announces it; the next one is opened while the old one
//! still serves. Every envelope is acknowledged when its effects are durable or Slack has waited
//! long enough. Slack repeats an envelope without an acknowledgement, and the repetition is
//! recognised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde_json::{Value, json};
use stepwatch_kit::shutdown::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use url::Url;

use super::{Callbacks, people, proxy, slack};
use crate::backoff;
use crate::notify::slack::{Answers, App};

/// The time limit from the request for an address to the end of the handshake.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// The interval of our pings, and of Slack's.
const PING_EVERY: Duration = Duration::from_secs(15);
/// The time without messages after which a connection counts as dead, even if TCP has not noticed.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// How long an old connection serves in parallel with its successor.
const OVERLAP: Duration = Duration::from_mins(1);
const MESSAGE_MAX: usize = 1 << 20;
/// The most answers that wait to be written.
const ANSWERS: usize = 64;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}
type Socket = WebSocketStream<Box<dyn Io>>;

/// How a connection ended.
struct End {
    /// Whether Slack had sent its hello.
    greeted: bool,
    /// Whether Slack had asked for a new connection, which was opened.
    replaced: bool,
    why: String,
}

/// Serves every app that has a token, and restarts when the receivers change. Receivers of one app
/// share its socket.
pub(super) async fn listen(callbacks: Callbacks, shutdown: Shutdown) {
    let mut receivers = callbacks.inner.receivers.clone();
    loop {
        receivers.borrow_and_update();
        let mut apps: BTreeMap<String, Vec<Arc<App>>> = BTreeMap::new();
        let mut keepers = JoinSet::new();
        for app in slack::apps(&callbacks) {
            if app.answers() != Answers::Anyone {
                keepers.spawn(people::learn(Arc::clone(&app)));
            }
            if let Some(token) = app.app_token().map(|t| t.expose().to_owned()) {
                apps.entry(token).or_default().push(app);
            }
        }
        for sharing in apps.into_values() {
            keepers.spawn(keep(callbacks.clone(), sharing.into()));
        }
        tokio::select! {
            () = shutdown.wait() => return,
            changed = receivers.changed() => if changed.is_err() { return },
        }
        keepers.shutdown().await;
        callbacks.inner.metrics.sockets.set(0);
    }
}

/// Keeps one app connected.
async fn keep(callbacks: Callbacks, apps: Arc<[Arc<App>]>) {
    let mut live: JoinSet<End> = JoinSet::new();
    let (ask, mut asked) = mpsc::channel(1);
    let mut failures: u32 = 0;
    loop {
        let connecting = async {
            match apps.first() {
                Some(app) => connect(app).await,
                None => Err("no app".to_owned()),
            }
        };
        let connected = timeout(CONNECT_MAX, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err("no answer in time".into()));
        let good = connected.is_ok();
        match connected {
            Ok(socket) => drop(live.spawn(serve(socket, callbacks.clone(), Arc::clone(&apps), ask.clone()))),
            Err(error) => failed(&callbacks, &mut failures, &error),
        }
        // Wait until Slack asks for another connection, or the current one has ended.
        while good && !live.is_empty() {
            tokio::select! {
                Some(()) = asked.recv() => break,
                Some(end) = live.join_next() => {
                    let end = end.unwrap_or_else(|err| End { greeted: false, replaced: false, why: err.to_string() });
                    if end.greeted {
                        failures = 0;
                    }
                    if !end.replaced {
                        failed(&callbacks, &mut failures, &end.why);
                        break;
                    }
                }
            }
        }
        if failures > 0 {
            tokio::time::sleep(backoff::PAGE.after(failures, backoff::random())).await;
        }
    }
}

fn failed(callbacks: &Callbacks, failures: &mut u32, error: &str) {
    *failures = failures.saturating_add(1);
    callbacks.inner.metrics.socket_failures.inc();
    tracing::warn!(error, failures, "no socket to Slack: clicks do not arrive until there is one");
}

async fn connect(app: &App) -> Result<Socket, String> {
    let url = app.open_socket().await?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let stream = proxy::connect(&url, &proxy::of_environment()).await?;
    let stream: Box<dyn Io> =
        if url.scheme() == "wss" { secure(stream, host).await? } else { Box::new(stream) };
    shake_hands(&url, stream).await
}

async fn shake_hands(url: &Url, stream: Box<dyn Io>) -> Result<Socket, String> {
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
    // The error is dropped, because it contains the address with its ticket.
    let opened = tokio_tungstenite::client_async_with_config(url.as_str(), stream, Some(config)).await;
    opened.map(|(socket, _)| socket).map_err(|_| "the WebSocket handshake failed".to_owned())
}

async fn secure(stream: TcpStream, host: String) -> Result<Box<dyn Io>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_platform_verifier())
        .map_err(|e| format!("TLS: {e}"))?
        .with_no_client_auth();
    let name = host.try_into().map_err(|_| "the socket's host is no name")?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    stream.map(|s| Box::new(s) as Box<dyn Io>).map_err(|e| format!("TLS: {e}"))
}

/// Serves one connection to its end.
async fn serve(socket: Socket, callbacks: Callbacks, apps: Arc<[Arc<App>]>, ask: mpsc::Sender<()>) -> End {
    let (mut sink, mut stream) = socket.split();
    let (answer, mut answers) = mpsc::channel::<String>(ANSWERS);
    let mut ping = tokio::time::interval(PING_EVERY);
    let mut until = Instant::now() + SILENCE_MAX;
    let mut overlaps_until = None;
    let mut end = End { greeted: false, replaced: false, why: "Slack closed the connection".into() };
    let mut acting = JoinSet::new();
    loop {
        tokio::select! {
            frame = stream.next() => match frame {
                Some(Ok(Message::Text(text))) => {
                    until = until.max(Instant::now() + SILENCE_MAX);
                    let envelope: Value = serde_json::from_str(&text).unwrap_or_default();
                    match envelope["type"].as_str() {
                        Some("hello") if !end.greeted => {
                            end.greeted = true;
                            callbacks.inner.metrics.sockets.inc();
                            tracing::info!("connected to Slack by a socket: clicks arrive");
                        }
                        Some("disconnect") if !end.replaced => {
                            tracing::info!(reason = envelope["reason"].as_str(), "Slack asks for another socket");
                            end.replaced = true;
                            overlaps_until = Some(Instant::now() + OVERLAP);
                            let _ = ask.try_send(());
                        }
                        _ => {
                            acting.spawn(envelope_of(callbacks.clone(), Arc::clone(&apps), envelope, answer.clone()));
                        }
                    }
                }
                Some(Ok(Message::Close(_))) | None => break,
                Some(Ok(_)) => until = until.max(Instant::now() + SILENCE_MAX),
                Some(Err(err)) => {
                    end.why = format!("the connection broke: {err}");
                    break;
                }
            },
            Some(text) = answers.recv() => if sink.send(Message::text(text)).await.is_err() { break },
            Some(_) = acting.join_next() => {}
            _ = ping.tick() => if sink.send(Message::Ping(Vec::new().into())).await.is_err() { break },
            () = tokio::time::sleep_until(until) => {
                end.why = "Slack has fallen silent".into();
                break;
            }
            () = tokio::time::sleep_until(overlaps_until.unwrap_or(until)), if end.replaced => break,
        }
    }
    if end.greeted {
        callbacks.inner.metrics.sockets.dec();
    }
    // Callbacks in progress finish without an acknowledgement; Slack may send them again.
    acting.detach_all();
    end
}

/// Applies an envelope and acknowledges it.
async fn envelope_of(
    callbacks: Callbacks,
    apps: Arc<[Arc<App>]>,
    envelope: Value,
    answer: mpsc::Sender<String>,
) {
    let Some(id) = envelope["envelope_id"].as_str() else { return };
    if envelope["type"] == "interactive" && !slack::act_within(&callbacks, &apps, &envelope["payload"]).await
    {
        // Without an acknowledgement, Slack repeats the envelope or shows an error.
        return;
    }
    let _ = answer.send(json!({ "envelope_id": id }).to_string()).await;
}
