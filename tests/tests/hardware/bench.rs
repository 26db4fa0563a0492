//! What watching a node costs: this exporter and Debian's node_exporter side by side, scraped in turn in one run.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_fake_nvml::{Script, Stage};
use stepwatch_tests::peers::{self, NodeExporter};
use stepwatch_tests::programs::Machine;
use stepwatch_tests::trainer::{self, Rank};
use stepwatch_tests::{Exporter, say};

use crate::tree::{FLEET, Tree};

/// Of a page of 8 GPUs, 8 adapters and 8 ranks.
const TARGET_P99: Duration = Duration::from_millis(1);
/// Of ours in theirs.
const TARGET_RATIO: f64 = 0.2;
const TARGET_RSS: u64 = 20 << 20;
/// Of one core, collecting once a second and scraped once a second.
const TARGET_CPU: f64 = 0.003;

/// How much is measured. A debug build proves that it works, a release build what it costs.
struct Plan {
    scrapes: usize,
    seconds: u64,
}

const PLAN: Plan = if cfg!(debug_assertions) {
    Plan { scrapes: 40, seconds: 5 }
} else {
    Plan { scrapes: 400, seconds: 60 }
};

/// A scraper with one connection, as Prometheus keeps one.
struct Scraper {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Scraper {
    fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: BufReader::new(stream), body: Vec::new() }
    }

    /// One scrape, from the first byte asked to the last one read.
    fn scrape(&mut self) -> Duration {
        let began = Instant::now();
        let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: text/plain;version=0.0.4\r\n\r\n";
        self.stream.get_mut().write_all(request).unwrap();
        let (mut length, mut chunked) = (None, false);
        loop {
            let line = self.line();
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            length = length.or_else(|| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            chunked |= line == "transfer-encoding: chunked";
        }
        self.body.clear();
        if let Some(length) = length {
            self.take(length);
            return began.elapsed();
        }
        assert!(chunked, "neither a length nor chunks");
        loop {
            let size = usize::from_str_radix(self.line().trim(), 16).unwrap();
            self.take(size);
            self.line();
            if size == 0 {
                return began.elapsed();
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the connection ended");
        line
    }

    fn take(&mut self, length: usize) {
        let at = self.body.len();
        self.body.resize(at + length, 0);
        self.stream.read_exact(&mut self.body[at..]).unwrap();
    }

    fn series(&self) -> usize {
        self.body.split(|b| *b == b'\n').filter(|l| !l.is_empty() && l[0] != b'#').count()
    }
}

/// One program under measurement.
struct Subject {
    name: &'static str,
    pid: u32,
    scraper: Scraper,
    latencies: Vec<Duration>,
    /// Of one core.
    cpu: f64,
    rss: u64,
}

impl Subject {
    fn new(name: &'static str, pid: Option<u32>, addr: SocketAddr) -> Self {
        let pid = pid.unwrap();
        Self { name, pid, scraper: Scraper::connect(addr), latencies: Vec::new(), cpu: 0.0, rss: 0 }
    }

    fn quantile(&self, q: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        sorted[(last as f64 * q).round() as usize]
    }

    /// Seconds of CPU so far, to the nanosecond where the kernel tells.
    fn cpu_seconds(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten();
        let spent = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        spent.sum::<f64>() / 1e9
    }

    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn row(&self) -> String {
        format!(
            "{:<34} {:>6} {:>9} {:>9.2} {:>9.2} {:>8.1} {:>7.2}",
            self.name,
            self.scraper.series(),
            self.scraper.body.len(),
            self.quantile(0.5).as_secs_f64() * 1e3,
            self.quantile(0.99).as_secs_f64() * 1e3,
            self.rss as f64 / f64::from(1 << 20),
            self.cpu * 100.0
        )
    }
}

/// Ranks of one job that make a step a second.
struct Job(Vec<Rank>);

impl Job {
    fn join(ingest: &Path) -> Self {
        Self((0..8).map(|rank| Rank::join(ingest, "llama-70b", rank, 8).unwrap()).collect())
    }

    fn step(&self, step: i64) {
        let (loss, grad_norm) = trainer::healthy(step);
        for rank in &self.0 {
            let all = [("loss", loss), ("grad_norm", grad_norm), ("step_time", 1.0), ("tokens", 4_194_304.0)];
            rank.step(step, &all).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_watching_a_node_costs() {
    let Some(program) = peers::node_exporter() else { return };
    let dir = tempfile::tempdir().unwrap();
    let theirs = NodeExporter::start(&program).await.unwrap();
    let here = Exporter::start(&dir.path().join("here"), "").await.unwrap();
    let tree = Tree::new(&dir.path().join("tree"));
    let stage = Stage::new(dir.path(), &Script::of(FLEET)).unwrap();
    let machine = with_gpus(tree.machine(), &stage);
    let there = Exporter::start_on(machine, &dir.path().join("there"), "", "").await.unwrap();
    let job = Job::join(&there.ingest());
    let mut subjects = [
        Subject::new("node_exporter, this machine", theirs.daemon.pid(), theirs.addr),
        Subject::new("stepwatch-exporter, this machine", here.daemon.pid(), here.addr),
        Subject::new("stepwatch-exporter, 8 GPU 8 IB", there.daemon.pid(), there.addr),
    ];
    measure(&mut subjects, &job).await;
    say::figure(&format!(
        "{:<34} {:>6} {:>9} {:>9} {:>9} {:>8} {:>7}",
        "scraped in turn, in one run", "series", "bytes", "p50 ms", "p99 ms", "RSS MiB", "CPU %"
    ));
    subjects.iter().for_each(|s| say::figure(&s.row()));
    judge(&subjects);
}

fn scrape_all(subjects: &mut [Subject]) {
    for subject in subjects {
        subject.scraper.scrape();
    }
}

/// First at the pace of a Prometheus, which is what CPU is measured at; then as fast as they answer.
async fn measure(subjects: &mut [Subject], job: &Job) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    // What only the first rounds cost is over after a few.
    for step in 0..3 {
        seconds.tick().await;
        job.step(step);
        scrape_all(subjects);
    }
    let (began, before) = (Instant::now(), subjects.iter().map(Subject::cpu_seconds).collect::<Vec<_>>());
    for step in 3..3 + PLAN.seconds.cast_signed() {
        seconds.tick().await;
        job.step(step);
        scrape_all(subjects);
    }
    let lasted = began.elapsed().as_secs_f64();
    for (subject, before) in subjects.iter_mut().zip(before) {
        subject.cpu = (subject.cpu_seconds() - before) / lasted;
    }
    for _ in 0..PLAN.scrapes {
        for subject in subjects.iter_mut() {
            let took = subject.scraper.scrape();
            subject.latencies.push(took);
        }
    }
    for subject in subjects.iter_mut() {
        subject.rss = subject.resident();
    }
}

fn judge(subjects: &[Subject; 3]) {
    let [theirs, here, there] = subjects;
    assert!(there.scraper.series() > 500, "{} series", there.scraper.series());
    // A debug build and a busy machine prove no more than that nobody waits for a source.
    let slack = if cfg!(debug_assertions) { 20 } else { 1 };
    for ours in [here, there] {
        assert!(ours.quantile(0.99) <= TARGET_P99 * slack, "{}", ours.row());
    }
    if slack > 1 {
        return;
    }
    for ours in [here, there] {
        let ratio = ours.quantile(0.99).as_secs_f64() / theirs.quantile(0.99).as_secs_f64();
        assert!(ratio <= TARGET_RATIO, "{ratio:.2} of node_exporter's p99");
        assert!(ours.rss <= TARGET_RSS, "{}", ours.row());
        assert!(ours.cpu <= TARGET_CPU, "{}", ours.row());
    }
}

/// The same machine with a driver.
fn with_gpus(mut machine: Machine, stage: &Stage) -> Machine {
    machine.args.extend(["--nvml-library".into(), stepwatch_fake_nvml::library().unwrap().into()]);
    machine.env.push((stepwatch_fake_nvml::SCRIPT.to_owned(), stage.path().into()));
    machine
}
