//! The server that all fakes share. It reads a request, checks the script, lets the service act,
//! and answers or applies a fault.

use core::fmt;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fault::{Fault, Script};

/// The most bytes of a body. No receiver here accepts more; PagerDuty's own limit is half of it.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The logic of a fake: its state, and the effect of a request on it. It uses no clock and no
/// socket, which the server provides.
pub trait Service: Clone + Default + Send + Sync + 'static {
    /// The name of this request in a [`Script`]; `None` for pages for people.
    fn endpoint(request: &Received) -> Option<String>;

    /// Applies the request to the state.
    fn serve(&mut self, request: &Received) -> Reply;

    /// A refusal in the format of this service.
    fn refuse(status: u16, error: &str) -> Reply;

    /// The service's own form of a refusal, if it does not use an HTTP status.
    fn not_ok(error: &str) -> Reply {
        Self::refuse(400, error)
    }

    fn received(&mut self) -> &mut Vec<Received>;
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Status(u16),
    Reset,
    Silence,
}

/// A request as it arrived, which is kept.
#[derive(Debug, Clone)]
pub struct Received {
    /// When the last byte was read.
    pub at: Instant,
    pub time: Timestamp,
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Bytes,
    pub answer: Answer,
}

impl Received {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Reply {
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        let headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
        Self { status, headers, body: body.to_string() }
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self { status, headers: vec![("content-type", "text/plain".to_owned())], body: body.to_owned() }
    }

    pub fn html(body: String) -> Self {
        Self { status: 200, headers: vec![("content-type", "text/html; charset=utf-8".to_owned())], body }
    }

    fn into_response(self) -> Response {
        let mut builder = Response::builder().status(self.status);
        for (name, value) in self.headers {
            builder = builder.header(name, value);
        }
        builder.body(Body::from(self.body)).unwrap_or_default()
    }
}

/// A condition that did not become true in time.
#[derive(Debug, thiserror::Error)]
#[error("the condition on the fake did not hold within {0:?}")]
pub struct TimedOut(pub Duration);

/// A running fake, which stops on drop.
#[derive(Debug)]
pub struct Fake<S> {
    addr: SocketAddr,
    core: Core<S>,
    _stop: DropGuard,
}

impl<S: Service> Fake<S> {
    /// Starts the fake on a free loopback port, with an empty state.
    pub async fn start() -> Self {
        Self::start_with(S::default()).await
    }

    pub async fn start_with(service: S) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("the loopback interface has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let core = Core { state: Arc::new(watch::Sender::new(service)), script: Script::default() };
        let stop = CancellationToken::new();
        let router = Router::new().fallback(handle::<S>).with_state(core.clone());
        let service = router.into_make_service_with_connect_info::<ResetHandle>();
        let ended = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            let server = axum::serve(Breakable(listener), service);
            tokio::select! {
                _ = server => {}
                () = ended => {}
            }
        });
        Self { addr, core, _stop: stop.drop_guard() }
    }

    /// The shared state, for other endpoints of the same service.
    pub(crate) fn shared(&self) -> Arc<watch::Sender<S>> {
        Arc::clone(&self.core.state)
    }

    /// The base URL `http://127.0.0.1:<port>`, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn script(&self) -> &Script {
        &self.core.script
    }

    /// A copy of the present state.
    pub fn state(&self) -> S {
        self.core.state.borrow().clone()
    }

    /// Reads the state without copying it.
    pub fn with<T>(&self, f: impl FnOnce(&S) -> T) -> T {
        f(&self.core.state.borrow())
    }

    /// Changes the state: settings before a test, or actions of a person during one.
    pub fn change<T>(&self, f: impl FnOnce(&mut S) -> T) -> T {
        let mut out = None;
        self.core.state.send_modify(|s| out = Some(f(s)));
        out.expect("send_modify runs its closure once")
    }

    /// Waits until the state satisfies `cond`, and returns the state.
    pub async fn wait_for(&self, cond: impl FnMut(&S) -> bool, timeout: Duration) -> Result<S, TimedOut> {
        let mut rx = self.core.state.subscribe();
        match tokio::time::timeout(timeout, rx.wait_for(cond)).await {
            Ok(Ok(state)) => Ok(state.clone()),
            _ => Err(TimedOut(timeout)),
        }
    }
}

