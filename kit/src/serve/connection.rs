//! One connection from accept to close.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use axum::http::{HeaderValue, Request, Response, StatusCode, Version};
use axum::response::IntoResponse;
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::sniff::Sniffed;
use super::stall::StallGuard;
use super::{Limits, WebUser};
use crate::admin::PROBES;
use crate::shutdown::Shutdown;
use crate::web_config::WebConfig;

/// What connections share.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) web: Option<WebConfig>,
    pub(super) shutdown: Shutdown,
}

/// The request header with its first line.
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 64;
/// Of one response on an HTTP/2 connection, waiting for its reader.
const MAX_SEND_BYTES: usize = 256 << 10;
/// How often an HTTP/2 client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr) {
    // Fails only on a socket that is gone already.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, server.limits.stall_timeout);
    let Some(tls) = server.web.as_ref().and_then(|web| web.tls(server.limits.http2)) else {
        return http(server, stream, peer).await;
    };
    let handshake = timeout(server.limits.tls_handshake_timeout, TlsAcceptor::from(tls).accept(stream));
    let outcome = tokio::select! {
        () = server.shutdown.wait() => return,
        outcome = handshake => outcome,
    };
    match outcome {
        Ok(Ok(stream)) => http(server, stream, peer).await,
        Ok(Err(err)) => {
            server.limits.metrics.handshake_failed();
            tracing::debug!(%peer, %err, "TLS handshake failed");
        }
        Err(_) => {
            server.limits.metrics.handshake_failed();
            tracing::debug!(%peer, "TLS handshake took too long");
        }
    }
}

async fn http<IO>(server: &Arc<Server>, io: IO, peer: SocketAddr)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut io = Sniffed::unread(io);
    if !server.limits.http2 {
        return http1(server, io, peer).await;
    }
    let told = tokio::select! {
        () = server.shutdown.wait() => return,
        told = timeout(server.limits.header_timeout, io.is_http2()) => told,
    };
    match told {
        Ok(Ok(true)) => http2(server, io, peer).await,
        Ok(Ok(false)) => http1(server, io, peer).await,
        Ok(Err(_)) | Err(_) => tracing::debug!(%peer, "said nothing"),
    }
}

async fn http1<IO>(server: &Arc<Server>, io: IO, peer: SocketAddr)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| answer(Arc::clone(server), peer, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.limits.header_timeout)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = server.shutdown.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = outcome {
        tracing::debug!(%peer, %err, "connection ended");
    }
}

/// HTTP/2 has no pause between requests that a timeout could be set for, so an idle connection is one on which nothing is
/// being answered and nothing was for a while.
async fn http2<IO>(server: &Arc<Server>, io: IO, peer: SocketAddr)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (shared, busy) = (Arc::clone(server), Arc::new(Busy::default()));
    let requests = Arc::clone(&busy);
    let service = service_fn(move |request| {
        let (server, request_of) = (Arc::clone(&shared), Arc::clone(&requests));
        async move {
            let _busy = request_of.enter();
            answer(server, peer, request).await
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .max_send_buf_size(MAX_SEND_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = over(server, &busy) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = outcome {
        tracing::debug!(%peer, %err, "connection ended");
    }
}

/// Returns when the program stops or the connection has been idle for too long.
async fn over(server: &Server, busy: &Busy) {
    let idle = async {
        loop {
            let before = busy.begun.load(Ordering::Relaxed);
            sleep(server.limits.http2_idle_timeout).await;
            if busy.now.load(Ordering::Relaxed) == 0 && busy.begun.load(Ordering::Relaxed) == before {
                return;
            }
        }
    };
    tokio::select! {
        () = server.shutdown.wait() => {}
        () = idle => {}
    }
}

/// Requests of one connection: how many are being answered, how many ever were.
#[derive(Debug, Default)]
struct Busy {
    now: AtomicUsize,
    begun: AtomicUsize,
}

struct Entered<'a>(&'a Busy);

impl Busy {
    fn enter(&self) -> Entered<'_> {
        self.now.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        Entered(self)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn answer(
    server: Arc<Server>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let limits = &server.limits;
    let version = request.version();
    let routed = timeout(limits.request_timeout, route(&server, peer, request));
    // 503, not 408: a remote_write sender drops what was answered with 4xx and repeats what was answered 5xx.
    let mut response = routed.await.unwrap_or_else(|_| {
        closing((StatusCode::SERVICE_UNAVAILABLE, "the request took too long\n").into_response())
    });
    if version == Version::HTTP_2 {
        // It speaks of connections in frames.
        response.headers_mut().remove(CONNECTION);
    }
    if let Some(web) = &server.web {
        web.add_headers(response.headers_mut());
    }
    limits.metrics.answered(response.status().as_u16());
    Ok(response)
}

async fn route(server: &Server, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    let probe = PROBES.contains(&path);
    // A probe that is told to wait is one that failed.
    if !probe && let Some(Err(seconds)) = server.web.as_ref().map(WebConfig::admit) {
        server.limits.metrics.refused_over_rate();
        return closing(too_often(seconds));
    }
    let open = probe || server.limits.signed_paths.contains(&path);
    let mut user = None;
    // A token is looked at first: it costs no bcrypt.
    let passes = || server.limits.pass.as_ref().is_some_and(|pass| pass.admits(request.headers()));
    if let Some(web) = server.web.as_ref().filter(|_| !open && !passes()) {
        match web.authorize(request.headers()).await {
            Ok(known) => user = known,
            Err(denied) => return closing(denied),
        }
    }
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > server.limits.body_bytes as u64) {
        return closing(too_large(server.limits.body_bytes));
    }
    let mut request = request.map(|body| Body::new(Limited::new(body, server.limits.body_bytes)));
    request.extensions_mut().insert(ConnectInfo(peer));
    if let Some(user) = user {
        request.extensions_mut().insert(WebUser(user));
    }
    match server.router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn too_often(seconds: u64) -> Response<Body> {
    let again = [(RETRY_AFTER, HeaderValue::from(seconds))];
    (StatusCode::TOO_MANY_REQUESTS, again, "too many requests: rate_limit of the web configuration\n")
        .into_response()
}

fn too_large(limit: usize) -> Response<Body> {
    (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {limit} bytes here\n")).into_response()
}

/// For answers given before the body was read: what follows on the connection is not a request.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
