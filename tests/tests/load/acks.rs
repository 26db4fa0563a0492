//! How long a person's answer takes to be durable while everything else comes in at full speed: a
//! training stream of a thousand ranks, and alerts as fast as they are taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stepwatch_fakes::{PagerDuty, Slack, interaction_body, pagerduty_signature, slack_signature};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Crowd, Inbound, Stack, StackOptions, crowd, http, poll_until, say};

use crate::client::{Client, Tally};
use crate::ingest::{BATCH, bodies};
use crate::{in_full, one_at_a_time};

/// The limit of a full measurement. A short one proves that every answer is taken while the flood
/// goes on, and no time.
const P99: Duration = Duration::from_millis(250);
/// Prometheus servers that send as fast as they are answered.
const SENDERS: usize = 8;
/// A machine that is busy with something else gets another chance; every round is printed.
const ROUNDS: usize = 3;

struct Plan {
    /// Answers by each way.
    answers: usize,
    /// Machines for which each of the rules fires.
    machines: usize,
    /// That stream meanwhile, each a step a second.
    ranks: u32,
}

/// By which a person answers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Api,
    Slack,
    PagerDuty,
    /// The command line: the time of its start included.
    Cli,
}

const WAYS: [Way; 4] = [Way::Api, Way::Slack, Way::PagerDuty, Way::Cli];

fn plan() -> Plan {
    if in_full() {
        Plan { answers: 100, machines: 64, ranks: 1000 }
    } else {
        Plan { answers: 10, machines: 8, ranks: 100 }
    }
}

/// Sends alerts that fire, fire still, are over and fire again, until stopped.
fn flood(addr: SocketAddr, stop: &AtomicBool, sent: &AtomicU64, sender: usize) {
    let mut client = Client::connect(addr);
    for round in 0.. {
        for body in bodies(100 + sender, plan().machines, round, round % 3 == 2) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let status = client.post("/api/v2/alerts", &body);
            if status == 503 {
                // A program may be asked to come again; a person may not.
                client = Client::connect(addr);
                continue;
            }
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&client.body));
            sent.fetch_add(BATCH as u64, Ordering::Relaxed);
        }
    }
}

