//! A call into the driver that does not return: the GPUs leave the page, and nothing else notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use stepwatch_fake_nvml::{Effect, Fault, Fleet, Script, calls, library};
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{exposition, http, say};

use crate::node::{Node, of_gpus};

const CONFIG: &str =
    "collectors:\n  gpu: {metrics: {include: ['*']}, interval: 200ms, slow_interval: 1s, stuck_after: 1s}\n";
/// How long a call hangs: in full when there is time for it.
const HANG: Duration = Duration::from_secs(6);
const LONG_HANG: Duration = Duration::from_mins(1);
/// Between scrapes.
const SCRAPE: Duration = Duration::from_millis(20);
/// No scrape takes longer, on a machine that has time for it; a debug build beside others has not.
const LIMIT: Duration =
    if cfg!(debug_assertions) { Duration::from_secs(1) } else { Duration::from_millis(50) };
/// A step a tenth of a second.
const STEP: Duration = Duration::from_millis(100);
/// The page is made once a second, and a machine may be busy.
const FRESH: Duration = Duration::from_secs(4);

/// What stays of the GPUs' families while NVML does not answer: what was asked for and what asking
/// costs.
const STAYS: &[&str] =
    &["gpu_nvml_call_", "gpu_expected_count", "gpu_info{", "gpu_driver_info{", "gpu_unresponsive{"];

fn hangs() -> Duration {
    if std::env::var_os("STEPWATCH_LONG").is_some() { LONG_HANG } else { HANG }
}

fn published(page: &str) -> Vec<String> {
    let stays = |line: &str| STAYS.iter().any(|s| line.starts_with(s));
    of_gpus(page).lines().filter(|l| !stays(l)).map(str::to_owned).collect()
}

/// A training run that makes a step every so often until it is stopped.
struct Training {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<i64>,
}

impl Training {
    fn start(node: &Node) -> Self {
        let rank = Rank::join(&node.exporter.ingest(), "llama", 0, 1).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            for step in 1_i64.. {
                let (loss, grad_norm) = healthy(step);
                rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
                let due = began + STEP * step as u32;
                while !stopped.load(Ordering::Relaxed) && Instant::now() < due {
                    std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
                }
                if stopped.load(Ordering::Relaxed) {
                    return step;
                }
            }
            0
        });
        Self { stop, thread }
    }

    fn end(self) -> i64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap()
    }
}

/// Scrapes again and again, and what it saw.
struct Scraper<'n> {
    node: &'n Node,
    took: Vec<Duration>,
    /// The last step on the page, and since when.
    step: (f64, Instant),
    /// The age of the run on the page at its worst.
    stalest: Duration,
}

impl<'n> Scraper<'n> {
    fn new(node: &'n Node) -> Self {
        Self { node, took: Vec::new(), step: (0.0, Instant::now()), stalest: Duration::ZERO }
    }

    /// One scrape; what is not of the GPUs must be on it.
    async fn scrape(&mut self) -> String {
        let began = Instant::now();
        let page = http::get(&format!("{}/metrics", self.node.exporter.url())).await.unwrap();
        self.took.push(began.elapsed());
        let others: &[(&str, &[(&str, &str)])] = &[
            ("nic_up", &[("device", "eth0")]),
            ("nic_receive_bytes_total", &[("device", "eth0")]),
            ("rdma_port_up", &[("device", "mlx5_0")]),
            ("train_loss", &[("run", "llama")]),
            ("train_steps_total", &[("run", "llama")]),
        ];
        for (name, labels) in others {
            assert!(exposition::value(&page, name, labels).is_some(), "{name} is missing: {page}");
        }
        for collector in ["nic", "rdma"] {
            let last = "stepwatch_exporter_collector_last_success_timestamp_seconds";
            let at = exposition::value(&page, last, &[("collector", collector)]).unwrap();
            let age = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - at;
            assert!(age < FRESH.as_secs_f64(), "{collector} was read {age:.1} s ago");
        }
        let step = exposition::value(&page, "train_step", &[("run", "llama")]).unwrap();
        assert!(step >= self.step.0);
        if step > self.step.0 {
            self.step = (step, Instant::now());
        }
        self.stalest = self.stalest.max(self.step.1.elapsed());
        page
    }

    /// Scrapes until the page is so, for at most this long.
    async fn until(&mut self, what: &str, wait: Duration, so: impl Fn(&str) -> bool) -> Duration {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SCRAPE);
        loop {
            ticks.tick().await;
            let page = self.scrape().await;
            if so(&page) {
                return began.elapsed();
            }
            assert!(began.elapsed() < wait, "{what}: not after {wait:?}:\n{}", of_gpus(&page));
        }
    }

    /// Scrapes for this long; every page must be so.
    async fn all(&mut self, time: Duration, so: impl Fn(&str)) {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(SCRAPE);
        while began.elapsed() < time {
            ticks.tick().await;
            so(&self.scrape().await);
        }
    }

    fn figures(&mut self, what: &str) -> Duration {
        self.took.sort();
        let at = |share: f64| self.took[((self.took.len() - 1) as f64 * share) as usize];
        say::figure(&format!(
            "{} scrapes {what}: p50 {:?}, p99 {:?}, max {:?}; the run on the page at most {:?} old",
            self.took.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            self.stalest
        ));
        let max = at(1.0);
        self.took.clear();
        max
    }
}

