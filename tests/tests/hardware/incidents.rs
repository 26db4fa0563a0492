//! A GPU falls off the bus under a run of two ranks: from the line in the kernel log to one page
//! that names the run, the node and the XID, through real processes. And back.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::Value;
use stepwatch_fakes::AlertState;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::programs::Machine;
use stepwatch_tests::stack::StackOptions;
use stepwatch_tests::trainer::{self, Rank};
use stepwatch_tests::{Stack, exposition, poll_until};
use stepwatch_wire::Kind;

const UUID: &str = "GPU-2f3c9a51-7d1e-4c55-9a0b-3b0000000003";

/// A kernel log that grows.
struct KernelLog {
    file: std::fs::File,
    records: u32,
}

impl KernelLog {
    fn new(path: &Path) -> Self {
        let mut log = Self { file: std::fs::File::create(path).unwrap(), records: 0 };
        log.say(&["Linux version 6.8.0"]);
        log
    }

    /// As the driver prints: priority, sequence number, microseconds since the boot, flags.
    fn say(&mut self, lines: &[&str]) {
        let up = std::fs::read_to_string("/proc/uptime").unwrap();
        let up: f64 = up.split(' ').next().unwrap().parse().unwrap();
        let mut text = String::new();
        for line in lines {
            writeln!(text, "3,{},{:.0},-;{line}", self.records, up * 1e6).unwrap();
            self.records += 1;
        }
        self.file.write_all(text.as_bytes()).unwrap();
    }
}

async fn stack(log: &Path) -> Stack {
    let args = ["--path.kmsg".into(), log.into()].to_vec();
    let alerter = "resolve_after: 500ms\ndetectors:\n  gpu_fault: {quiet_after: 1s, repair_within: 2s}\n  \
                   rank_dead: {page_after: 500ms}\n  node_fault: {enabled: false}\n";
    let options = StackOptions {
        machine: Machine { args, ..Machine::default() },
        alerter: alerter.into(),
        ..StackOptions::default()
    };
    Stack::start_with(options).await.unwrap()
}

async fn lines_read(stack: &Stack) -> f64 {
    let page = stack.exporter.metrics().await.unwrap_or_default();
    exposition::value(&page, "kernel_log_records_total", &[]).unwrap_or(0.0)
}

fn ranks(stack: &Stack) -> Vec<Rank> {
    (0..2).map(|rank| Rank::join(&stack.ingest(), "llama", rank, 2).unwrap()).collect()
}

fn step(ranks: &[Rank], step: i64) {
    let (loss, grad_norm) = trainer::healthy(step);
    for rank in ranks {
        rank.step(step, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
    }
}

/// The incidents that somebody is notified of.
async fn loud(stack: &Stack) -> Vec<Value> {
    let all = stack.alerter.incidents().await.unwrap_or_default();
    all.into_iter().filter(|i| i["severity"] != "info").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_falls_off_the_bus_and_pages_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    let mut log = KernelLog::new(&path);
    let stack = stack(&path).await;
    poll_until("the log to be read", PATIENCE, async || (lines_read(&stack).await >= 1.0).then_some(()))
        .await
        .unwrap();
    let group = ranks(&stack);
    (1..=120).for_each(|n| step(&group, n));
    poll_until("the alerter to know the run", PATIENCE, async || {
        let page = stack.alerter.metrics().await.ok()?;
        exposition::value(&page, "stepwatch_alerter_steps_total", &[]).filter(|n| *n >= 240.0)
    })
    .await
    .unwrap();

    log.say(&[&format!("NVRM: GPU at PCI:0000:3b:00: {UUID}")]);
    log.say(&[
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ]);
    let cleanup =
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=4242, name=python3, Ch 00000010 caused by previous Xid 79";
    log.say(&[cleanup; 12]);
    let paged = stack.pagerduty.wait_for(|pd| !pd.pages.is_empty(), PATIENCE).await.unwrap();
    let page = &paged.pages[0];
    let found = loud(&stack).await;
    let node = found[0]["nodes"][0].as_str().unwrap().to_owned();
    for part in ["PAGE llama on", &node, "GPU fault", "XID 79", UUID, "GPU has fallen off the bus", "drain"] {
        assert!(page.summary.contains(part), "{part:?} is not in {:?}", page.summary);
    }
    assert_eq!(paged.alerts[0].source, node);

    // The ranks die of it, one after the other.
    for rank in &group {
        let mut bye = rank.event(Kind::Bye);
        (bye.code, bye.text) = (Some(1), Some("CUDA error: unknown error".into()));
        rank.send(&bye).unwrap();
    }
    drop(group);
    let id = found[0]["id"].as_str().unwrap().to_owned();
    let url = format!("{}/api/v1/incidents/{id}", stack.alerter.url());
    poll_until("the dead ranks to be part of it", PATIENCE, async || {
        let detail = stepwatch_tests::http::get_json(&url).await.ok()?;
        let notified = detail["timeline"]
            .as_array()?
            .iter()
            .filter_map(|t| t["what"].as_str()?.split_once("also dead rank"));
        (notified.count() > 0).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(loud(&stack).await.len(), 1, "one incident: {:#?}", loud(&stack).await);

    // The launcher starts it again, and it runs.
    let group = ranks(&stack);
    let next = AtomicI64::new(1);
    let found = poll_until("the incident to resolve", PATIENCE, async || {
        step(&group, next.fetch_add(1, Ordering::Relaxed));
        let found = loud(&stack).await;
        (found[0]["state"] == "resolved").then_some(found)
    })
    .await
    .unwrap();
    assert_eq!(found.len(), 1, "{found:#?}");
    let pd = stack
        .pagerduty
        .wait_for(|pd| pd.alerts.iter().all(|a| a.state == AlertState::Resolved), PATIENCE)
        .await
        .unwrap();
    assert_eq!(pd.pages.len(), 1, "{:#?}", pd.pages);
    let listing = stack.alerter.cli(&["incidents", "list", "--state", "all", "--node", &node]).await.unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    assert!(listing.contains("gpu_fault") && listing.contains(&format!("llama on {node}")), "{listing}");
}
