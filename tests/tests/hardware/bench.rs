//! What watching a node costs: this exporter and Debian's node_exporter side by side, scraped in
//! turn in one run, beside questions whose answer is nothing, which show what the machine itself
//! takes its time for.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use stepwatch_fake_nvml::{Script, Stage};
use stepwatch_tests::peers::{self, NodeExporter};
use stepwatch_tests::programs::Machine;
use stepwatch_tests::trainer::{self, Rank};
use stepwatch_tests::{Exporter, say};

use crate::tree::{FLEET, Tree};

/// Of a page of 8 GPUs, 8 adapters and 8 ranks; beyond what an empty answer takes.
const TARGET_P99: Duration = Duration::from_millis(1);
/// Of ours in theirs.
const TARGET_RATIO: f64 = 0.2;
const TARGET_RSS: u64 = 20 << 20;
/// Of one core, collecting once a second and scraped once a second.
const TARGET_CPU: f64 = 0.003;
/// As often as most setups of a Prometheus scrape; its own default is a minute.
const USUAL_SECONDS: i64 = 15;

/// How much is measured. A debug build proves that it works, a release build what it costs.
struct Plan {
    scrapes: usize,
    seconds: u64,
    /// Until the exporter has learned that it is scraped less often: after three scrapes.
    learning: u64,
}

const PLAN: Plan = if cfg!(debug_assertions) {
    Plan { scrapes: 40, seconds: 5, learning: 1 }
} else {
    Plan { scrapes: 400, seconds: 60, learning: 46 }
};

/// What is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    /// With the headers of Prometheus 3.
    Prometheus,
    /// As `curl` does.
    Plain,
    /// A page with next to nothing on it.
    Empty,
}

impl Ask {
    const ALL: [Self; 3] = [Self::Prometheus, Self::Plain, Self::Empty];

