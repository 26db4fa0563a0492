//! HTTP serving that withstands hostile and slow clients: an accept loop over hyper's HTTP/1.1, and
//! HTTP/2 for services that need it (gRPC).
//!
//! A client may send its header a byte a minute, open sockets and send nothing, post without end,
//! or stop reading. It costs a bounded time, one of a bounded number of connections, and a part of
//! a bounded number of bytes. A connection that waits for its client is closed for a new one (see
//! `connections`). On shutdown the port closes at once and requests in flight are finished; those
//! that take longer than the drain timeout are cut.
//!
//! A handler whose response never ends (a stream) should end its body on [`Shutdown`]; otherwise it
//! is cut after `drain_timeout`.

mod bodies;
mod browser;
mod connection;
mod connections;
mod listen;
mod metrics;
mod sniff;
mod stall;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::log_throttle::LogThrottle;
use crate::shutdown::Shutdown;
use crate::web_config::WebConfig;

use bodies::Budget;
pub use browser::{Hosts, WebHosts};
use connection::Server;
pub use connections::Client;
use connections::Connections;
pub use listen::{ListenAddr, bind};
pub use metrics::ServeMetrics;

/// The limits of one client, and of all clients together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The purpose of the port, for the log of a program with several ports.
    pub purpose: Option<&'static str>,
    /// Whether HTTP/2 is served besides HTTP/1.1, on plain connections with prior knowledge.
    pub http2: bool,
    /// The longest time without a request on an HTTP/2 connection. gRPC clients keep one connection
    /// for ever and send every minute.
    pub http2_idle_timeout: Duration,
    /// The longest time for a whole request header, and for which an idle connection is kept.
    pub header_timeout: Duration,
    pub tls_handshake_timeout: Duration,
    /// The most bytes of a request header with its first line. This is also the most that is read
    /// ahead of a body on each connection.
    pub header_bytes: usize,
    /// The longest time from the request header to the head of the response, with the request's
    /// body. The body of the response may take for ever, but must progress: see `stall_timeout`.
    pub request_timeout: Duration,
    /// The longest time for which a client may leave sent bytes unread.
    pub stall_timeout: Duration,
    /// The longest time for requests in flight after a shutdown.
    pub drain_timeout: Duration,
    /// The most connections; a further one replaces an idle one. One in four is reserved for
    /// connections without a request. On the others, a further request replaces one that waits for
    /// its client, or is answered 503 if there is none.
    pub max_connections: usize,
    /// The most bytes of a request body as it arrives (before decompression). A route may set a
    /// lower limit with `DefaultBodyLimit`.
    pub body_bytes: usize,
    /// The most bytes of all request bodies as they arrive, with what is read ahead of each. One
    /// client may use half of it, plus an eighth of that for overhead. If there is no room, a body
    /// that waits for more bytes is answered 503 with `Retry-After`.
    pub bodies_in_flight: usize,
    /// The most bytes of all answers that are not sent yet. Above it, connections that leave their
    /// answers unread are closed.
    pub answers_in_flight: usize,
    /// The longest time for which a body may keep its reader waiting in total.
    pub body_timeout: Duration,
    /// The host names that browsers may use for this program.
    pub hosts: Hosts,
    /// Paths whose requests are signed by services without a password: their handlers check the
    /// signature.
    pub signed_paths: &'static [&'static str],
    /// Paths whose senders retry a 413 for ever: a body that is too large is answered with 400
    /// there.
    pub never_413: &'static [&'static str],
    /// Returns the user at the other end of a connection from this machine, because each user
    /// counts as a client. Must not block.
    pub user_of: fn(Ends) -> Option<u32>,
    /// Another credential that is accepted besides the users of a web configuration.
    pub pass: Option<Pass>,
    /// Counts the connections and requests that these limits refuse.
    pub metrics: ServeMetrics,
    /// Ports whose limits are clones of each other share their connections, bodies and answers.
    pub capacity: Capacity,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            purpose: None,
            http2: false,
            http2_idle_timeout: Duration::from_mins(5),
            header_timeout: Duration::from_secs(10),
            tls_handshake_timeout: Duration::from_secs(5),
            header_bytes: 16 << 10,
            request_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(10),
            max_connections: 512,
            body_bytes: 2 << 20,
            bodies_in_flight: 16 << 20,
            answers_in_flight: 16 << 20,
            body_timeout: Duration::from_secs(10),
            hosts: Hosts::default(),
            signed_paths: &[],
            never_413: &[],
            user_of: |_| None,
            pass: None,
            metrics: ServeMetrics::default(),
            capacity: Capacity::default(),
        }
    }
}

/// The shared connection and memory budgets. The first port that is served sets their sizes.
#[derive(Debug, Clone, Default)]
pub struct Capacity(Arc<OnceLock<(Arc<Connections>, Arc<Budget>)>>);

impl Capacity {
    fn for_limits(limits: &Limits) -> (Arc<Connections>, Arc<Budget>) {
        let new = || {
            let answers = limits.answers_in_flight;
            let open = Connections::new(limits.max_connections, answers, limits.metrics.clone());
            (open, Budget::new(limits.bodies_in_flight))
        };
        limits.capacity.0.get_or_init(new).clone()
    }
}

