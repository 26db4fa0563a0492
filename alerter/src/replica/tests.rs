//! Tests of forwarding; replicas on a real database are in the project's `tests/`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::{Router, body};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::forward;
use crate::store::Leader;

fn leader(address: String) -> Leader {
    Leader { holder: "a".into(), address, epoch: 1, expired: false }
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn text(response: Response) -> String {
    String::from_utf8(body::to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

fn post(path: &str, body: &str) -> Request {
    Request::post(path).header("host", "alerts.example.com").body(Body::from(body.to_owned())).unwrap()
}

#[tokio::test]
async fn a_request_waits_for_a_leader_and_reaches_it_whole() {
    let echo = Router::new().fallback(|headers: HeaderMap, request: Request| async move {
        let path = request.uri().to_string();
        let body = body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let host = headers["host"].to_str().unwrap().to_owned();
        format!("{path} {host} {}", String::from_utf8_lossy(&body))
    });
    let address = serve(echo).await;
    let (lead, follow) = watch::channel(None);
    let standby = forward::router(follow).unwrap();
    let answer = tokio::spawn(standby.oneshot(post("/api/v2/alerts?a=b", "[]")));
    lead.send_replace(Some(Leader { expired: true, ..leader(address.clone()) }));
    lead.send_replace(Some(leader(address)));
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(text(answer).await, "/api/v2/alerts?a=b alerts.example.com []");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_refused_while_nobody_leads_for_long() {
    let (_lead, follow) = watch::channel(None);
    let answer = forward::router(follow).unwrap().oneshot(post("/", "")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "1");
}

#[tokio::test]
async fn two_replicas_that_stand_by_do_not_forward_in_a_circle() {
    let (lead, follow) = watch::channel(None);
    let address = serve(forward::router(follow.clone()).unwrap()).await;
    lead.send_replace(Some(leader(address)));
    let standby = forward::router(follow).unwrap();
    let answer = tokio::spawn(standby.oneshot(post("/", "")));
    // The address turns out to be that of the leader after all.
    let address = serve(Router::new().fallback(|| async { "led" })).await;
    lead.send_replace(Some(leader(address)));
    assert_eq!(text(answer.await.unwrap().unwrap()).await, "led");
}

#[tokio::test]
async fn what_a_leader_may_have_done_is_not_done_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let dies = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let read = stream.read(&mut [0; 4096]).await.unwrap();
        drop((stream, listener));
        read
    });
    let (_lead, follow) = watch::channel(Some(leader(address)));
    let answer =
        forward::router(follow).unwrap().oneshot(post("/api/v1/incidents/1/ack", "{}")).await.unwrap();
    assert!(dies.await.unwrap() > 0);
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert!(text(answer).await.contains("may or may not have acted"));
}
