//! One connection from accept to close.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use axum::http::{HeaderValue, Request, Response, StatusCode, Version};
use axum::response::IntoResponse;
use bytes::Buf;
use http_body_util::Limited;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::bodies::{Budget, Counted};
use super::connections::{Busy, Client, Entered, Seat};
use super::sniff::Sniffed;
use super::stall::StallGuard;
use super::{Authenticated, BodyShare, Ends, Limits, WebUser, browser};
use crate::admin::PROBES;
use crate::log_throttle::LogThrottle;
use crate::shutdown::Shutdown;
use crate::web_config::WebConfig;

/// The state that all connections of a server share.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) web: Option<WebConfig>,
    pub(super) bodies: Arc<Budget>,
    /// Limits the log lines about refused bodies.
    pub(super) refused_bodies: LogThrottle,
    pub(super) shutdown: Shutdown,
}

const MAX_HEADERS: usize = 100;
/// The most concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// The most bytes of an HTTP/2 request header.
const MAX_HTTP2_HEADER_BYTES: u32 = 8 << 10;
/// The most bytes of one HTTP/2 response that wait for their reader.
const MAX_SEND_BYTES: usize = 256 << 10;
/// The HTTP/2 flow-control window in bytes, of one request and of all on a connection.
const WINDOW_BYTES: u32 = 64 << 10;
/// The interval of keep-alive pings on an HTTP/2 connection.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn run(server: &Arc<Server>, stream: TcpStream, ends: Ends, seat: &Arc<Seat>) {
    // Fails only if the socket is already closed.
    let _ = stream.set_nodelay(true);
    let mut next = [0; 3];
    // An HTTP/2 connection waits for its own place, and is never a probe.
    if recv(&stream, &mut next, RecvFlags::PEEK | RecvFlags::DONTWAIT).is_err() || next == *b"PRI" {
        seat.busy.was_heard();
    }
    let stream = StallGuard::new(stream, server.limits.stall_timeout, Arc::clone(&seat.busy));
    let Some(tls) = server.web.as_ref().and_then(|web| web.tls(server.limits.http2)) else {
        return http(server, stream, ends, seat).await;
    };
    let handshake = timeout(server.limits.tls_handshake_timeout, TlsAcceptor::from(tls).accept(stream));
    let outcome = tokio::select! {
        () = server.shutdown.wait() => return,
        outcome = handshake => outcome,
    };
    match outcome {
        Ok(Ok(stream)) => http(server, stream, ends, seat).await,
        Ok(Err(err)) => {
            server.limits.metrics.handshake_failed();
            tracing::debug!(peer = %ends.peer, %err, "TLS handshake failed");
        }
        Err(_) => {
            server.limits.metrics.handshake_failed();
            tracing::debug!(peer = %ends.peer, "TLS handshake took too long");
        }
    }
}

async fn http<IO>(server: &Arc<Server>, io: IO, ends: Ends, seat: &Arc<Seat>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut io = Sniffed::unread(io);
    if !server.limits.http2 {
        return http1(server, io, ends, seat).await;
    }
    let http2_asked = tokio::select! {
        () = server.shutdown.wait() => return,
        asked = timeout(server.limits.header_timeout, io.is_http2()) => asked,
    };
    match http2_asked {
        Ok(Ok(true)) => http2(server, io, ends, seat).await,
        Ok(Ok(false)) => http1(server, io, ends, seat).await,
        Ok(Err(_)) | Err(_) => tracing::debug!(peer = %ends.peer, "no request came"),
    }
}

async fn http1<IO>(server: &Arc<Server>, io: IO, ends: Ends, seat: &Arc<Seat>)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| answer(Arc::clone(server), (ends, seat.client), enter(seat, request)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(server.limits.header_timeout)
        .max_buf_size(server.limits.header_bytes)
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
        tracing::debug!(peer = %ends.peer, %err, "connection ended");
    }
}

