//! From a training step to a page, through real processes: eight Python trainers, the exporter, the
//! alerter, and a real Prometheus beside them that shows why a scrape is not enough.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use stepwatch_tests::peers::{self, Prometheus};
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Stack, bins, exposition, poll_until, say, trainer};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;

const RANKS: u32 = 8;
/// Steps after which the detectors have learned the runs.
const WARM_STEPS: f64 = 160.0;
/// Steps from the order to the fault, so that all ranks have received it: two seconds.
const NOTICE: f64 = 40.0;
const SCRAPE: &str = "15s";

fn start_ranks(stack: &Stack) -> Vec<Child> {
    let start = |rank: u32| {
        let mut python = trainer::python_client(&stack.ingest());
        python.arg(bins::root().join("tests/scripts/ranks.py"));
        python.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
        python.stdin(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    };
    (0..RANKS).map(start).collect()
}

async fn order(ranks: &mut [Child], text: &str) {
    for rank in ranks {
        rank.stdin.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }
}

/// The step that the page shows for a run.
async fn step_of(stack: &Stack, run: &str) -> Option<f64> {
    exposition::value(&stack.exporter.metrics().await.ok()?, "train_step", &[("run", run)])
}

/// When Prometheus last scraped the exporter, in Unix seconds.
async fn last_scrape(prometheus: &Prometheus) -> Option<f64> {
    let found = prometheus.query("max(timestamp(train_step))").await.ok()?;
    found.first()?["value"][1].as_str()?.parse().ok()
}

fn of_run<'a>(incidents: &'a [Value], run: &str) -> Vec<&'a Value> {
    incidents.iter().filter(|i| i["run"] == run).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_page_for_each_disaster_and_none_for_a_blip() {
    let stack = Stack::start().await.unwrap();
    let mut prometheus = None;
    if let Some(program) = peers::prometheus() {
        let dir = stack.dir.path().join("prometheus");
        std::fs::create_dir(&dir).unwrap();
        prometheus = Some(Prometheus::start(&program, &dir, &[stack.exporter.addr], SCRAPE).await.unwrap());
    }
    let mut ranks = start_ranks(&stack);
    poll_until("the runs to be known", PATIENCE, async || {
        step_of(&stack, "nan").await.filter(|s| *s >= WARM_STEPS)
    })
    .await
    .unwrap();

    // Just after a scrape, so that everything happens before the next one.
    let mut scraped = None;
    if let Some(prometheus) = &prometheus {
        let before = last_scrape(prometheus).await;
        let new = async || last_scrape(prometheus).await.filter(|t| Some(*t) != before);
        scraped = Some(poll_until("a scrape", PATIENCE, new).await.unwrap());
    }
    let at = step_of(&stack, "nan").await.unwrap() + NOTICE;
    order(&mut ranks, &format!("fault {at}\n")).await;
    let ordered = Instant::now();
    let paged = stack.pagerduty.wait_for(|pd| pd.pages.len() >= 2, PATIENCE).await.unwrap();
    let mut runs: Vec<_> = paged.alerts.iter().map(|a| a.source.clone()).collect();
    runs.sort();
    assert_eq!(runs, ["nan", "run-up"]);
    if let (Some(prometheus), Some(scraped)) = (&prometheus, scraped) {
        assert_eq!(last_scrape(prometheus).await, Some(scraped), "paged before the next scrape");
        say::line(&format!("paged {:.1} s after a scrape, before the next", trainer::now() - scraped));
    }

    // Everything has passed: the runs go on for as long as it takes to see that nothing else is
    // sent.
    let passed = at + NOTICE;
    poll_until("the runs to go on", PATIENCE, async || step_of(&stack, "nan").await.filter(|s| *s >= passed))
        .await
        .unwrap();
    let incidents = stack.alerter.incidents().await.unwrap();
    let benign = of_run(&incidents, "benign");
    assert_eq!(benign.len(), 1, "{incidents:#?}");
    assert_eq!(
        (benign[0]["severity"].as_str(), benign[0]["kind"].as_str()),
        (Some("info"), Some("grad_spike"))
    );
    for run in ["run-up", "nan"] {
        let pages: Vec<_> = of_run(&incidents, run).into_iter().filter(|i| i["severity"] == "page").collect();
        assert_eq!(pages.len(), 1, "{run}: {incidents:#?}");
    }
    let pd = stack.pagerduty.state();
    assert_eq!(pd.pages.len(), 2, "one page for each disaster: {:#?}", pd.pages);
    let slack = stack.slack.state();
    assert_eq!(slack.top().count(), 2, "{:#?}", slack.posts);
    assert!(
        slack.posts.iter().all(|p| !p.visible_text().contains("benign")),
        "nobody is notified of the blip"
    );

    order(&mut ranks, "stop\n").await;
    for mut rank in ranks {
        let status = tokio::time::timeout(PATIENCE, rank.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}");
    }
    if let (Some(prometheus), Some(_)) = (&prometheus, scraped) {
        blip_is_in_the_window_and_not_in_the_gauge(prometheus, ordered).await;
    }
}

/// The gauge that Prometheus scraped never showed the one-step spike; the maximum over a window
/// did.
async fn blip_is_in_the_window_and_not_in_the_gauge(prometheus: &Prometheus, ordered: Instant) {
    let spike = r#"train_grad_norm_max{run="benign",window="1m"} > 3"#;
    prometheus.wait_for(spike).await.unwrap();
    assert!(ordered.elapsed() < Duration::from_mins(1), "the window is still the one with the spike");
    let gauge = r#"max_over_time(train_grad_norm{run="benign"}[5m]) > 3"#;
    assert_eq!(
        prometheus.query(gauge).await.unwrap(),
        Vec::<Value>::new(),
        "a scrape caught a step of 50 ms"
    );
}