#[derive(Debug, Clone)]
struct Core<S> {
    state: Arc<watch::Sender<S>>,
    script: Script,
}

async fn handle<S: Service>(
    State(core): State<Core<S>>,
    ConnectInfo(reset): ConnectInfo<ResetHandle>,
    request: Request,
) -> Response {
    let Some(mut received) = read(request).await else {
        return S::refuse(413, "request body too large").into_response();
    };
    let endpoint = S::endpoint(&received);
    let fault = endpoint.as_deref().and_then(|e| core.script.take(e));
    let taken = fault.as_ref().is_none_or(Fault::taken);
    // One change of state for the action and its record, so that a waiting test sees both or
    // neither.
    let mut reply = None;
    let act = |state: &mut S| {
        let real = taken.then(|| state.serve(&received));
        reply = match &fault {
            None => real,
            Some(f) => answer_of::<S>(f),
        };
        received.answer = match (&fault, &reply) {
            (_, Some(r)) => Answer::Status(r.status),
            (Some(Fault::Reset | Fault::TakenThenReset), None) => Answer::Reset,
            _ => Answer::Silence,
        };
        state.received().push(received.clone());
    };
    match endpoint {
        Some(_) => core.state.send_modify(act),
        // A page for people changes nothing and is not recorded.
        None => return core.state.borrow().clone().serve(&received).into_response(),
    }
    match reply {
        Some(reply) => reply.into_response(),
        None if received.answer == Answer::Reset => {
            reset.pull();
            Response::default()
        }
        None => core::future::pending().await,
    }
}

/// The service's answer under a fault; `None` if it does not answer.
fn answer_of<S: Service>(fault: &Fault) -> Option<Reply> {
    match fault {
        Fault::TooMany(after) => {
            let mut reply = S::refuse(429, "ratelimited");
            reply.headers.push(("retry-after", after.as_secs_f64().ceil().to_string()));
            Some(reply)
        }
        Fault::Status(status) | Fault::TakenThenStatus(status) => Some(S::refuse(*status, "internal_error")),
        Fault::NotOk(error) => Some(S::not_ok(error)),
        Fault::Hang | Fault::TakenThenHang | Fault::Reset | Fault::TakenThenReset => None,
    }
}

async fn read(request: Request) -> Option<Received> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await.ok()?;
    let query = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
    let headers = parts.headers.iter();
    Some(Received {
        at: Instant::now(),
        time: Timestamp::now(),
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: query.into_owned().collect(),
        headers: headers
            .map(|(k, v)| (k.to_string(), String::from_utf8_lossy(v.as_bytes()).into()))
            .collect(),
        body,
        answer: Answer::Silence,
    })
}

/// A listener whose connections a handler can reset.
struct Breakable(TcpListener);

impl Listener for Breakable {
    type Io = BreakableStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            // Errors such as a lack of descriptors are temporary.
            if let Ok((stream, addr)) = self.0.accept().await {
                let _ = stream.set_nodelay(true);
                return (BreakableStream { stream, reset: ResetHandle::default() }, addr);
            }
            tokio::task::yield_now().await;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[derive(Debug, Clone, Default)]
struct ResetHandle(Arc<AtomicBool>);

impl ResetHandle {
    fn pull(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn pulled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Connected<IncomingStream<'_, Breakable>> for ResetHandle {
    fn connect_info(stream: IncomingStream<'_, Breakable>) -> Self {
        stream.io().reset.clone()
    }
}

struct BreakableStream {
    stream: TcpStream,
    reset: ResetHandle,
}

impl BreakableStream {
    /// Fails once the reset was requested, so that hyper's write fails and the socket closes with
    /// RST.
    fn broken(&self) -> io::Result<()> {
        if self.reset.pulled() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl Drop for BreakableStream {
    fn drop(&mut self) {
        if self.reset.pulled() {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for BreakableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for BreakableStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.broken()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.pulled() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body: String = String::from_utf8_lossy(&self.body).chars().take(300).collect();
        write!(f, "{} {} {} -> {:?} {body}", self.time, self.method, self.path, self.answer)
    }
}