/// Serves HTTP/2, which has no pause between requests that a timeout could cover. So a connection
/// is idle if no request has been open on it for a while.
async fn http2<IO>(server: &Arc<Server>, io: IO, ends: Ends, seat: &Arc<Seat>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = tokio::select! {
        () = server.shutdown.wait() => return,
        place = timeout(server.limits.header_timeout, seat.http2_place()) => place,
    };
    let Ok(Some(_place)) = place else { return tracing::debug!(peer = %ends.peer, "no place for HTTP/2") };
    let (shared, own) = (Arc::clone(server), Arc::clone(seat));
    let service =
        service_fn(move |request| answer(Arc::clone(&shared), (ends, own.client), enter(&own, request)));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HTTP2_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = over(server, &seat.busy) => {
            connection.as_mut().graceful_shutdown();
            let Ok(ended) = timeout(server.limits.drain_timeout, connection).await else { return };
            ended
        }
    };
    if let Err(err) = outcome {
        tracing::debug!(peer = %ends.peer, %err, "connection ended");
    }
}

/// Returns when the program stops or the connection has been idle for too long.
async fn over(server: &Server, busy: &Busy) {
    let idle = async {
        loop {
            let before = busy.begun();
            sleep(server.limits.http2_idle_timeout).await;
            if busy.now() == 0 && busy.begun() == before {
                return;
            }
        }
    };
    tokio::select! {
        () = server.shutdown.wait() => {}
        () = idle => {}
    }
}

/// Begins a request. Returns it with its place on the connection, if there is one.
fn enter(seat: &Arc<Seat>, request: Request<Incoming>) -> (Request<Incoming>, Option<Arc<Entered>>) {
    let entered = seat.enter(is_probe(&request));
    (request, entered.map(Arc::new))
}

/// Whether the path is a probe; a probe must never wait for a place.
fn is_probe(request: &Request<Incoming>) -> bool {
    PROBES.contains(&request.uri().path())
}

async fn answer(
    server: Arc<Server>,
    from: (Ends, Client),
    (request, entered): (Request<Incoming>, Option<Arc<Entered>>),
) -> Result<Response<Answer>, Infallible> {
    let limits = &server.limits;
    let version = request.version();
    let mut response = if let Some(entered) = &entered {
        let routed = timeout(limits.request_timeout, route(&server, from, request, entered));
        // 503, not 408: a remote_write sender drops data after a 4xx and retries after a 5xx.
        routed.await.unwrap_or_else(|_| {
            closing((StatusCode::SERVICE_UNAVAILABLE, "the request took too long\n").into_response())
        })
    } else {
        drop(request);
        too_many()
    };
    if version == Version::HTTP_2 {
        // HTTP/2 announces the close in a frame instead of a header.
        response.headers_mut().remove(CONNECTION);
    }
    if let Some(web) = &server.web {
        web.add_headers(response.headers_mut());
    }
    limits.metrics.answered(response.status().as_u16());
    if let Some(entered) = &entered {
        entered.waits_for_client(true);
    }
    Ok(response.map(|body| Answer { body, entered }))
}

/// The body of a response. Its connection is busy until the last byte is sent.
#[derive(Debug)]
struct Answer {
    body: Body,
    entered: Option<Arc<Entered>>,
}

/// A part of a body. It is kept until it is sent, which may be long after the body has ended.
#[derive(Debug)]
struct Part {
    bytes: Bytes,
    entered: Option<Arc<Entered>>,
}

impl Part {
    fn new(bytes: Bytes, entered: Option<Arc<Entered>>) -> Self {
        if let Some(entered) = &entered {
            entered.answers(bytes.len());
        }
        Self { bytes, entered }
    }
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(entered) = &self.entered {
            entered.sent(count);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(entered) = &self.entered {
            entered.sent(self.bytes.len());
        }
    }
}

