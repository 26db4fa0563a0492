//! Tests of several requests at once on one connection.

use super::*;

#[tokio::test]
async fn http2_is_served_beside_http1_where_wanted() {
    let limits = Limits { http2: true, body_bytes: 1000, ..Limits::default() };
    let metrics = limits.metrics.clone();
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/", post(|body: Bytes| async move { format!("{} bytes", body.len()) }));
    let server = start(router, limits).await;
    let (mut client, _) = http2(&server).await;
    let ok = client.send_request(post_to("/", vec![0; 1000])).await.unwrap();
    assert_eq!((ok.status().as_u16(), ok.version()), (200, axum::http::Version::HTTP_2));
    let large = client.send_request(post_to("/", vec![0; 1001])).await.unwrap();
    assert_eq!(large.status(), 413);
    // The connection survives the refusal, and HTTP/1.1 is still served.
    assert_eq!(client.send_request(post_to("/", vec![])).await.unwrap().status(), 200);
    assert!(request(&mut server.connect().await, GET).await.contains("200 OK"));
    assert!(page(&metrics).contains("test_http_requests_total{code=\"200\"} 3"), "{}", page(&metrics));
    server.stop().await;
}

#[tokio::test]
async fn http2_is_not_served_where_it_is_not_wanted() {
    let server = start(hello(), Limits::default()).await;
    let (mut client, _) = http2(&server).await;
    assert!(client.send_request(post_to("/", vec![])).await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn idle_http2_connections_are_closed_and_busy_ones_are_not() {
    let held = HeldAnswers::default();
    let idle = Duration::from_millis(100);
    let limits = Limits { http2: true, http2_idle_timeout: idle, ..Limits::default() };
    let server = start(Router::new().route("/", post(held.handler())), limits).await;
    let (mut busy, _busy) = http2(&server).await;
    let (_silent, silent) = http2(&server).await;
    let answer = tokio::spawn(busy.send_request(post_to("/", vec![])));
    held.entered.notified().await;
    tokio::time::timeout(DEADLINE, silent).await.unwrap().unwrap();
    assert!(!answer.is_finished());
    held.release.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn an_http2_request_in_flight_is_finished_on_shutdown() {
    let held = HeldAnswers::default();
    let limits = Limits { http2: true, ..Limits::default() };
    let server = start(Router::new().route("/", post(held.handler())), limits).await;
    let (mut client, _connection) = http2(&server).await;
    let answer = tokio::spawn(client.send_request(post_to("/", vec![])));
    held.entered.notified().await;
    server.trigger.fire();
    held.release.notify_one();
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn http2_requests_that_are_held_open_are_bounded_over_all_connections() {
    let answers = HeldAnswers::default();
    let limits = Limits { http2: true, ..Limits::default() };
    let server = start(Router::new().route("/", post(answers.handler())), limits).await;
    let (mut clients, mut held) = (Vec::new(), JoinSet::new());
    for _ in 0..18 {
        let (client, _connection) = http2(&server).await;
        for _ in 0..30 {
            let mut client = client.clone();
            held.spawn(async move { client.send_request(post_to("/", vec![])).await.unwrap().status() });
        }
        clients.push(client);
    }
    // The first request of each connection uses another kind of place. Requests beyond the places
    // are answered at once.
    let places = 18 + connections::MAX_FURTHER_REQUESTS;
    for _ in 0..540 - places {
        let refused = tokio::time::timeout(DEADLINE, held.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(refused, 503);
    }
    for _ in 0..places {
        // A permit is kept for the next waiting request, so none is lost.
        answers.release.notify_one();
        let answered = tokio::time::timeout(DEADLINE, held.join_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(answered, 200);
    }
    server.stop().await;
}

#[tokio::test]
async fn few_connections_may_speak_http2() {
    let limits = Limits { http2: true, max_connections: 32, ..Limits::default() };
    let server = start(Router::new().route("/", get(|| async { "hello" })), limits).await;
    let (_first, first) = http2(&server).await;
    let mut later = Vec::new();
    for _ in 0..4 {
        let (mut client, connection) = http2(&server).await;
        // The answer shows that the connection was recognised as HTTP/2.
        let request = axum::http::Request::get("http://x/").body(Body::empty()).unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status(), 200);
        later.push((client, connection));
    }
    let closed = tokio::time::timeout(DEADLINE, first).await;
    assert!(closed.is_ok(), "the one that was active longest ago makes room");
    let (mut client, _) = later.pop().unwrap();
    let request = axum::http::Request::get("http://x/").body(Body::empty()).unwrap();
    assert_eq!(client.send_request(request).await.unwrap().status(), 200);
    server.stop().await;
}