    fn request(self) -> &'static [u8] {
        match self {
            Self::Prometheus => {
                b"GET /metrics HTTP/1.1\r\nhost: x\r\nuser-agent: Prometheus/3.5.0\r\naccept: application/openmetrics-text;\
                version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;\
                version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n\
                accept-encoding: gzip\r\nx-prometheus-scrape-timeout-seconds: 10\r\n\r\n"
            }
            Self::Plain => b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: */*\r\n\r\n",
            Self::Empty => b"GET /-/healthy HTTP/1.1\r\nhost: x\r\n\r\n",
        }
    }
}

/// A scraper with one connection, as Prometheus keeps one.
struct Scraper {
    addr: SocketAddr,
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Scraper {
    fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { addr, stream: BufReader::new(stream), body: Vec::new() }
    }

    /// As who finds that the server has ended a connection that lay idle.
    fn reconnect(&mut self) {
        *self = Self::connect(self.addr);
    }

    /// One answer, from the first byte asked to the last one read.
    fn ask(&mut self, ask: Ask) -> Duration {
        let began = Instant::now();
        self.stream.get_mut().write_all(ask.request()).unwrap();
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
    /// By what was asked, in the order of [`Ask::ALL`].
    latencies: [Vec<Duration>; 3],
    bytes: [usize; 3],
    series: usize,
    /// Of one core, by name of the thread: scraped once a second, and as usual.
    cpu: BTreeMap<String, f64>,
    usual_cpu: BTreeMap<String, f64>,
    rss: u64,
}

impl Subject {
    fn new(name: &'static str, pid: Option<u32>, addr: SocketAddr) -> Self {
        Self {
            name,
            pid: pid.unwrap(),
            scraper: Scraper::connect(addr),
            latencies: Default::default(),
            bytes: [0; 3],
            series: 0,
            cpu: BTreeMap::new(),
            usual_cpu: BTreeMap::new(),
            rss: 0,
        }
    }

    fn ask(&mut self, ask: Ask) {
        let took = self.scraper.ask(ask);
        self.latencies[ask as usize].push(took);
        self.bytes[ask as usize] = self.scraper.body.len();
        if ask == Ask::Plain {
            self.series = self.scraper.series();
        }
    }

    fn quantile(&self, ask: Ask, q: f64) -> Duration {
        let mut sorted = self.latencies[ask as usize].clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        sorted[(last as f64 * q).round() as usize]
    }

    /// Seconds of CPU so far, to the nanosecond, by thread.
    fn cpu_seconds(&self) -> BTreeMap<String, f64> {
        let mut spent = BTreeMap::new();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten() {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let nanoseconds = read("schedstat").split(' ').next().and_then(|n| n.parse::<f64>().ok());
            *spent.entry(read("comm").trim().to_owned()).or_default() += nanoseconds.unwrap_or(0.0) / 1e9;
        }
        spent
    }

    /// Of one core since then, by thread.
    fn cpu_since(&self, began: Instant, before: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let lasted = began.elapsed().as_secs_f64();
        let share = |(thread, spent): (String, f64)| {
            let before = before.get(&thread).copied().unwrap_or(0.0);
            (thread, (spent - before) / lasted)
        };
        self.cpu_seconds().into_iter().map(share).collect()
    }

    fn cpu(&self) -> f64 {
        self.cpu.values().sum()
    }

    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    fn row(&self) -> String {
        let quantiles = Ask::ALL.map(|ask| {
            let ms = |q| self.quantile(ask, q).as_secs_f64() * 1e3;
            format!(" {:>6.2} {:>6.2}", ms(0.5), ms(0.99))
        });
        format!(
            "{:<33} {:>6} {:>7}{} {:>5.1} {:>6.3} {:>6.3}",
            self.name,
            self.series,
            self.bytes[1],
            quantiles.concat(),
            self.rss as f64 / f64::from(1 << 20),
            self.cpu() * 100.0,
            self.usual_cpu.values().sum::<f64>() * 100.0
        )
    }

    /// Where its time goes.
    fn threads(&self) -> String {
        let mut threads: Vec<_> = self.cpu.iter().filter(|(_, share)| **share >= 5e-5).collect();
        threads.sort_by(|a, b| b.1.total_cmp(a.1));
        let each = threads.iter().map(|(name, share)| format!("{name} {:.3}", **share * 100.0));
        format!("{}, % of a core: {}", self.name, each.collect::<Vec<_>>().join(", "))
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
    // The kernel's files lie in memory.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let tree = Tree::new(&memory.path().join("tree"));
    let stage = Stage::new(dir.path(), &Script { is_final: true, ..Script::for_fleet(FLEET) }).unwrap();
    let machine = with_gpus(tree.machine(), &stage);
    let there = Exporter::start_on(machine, &dir.path().join("there"), "", "").await.unwrap();
    let job = Job::join(&there.ingest());
    let mut subjects = [
        Subject::new("node_exporter, this machine", theirs.daemon.pid(), theirs.addr),
        Subject::new("stepwatch-exporter, this machine", here.daemon.pid(), here.addr),
        Subject::new("stepwatch-exporter, 8 GPU 8 IB", there.daemon.pid(), there.addr),
    ];
    measure(&mut subjects, &job, &tree).await;
    let (what, page, quantiles) =
        ("p50 and p99 in milliseconds", "text", "Prometheus         plain         empty");
    say::figure(&format!(
        "{what:<33} {:>6} {page:>7} {quantiles} {:>5} {:>6} {:>6}",
        "series", "MiB", "CPU %", "15 s"
    ));
    subjects.iter().for_each(|s| say::figure(&s.row()));
    subjects.iter().skip(1).for_each(|s| say::figure(&s.threads()));
    say::figure(&format!("{} bytes as Prometheus gets them", subjects[2].bytes[0]));
    judge(&subjects);
}

/// First at a pace, which is what CPU is measured at and where every scrape is the first of its
/// page; then as fast as they answer.
async fn measure(subjects: &mut [Subject], job: &Job, tree: &Tree) {
    let lasting = PLAN.seconds.cast_signed();
    // What only the first rounds cost is over after a few.
    run(subjects, job, tree, 0..3, 1).await;
    subjects.iter_mut().for_each(|s| s.latencies = Default::default());
    for (subject, cpu) in run(subjects, job, tree, 3..3 + lasting, 1).await {
        subject.cpu = cpu;
    }
    // An exporter that has learned how often it is scraped learns it anew.
    let usual = 3 + lasting + PLAN.learning.cast_signed();
    run(subjects, job, tree, 3 + lasting..usual, USUAL_SECONDS).await;
    for (subject, cpu) in run(subjects, job, tree, usual..usual + lasting, USUAL_SECONDS).await {
        subject.usual_cpu = cpu;
    }
    for _ in 0..PLAN.scrapes {
        for ask in Ask::ALL {
            subjects.iter_mut().for_each(|subject| subject.ask(ask));
        }
    }
    for subject in subjects.iter_mut() {
        subject.rss = subject.resident();
    }
}

/// A step and a look of everybody at the hardware each second, a scrape every so many; what it took
/// of each.
async fn run<'a>(
    subjects: &'a mut [Subject],
    job: &Job,
    tree: &Tree,
    steps: Range<i64>,
    scrape_every: i64,
) -> Vec<(&'a mut Subject, BTreeMap<String, f64>)> {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    let (began, before) = (Instant::now(), subjects.iter().map(Subject::cpu_seconds).collect::<Vec<_>>());
    for step in steps {
        seconds.tick().await;
        job.step(step);
        tree.traffic(step.cast_unsigned() * 1_000_000_000);
        if step % scrape_every == 0 {
            for subject in subjects.iter_mut() {
                if scrape_every > 1 {
                    subject.scraper.reconnect();
                }
                subject.ask(Ask::Prometheus);
            }
        }
    }
    let taken = subjects.iter_mut().zip(before);
    taken
        .map(|(subject, before)| {
            let cpu = subject.cpu_since(began, &before);
            (subject, cpu)
        })
        .collect()
}

fn judge(subjects: &[Subject; 3]) {
    let [theirs, here, there] = subjects;
    assert!(there.series > 500, "{} series", there.series);
    // A debug build and a busy machine prove no more than that no scrape waits for a source, which
    // every scrape would show.
    let (slack, of) = if cfg!(debug_assertions) { (20, 0.5) } else { (1, 0.99) };
    for (ours, ask) in
        [here, there].into_iter().flat_map(|ours| [(ours, Ask::Prometheus), (ours, Ask::Plain)])
    {
        let limit = TARGET_P99 * slack + ours.quantile(Ask::Empty, of);
        assert!(ours.quantile(ask, of) <= limit, "{}", ours.row());
    }
    if slack > 1 {
        return;
    }
    for ours in [here, there] {
        let p99 = |subject: &Subject| subject.quantile(Ask::Prometheus, 0.99).as_secs_f64();
        let ratio = p99(ours) / p99(theirs);
        assert!(ratio <= TARGET_RATIO, "{ratio:.2} of node_exporter's p99");
        assert!(ours.rss <= TARGET_RSS, "{}", ours.row());
        assert!(ours.cpu() <= TARGET_CPU, "{}", ours.row());
    }
}

/// The same machine with a driver.
pub(crate) fn with_gpus(mut machine: Machine, stage: &Stage) -> Machine {
    machine.args.extend(["--nvml-library".into(), stepwatch_fake_nvml::library().unwrap().into()]);
    machine.env.push((stepwatch_fake_nvml::SCRIPT.to_owned(), stage.path().into()));
    machine
}
