//! Samples a second by remote write, and what a series takes: beside Debian's VictoriaMetrics and
//! Prometheus, in the same run, with the same requests.
//!
//! The comparison is not even: they store what they get, and ours judges it. So ours is asked to
//! watch every series.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_tests::daemon::{Daemon, command};
use stepwatch_tests::remote_write::request;
use stepwatch_tests::{Stack, StackOptions, http, peers, poll_until, say, trainer};

use crate::client::Client;
use crate::memory::resident;
use crate::{in_full, one_at_a_time};

const PATH: &str = "/api/v1/write";
const HEADERS: &str = "content-type: application/x-protobuf\r\ncontent-encoding: snappy\r\n\
                       x-prometheus-remote-write-version: 0.1.0\r\n";
/// Series in one request, as Prometheus sends them, and connections.
const BATCH: usize = 2000;
const SENDERS: usize = 2;
/// What a full measurement must reach: samples a second beside theirs, and bytes a series. The
/// targets are 3, 6, 1,024 and 100; `BENCHMARKS.md` says which are met.
const OF_VICTORIA: f64 = 1.5;
const OF_PROMETHEUS: f64 = 4.0;
const WATCHED_BYTES: f64 = 1400.0;
const COUNTED_BYTES: f64 = 100.0;

struct Plan {
    series: usize,
    scrapes: i64,
    counted: usize,
}

fn plan() -> Plan {
    if in_full() {
        Plan { series: 20_000, scrapes: 60, counted: 1_000_000 }
    } else {
        Plan { series: 4_000, scrapes: 5, counted: 20_000 }
    }
}

struct Subject {
    name: &'static str,
    addr: SocketAddr,
    pid: u32,
    samples_per_second: f64,
    /// Of its processor, for a sample.
    nanoseconds: f64,
    mib: f64,
}

/// So many series, as node_exporter and DCGM have them: twelve labels.
fn body(metric: &str, series: core::ops::Range<usize>, ts_ms: i64, scrape: i64) -> Vec<u8> {
    let labels: Vec<Vec<(&str, String)>> = series
        .clone()
        .map(|n| {
            let node = n / 64;
            vec![
                ("__name__", format!("{metric}_{}", n % 64)),
                ("cluster", "eu-north-1".into()),
                ("container", "dcgm-exporter".into()),
                ("datacenter", "dc2".into()),
                ("device", format!("nvidia{}", n % 8)),
                ("gpu", format!("GPU-{n:08x}-5a1c-4c7e-9d2e-0123456789ab")),
                ("instance", format!("gpu-{node:04}:9400")),
                ("job", "gpu".into()),
                ("namespace", "monitoring".into()),
                ("pod", format!("dcgm-exporter-{node:05}")),
                ("prometheus", "monitoring/k8s".into()),
                ("service", "dcgm-exporter".into()),
            ]
        })
        .collect();
    let borrowed: Vec<Vec<(&str, &str)>> =
        labels.iter().map(|l| l.iter().map(|(k, v)| (*k, v.as_str())).collect()).collect();
    let value = |n: usize| (n % 97) as f64 + ((n as i64 * 31 + scrape * 17) % 13) as f64 / 10.0;
    let points: Vec<_> = borrowed.iter().zip(series).map(|(l, n)| (&l[..], ts_ms, value(n))).collect();
    request(&points)
}

/// By sender, the requests in their order: every series of it once a scrape.
fn bodies() -> Vec<Vec<Vec<u8>>> {
    let Plan { series, scrapes, .. } = plan();
    let begin = (trainer::now() * 1e3) as i64 - 4000 * scrapes;
    let share = series / SENDERS;
    (0..SENDERS)
        .map(|sender| {
            let scrape = |at: i64| {
                let ranges = (0..share).step_by(BATCH).map(|n| sender * share + n);
                ranges.map(move |from| body("bench_gpu", from..from + BATCH, begin + 4000 * at, at))
            };
            (0..scrapes).flat_map(scrape).collect()
        })
        .collect()
}

/// Sends all of them, each sender on its connection. Returns the time until the last answer.
fn send(addr: SocketAddr, bodies: &[Vec<Vec<u8>>]) -> Duration {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for mine in bodies {
            scope.spawn(move || {
                let mut client = Client::connect(addr);
                for body in mine {
                    let status = client.post_as(PATH, HEADERS, body);
                    assert!(
                        (200..300).contains(&status),
                        "{status}: {}",
                        String::from_utf8_lossy(&client.body)
                    );
                }
            });
        }
    });
    began.elapsed()
}