/// A request extension: the two ends of the connection, and who has the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ends {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// The user of this machine at the other end, who was asked for when the connection was
    /// accepted: once it is closed, its port may belong to somebody else.
    pub user: Option<u32>,
}

impl Ends {
    /// The ends of a connection whose user is not known.
    pub fn new(peer: SocketAddr, local: SocketAddr) -> Self {
        Self { peer, local, user: None }
    }
}

/// A request extension: the share of [`Limits::bodies_in_flight`] that the body uses. A handler
/// that still uses the body after the request has ended, because it was answered or the client has
/// gone, keeps this until then.
#[derive(Debug, Clone)]
pub struct BodyShare(#[expect(dead_code, reason = "it is held")] Arc<bodies::Share>);

/// A credential of the program, such as a token, that is accepted besides the users of the web
/// configuration. The program decides what it permits.
#[derive(Clone)]
pub struct Pass {
    needed: Arc<dyn Fn() -> bool + Send + Sync>,
    admits: Arc<dyn Fn(&HeaderMap) -> bool + Send + Sync>,
    open: fn(&str) -> bool,
    instead: fn(&Method, &Uri, &HeaderMap) -> Option<Response>,
}

/// A request extension: the user of the web configuration who makes the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebUser(pub String);

/// A request extension: the sender has a valid password, certificate or token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authenticated;

impl Pass {
    /// `needed` returns whether such a credential exists, and `admits` checks the headers of every
    /// request. Neither may block.
    pub fn new(
        needed: impl Fn() -> bool + Send + Sync + 'static,
        admits: impl Fn(&HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (open, instead) = (|_: &str| false, |_: &Method, _: &Uri, _: &HeaderMap| None);
        Self { needed: Arc::new(needed), admits: Arc::new(admits), open, instead }
    }

    /// For programs in which people log in. `open` returns whether a path needs no credential, such
    /// as the login; `instead` returns the response in place of a refusal, such as a redirect to
    /// the login.
    #[must_use]
    pub fn with_login(
        self,
        open: fn(&str) -> bool,
        instead: fn(&Method, &Uri, &HeaderMap) -> Option<Response>,
    ) -> Self {
        Self { open, instead, ..self }
    }

    fn is_needed(&self) -> bool {
        (self.needed)()
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        (self.admits)(headers)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}

/// The pause after an accept failed for lack of descriptors or memory: short for a person, but long
/// enough to prevent a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then drains. First logs `listening` with the bound address. `web`
/// configures TLS and authentication.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    web: Option<WebConfig>,
    shutdown: Shutdown,
) -> io::Result<()> {
    let tls = web.as_ref().is_some_and(WebConfig::is_tls);
    match limits.purpose {
        None => tracing::info!(addr = %listener.local_addr()?, tls, "listening"),
        Some(purpose) => tracing::info!(addr = %listener.local_addr()?, tls, "listening for {purpose}"),
    }
    let router = router.layer(DefaultBodyLimit::max(limits.body_bytes));
    let (open, bodies) = Capacity::for_limits(&limits);
    let server =
        Arc::new(Server { router, limits, web, bodies, refused_bodies: LogThrottle::default(), shutdown });
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();

    while let Some((stream, peer)) = accept(&listener, &server).await {
        // Fails only if the socket is already closed.
        let Ok(local) = stream.local_addr() else { continue };
        while let Some(pause) = Some(open.pause()).filter(|pause| !pause.is_zero()) {
            tokio::time::sleep(pause).await;
        }
        let mut ends = Ends::new(peer, local);
        let user = || user_of(&stream, ends, server.limits.user_of);
        let client = Client::from_addresses(peer.ip(), local.ip()).of_user(user);
        ends.user = client.user();
        let seat = open.admit(client);
        let (server, cut) = (Arc::clone(&server), cut.clone());
        connections.spawn(async move {
            let _open = server.limits.metrics.connection_opened();
            tokio::select! {
                () = cut.cancelled() => {}
                () = seat.cut.cancelled() => {}
                () = connection::run(&server, stream, ends, &seat) => {}
            }
        });
    }

    drop(listener);
    connections.close();
    if tokio::time::timeout(server.limits.drain_timeout, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "cutting connections that did not drain in time");
        cut.cancel();
        connections.wait().await;
    }
    Ok(())
}

/// The user at the other end. A connection that the peer has reset already has none: the kernel may
/// have named the one who took over its port.
fn user_of(stream: &TcpStream, ends: Ends, ask: fn(Ends) -> Option<u32>) -> Option<u32> {
    ask(ends).filter(|_| stream.peer_addr().is_ok())
}

/// Returns the next connection, or `None` once the program is stopping.
async fn accept(listener: &TcpListener, server: &Server) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = server.shutdown.wait() => return None,
            accepted = listener.accept() => accepted,
        };
        let err = match accepted {
            Ok(connection) => return Some(connection),
            Err(err) => err,
        };
        server.limits.metrics.accept_failed();
        if matches!(err.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            continue;
        }
        tracing::warn!(%err, "cannot accept connections");
        tokio::select! {
            () = server.shutdown.wait() => return None,
            () = tokio::time::sleep(ACCEPT_PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests;
