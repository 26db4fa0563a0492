//! How long it takes from a packet to the request that wakes somebody.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stepwatch_fakes::PagerDuty;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{Stack, StackOptions, say};

/// Incidents measured.
const INCIDENTS: usize = 200;
/// A machine that is busy with something else gets another chance; every round is printed.
const ROUNDS: usize = 3;
/// The target of the design, for a machine with two cores.
const P99: Duration = Duration::from_millis(250);
/// Ranks that stream meanwhile, each a step a second, in jobs of this size.
const RANKS: u32 = 1000;
const RANKS_PER_RUN: u32 = 50;

/// Streams the steps of a fleet until told to stop, and counts them.
fn fleet(stack: &Stack, stop: &Arc<AtomicBool>, sent: &Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    let runs = RANKS / RANKS_PER_RUN;
    let ranks: Vec<_> = (0..RANKS)
        .map(|r| {
            Rank::join(&stack.ingest(), &format!("fleet-{}", r % runs), r / runs, RANKS_PER_RUN).unwrap()
        })
        .collect();
    let (stop, sent) = (Arc::clone(stop), Arc::clone(sent));
    std::thread::spawn(move || {
        let started = Instant::now();
        for n in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let (round, rank) = (n / u64::from(RANKS) + 1, &ranks[(n % u64::from(RANKS)) as usize]);
            let (loss, grad_norm) = healthy(round as i64);
            rank.step(round as i64, &[("loss", loss), ("grad_norm", grad_norm), ("lr", 3e-4)]).unwrap();
            sent.fetch_add(1, Ordering::Relaxed);
            let due = started + Duration::from_secs_f64(n as f64 / f64::from(RANKS));
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
    })
}

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
    raise_file_limit();
    // Hundreds of runs in a minute are more than a node has in a month.
    let exporter = "runs: {max_runs: 1000}\n".into();
    // And hundreds of pages would be a storm.
    let alerter = "storm: {enabled: false}\n".into();
    let options = StackOptions { exporter, alerter, ..StackOptions::default() };
    let stack = Stack::start_with(options).await.unwrap();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let fleet = fleet(&stack, &stop, &sent);
    let started = Instant::now();
    let mut met = false;
    for n in 1..=ROUNDS {
        let took = round(&stack, n).await;
        let at = |q: f64| took[((took.len() - 1) as f64 * q).round() as usize];
        let ms = |q: f64| at(q).as_secs_f64() * 1e3;
        let load = sent.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
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
    stop.store(true, Ordering::Relaxed);
    fleet.join().unwrap();
    assert!(met, "the limit for the p99 is {P99:?}");
}

/// A thousand sockets need more than the usual soft limit.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
