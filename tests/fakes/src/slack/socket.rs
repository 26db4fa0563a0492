//! Socket Mode: WebSockets that an app opens with a ticket, through which it receives clicks.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Slack;
use crate::server::{Fake, TimedOut};

/// The most connections; Slack closes further ones.
const MAX_CONNECTIONS: usize = 10;

#[derive(Debug, Clone)]
enum Out {
    Say(Value),
    HangUp,
}

#[derive(Debug, Default)]
struct State {
    live: Vec<(u64, mpsc::UnboundedSender<Out>)>,
    opened: u64,
    acked: BTreeSet<String>,
    sent: u64,
}

/// The server side of one app's sockets, which stops on drop.
#[derive(Debug)]
pub struct SlackSocket {
    state: Arc<watch::Sender<State>>,
    _stop: DropGuard,
}

impl SlackSocket {
    /// Starts the server, whose addresses `slack` gives out.
    pub async fn start(slack: &Fake<Slack>) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface has a free port");
        let addr: SocketAddr = listener.local_addr().expect("a bound socket has an address");
        slack.change(|s| s.socket_url = Some(format!("ws://{addr}/link/")));
        let state = Arc::new(watch::Sender::new(State::default()));
        let stop = CancellationToken::new();
        let (shared, service, ended) = (Arc::clone(&state), slack.shared(), stop.clone());
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = ended.cancelled() => return,
                };
                let Ok((stream, _)) = accepted else { continue };
                tokio::spawn(serve(stream, Arc::clone(&shared), Arc::clone(&service), ended.clone()));
            }
        });
        Self { state, _stop: stop.drop_guard() }
    }

    /// Waits until `count` connections have been opened in total, and the last of them is live.
    pub async fn opened(&self, count: u64, patience: Duration) -> Result<(), TimedOut> {
        let ready = |s: &State| s.opened >= count && s.live.iter().any(|(id, _)| *id == s.opened);
        self.wait(ready, patience).await
    }

    /// Sends a click to the newest connection and waits for its acknowledgement.
    pub async fn send(&self, payload: &Value, patience: Duration) -> Result<(), TimedOut> {
        let mut id = String::new();
        self.state.send_modify(|s| {
            s.sent += 1;
            id = format!("envelope-{}", s.sent);
            let envelope = json!({"envelope_id": id, "type": "interactive", "accepts_response_payload": true, "payload": payload});
            if let Some((_, live)) = s.live.last() {
                let _ = live.send(Out::Say(envelope));
            }
        });
        self.wait(|s| s.acked.contains(&id), patience).await
    }

    /// Announces to the newest connection that it will be closed.
    pub fn disconnect(&self) {
        let word = json!({"type": "disconnect", "reason": "warning", "debug_info": {"host": "fake"}});
        if let Some((_, live)) = self.state.borrow().live.last() {
            let _ = live.send(Out::Say(word));
        }
    }

    /// Drops all connections without notice.
    pub fn hang_up(&self) {
        for (_, live) in &self.state.borrow().live {
            let _ = live.send(Out::HangUp);
        }
    }

    async fn wait(&self, cond: impl FnMut(&State) -> bool, patience: Duration) -> Result<(), TimedOut> {
        let mut state = self.state.subscribe();
        match tokio::time::timeout(patience, state.wait_for(cond)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(TimedOut(patience)),
        }
    }
}

async fn serve(
    stream: TcpStream,
    state: Arc<watch::Sender<State>>,
    slack: Arc<watch::Sender<Slack>>,
    stop: CancellationToken,
) {
    let mut valid = false;
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    let check = |req: &Request, response: Response| -> Result<Response, ErrorResponse> {
        let ticket = req.uri().query().and_then(|q| q.strip_prefix("ticket=")).unwrap_or_default();
        // A ticket is valid once.
        slack.send_modify(|s| valid = s.tickets.remove(ticket));
        if valid { Ok(response) } else { Err(ErrorResponse::new(Some("bad ticket".into()))) }
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, check).await else { return };
    let (mut sink, mut stream) = socket.split();
    #[expect(clippy::disallowed_methods, reason = "a test says a handful of words to each connection")]
    let (sender, mut out) = mpsc::unbounded_channel();
    let mut id = 0;
    let mut crowded = false;
    state.send_modify(|s| {
        s.opened += 1;
        id = s.opened;
        s.live.push((id, sender));
        crowded = s.live.len() > MAX_CONNECTIONS;
    });
    let hello = json!({"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0FAKE"}});
    let mut open = !crowded && sink.send(Message::text(hello.to_string())).await.is_ok();
    while open {
        tokio::select! {
            () = stop.cancelled() => open = false,
            word = out.recv() => open = match word {
                Some(Out::Say(v)) => sink.send(Message::text(v.to_string())).await.is_ok(),
                Some(Out::HangUp) | None => false,
            },
            frame = stream.next() => match frame {
                Some(Ok(Message::Text(text))) => {
                    let v: Value = serde_json::from_str(&text).unwrap_or_default();
                    if let Some(id) = v["envelope_id"].as_str() {
                        state.send_modify(|s| {
                            s.acked.insert(id.to_owned());
                        });
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => open = false,
            },
        }
    }
    state.send_modify(|s| s.live.retain(|(live, _)| *live != id));
}