/// Seconds of processor that a process has used.
fn processor(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: f64 = [11, 12].map(|n: usize| fields[n].parse::<f64>().unwrap()).iter().sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

impl Subject {
    fn measure(&mut self, bodies: &[Vec<Vec<u8>>]) {
        let (before, samples) = (processor(self.pid), (plan().series as i64 * plan().scrapes) as f64);
        let lasted = send(self.addr, bodies);
        self.samples_per_second = samples / lasted.as_secs_f64();
        self.nanoseconds = (processor(self.pid) - before) / samples * 1e9;
        self.mib = resident(self.pid);
    }
}

/// One of the two, ready to be written to.
async fn store(name: &'static str, program: &Path, args: &[String], addr: SocketAddr) -> (Subject, Daemon) {
    let daemon = Daemon::spawn(name, command(program).args(args)).unwrap();
    let health = format!("http://{addr}/-/healthy");
    poll_until(name, stepwatch_tests::poll::PATIENCE, async || http::get(&health).await.ok()).await.unwrap();
    let pid = daemon.pid().unwrap();
    (Subject { name, addr, pid, samples_per_second: 0.0, nanoseconds: 0.0, mib: 0.0 }, daemon)
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_beside_victoria_metrics_and_prometheus() {
    let (Some(victoria), Some(prometheus)) = (peers::victoria_metrics(), peers::prometheus()) else { return };
    let _alone = one_at_a_time().await;
    let alerter =
        "remote_write: {generic: ['{__name__=~\"bench_.*\"}'], max_series: 2000000, max_watched: 50000}\n"
            .to_owned();
    let stack =
        Stack::start_with(StackOptions { blind: true, alerter, ..StackOptions::default() }).await.unwrap();
    let dir = stack.dir.path();
    let (at, data) = (http::free_address().unwrap(), dir.join("victoria"));
    let args = [format!("-httpListenAddr={at}"), format!("-storageDataPath={}", data.display())];
    let (victoria, _victoria) = store("VictoriaMetrics", &victoria, &args, at).await;
    let (at, file) = (http::free_address().unwrap(), dir.join("empty.yml"));
    std::fs::write(&file, "").unwrap();
    let args = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", dir.join("tsdb").display()),
        format!("--web.listen-address={at}"),
        "--web.enable-remote-write-receiver".to_owned(),
    ];
    let (prometheus, _prometheus) = store("Prometheus", &prometheus, &args, at).await;
    let (addr, pid) = (stack.alerter.addr, stack.alerter.daemon.pid().unwrap());
    let ours = Subject { name: "Stepwatch", addr, pid, samples_per_second: 0.0, nanoseconds: 0.0, mib: 0.0 };
    tokio::task::spawn_blocking(move || judge([victoria, prometheus, ours])).await.unwrap();
    let page = stack.alerter.metrics().await.unwrap();
    let judged = format!("remote_write_watched_samples_total {}", plan().series as i64 * plan().scrapes);
    assert!(page.contains(&judged), "{page}");
}

fn judge(mut subjects: [Subject; 3]) {
    let before = resident(subjects[2].pid);
    for subject in &mut subjects {
        subject.measure(&bodies());
    }
    let [victoria, prometheus, ours] = &subjects;
    let watched = (ours.mib - before) * 1048576.0 / plan().series as f64;
    let counted = counted_bytes(ours);
    say::figure(&format!(
        "{} series, {} samples of each, {BATCH} series a request, {SENDERS} connections",
        plan().series,
        plan().scrapes
    ));
    for s in &subjects {
        let row = (s.samples_per_second / 1e6, s.nanoseconds, s.mib);
        say::figure(&format!(
            "{:<16} {:>6.2} M samples/s {:>6.0} ns of processor a sample {:>6.0} MiB",
            s.name, row.0, row.1, row.2
        ));
    }
    let of = |s: &Subject| ours.samples_per_second / s.samples_per_second;
    say::figure(&format!(
        "ratio: {:.1} of VictoriaMetrics, {:.1} of Prometheus",
        of(victoria),
        of(prometheus)
    ));
    say::figure(&format!("a watched series takes {watched:.0} bytes, one that is only counted {counted:.0}"));
    if in_full() {
        assert!(of(victoria) >= OF_VICTORIA && of(prometheus) >= OF_PROMETHEUS, "too slow");
        assert!(watched <= WATCHED_BYTES && counted <= COUNTED_BYTES, "too large");
    }
}

/// What is resident more for each of very many series that mean nothing.
fn counted_bytes(ours: &Subject) -> f64 {
    let (before, ts, counted) = (resident(ours.pid), (trainer::now() * 1e3) as i64, plan().counted);
    for from in (0..counted).step_by(BATCH) {
        send(ours.addr, &[vec![body("other", from..from + BATCH, ts, 0)]]);
    }
    (resident(ours.pid) - before) * 1048576.0 / counted as f64
}
