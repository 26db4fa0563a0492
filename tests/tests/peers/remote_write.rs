//! Remote write, from real senders and by hand.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use stepwatch_tests::peers::{self, Prometheus, PrometheusOptions};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::remote_write::{Point, compressed, request, write};
use stepwatch_tests::stack::StackOptions;
use stepwatch_tests::{Stack, http, poll_until, trainer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A trainer that makes a step every 50 ms until it is told the loss of one more.
async fn train(stack: &Stack, run: &str) -> trainer::Rank {
    let rank = trainer::Rank::join(&stack.ingest(), run, 0, 1).unwrap();
    for step in 1..=60 {
        let (loss, grad_norm) = trainer::healthy(step);
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm), ("step_time", 0.05)]).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    rank
}

async fn run_of(stack: &Stack, name: &str) -> Option<Value> {
    let runs = http::get_json(&format!("{}/api/v1/runs", stack.alerter.url())).await.ok()?;
    runs["runs"].as_array()?.iter().find(|run| run["run"] == name).cloned()
}

async fn sample_of(stack: &Stack, name: &str) -> Option<f64> {
    let page = stack.alerter.metrics().await.ok()?;
    let line = page.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// The page of a NaN that only a scrape could bring, and that it rings once.
async fn nan_pages(stack: &Stack, rank: &trainer::Rank, run: &str) {
    poll_until("the run", PATIENCE, async || run_of(stack, run).await).await.unwrap();
    rank.step(61, &[("loss", f64::NAN), ("grad_norm", 0.2), ("step_time", 0.05)]).unwrap();
    let pages = stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    assert!(pages.pages[0].summary.contains(run), "{:?}", pages.pages);
    let incidents = http::get_json(&format!("{}/api/v1/incidents", stack.alerter.url())).await.unwrap();
    let nonfinite: Vec<_> =
        incidents["incidents"].as_array().unwrap().iter().filter(|i| i["kind"] == "nonfinite").collect();
    assert_eq!(nonfinite.len(), 1, "{incidents}");
    assert_eq!(nonfinite[0]["run"], run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nan_that_only_prometheus_scraped_pages() {
    let Some(program) = peers::prometheus() else { return };
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let more = format!(
        "remote_write:\n  - url: '{}/api/v1/write'\n    queue_config: {{batch_send_deadline: 1s}}\n",
        stack.alerter.url()
    );
    let options = PrometheusOptions { more, ..PrometheusOptions::default() };
    let targets = [stack.exporter.addr];
    let _prometheus =
        Prometheus::start_with(&program, stack.dir.path(), &targets, "1s", options).await.unwrap();
    let rank = train(&stack, "llama").await;
    nan_pages(&stack, &rank, "llama").await;
    // Prometheus says of each series what it is only once, and everything was taken.
    assert!(sample_of(&stack, "stepwatch_alerter_remote_write_samples_total").await.unwrap() > 100.0);
    assert_eq!(sample_of(&stack, "stepwatch_alerter_remote_write_requests_total{code=\"400\"}").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn vmagent_is_a_sender_too_and_a_stream_goes_before_it() {
    let Some(program) = peers::vmagent() else { return };
    // The alerter reads the exporter's stream as well.
    let stack = Stack::start().await.unwrap();
    let url = format!("{}/api/v1/write", stack.alerter.url());
    let _vmagent = peers::start_vmagent(&program, stack.dir.path(), stack.exporter.addr, &url).unwrap();
    let rank = train(&stack, "llama").await;
    let refused = format!(
        "stepwatch_alerter_source_refused_total{{source=\"remote_write/{}\",reason=\"rank_taken\"}}",
        stack.exporter.addr
    );
    poll_until("a copy that is refused", PATIENCE, async || sample_of(&stack, &refused).await).await.unwrap();
    nan_pages(&stack, &rank, "llama").await;
    let judged = async || run_of(&stack, "llama").await.filter(|run| run["last_step"] == 61);
    let run = poll_until("the last step", PATIENCE, judged).await.unwrap();
    assert_eq!(run["steps"], 61, "each step is judged once: {run}");
}

fn now_ms() -> i64 {
    (trainer::now() * 1e3) as i64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_that_a_rule_names_is_a_ticket_when_it_shifts() {
    let alerter = "remote_write: {generic: ['{__name__=~\"nfs_.*\"}']}\n".to_owned();
    let stack =
        Stack::start_with(StackOptions { blind: true, alerter, ..StackOptions::default() }).await.unwrap();
    let labels = [("__name__", "nfs_read_seconds"), ("instance", "nas:9100"), ("job", "storage")];
    let begin = now_ms() - 240_000;
    for block in 0..12 {
        let of = |i: i64| {
            let at = block * 100 + i;
            let noise = ((at * 7919) % 101) as f64 / 1000.0;
            (&labels[..], begin + at * 190, if at > 1000 { 9.0 } else { 3.0 } + noise)
        };
        let points: Vec<Point<'_>> = (0..100).map(of).collect();
        let answer = write(&stack.alerter.url(), request(&points)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    }
    let posts = stack.slack.wait_for(|slack| !slack.posts.is_empty(), PATIENCE).await.unwrap();
    let text = format!("{:?}", posts.posts[0]);
    assert!(text.contains("TICKET nfs_read_seconds: signal out of place"), "{text}");
    let incidents = http::get_json(&format!("{}/api/v1/incidents", stack.alerter.url())).await.unwrap();
    let incident = &incidents["incidents"][0];
    assert_eq!((&incident["kind"], &incident["severity"]), (&"generic".into(), &"ticket".into()));
    assert_eq!(incident["labels"]["job"], "storage");
}

/// The answer to the head of a request that announces more than is taken. The body is never sent:
/// the connection would be closed on it.
async fn of_a_large_body(stack: &Stack) -> String {
    let mut connection = TcpStream::connect(stack.alerter.addr).await.unwrap();
    let head = format!(
        "POST /api/v1/write HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n\
         content-encoding: snappy\r\ncontent-length: {}\r\n\r\n",
        (8 << 20) + 1
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_of_a_sender_has_the_status_that_it_understands() {
    let stack = Stack::start_with(StackOptions { blind: true, ..StackOptions::default() }).await.unwrap();
    let url = stack.alerter.url();
    let send = async |content_type: &str, encoding: &str, body: Vec<u8>| {
        let post = http::client().post(format!("{url}/api/v1/write"));
        let post = post.header("content-type", content_type).header("content-encoding", encoding);
        post.body(body).send().await.unwrap()
    };
    const V1: &str = "application/x-protobuf";
    const V2: &str = "application/x-protobuf;proto=io.prometheus.write.v2.Request";
    let labels = [("__name__", "up"), ("instance", "a:1")];
    let good = || request(&[(&labels, now_ms(), 1.0)]);
    assert_eq!(send(V1, "snappy", good()).await.status(), 204);
    for (content_type, encoding) in
        [(V1, "zstd"), ("application/json", "snappy"), ("application/x-protobuf;proto=x", "snappy")]
    {
        assert_eq!(send(content_type, encoding, good()).await.status(), 415, "{content_type} {encoding}");
    }
    let ahead = request(&[(&labels, now_ms() + 700_000, 1.0), (&[("__name__", "x")], now_ms(), 1.0)]);
    for body in [b"not snappy".to_vec(), compressed(b"\x0a\x05ab"), vec![0xff, 0xff, 0xff, 0xff, 0x0f], ahead]
    {
        let answer = send(V1, "snappy", body).await;
        assert_eq!(answer.status(), 400, "{answer:?}");
        let why: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert!(why["error"].as_str().is_some_and(|why| why.len() > 10), "{why}");
    }
    // Symbols "", "__name__", "up", and a series of the last two with a sample.
    let mut v2 = b"\x22\x00\x22\x08__name__\x22\x02up\x2a\x0d\x0a\x02\x01\x02\x12\x07\x10".to_vec();
    let mut ts = now_ms().cast_unsigned();
    while ts >= 0x80 {
        v2.push(ts as u8 | 0x80);
        ts >>= 7;
    }
    v2.push(ts as u8);
    let answer = send(V2, "snappy", compressed(&v2)).await;
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.headers()["x-prometheus-remote-write-samples-written"], "1");
    assert!(of_a_large_body(&stack).await.starts_with("HTTP/1.1 400 "), "413 would be repeated for ever");
    let counted = "stepwatch_alerter_remote_write_requests_total{code=\"415\"}";
    assert_eq!(sample_of(&stack, counted).await, Some(3.0));
}