impl hyper::body::Body for Answer {
    type Data = Part;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let part = |bytes| Part::new(bytes, self.entered.clone());
        let polled = polled.map(|frame| frame.map(|read| read.map(|frame| frame.map_data(part))));
        if let Some(entered) = &self.entered {
            // While data is ready, the connection waits for the client to read it.
            entered.waits_for_client(polled.is_ready());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn route(
    server: &Server,
    (ends, client): (Ends, Client),
    request: Request<Incoming>,
    entered: &Arc<Entered>,
) -> Response<Body> {
    let path = request.uri().path();
    let probe = is_probe(&request);
    if !probe && let Some(Err(seconds)) = server.web.as_ref().map(WebConfig::admit) {
        server.limits.metrics.refused_over_rate();
        return closing(too_often(seconds));
    }
    let signed = server.limits.signed_paths.contains(&path);
    if !signed && let Some(why) = foreign(server, &request) {
        server.limits.metrics.refused_foreign();
        return closing((StatusCode::FORBIDDEN, format!("{why}\n")).into_response());
    }
    let mut user = None;
    // The token is checked first, because it needs no bcrypt.
    let mut authenticated = server.limits.pass.as_ref().is_some_and(|pass| pass.admits(request.headers()));
    let open = server.limits.pass.as_ref().is_some_and(|pass| (pass.open)(path));
    if let Some(web) = server.web.as_ref().filter(|_| !probe && !signed && !open && !authenticated) {
        match web.authorize(request.headers()).await {
            Ok(known) => user = known,
            Err(denied) => {
                let pass = server.limits.pass.as_ref();
                let (method, uri, headers) = (request.method(), request.uri(), request.headers());
                let instead = pass.and_then(|pass| (pass.instead)(method, uri, headers));
                return closing(instead.unwrap_or(denied));
            }
        }
        authenticated = web.authenticates();
    }
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > server.limits.body_bytes as u64) {
        return closing(too_large(&server.limits, path));
    }
    let share = server.bodies.share(client);
    let (limits, version) = (&server.limits, request.version());
    let mut request = request.map(|body| {
        // A body above the client's share could never be accepted, so its handler gets the error
        // that it is too large.
        let body = Limited::new(body, limits.body_bytes.min(server.bodies.limit_per_client()));
        // HTTP/2 reads ahead as far as its windows allow, regardless of demand.
        let ahead = if version == Version::HTTP_2 { 0 } else { limits.header_bytes };
        let (share, entered) = (Arc::clone(&share), Arc::clone(entered));
        Body::new(Counted::new(body, share, entered, limits.body_timeout, ahead))
    });
    request.extensions_mut().insert(ConnectInfo(ends.peer));
    request.extensions_mut().insert(ends);
    request.extensions_mut().insert(client);
    request.extensions_mut().insert(BodyShare(Arc::clone(&share)));
    if authenticated {
        request.extensions_mut().insert(Authenticated);
    }
    if let Some(user) = user {
        request.extensions_mut().insert(WebUser(user));
    }
    match server.router.clone().oneshot(request).await {
        // The handler only gets the error that the body was aborted.
        Ok(_) if share.was_refused() => no_room(server, client),
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// The reason to refuse a request that a browser makes for another site's page, if there is one.
fn foreign(server: &Server, request: &Request<Incoming>) -> Option<String> {
    let limits = &server.limits;
    let knows_callers = server.web.as_ref().is_some_and(WebConfig::authenticates)
        || limits.pass.as_ref().is_some_and(|pass| pass.is_needed());
    browser::refuse(request.method(), request.uri(), request.headers(), &limits.hosts, !knows_callers)
}

/// Answers 503: other bodies leave no room for this one, or it came too slowly.
fn no_room(server: &Server, client: Client) -> Response<Body> {
    server.limits.metrics.refused_body();
    if let Some(count) = server.refused_bodies.count(1) {
        tracing::warn!(count, %client, "no room for a body of this client beside those of others, or it came too slowly");
    }
    let again = [(RETRY_AFTER, HeaderValue::from_static("1"))];
    let text = "no room for the body beside those of other requests, or it came too slowly; send it again\n";
    closing((StatusCode::SERVICE_UNAVAILABLE, again, text).into_response())
}

/// Answers 503: every place for a request is taken.
fn too_many() -> Response<Body> {
    let again = [(RETRY_AFTER, HeaderValue::from_static("5"))];
    closing((StatusCode::SERVICE_UNAVAILABLE, again, "too many requests are open\n").into_response())
}

fn too_often(seconds: u64) -> Response<Body> {
    let again = [(RETRY_AFTER, HeaderValue::from(seconds))];
    (StatusCode::TOO_MANY_REQUESTS, again, "too many requests: rate_limit of the web configuration\n")
        .into_response()
}

fn too_large(limits: &Limits, path: &str) -> Response<Body> {
    let repeated = limits.never_413.contains(&path);
    let status = if repeated { StatusCode::BAD_REQUEST } else { StatusCode::PAYLOAD_TOO_LARGE };
    (status, format!("a body has at most {} bytes here\n", limits.body_bytes)).into_response()
}

/// Closes the connection after an answer that precedes the body: the next bytes are no request.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
