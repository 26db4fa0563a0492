//! How long it takes from a packet to the request that wakes somebody.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use stepwatch_fakes::PagerDuty;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Crowd, Stack, StackOptions, crowd, say};

/// Incidents measured in a round. Those of all rounds, and the crowd, are less than the 512 runs
/// that an exporter may report.
const INCIDENTS: usize = 150;
/// A machine that is busy with something else gets another chance; every round is printed.
const ROUNDS: usize = 3;
/// The target of the design, for a machine with two cores.
const P99: Duration = Duration::from_millis(250);
/// Ranks that stream meanwhile, each a step a second.
const RANKS: u32 = 1000;

/// From the packet to the request, for one incident after another; sorted.
async fn round(stack: &Stack, round: usize) -> Vec<Duration> {
    let mut took = Vec::with_capacity(INCIDENTS);
    for i in 0..INCIDENTS {
        let run = format!("latency-{round}-{i}");
        let rank = stack.warm_run(&run, 5).unwrap();
        let at = Instant::now();
        rank.step(6, &[("loss", f64::NAN), ("grad_norm", 0.2)]).unwrap();
        let paged = |pd: &PagerDuty| pd.alerts.iter().any(|a| a.source == run);
        let pd = stack.pagerduty.wait_for(paged, PATIENCE).await.unwrap();
        let alert = pd.alerts.iter().find(|a| a.source == run).unwrap();
        took.push(alert.log[0].at.saturating_duration_since(at));
        rank.bye().unwrap();
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn packet_to_page() {
    crowd::raise_file_limit().unwrap();
    // Hundreds of runs in a minute are more than a node has in a month.
    let exporter = "runs: {max_runs: 1000, new_per_minute: 100000}\n".into();
    // And hundreds of pages would be a storm.
    let alerter = "storm: {enabled: false}\n".into();
    let options = StackOptions { exporter, alerter, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let crowd = Crowd::start(&stack.ingest(), RANKS).unwrap();
    let mut met = false;
    for n in 1..=ROUNDS {
        let took = round(&stack, n).await;
        let at = |q: f64| took[((took.len() - 1) as f64 * q).round() as usize];
        let ms = |q: f64| at(q).as_secs_f64() * 1e3;
        let load = crowd.pace();
        say::figure(&format!(
            "packet to PagerDuty request: p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms over {INCIDENTS} incidents, while \
             {RANKS} ranks send {load:.0} steps/s",
            ms(0.5),
            ms(0.99),
            ms(1.0),
        ));
        assert_eq!(stack.pagerduty.with(|pd| pd.pages.len()), INCIDENTS * n, "one page each");
        met = at(0.99) <= P99;
        if met {
            break;
        }
    }
    assert!(met, "the limit for the p99 is {P99:?}");
}
