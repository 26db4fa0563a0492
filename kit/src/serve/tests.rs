mod http2;

use std::net::SocketAddr;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::handler::Handler;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::*;
use crate::shutdown::Trigger;

/// A long deadline: a loaded machine must not fail a test, but a missing limit must.
const DEADLINE: Duration = Duration::from_secs(20);

struct Running {
    addr: SocketAddr,
    trigger: Trigger,
    task: JoinHandle<io::Result<()>>,
}

async fn start(router: Router, limits: Limits) -> Running {
    let listener = bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (trigger, shutdown) = Shutdown::manual();
    let task = tokio::spawn(serve(listener, router, limits, None, shutdown));
    Running { addr, trigger, task }
}

impl Running {
    async fn stop(self) {
        self.trigger.fire();
        tokio::time::timeout(DEADLINE, self.task).await.unwrap().unwrap().unwrap();
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// A handler that signals each request, and answers when it is released.
#[derive(Default)]
struct HeldAnswers {
    entered: Arc<Notify>,
    release: Arc<Notify>,
}

impl HeldAnswers {
    fn handler(&self) -> impl Handler<((),), ()> {
        let (entered, release) = (Arc::clone(&self.entered), Arc::clone(&self.release));
        move || async move {
            entered.notify_one();
            release.notified().await;
            "hello"
        }
    }
}

/// Returns all bytes that the server sends until it closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    String::from_utf8(read_bytes_to_end(stream).await).unwrap()
}

async fn read_bytes_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    // A reset ends the stream like a close.
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut got)).await.unwrap();
    got
}

async fn request(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).ends_with("hello") {
        let mut part = [0; 1024];
        let n = tokio::time::timeout(DEADLINE, stream.read(&mut part)).await.unwrap().unwrap();
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&part[..n]);
    }
    String::from_utf8(got).unwrap()
}

const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

fn page(metrics: &ServeMetrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry, "test");
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn slow_headers_and_silent_sockets_are_closed() {
    for http2 in [false, true] {
        slow_headers_and_silent_sockets(http2).await;
    }
}

async fn slow_headers_and_silent_sockets(http2: bool) {
    let limits = Limits { header_timeout: Duration::from_millis(200), http2, ..Limits::default() };
    let server = start(hello(), limits).await;
    let mut preface = server.connect().await;
    preface.write_all(b"PRI * HTTP").await.unwrap();
    let _ = read_to_end(&mut preface).await;
    let mut silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: ").await.unwrap();
    let mut idle = server.connect().await;
    assert!(request(&mut idle, GET).await.contains("200 OK"));
    for stream in [&mut silent, &mut slow, &mut idle] {
        let _ = read_to_end(stream).await;
    }
    // The server still serves.
    assert!(request(&mut server.connect().await, GET).await.contains("200 OK"));
    server.stop().await;
}

#[tokio::test]
async fn a_request_in_flight_is_finished() {
    let held = HeldAnswers::default();
    let server = start(Router::new().route("/", get(held.handler())), Limits::default()).await;
    let mut busy = server.connect().await;
    let mut idle = server.connect().await;
    busy.write_all(GET.as_bytes()).await.unwrap();
    held.entered.notified().await;
    server.trigger.fire();
    // The port and idle connections are closed, while the request is still being answered.
    assert_eq!(read_to_end(&mut idle).await, "");
    assert!(!server.task.is_finished());
    held.release.notify_one();
    assert!(read_to_end(&mut busy).await.ends_with("hello"));
    server.stop().await;
}

#[tokio::test]
async fn a_response_without_end_is_cut_after_the_drain() {
    let endless = || async {
        let forever = futures_body();
        Body::new(forever)
    };
    let limits = Limits { drain_timeout: Duration::from_millis(200), ..Limits::default() };
    let server = start(Router::new().route("/", get(endless)), limits).await;
    let mut stream = server.connect().await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    let before = Instant::now();
    server.stop().await;
    assert!(before.elapsed() < Duration::from_secs(5));
}

