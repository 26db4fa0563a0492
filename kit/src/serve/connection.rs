//! One connection from accept to close.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::Limits;
use super::stall::StallGuard;
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

pub(super) async fn run(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr) {
    // Fails only on a socket that is gone already.
    let _ = stream.set_nodelay(true);
    let stream = StallGuard::new(stream, server.limits.stall_timeout);
    let Some(tls) = server.web.as_ref().and_then(WebConfig::tls) else {
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

async fn answer(
    server: Arc<Server>,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let limits = &server.limits;
    let routed = timeout(limits.request_timeout, route(&server, peer, request));
    // 503, not 408: a remote_write sender drops what was answered with 4xx and repeats what was answered 5xx.
    let mut response = routed.await.unwrap_or_else(|_| {
        closing((StatusCode::SERVICE_UNAVAILABLE, "the request took too long\n").into_response())
    });
    if let Some(web) = &server.web {
        web.add_headers(response.headers_mut());
    }
    limits.metrics.answered(response.status().as_u16());
    Ok(response)
}

async fn route(server: &Server, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
    if let Some(web) = &server.web
        && let Err(denied) = web.authorize(request.headers()).await
    {
        return closing(denied);
    }
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > server.limits.body_bytes as u64) {
        return closing(too_large(server.limits.body_bytes));
    }
    let mut request = request.map(|body| Body::new(Limited::new(body, server.limits.body_bytes)));
    request.extensions_mut().insert(ConnectInfo(peer));
    match server.router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn too_large(limit: usize) -> Response<Body> {
    (StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {limit} bytes here\n")).into_response()
}

/// For answers given before the body was read: what follows on the connection is not a request.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
