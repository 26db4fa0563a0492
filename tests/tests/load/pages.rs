//! The pages of an alerter that has thousands of nodes, hundreds of runs and twenty thousand
//! incidents: how soon one begins to arrive, and how much of it goes over the wire.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, StackOptions, http, poll_until, say};

use crate::client::Client;
use crate::ingest::BATCH;
use crate::{in_full, one_at_a_time};

const PAGES: [&str; 6] = ["/", "/?state=resolved", "/nodes", "/runs", "/runs/run-007", "/nodes/gpu-00007"];
/// Bytes of a page.
const MAX_PAGE: u64 = 16 << 20;
/// Requests for each page: the first may make what later ones find.
const TIMES: usize = 7;
/// Nodes, and so ranks, of one run; steps of each run.
const NODES_A_RUN: usize = 25;
const STEPS: usize = 60;
/// The limits of a full measurement: of a page's first byte, and of all that a first visit loads.
const FIRST_WITHIN: Duration = Duration::from_millis(300);
const ON_THE_WIRE: usize = 150_000;

/// Nodes, incidents, and those of them that stay open.
fn plan() -> (usize, usize, usize) {
    if in_full() { (5_000, 20_000, 300) } else { (500, 1_000, 100) }
}

/// Posts all bodies as a Prometheus does: what a slow store has not made durable is sent again.
fn post_all(addr: SocketAddr, bodies: &[Vec<u8>]) {
    let mut client = Client::connect(addr);
    for body in bodies {
        let deadline = Instant::now() + 8 * PATIENCE;
        while client.post("/api/v2/alerts", body) != 200 {
            let said = String::from_utf8_lossy(&client.body);
            assert!(said.contains("send them again") && Instant::now() < deadline, "{said}");
        }
    }
}

/// Every run on its nodes, as one exporter streams them.
fn records(nodes: usize) -> String {
    let (mut text, mut seq) = (String::new(), 0);
    let mut say = |record: Value| {
        seq += 1;
        writeln!(text, "{{\"c\":\"b1:{seq}\",{}", &record.to_string()[1..]).unwrap();
    };
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
    for run in 0..nodes / NODES_A_RUN {
        let rank = |rank: usize, step: usize| {
            json!({
                "k": "step", "ts": now - 4.0 * (STEPS - step) as f64, "run": format!("run-{run:03}"), "rank": rank,
                "node": format!("gpu-{:05}", run * NODES_A_RUN + rank), "world": NODES_A_RUN, "step": step,
                "m": {"loss": 4.0 / (1.0 + step as f64), "grad_norm": 0.5, "step_time": 4.0, "mfu": 0.41},
            })
        };
        (1..NODES_A_RUN).for_each(|n| say(rank(n, 1)));
        (1..=STEPS).for_each(|step| say(rank(0, step)));
    }
    for node in 0..nodes {
        say(json!({
            "k": "health", "name": "config", "node": format!("gpu-{node:05}"), "fingerprint": "a", "driver": "550.54",
        }));
    }
    // One node in a hundred is unwell.
    for node in (0..nodes).step_by(100) {
        say(json!({
            "k": "hw", "name": "gpu_lost", "code": 1, "level": "error", "gpu": "GPU-7", "text": "GPU 3 is lost",
            "node": format!("gpu-{node:05}"),
        }));
    }
    text
}

/// An exporter that has a fleet behind it, and says all of it at once.
fn exporter(records: String) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n";
            // A reader that has gone comes back.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(records.as_bytes()));
            kept.push(stream);
        }
    });
    addr
}

/// Alerts that have nothing in common but what they are about; over, or not.
fn alerts(from: usize, count: usize, over: bool) -> Vec<Vec<u8>> {
    let one = |n: usize| {
        let mut alert = json!({
            "labels": {"alertname": format!("Volume{n:05}Full"), "severity": "critical", "instance": format!("db-{}:9100", n % 500)},
            "annotations": {"summary": format!("volume {n} is 97 % full")},
            "startsAt": "2026-01-01T00:00:00Z",
        });
        if over {
            alert["endsAt"] = "2026-01-01T01:00:00Z".into();
        }
        alert
    };
    let all: Vec<Value> = (from..count).map(one).collect();
    all.chunks(BATCH).map(|batch| serde_json::to_vec(batch).unwrap()).collect()
}

