//! Twenty-four hours in miniature of the whole program: all collectors look as often as they may,
//! at counters that move, a log that grows and ranks that step, and it holds no more at the end
//! than at the beginning.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use stepwatch_fake_nvml::{Code, Effect, Fault, Script, Stage};
use stepwatch_tests::poll::poll_until;
use stepwatch_tests::trainer::{Rank, healthy};
use stepwatch_tests::{Exporter, exposition, say};

use crate::tree::{FLEET, Tree};

/// Collections: more than a node makes in eleven hours, where there is time for it.
const LONG: f64 = 1e6;
const ORDINARY: f64 = 16_000.0;
/// Until caches, the ring buffer of the stream and the allocator have reached their size.
const WARM_UP: f64 = 4_000.0;
const PATIENCE: Duration = Duration::from_hours(1);
/// The allocator takes a minute to reach its size, 13 MiB, and moves by 0.7 MiB from then on. A
/// leak of two hundred bytes a collection is more than this in the ordinary run, one of four in the
/// long one.
const SLACK: f64 = 1.5 * (1 << 20) as f64;

const OFTEN: &str =
    "clock config_drift disk edac heartbeat job kernel mounts nic pci process ras rdma textfile";

fn config() -> String {
    let each = OFTEN.split(' ').map(|name| format!("  {name}: {{interval: 10ms}}\n"));
    let gpu = "  gpu: {metrics: {include: ['*']}, interval: 10ms, slow_interval: 50ms}\n";
    format!("collectors:\n{gpu}{}stream: {{max_records: 512, max_bytes: 262144}}\n", each.collect::<String>())
}

/// What its heap and stacks take; files that are mapped are the kernel's cache.
fn held(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// A node on which something is always going on.
struct Day {
    exporter: Exporter,
    tree: Tree,
    stage: Stage,
    log: File,
    ranks: Vec<Rank>,
    round: i64,
}

impl Day {
    async fn start(dir: &std::path::Path) -> Self {
        let tree = Tree::new(&dir.join("tree"));
        let stage = Stage::new(dir, &Script::for_fleet(FLEET)).unwrap();
        let log = File::options().append(true).create(true).open(dir.join("tree/kmsg")).unwrap();
        let machine = crate::bench::with_gpus(tree.machine(), &stage);
        let exporter = Exporter::start_on(machine, &dir.join("exporter"), "", &config()).await.unwrap();
        let ingest = exporter.ingest();
        let ranks = (0..8).map(|rank| Rank::join(&ingest, "llama-70b", rank, 8).unwrap()).collect();
        Self { exporter, tree, stage, log, ranks, round: 0 }
    }

    /// Lets something happen, and how many collections there were.
    async fn round(&mut self) -> f64 {
        self.round += 1;
        let round = self.round;
        self.tree.traffic(round.cast_unsigned() * 1_000_000);
        let (loss, grad_norm) = healthy(round);
        for rank in &self.ranks {
            rank.step(round, &[("loss", loss), ("grad_norm", grad_norm)]).unwrap();
        }
        let micros = round * 1000;
        for (number, line) in [
            "NVRM: Xid (PCI:0000:19:00): 31, pid=7, name=python3, MMU Fault",
            "mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged",
            "a driver says what it never said",
        ]
        .iter()
        .enumerate()
        {
            writeln!(self.log, "4,{},{micros},-;{line} {round:x}", round * 3 + number as i64).unwrap();
        }
        let mut script = Script::for_fleet(FLEET);
        if round % 20 < 3 {
            script.faults.push(Fault::new("nvmlDeviceGetPowerUsage", Effect::Fail(Code::Unknown)));
        }
        if round % 20 == 7 {
            script.lost = vec![3];
        }
        if [0, 3, 7, 8].contains(&(round % 20)) {
            self.stage.set(&script).unwrap();
        }
        let page = self.exporter.metrics().await.unwrap();
        OFTEN
            .split(' ')
            .chain(["gpu"])
            .filter_map(|name| {
                let family = "stepwatch_exporter_collector_collections_total";
                exposition::value(&page, family, &[("collector", name)])
            })
            .sum()
    }

    async fn until(&mut self, collections: f64) -> f64 {
        let reached =
            poll_until("collections", PATIENCE, async || (self.round().await >= collections).then_some(()));
        reached.await.unwrap();
        held(self.exporter.daemon.pid().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_program_takes_no_more_after_a_day() {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut day = Day::start(dir.path()).await;
    let all = if std::env::var_os("STEPWATCH_LONG").is_some() { LONG } else { ORDINARY };
    let mut held = Vec::new();
    for quarter in 0..=4 {
        held.push(day.until(WARM_UP + all * f64::from(quarter) / 4.0).await);
    }
    let kib: Vec<String> = held.iter().map(|bytes| format!("{:.0}", bytes / 1024.0)).collect();
    say::figure(&format!(
        "heap and stacks over {all} collections of all collectors, in KiB: {}",
        kib.join(", ")
    ));
    // What one quarter takes for good the next one takes as well.
    let (first, last) = (held[1..3].iter().copied().fold(f64::MAX, f64::min), held[3].min(held[4]));
    assert!(last < first + SLACK, "{kib:?} KiB");
    let page = day.exporter.metrics().await.unwrap();
    for name in ["gpu", "rdma", "nic", "pci", "kernel", "process", "disk", "clock"] {
        let labels = [("collector", name), ("state", "healthy")];
        let healthy = exposition::value(&page, "stepwatch_exporter_collector_state", &labels);
        assert_eq!(healthy, Some(1.0), "{name} took part: {page}");
    }
}