fn is_stuck(page: &str) -> bool {
    let labels = [("collector", "gpu"), ("state", "stuck")];
    exposition::value(page, "stepwatch_exporter_collector_state", &labels) == Some(1.0)
}

fn stuck_event(event: &Value, code: i64) -> bool {
    event["k"] == "hw" && event["name"] == "nvml_stuck" && event["code"] == code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_hangs_costs_the_gpus_and_nothing_else() {
    let script = Script::for_fleet(Fleet::H100);
    let node = Node::start_with(&script, &library().unwrap(), CONFIG).await;
    let training = Training::start(&node);
    node.page_where("the run is on the page", |page| page.contains("train_step{")).await;
    let patience = Duration::from_secs(20);
    let mut scraper = Scraper::new(&node);
    scraper.until("GPUs and port", patience, |page| page.contains("gpu_sm_active_ratio{")).await;
    scraper.all(Duration::from_secs(2), |page| assert!(!published(page).is_empty())).await;
    scraper.figures("while NVML answers");

    let mut hang = script.clone();
    hang.faults.push(Fault::new("nvmlDeviceGetPowerUsage", Effect::Hang).on(5));
    node.stage.set(&hang).unwrap();
    let began = Instant::now();
    let gone = scraper.until("the GPUs leave the page", patience, |page| published(page).is_empty()).await;
    scraper.until("the collector is stuck", patience, is_stuck).await;
    let event = node.event("stuck", |e| stuck_event(e, 1)).await;
    assert!(event["text"].as_str().is_some_and(|t| t.contains("nvmlDeviceGetPowerUsage")), "{event}");
    assert_eq!(event["gpu"], Fleet::H100.uuid(5), "whose call it is: {event}");
    let rest = hangs().saturating_sub(began.elapsed()).max(Duration::from_secs(2));
    scraper
        .all(rest, |page| {
            assert_eq!(published(page), Vec::<String>::new());
            assert!(is_stuck(page));
            let running = exposition::value(
                page,
                "gpu_nvml_call_running_seconds",
                &[("function", "nvmlDeviceGetPowerUsage")],
            );
            assert!(running.is_some(), "which call it is");
        })
        .await;
    assert_eq!(node.calls().count(calls::HANGING), 1, "nobody joined it");
    let max = scraper.figures(&format!("while a call hangs for {:.0?}", began.elapsed()));

    node.stage.set(&script).unwrap();
    let back = scraper
        .until("the GPUs are back", patience, |page| !is_stuck(page) && page.contains("gpu_power_watts{"))
        .await;
    say::figure(&format!(
        "GPUs off the page {gone:.1?} after the call began to hang, back {back:.1?} after it returned"
    ));
    scraper
        .until("all of them", patience, |page| {
            published(page).iter().filter(|l| l.starts_with("gpu_power_limit_watts{")).count() == 8
        })
        .await;
    node.event("not stuck any more", |e| stuck_event(e, 0)).await;
    let max = max.max(scraper.figures("after it returned"));
    node.state("gpu", "healthy").await;
    assert!(max < LIMIT, "a scrape took {max:?}");
    assert!(scraper.stalest < FRESH, "the run stood still on the page for {:?}", scraper.stalest);
    let events = node.events().await;
    assert_eq!(events.iter().filter(|e| stuck_event(e, 1) && e["again"] != true).count(), 1, "{events:#?}");
    let last = training.end();
    let steps = events.iter().filter(|e| e["k"] == "step").count() as i64;
    assert!(steps > 0 && steps <= last);
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_call_may_hang() {
    let script = Script { count: Some(2), ..Script::for_fleet(Fleet::H100) };
    let node = Node::start_with(&script, &library().unwrap(), CONFIG).await;
    for call in [
        "nvmlDeviceGetFieldValues",
        "nvmlGpmSampleGet",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGpuFabricInfoV",
    ] {
        node.page_where("the GPUs are there", |page| !is_stuck(page) && page.contains("gpu_power_watts{"))
            .await;
        node.stage.set(&script.clone().fault(call, Effect::Hang)).unwrap();
        node.page_where(call, is_stuck).await;
        node.stage.set(&script).unwrap();
    }
    node.page_where("the GPUs are back", |page| !is_stuck(page) && page.contains("gpu_power_watts{")).await;
    node.decent();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_hangs_from_the_start_and_an_end_while_it_does() {
    let script = Script::for_fleet(Fleet::H100).fault("nvmlInit*", Effect::Hang);
    let began = Instant::now();
    let mut node = Node::start_with(&script, &library().unwrap(), CONFIG).await;
    // Starting does not wait for the driver.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(node.value("nic_up", &[("device", "eth0")]).await, Some(1.0));
    assert_eq!(node.calls().count(calls::HANGING), 1);
    assert_ne!(node.post("/-/nvml/release").await.0, 200, "what hangs is not released, and it is said");
    let began = Instant::now();
    let status = node.exporter.daemon.terminate().await.unwrap();
    assert!(
        status.success() && began.elapsed() < Duration::from_secs(15),
        "{status} after {:?}",
        began.elapsed()
    );
}
