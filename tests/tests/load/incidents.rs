//! Tens of thousands of incidents open at once: what one more costs, who is notified, what is
//! shown, and how soon they are all back after `kill -9`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, http, poll_until, say};

use crate::client::{Client, Tally, flood};
use crate::ingest::BATCH;
use crate::memory::resident;
use crate::{in_full, one_at_a_time};

/// Prometheus servers that send them.
const SENDERS: usize = 4;
/// Answers given while all are open.
const ANSWERS: usize = 50;
/// A storm is notified as one; before it is one (`storm.incidents`), some are notified by
/// themselves.
const PAGES_MAX: usize = 100 + 1;
/// From the kill until it serves again, all incidents known: the limit of a full measurement.
const BACK_WITHIN: Duration = Duration::from_secs(5);

fn plan() -> usize {
    if in_full() { 20_000 } else { 1_000 }
}

/// Alerts that have nothing in common but what they are about.
fn alerts(count: usize) -> Vec<Vec<u8>> {
    let one = |n: usize| {
        json!({
            "labels": {"alertname": format!("Volume{n:05}Full"), "severity": "critical", "instance": format!("db-{}:9100", n % 500)},
            "annotations": {"summary": format!("volume {n} is 97 % full"), "runbook_url": "https://runbooks.example.com/volume"},
            "startsAt": "2026-01-01T00:00:00Z"
        })
    };
    let all: Vec<Value> = (0..count).map(one).collect();
    all.chunks(BATCH).map(|batch| serde_json::to_vec(batch).unwrap()).collect()
}

async fn open(stack: &Stack) -> usize {
    let status = http::get_json(&format!("{}/api/v1/status", stack.alerter.url())).await.unwrap();
    status["open_incidents"].as_u64().unwrap() as usize
}

/// All and the storm that stands for them.
async fn all_open(stack: &Stack, count: usize) {
    let seen = async || Some(open(stack).await).filter(|n| *n > count);
    let n = poll_until("all to be open", PATIENCE, seen).await.unwrap();
    assert_eq!(n, count + 1);
}

/// Milliseconds to ask for each of these, and the megabytes of the answer.
fn shown(stack: &Stack) -> String {
    let lists = ["/api/v1/incidents?limit=1000", "/api/v2/alerts", "/api/v2/alerts/groups", "/"];
    let mut client = Client::connect(stack.alerter.addr);
    let each = lists.map(|path| {
        let began = Instant::now();
        assert_eq!(client.get(path), 200);
        format!(
            "{path} {:.0} ms ({:.1} MB)",
            began.elapsed().as_secs_f64() * 1e3,
            client.body.len() as f64 / 1e6
        )
    });
    each.join(", ")
}

fn answers(stack: &Stack, ids: &[String]) -> Tally {
    let mut client = Client::connect(stack.alerter.addr);
    let answer = |id: &String| {
        let began = Instant::now();
        assert_eq!(client.post(&format!("/api/v1/incidents/{id}/ack"), br#"{"by": "ann"}"#), 200);
        began.elapsed()
    };
    let took: Vec<Duration> = ids.iter().map(answer).collect();
    Tally::from_times(took.iter().sum(), took)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_incidents_open() {
    let _alone = one_at_a_time().await;
    let mut stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let count = plan();
    let bodies = alerts(count);
    let (addr, sent) = (stack.alerter.addr, bodies.clone());
    let opened =
        tokio::task::spawn_blocking(move || flood(addr, "/api/v2/alerts", &sent, SENDERS)).await.unwrap();
    all_open(&stack, count).await;
    let mib = resident(stack.alerter.daemon.pid().unwrap());
    say::figure(&format!(
        "{count} incidents opened in {:.1} s, a request of {BATCH} p50 {:.1} ms p99 {:.1} ms, {mib:.0} MiB; {}",
        opened.lasted.as_secs_f64(),
        opened.ms(0.5),
        opened.ms(0.99),
        shown(&stack)
    ));
    let listed =
        http::get_json(&format!("{}/api/v1/incidents?limit=1000", stack.alerter.url())).await.unwrap();
    let of = |i: &Value| i["id"].as_str().unwrap().to_owned();
    let single = |i: &&Value| i["kind"] != "alert_storm";
    let ids: Vec<String> =
        listed["incidents"].as_array().unwrap().iter().filter(single).map(of).take(ANSWERS).collect();
    let took = answers(&stack, &ids);
    say::figure(&format!(
        "answers while all are open: p50 {:.1} ms, p99 {:.1} ms",
        took.ms(0.5),
        took.ms(0.99)
    ));

    stack.alerter.daemon.kill().await.unwrap();
    let began = Instant::now();
    stack.alerter.restart(None).await.unwrap();
    stack.alerter.ready().await.unwrap();
    all_open(&stack, count).await;
    let back = began.elapsed();
    say::figure(&format!("after kill -9: serves with all incidents after {:.2} s", back.as_secs_f64()));
    assert!(!in_full() || back <= BACK_WITHIN, "{back:?}");
    let paged = stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    let pages = paged.pages.len();
    assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages");
    // A person who answered is not asked again.
    let url = format!("{}/api/v1/incidents?state=acknowledged&limit=1000", stack.alerter.url());
    let answered = http::get_json(&url).await.unwrap();
    assert_eq!(answered["incidents"].as_array().unwrap().len(), ANSWERS);
}