/// A body that is always pending and never ends.
fn futures_body() -> impl hyper::body::Body<Data = Bytes, Error = std::convert::Infallible> + Send {
    struct Never;
    impl hyper::body::Body for Never {
        type Data = Bytes;
        type Error = std::convert::Infallible;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
    Never
}

#[tokio::test]
async fn requests_over_the_cap_are_refused_while_probes_are_answered() {
    let limits = Limits { max_connections: 3, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let held = HeldAnswers::default();
    let router = Router::new().route("/", get(held.handler())).route("/-/healthy", get(|| async { "hello" }));
    let server = start(router, limits).await;
    let mut busy = [server.connect().await, server.connect().await];
    for stream in &mut busy {
        stream.write_all(GET.as_bytes()).await.unwrap();
        held.entered.notified().await;
    }
    for _ in 0..3 {
        let mut further = server.connect().await;
        further.write_all(GET.as_bytes()).await.unwrap();
        let refusal = read_to_end(&mut further).await;
        assert!(refusal.starts_with("HTTP/1.1 503 ") && refusal.contains("retry-after: 5"), "{refusal}");
        assert!(refusal.ends_with("too many requests are open\n"), "{refusal}");
        let probe = "GET /-/healthy HTTP/1.1\r\nhost: x\r\n\r\n";
        assert!(request(&mut server.connect().await, probe).await.contains("200 OK"));
    }
    let text = page(&metrics);
    assert!(text.contains("test_http_connections_refused_total{reason=\"capacity\"} 3"), "{text}");
    held.release.notify_waiters();
    server.stop().await;
    for stream in &mut busy {
        assert!(read_to_end(stream).await.ends_with("hello"));
    }
}

#[tokio::test]
async fn requests_without_their_bodies_keep_nobody_out() {
    let limits = Limits { max_connections: 32, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let server = start(hello().route("/", post(|_: Bytes| async { "hello" })), limits).await;
    let mut held = Vec::new();
    for _ in 0..48 {
        let mut stream = server.connect().await;
        stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n").await.unwrap();
        held.push(stream);
    }
    let whole = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx";
    for text in [GET, whole] {
        assert!(request(&mut server.connect().await, text).await.contains("200 OK"));
    }
    assert_eq!(read_to_end(&mut held[0]).await, "", "the oldest was closed");
    assert!(!page(&metrics).contains("reason=\"capacity\""), "{}", page(&metrics));
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_an_http2_client_does_not_take_makes_room() {
    let limits = Limits { max_connections: 2, http2: true, ..Limits::default() };
    let server = start(hello(), limits).await;
    // The preface, SETTINGS with a window of 0, and the head of `GET /` for host x.
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0".to_vec();
    frames.extend(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01x");
    let mut unread = server.connect().await;
    unread.write_all(&frames).await.unwrap();
    // Waits for the head of the answer, the only frame of type 1.
    let deadline = Instant::now() + DEADLINE;
    let mut got = Vec::new();
    while !got.windows(6).any(|w| w == [1, 4, 0, 0, 0, 1]) {
        assert!(Instant::now() < deadline, "{got:?}");
        let mut part = [0; 256];
        let n = tokio::time::timeout(DEADLINE, unread.read(&mut part)).await.unwrap().unwrap();
        got.extend_from_slice(&part[..n]);
    }
    assert!(request(&mut server.connect().await, GET).await.contains("200 OK"));
    read_bytes_to_end(&mut unread).await;
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_make_room_for_whoever_asks() {
    let limits = Limits { max_connections: 8, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let server = start(hello(), limits).await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(server.connect().await);
    }
    for _ in 0..20 {
        assert!(request(&mut server.connect().await, GET).await.contains("200 OK"));
        idle.push(server.connect().await);
    }
    let text = page(&metrics);
    assert!(text.contains("reason=\"evicted\""), "{text}");
    assert!(!text.contains("reason=\"capacity\""), "{text}");
    assert_eq!(read_to_end(&mut idle[0]).await, "", "the oldest was closed");
    server.stop().await;
}

#[tokio::test]
async fn ports_with_the_same_limits_share_the_places() {
    let limits = Limits { max_connections: 4, ..Limits::default() };
    let (first, second) = (start(hello(), limits.clone()).await, start(hello(), limits).await);
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut stream = first.connect().await;
        assert!(request(&mut stream, GET).await.contains("200 OK"));
        idle.push(stream);
    }
    assert!(request(&mut second.connect().await, GET).await.contains("200 OK"));
    assert_eq!(read_to_end(&mut idle[0]).await, "", "the oldest of the first port was closed");
    assert!(request(&mut idle[3], GET).await.contains("200 OK"));
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn bodies_that_are_held_back_make_room_for_whole_ones() {
    let limits = Limits { bodies_in_flight: 1 << 20, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let router = hello().route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }));
    let server = start(router, limits).await;
    let head = |length: usize| {
        format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
    };
    let part = vec![b'x'; (64 << 10) - 1];
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut stream = server.connect().await;
        stream.write_all(head(64 << 10).as_bytes()).await.unwrap();
        stream.write_all(&part).await.unwrap();
        held.push(stream);
    }
    // Seven bodies fit, with the bytes read ahead of each.
    let deadline = Instant::now() + DEADLINE;
    while !page(&metrics).contains("test_http_bodies_refused_total 13") {
        assert!(Instant::now() < deadline, "{}", page(&metrics));
        tokio::task::yield_now().await;
    }
    let refused = read_to_end(&mut held[0]).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("retry-after: 1"), "{refused}");
    for length in [5, 64 << 10, 512 << 10] {
        let mut whole = server.connect().await;
        whole.write_all(head(length).as_bytes()).await.unwrap();
        whole.write_all(&vec![b'x'; length]).await.unwrap();
        let answer = read_to_end(&mut whole).await;
        assert!(answer.ends_with(&format!("{length} bytes")), "{answer}");
    }
    let mut larger = server.connect().await;
    larger.write_all(head((512 << 10) + 1).as_bytes()).await.unwrap();
    larger.write_all(&vec![b'x'; (512 << 10) + 1]).await.unwrap();
    assert!(read_to_end(&mut larger).await.starts_with("HTTP/1.1 413 "), "there is never room for it");
    drop(held);
    server.stop().await;
}

/// The answer is much larger than the kernel's buffers.
#[tokio::test]
async fn answers_that_nobody_reads_make_room_for_others() {
    const LENGTH: usize = 8 << 20;
    let limits = Limits { answers_in_flight: LENGTH + LENGTH / 2, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let handler = || async { Bytes::from(vec![b'x'; LENGTH]) };
    let server = start(Router::new().route("/", post(handler)), limits).await;
    let ask = async || {
        let mut stream = server.connect().await;
        stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    };
    let mut unread = ask().await;
    let mut other = ask().await;
    let mut last = Vec::new();
    other.read_to_end(&mut last).await.unwrap();
    assert!(last.len() > LENGTH);
    let mut rest = Vec::new();
    // The connection is reset, or closed in the middle.
    let _ = unread.read_to_end(&mut rest).await;
    assert!(rest.len() < LENGTH, "{} bytes", rest.len());
    assert!(page(&metrics).contains("reason=\"evicted\"} 1"), "{}", page(&metrics));
    server.stop().await;
}

/// The server never reads the input to its end while its answers are unread.
#[tokio::test]
async fn connections_that_never_stop_asking_keep_nobody_out() {
    let limits = Limits { max_connections: 8, ..Limits::default() };
    let router = hello().route("/large", post(|| async { Bytes::from(vec![b'x'; 1 << 20]) }));
    let server = start(router, limits).await;
    let request = "POST /large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
    let mut greedy = Vec::new();
    for _ in 0..8 {
        let mut stream = server.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        greedy.push(stream);
    }
    for _ in 0..20 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 200 "));
    }
    drop(greedy);
    server.stop().await;
}

#[tokio::test]
async fn a_slow_body_is_broken_off_with_a_status_that_senders_repeat() {
    let limits = Limits { body_timeout: Duration::from_millis(100), ..Limits::default() };
    let router = Router::new().route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }));
    let server = start(router, limits).await;
    let mut slow = server.connect().await;
    slow.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nbegun").await.unwrap();
    let answer = read_to_end(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after: 1"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let limits = Limits::default();
    let metrics = limits.metrics.clone();
    let server = start(hello().route("/", post(|| async { "hello" })), limits).await;
    for (headers, status) in [
        ("host: 127.0.0.1\r\norigin: http://evil.example", 403),
        ("host: evil.example\r\norigin: http://evil.example", 403),
        ("host: 127.0.0.1\r\nsec-fetch-site: cross-site", 403),
        ("host: 127.0.0.1\r\norigin: http://127.0.0.1", 200),
        ("host: alerter.monitoring.svc:9766", 200),
    ] {
        let mut stream = server.connect().await;
        let text = format!("POST / HTTP/1.1\r\n{headers}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
    }
    assert!(page(&metrics).contains("test_http_requests_foreign_total 3"), "{}", page(&metrics));
    server.stop().await;
}

#[tokio::test]
async fn bodies_over_the_cap_are_refused() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let router = Router::new()
        .route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }))
        .route("/small", post(|_: Bytes| async { "hello" }).layer(DefaultBodyLimit::max(10)));
    let server = start(router, limits).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/", server.addr);
    let post = |url: String, body: reqwest::Body| client.post(url).body(body).send();

    let ok = post(url.clone(), vec![0; 1000].into()).await.unwrap();
    assert_eq!(ok.text().await.unwrap(), "1000 bytes");
    assert_eq!(post(url.clone(), vec![0; 1001].into()).await.unwrap().status(), 413);
    assert_eq!(post(url.clone() + "small", vec![0; 11].into()).await.unwrap().status(), 413);

    // A chunked body declares no length, so the limit applies while reading.
    let mut chunked = server.connect().await;
    chunked
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n")
        .await
        .unwrap();
    chunked.write_all(&[b'a'; 2000]).await.unwrap();
    let mut head = [0; 12];
    tokio::time::timeout(DEADLINE, chunked.read_exact(&mut head)).await.unwrap().unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_awaited_for_ever() {
    let limits = Limits { request_timeout: Duration::from_millis(200), ..Limits::default() };
    let router = Router::new().route("/", post(|_: Bytes| async { "hello" }));
    let server = start(router, limits).await;
    let mut stream = server.connect().await;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc").await.unwrap();
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 503 "));
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut() {
    let limits = Limits { stall_timeout: Duration::from_millis(200), ..Limits::default() };
    let metrics = limits.metrics.clone();
    let huge = || async { vec![b'a'; 64 << 20] };
    let server = start(Router::new().route("/", get(huge)), limits).await;
    let mut stream = server.connect().await;
    stream.write_all(GET.as_bytes()).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    // The request was answered, and its connection is closed.
    while !(page(&metrics).contains("code=\"200\"} 1") && page(&metrics).contains("test_http_connections 0"))
    {
        assert!(Instant::now() < deadline, "{}", page(&metrics));
        tokio::task::yield_now().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn handlers_see_who_asks() {
    use axum::extract::ConnectInfo;
    let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { format!("{} hello", peer.ip()) };
    let server = start(Router::new().route("/", get(who)), Limits::default()).await;
    let got = request(&mut server.connect().await, GET).await;
    assert!(got.ends_with("127.0.0.1 hello"), "{got}");
    server.stop().await;
}

/// An HTTP/2 client with prior knowledge, as gRPC is, and the task of its connection.
async fn http2(server: &Running) -> (hyper::client::conn::http2::SendRequest<Body>, JoinHandle<()>) {
    let io = hyper_util::rt::TokioIo::new(server.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (client, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    (client, tokio::spawn(async move { drop(connection.await) }))
}

fn post_to(path: &str, body: impl Into<Body>) -> axum::http::Request<Body> {
    axum::http::Request::post(format!("http://x{path}")).body(body.into()).unwrap()
}

#[tokio::test]
async fn a_connection_that_was_reset_belongs_to_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = async || {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, peer) = listener.accept().await.unwrap();
        (client, Ends::new(peer, server.local_addr().unwrap()), server)
    };
    let (client, ends, server) = connect().await;
    assert_eq!(user_of(&server, ends, |_| Some(7)), Some(7));
    client.set_zero_linger().unwrap();
    drop(client);
    let reset = async {
        while server.peer_addr().is_ok() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(DEADLINE, reset).await.unwrap();
    assert_eq!(user_of(&server, ends, |_| Some(7)), None, "the kernel names the next one with its port");
}
