//! HTTP serving that survives hostile and slow clients: an accept loop of our own over hyper's
//! HTTP/1.1, and HTTP/2 where a service wants it (gRPC does).
//!
//! A client that sends its header a byte a minute, opens sockets and sends nothing, posts without
//! end, or stops reading costs a bounded time, one of a bounded number of connections and a part of
//! a bounded number of bytes; a connection that waits for its client gives way to a newcomer (in
//! `connections`). On shutdown the port closes at once, requests in flight are finished, and what
//! takes longer than the drain is cut.
//!
//! A handler whose response never ends (a stream) should end its body on [`Shutdown`]; it is cut
//! after `drain_timeout` otherwise.

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

/// What one client, and all of them together, may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The purpose of the port, where a program has several: a word for the log.
    pub purpose: Option<&'static str>,
    /// Whether HTTP/2 is served beside HTTP/1.1, on plain connections with prior knowledge.
    pub http2: bool,
    /// How long an HTTP/2 connection is kept without a request. Clients of gRPC keep one for life
    /// and send every minute.
    pub http2_idle_timeout: Duration,
    /// For a whole request header to arrive; also how long an idle connection is kept.
    pub header_timeout: Duration,
    pub tls_handshake_timeout: Duration,
    /// Of the header of a request with its first line. Of a longer body no more is read ahead, on
    /// every connection.
    pub header_bytes: usize,
    /// From the header to the head of the response, the body of the request included. The body of
    /// the response may take for ever, but must move: see `stall_timeout`.
    pub request_timeout: Duration,
    /// How long a client may leave sent bytes unread.
    pub stall_timeout: Duration,
    /// How long requests in flight may take after a shutdown.
    pub drain_timeout: Duration,
    /// A further connection takes the place of an idle one. One in four is kept for connections
    /// without a request; on the others, a further request takes the place of one that waits for
    /// its client, and is answered 503 where none does.
    pub max_connections: usize,
    /// Of any request body, as it arrives (before decompression). A route may set a smaller one by
    /// `DefaultBodyLimit`.
    pub body_bytes: usize,
    /// Of all request bodies together, as they arrive, with what is read ahead of each; half of it
    /// for one client, and an eighth of that for what they take beside their bytes. Where there is
    /// no room, a body that waits for more is answered 503 with `Retry-After`.
    pub bodies_in_flight: usize,
    /// Of all answers together, until they are sent. Where there is more, connections that leave
    /// theirs unread are closed.
    pub answers_in_flight: usize,
    /// How long a body may keep its reader waiting in all.
    pub body_timeout: Duration,
    /// By which names browsers may ask for this program.
    pub hosts: Hosts,
    /// Paths whose requests are signed by services that have no password: their handlers check the
    /// signature.
    pub signed_paths: &'static [&'static str],
    /// Paths whose senders repeat for ever what is answered with 413: a body that is too large is
    /// answered with 400 there.
    pub never_413: &'static [&'static str],
    /// Gives the user at the other end of a connection from this machine: each counts as a client.
    /// Must not block.
    pub user_of: fn(Ends) -> Option<u32>,
    /// Who else may come in where a web configuration lists users.
    pub pass: Option<Pass>,
    /// Counts what these limits cut off.
    pub metrics: ServeMetrics,
    /// The ports whose limits are clones of one another have their connections, bodies and answers
    /// in common.
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

/// Places for connections, and room for bodies and answers, as the first port that is served sets
/// them.
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

/// In the extensions of a request: the two ends of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ends {
    pub peer: SocketAddr,
    pub local: SocketAddr,
}

/// In the extensions of a request: what its body takes of [`Limits::bodies_in_flight`]. A handler
/// that goes on with the body when the request is over, because it was answered or the client went
/// away, keeps this until then.
#[derive(Debug, Clone)]
pub struct BodyShare(#[expect(dead_code, reason = "it is held")] Arc<bodies::Share>);

/// A credential of the program's own, such as a token, which admits beside the users of the web
/// configuration. What it permits is the program's matter.
#[derive(Clone)]
pub struct Pass {
    needed: Arc<dyn Fn() -> bool + Send + Sync>,
    admits: Arc<dyn Fn(&HeaderMap) -> bool + Send + Sync>,
    open: fn(&str) -> bool,
    instead: fn(&Method, &Uri, &HeaderMap) -> Option<Response>,
}

/// In the extensions of a request: the user of the web configuration who makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebUser(pub String);

/// In the extensions of a request whose sender showed a password, a certificate or a token.
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

    /// For a program in which people log in. `open` says which paths need no credential, so that
    /// they can; `instead` what a request gets in place of a refusal, such as the way to the login.
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

/// Pause after an accept failed for want of descriptors or memory: short enough for a person, too
/// long for a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then drains. Logs `listening` with the bound address first. With `web`,
/// connections are TLS and requests authenticated as it configures.
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
        // Fails only on a socket that is gone already.
        let Ok(local) = stream.local_addr() else { continue };
        while let Some(pause) = Some(open.pause()).filter(|pause| !pause.is_zero()) {
            tokio::time::sleep(pause).await;
        }
        let user = || (server.limits.user_of)(Ends { peer, local });
        let seat = open.admit(Client::from_addresses(peer.ip(), local.ip()).of_user(user));
        let (server, cut) = (Arc::clone(&server), cut.clone());
        connections.spawn(async move {
            let _open = server.limits.metrics.connection_opened();
            tokio::select! {
                () = cut.cancelled() => {}
                () = seat.cut.cancelled() => {}
                () = connection::run(&server, stream, Ends { peer, local }, &seat) => {}
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

/// The next connection, or nothing once the program is stopping.
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