async fn send(stack: &Stack, bodies: Vec<Vec<u8>>) {
    let addr = stack.alerter.addr;
    tokio::task::spawn_blocking(move || post_all(addr, &bodies)).await.unwrap();
}

async fn fill(stack: &Stack, nodes: usize, incidents: usize, open: usize) {
    let url = stack.alerter.url();
    let counted = async |path: &str, list: &str| {
        let answer = http::get_json(&format!("{url}{path}")).await.unwrap();
        answer[list].as_array().map_or(0, Vec::len) + answer["hidden"].as_u64().unwrap_or(0) as usize
    };
    let all = async || (counted("/api/v1/nodes", "nodes").await >= nodes).then_some(());
    poll_until("all nodes", PATIENCE, all).await.unwrap();
    let opened =
        async || http::get_json(&format!("{url}/api/v1/status")).await.unwrap()["open_incidents"].as_u64();
    send(stack, alerts(0, incidents, false)).await;
    poll_until("all to be open", 4 * PATIENCE, async || opened().await.filter(|n| *n as usize >= incidents))
        .await
        .unwrap();
    send(stack, alerts(open, incidents, true)).await;
    // Runs that stand still meanwhile are incidents too.
    let few = (open + nodes / 10 + incidents / 20) as u64;
    poll_until("most to be over", 8 * PATIENCE, async || opened().await.filter(|n| *n <= few)).await.unwrap();
}

/// What a page says of itself.
#[derive(Debug)]
struct Visit {
    first: Duration,
    whole: Duration,
    wire: usize,
    html: usize,
    /// With what it loads at a first visit.
    visit: usize,
}

fn visit(client: &mut Client, page: &str) -> Visit {
    let mut times: Vec<(Duration, Duration)> = (0..TIMES)
        .map(|_| {
            assert_eq!(client.get_in_gzip(page), 200, "{page}");
            (client.first, client.whole)
        })
        .collect();
    times.sort();
    let (first, whole) = times[TIMES / 2];
    let wire = client.body.len();
    let mut html = String::new();
    #[expect(clippy::disallowed_types, reason = "our own page")]
    let packed = flate2::read::GzDecoder::new(&*client.body);
    packed.take(MAX_PAGE).read_to_string(&mut html).unwrap();
    let assets: Vec<&str> = html.split('"').filter(|part| part.starts_with("/assets/")).collect();
    let mut all = wire;
    for asset in assets.iter().enumerate().filter(|(i, a)| !assets[..*i].contains(a)).map(|(_, a)| a) {
        assert_eq!(client.get_in_gzip(asset), 200, "{asset}");
        all += client.body.len();
    }
    Visit { first, whole, wire, html: html.len(), visit: all }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_large_fleet_are_soon_there() {
    let _alone = one_at_a_time().await;
    let (nodes, incidents, open) = plan();
    let addr = exporter(records(nodes));
    let sources = format!("sources:\n  - exporters: {{static: [\"{addr}\"], nodes: many}}\n");
    let options = StackOptions { blind: true, alerter: sources, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    fill(&stack, nodes, incidents, open).await;
    let addr = stack.alerter.addr;
    let visits = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(addr);
        PAGES.map(|page| (page, visit(&mut client, page)))
    });
    for (page, v) in visits.await.unwrap() {
        say::figure(&format!(
            "{nodes} nodes, {incidents} incidents: {page} first byte {:.0} ms, whole {:.0} ms, {:.1} kB of {:.0} kB, first visit {:.0} kB",
            v.first.as_secs_f64() * 1e3,
            v.whole.as_secs_f64() * 1e3,
            v.wire as f64 / 1e3,
            v.html as f64 / 1e3,
            v.visit as f64 / 1e3,
        ));
        assert!(v.visit <= ON_THE_WIRE, "{page}: {v:?}");
        assert!(cfg!(debug_assertions) || v.first <= FIRST_WITHIN, "{page}: {v:?}");
    }
}