/// Opens a page for each answer, and waits until PagerDuty has it; their ids.
async fn pages(stack: &Stack, round: usize) -> Vec<String> {
    let prefix = format!("Page{round}x");
    let page = |n: usize| {
        json!({"labels": {"alertname": format!("{prefix}{n:04}"), "severity": "critical", "instance": "db-1:9100"},
               "annotations": {"summary": "answer me"}})
    };
    let all: Vec<Value> = (0..WAYS.len() * plan().answers).map(page).collect();
    let url = stack.alerter.url();
    let answer = http::client().post(format!("{url}/api/v2/alerts")).json(&all).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let open = http::get_json(&format!("{url}/api/v1/incidents?state=open&limit=1000")).await.unwrap();
    let ours = |i: &&Value| i["labels"]["alertname"].as_str().is_some_and(|name| name.starts_with(&prefix));
    let ids = open["incidents"].as_array().unwrap().iter().filter(ours);
    let ids: Vec<String> = ids.map(|i| i["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), all.len());
    let paged = |pd: &PagerDuty| ids.iter().all(|id| pd.open(id).is_some());
    stack.pagerduty.wait_for(paged, 4 * PATIENCE).await.unwrap();
    ids
}

/// A click as Slack sends it, to be made one on any incident.
async fn click(stack: &Stack) -> Value {
    let shown = stack.slack.wait_for(|s| s.top().next().is_some(), PATIENCE).await.unwrap();
    let ts = shown.top().next().unwrap().ts.clone();
    stack.slack.change(|s| s.click(&stack.slack.url(), &ts, "stepwatch_ack", ("U0ANN", "ann"))).unwrap()
}

/// One answer, from the first byte to the last, which comes when it is durable.
async fn answer(stack: &Stack, way: Way, id: &str, click: &Value) -> Duration {
    let url = stack.alerter.url();
    let post = |path: &str| http::client().post(format!("{url}{path}")).timeout(PATIENCE);
    let (request, began) = match way {
        Way::Api => {
            let request = post(&format!("/api/v1/incidents/{id}/ack")).json(&json!({"by": "ann"}));
            (request, Instant::now())
        }
        Way::Slack => {
            let mut click = click.clone();
            click["actions"][0]["value"] = id.into();
            click["actions"][0]["action_ts"] = id.into();
            let (body, at) = (interaction_body(&click), jiff::Timestamp::now().as_second());
            let request = post("/slack/interactions")
                .header("content-type", "application/x-www-form-urlencoded")
                .header("x-slack-request-timestamp", at.to_string())
                .header("x-slack-signature", slack_signature(Slack::SIGNING_SECRET, at, body.as_bytes()));
            (request.body(body), Instant::now())
        }
        Way::PagerDuty => {
            let hook = stack.pagerduty.change(|pd| {
                pd.by_person(id, "acknowledged", "Ann").unwrap();
                pd.hooks.last().unwrap().to_string()
            });
            let signature = pagerduty_signature(&[PagerDuty::WEBHOOK_SECRET], hook.as_bytes());
            let request = post("/pagerduty/webhook").header("content-type", "application/json");
            (request.header("x-pagerduty-signature", signature).body(hook), Instant::now())
        }
        Way::Cli => {
            let began = Instant::now();
            let out = stack.alerter.ack(id, "ann").await.unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            return began.elapsed();
        }
    };
    let answer = request.send().await.unwrap();
    let (took, status) = (began.elapsed(), answer.status().as_u16());
    assert!((200..300).contains(&status), "{way:?}: {status} {}", answer.text().await.unwrap());
    took
}

/// All answers of a round, by their ways, and the alerts a second meanwhile.
async fn round(stack: &Stack, round: usize) -> ([Tally; 4], f64) {
    let ids = pages(stack, round).await;
    let click = click(stack).await;
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let floods: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (addr, stop, sent) = (stack.alerter.addr, Arc::clone(&stop), Arc::clone(&sent));
            std::thread::spawn(move || flood(addr, &stop, &sent, sender))
        })
        .collect();
    poll_until("the flood", PATIENCE, async || (sent.load(Ordering::Relaxed) > 0).then_some(()))
        .await
        .unwrap();
    let (began, before) = (Instant::now(), sent.load(Ordering::Relaxed));
    let mut took: [Vec<Duration>; 4] = Default::default();
    for (n, id) in ids.iter().enumerate() {
        let way = WAYS[n % WAYS.len()];
        took[way as usize].push(answer(stack, way, id, &click).await);
    }
    let rate = (sent.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|f| f.join().unwrap());
    (took.map(|took| Tally::from_times(took.iter().sum(), took)), rate)
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_while_everything_comes_in() {
    let _alone = one_at_a_time().await;
    crowd::raise_file_limit().unwrap();
    let options = StackOptions {
        exporter: "runs: {max_runs: 1000}\n".into(),
        // Each page is answered for itself.
        alerter: "storm: {enabled: false}\n".into(),
        inbound: vec![Inbound::Slack, Inbound::PagerDuty],
        ..StackOptions::default()
    };
    let stack = Stack::start_with(options).await.unwrap();
    let crowd = Crowd::start(&stack.ingest(), plan().ranks).unwrap();
    let mut met = false;
    for n in 0..ROUNDS {
        let (took, rate) = round(&stack, n).await;
        let each = WAYS.map(|way| {
            let tally = &took[way as usize];
            format!("{way:?} p50 {:.0} p99 {:.0} max {:.0} ms", tally.ms(0.5), tally.ms(0.99), tally.ms(1.0))
        });
        say::figure(&format!(
            "answers durable while {rate:.0} alerts/s and {:.0} steps/s come in: {}",
            crowd.pace(),
            each.join(", ")
        ));
        // How long a program takes to start is not the alerter's.
        let asked = &took[..Way::Cli as usize];
        met = !in_full() || asked.iter().all(|tally| tally.ms(0.99) <= P99.as_secs_f64() * 1e3);
        if met {
            break;
        }
    }
    assert!(met, "the limit for the p99 is {P99:?}");
}
