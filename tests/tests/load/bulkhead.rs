//! Senders that take all the room there is for alerts take none from people.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::json;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, exposition, http, poll_until};

use crate::one_at_a_time;

/// More than the alerter has places for, and fewer than it takes connections.
const STUCK: usize = 300;

/// A sender of alerts that stops half way through its request.
fn stuck(addr: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    let head = "POST /api/v2/alerts HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n\r\n[{";
    stream.write_all(head.as_bytes()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_passes_bodies_that_do_not_arrive() {
    let _alone = one_at_a_time().await;
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let (url, addr) = (stack.alerter.url(), stack.alerter.addr);
    let alert = json!([{"labels": {"alertname": "Down", "severity": "critical"}, "annotations": {"summary": "down"}}]);
    let answer = http::client().post(format!("{url}/api/v2/alerts")).json(&alert).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let id = stack.alerter.incidents().await.unwrap()[0]["id"].as_str().unwrap().to_owned();

    let mut senders: Vec<TcpStream> = (0..STUCK).map(|_| stuck(addr)).collect();
    let shed = async || {
        let page = stack.alerter.metrics().await.ok()?;
        let labels = [("pool", "ingest"), ("reason", "full")];
        exposition::value(&page, "stepwatch_alerter_requests_shed_total", &labels)
    };
    poll_until("the room for alerts to be full", PATIENCE, async || shed().await.filter(|n| *n > 0.0))
        .await
        .unwrap();
    let ack = http::client().post(format!("{url}/api/v1/incidents/{id}/ack")).json(&json!({"by": "ann"}));
    assert_eq!(ack.timeout(PATIENCE).send().await.unwrap().status().as_u16(), 200);
    assert_eq!(stack.alerter.incidents().await.unwrap()[0]["state"], "acknowledged");

    // Each is asked to come again, at once or when its body has not come for long enough.
    let answers = tokio::task::spawn_blocking(move || {
        let mut read = |sender: &mut TcpStream| {
            let mut text = String::new();
            let _ = sender.read_to_string(&mut text);
            text
        };
        senders.iter_mut().map(&mut read).collect::<Vec<_>>()
    });
    for answer in answers.await.unwrap() {
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.to_lowercase().contains("retry-after: 1"),
            "{answer:?}"
        );
    }
    let again = http::client().post(format!("{url}/api/v2/alerts")).json(&alert).timeout(PATIENCE).send();
    assert_eq!(again.await.unwrap().status().as_u16(), 200, "there is room again");
}
