//! Logs that are written fast and handled roughly while the exporter that follows them is killed:
//! every step once, in order, on the stream.
//!
//! `cargo test --release -p stepwatch-tests --test soak -- --nocapture` is the measurement, at
//! 1,000 lines a second in each of 64 files. A debug build proves the same of fewer lines.
//! `STEPWATCH_SOAK_SECONDS` and `STEPWATCH_SOAK_RATE` make it longer and faster.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, Random, http, poll_until, say};

const FILES: usize = 64;
/// Lines a second in each file: what the tail promises, or what a debug build can do.
const RATE: u64 = if cfg!(debug_assertions) { 60 } else { 1_000 };
const SECONDS: u64 = 30;
/// Share of one core that an optimised exporter may take for it, everything included: tail, stream,
/// page.
const MAX_CPU: f64 = 0.30;
/// How often the writers write.
const TICK: Duration = Duration::from_millis(10);
/// The exporter is killed in this first part of the time; the rest shows whether its memory is
/// flat.
const KILLING: f64 = 0.6;
/// Old files of a log that are not deleted yet.
const KEPT: u32 = 4;
/// Growth of its memory over that rest.
const MAX_GROWTH: f64 = 1.15;

/// What Linux counts processor time in, on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of the stream that the exporter keeps: what a reader may lag behind on a busy machine.
const KEEPS: u64 = 2;
/// Bytes of a record of the stream.
const RECORD_BYTES: u64 = 350;

/// One log, and the process that writes it.
struct Log {
    name: String,
    path: PathBuf,
    format: usize,
    file: File,
    /// Steps written.
    written: i64,
    /// What is to be done to it once everything in it was read.
    planned: Option<Act>,
    /// The last step that is not in the file that has its name now.
    before: i64,
    generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Rename,
    CopyTruncate,
    Truncate,
    Delete,
}

const ACTS: [Act; 4] = [Act::Rename, Act::CopyTruncate, Act::Truncate, Act::Delete];

/// Steps of each log that came out of the stream.
type Seen = Arc<Vec<AtomicI64>>;

fn open(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

/// A step as four frameworks print it.
fn line(format: usize, step: i64) -> String {
    let loss = 2.0 + (step % 100) as f64 / 1000.0;
    match format {
        0 => format!(
            " iteration {step:8}/ 9000000 | consumed samples: {:12} | elapsed time per iteration (ms): 10.0 | learning rate: 1.500E-04 \
             | global batch size:   512 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.243 | number of skipped iterations:   0 \
             | number of nan iterations:   0 |\n",
            step * 512
        ),
        1 => format!(
            "{{\"step\": {step}, \"loss\": {loss:.4}, \"grad_norm\": 0.24, \"lr\": 0.0003, \"step_time\": 0.01}}\n"
        ),
        2 => format!("iter {step}: loss {loss:.4}, time 10.00ms, mfu 41.20%\n"),
        _ => format!(
            "[rank0]:[titan] 2026-08-21 10:00:00,000 - root - INFO - step: {step}  loss: {loss:.5}  grad_norm:  0.2431  memory: \
             48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%\n"
        ),
    }
}

impl Log {
    fn new(dir: &Path, number: usize) -> Self {
        let name = format!("job-{number:02}");
        let path = dir.join(format!("{name}.log"));
        let file = open(&path);
        Self { name, file, path, format: number % 4, written: 0, planned: None, before: 0, generation: 0 }
    }

    /// Writes up to step `target`, unless it is waited until everything was read.
    fn write(&mut self, target: i64, seen: i64) {
        if let Some(act) = self.planned {
            // What is in a file when it is cut or deleted is gone; that is no fault of the reader.
            // Nor can it know of a file that lost its name before it was ever looked at, or while
            // the reader was dead.
            let read = if act == Act::Rename { seen > self.before } else { seen == self.written };
            if !read {
                if act == Act::Rename {
                    self.planned = None;
                }
                return;
            }
            self.act(act);
            self.planned = None;
        }
        let text: String = (self.written + 1..=target).map(|step| line(self.format, step)).collect();
        self.file.write_all(text.as_bytes()).unwrap();
        self.written = target.max(self.written);
    }

    fn act(&mut self, act: Act) {
        self.generation += 1;
        let aside = |generation| self.path.with_extension(format!("log.{generation}"));
        let _ = fs::remove_file(aside(self.generation.saturating_sub(KEPT)));
        let aside = aside(self.generation);
        match act {
            Act::Rename => {
                fs::rename(&self.path, aside).unwrap();
                self.file = open(&self.path);
                self.before = self.written;
            }
            Act::CopyTruncate => {
                fs::copy(&self.path, aside).unwrap();
                self.file.set_len(0).unwrap();
            }
            Act::Truncate => self.file.set_len(0).unwrap(),
            Act::Delete => {
                fs::remove_file(&self.path).unwrap();
                self.file = open(&self.path);
                self.before = self.written;
            }
        }
    }
}

/// Writes all logs until `stop`, and returns how far each got and how often each thing was done to
/// one.
fn write_all(dir: &Path, rate: u64, seen: &Seen, stop: &AtomicBool, seed: u64) -> (Vec<Log>, [usize; 4]) {
    let mut random = Random::new(seed);
    let mut logs: Vec<_> = (0..FILES).map(|n| Log::new(dir, n)).collect();
    let mut acts = [0; 4];
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let target = (began.elapsed().as_secs_f64() * rate as f64) as i64;
        if random.unit() < 0.2 {
            let log = &mut logs[random.range(0, FILES as u64) as usize];
            if log.planned.is_none() {
                let act = random.range(0, 4) as usize;
                log.planned = Some(ACTS[act]);
                acts[act] += 1;
            }
        }
        for (log, seen) in logs.iter_mut().zip(&**seen) {
            log.write(target, seen.load(Ordering::Acquire));
        }
        #[expect(clippy::disallowed_methods, reason = "the pace of the writers, and no synchronisation")]
        std::thread::sleep(TICK);
    }
    (logs, acts)
}

/// The value of a member of a flat object, as it stands there.
fn member<'a>(record: &'a str, key: &str) -> Option<&'a str> {
    let at = record.find(key)? + key.len();
    let rest = &record[at..];
    rest.find([',', '}', '"']).map(|end| &rest[..end])
}

/// Follows the stream by its cursor for ever. Fails at the first step that is not the next of its
/// log.
async fn read_all(addr: String, seen: Seen) -> anyhow::Result<()> {
    let mut cursor = String::new();
    loop {
        let url = format!("{addr}/v1/stream?after={cursor}");
        let Ok(answer) = http::client().get(&url).send().await.and_then(|a| a.error_for_status()) else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let mut body = answer.bytes_stream();
        let mut rest = Vec::new();
        while let Some(Ok(chunk)) = body.next().await {
            rest.extend_from_slice(&chunk);
            let complete = rest.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            for record in std::str::from_utf8(&rest[..complete])?.lines() {
                take(record, &mut cursor, &seen)?;
            }
            rest.drain(..complete);
        }
    }
}

fn take(record: &str, cursor: &mut String, seen: &Seen) -> anyhow::Result<()> {
    let kind = member(record, "\"k\":\"").context("no kind")?;
    if kind == "gap" {
        bail!("after {cursor}: {record}");
    }
    if kind == "hb" {
        return Ok(()); // of no place in the stream
    }
    let at = member(record, "\"c\":\"").context("no cursor")?;
    at.clone_into(cursor);
    if kind != "step" {
        return Ok(());
    }
    let run = member(record, "\"run\":\"job-").context("not a run of ours")?;
    let step: i64 = member(record, "\"step\":").context("no step")?.parse()?;
    let last = &seen[run.parse::<usize>()?];
    let before = last.load(Ordering::Acquire);
    if step != before + 1 {
        bail!("job-{run}: step {step} after {before}: {record}");
    }
    last.store(step, Ordering::Release);
    Ok(())
}

/// Seconds of processor time that a process has taken, and its memory in MiB.
fn usage(pid: u32) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some((ticks / TICKS_PER_SECOND, resident.trim().parse::<f64>().ok()? / 1024.0))
}

/// What the exporter used over all its restarts.
#[derive(Default)]
struct Used {
    cpu: f64,
    kills: usize,
    peak: f64,
    /// Memory over its last life, once a second.
    last: Vec<f64>,
}

/// Kills the exporter at random moments, and watches it.
async fn torment(exporter: &mut Exporter, time: Duration, random: &mut Random, used: &mut Used) {
    let began = Instant::now();
    let mut next = Duration::from_secs(2);
    while began.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let pid = exporter.daemon.pid().unwrap();
        let (cpu, memory) = usage(pid).unwrap();
        used.peak = used.peak.max(memory);
        used.last.push(memory);
        if began.elapsed() < next {
            continue;
        }
        used.cpu += cpu;
        used.kills += 1;
        used.last.clear();
        exporter.daemon.kill().await.unwrap();
        tokio::time::sleep(Duration::from_millis(random.range(0, 1_000))).await;
        exporter.restart().await.unwrap();
        let killing = time.mul_f64(KILLING);
        next = began.elapsed() + Duration::from_millis(random.range(300, 4_000));
        if next > killing {
            next = Duration::MAX;
        }
    }
    used.cpu += usage(exporter.daemon.pid().unwrap()).unwrap().0;
}

/// The state when something went wrong; the files are kept.
async fn state(exporter: &Exporter, dir: &Path) -> String {
    let page = exporter.metrics().await.unwrap_or_default();
    let dropped: Vec<_> =
        page.lines().filter(|l| l.contains("dropped_total{") && !l.ends_with(" 0")).collect();
    let listing = Command::new("ls").args(["-li", "--full-time"]).arg(dir.join("logs")).output();
    let listing = listing.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    format!("{}\n{listing}\n{}", dropped.join("\n"), exporter.daemon.log().join("\n"))
}

/// Logs that were not read to their end.
fn behind(logs: &[Log], seen: &Seen) -> Vec<String> {
    let lag = |(log, seen): (&Log, &AtomicI64)| {
        let (seen, Log { name, written, planned, generation, .. }) = (seen.load(Ordering::Acquire), log);
        (seen != *written)
            .then(|| format!("{name}: {seen} of {written}, generation {generation}, planned {planned:?}"))
    };
    logs.iter().zip(&**seen).filter_map(lag).collect()
}

/// Waits until every step was seen. A busy machine takes its time for that; a log that is stuck
/// stands still.
async fn caught_up(logs: &[Log], seen: &Seen) -> bool {
    let steps = || -> i64 { seen.iter().map(|s| s.load(Ordering::Acquire)).sum() };
    loop {
        let before = steps();
        let moved = async || {
            let complete = behind(logs, seen).is_empty();
            (complete || steps() > before).then_some(complete)
        };
        match poll_until("a step", PATIENCE, moved).await {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => return false,
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_truncated_deleted_and_killed() {
    let (rate, seconds) = (setting("STEPWATCH_SOAK_RATE", RATE), setting("STEPWATCH_SOAK_SECONDS", SECONDS));
    let seed = setting("STEPWATCH_SOAK_SEED", jiff::Timestamp::now().as_microsecond() as u64);
    say::line(&format!("seed {seed}"));
    let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
    let logs = dir.path().join("logs");
    fs::create_dir(&logs).unwrap();
    // In memory, as it is where the socket lies in /run.
    let memory = Path::new("/dev/shm");
    let memory = if memory.is_dir() { memory } else { dir.path() };
    let memory = tempfile::Builder::new().prefix("stepwatch").tempdir_in(memory).unwrap();
    let config = format!(
        "runs: {{max_runs: 128}}\nstream: {{max_records: 10000000, max_bytes: {}, journal: {}}}\nsources:\n  \
         - tail: {{path: {}/*.log, from: start}}\n",
        KEEPS * FILES as u64 * rate * RECORD_BYTES,
        memory.path().join("stream.journal").display(),
        logs.display()
    );
    let mut exporter = Exporter::start(&dir.path().join("exporter"), &config).await.unwrap();

    let seen: Seen = Arc::new((0..FILES).map(|_| AtomicI64::new(0)).collect());
    let mut reader = tokio::spawn(read_all(exporter.url(), Arc::clone(&seen)));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (logs, seen, stop) = (logs.clone(), Arc::clone(&seen), Arc::clone(&stop));
        std::thread::spawn(move || write_all(&logs, rate, &seen, &stop, seed))
    };
    let (mut random, mut used) = (Random::new(seed ^ 1), Used::default());
    let began = Instant::now();
    tokio::select! {
        () = torment(&mut exporter, Duration::from_secs(seconds), &mut random, &mut used) => {}
        failed = &mut reader => panic!("{failed:?}\n{}", state(&exporter, dir.path()).await),
    }
    let wall = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let (logs, acts) = tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    tokio::select! {
        complete = caught_up(&logs, &seen) => {
            assert!(complete, "{:?}\n{}", behind(&logs, &seen), state(&exporter, dir.path()).await);
        }
        failed = &mut reader => panic!("{failed:?}\n{}", state(&exporter, dir.path()).await),
    }
    reader.abort();
    report(&logs, acts, &used, wall);
    if !cfg!(debug_assertions) {
        assert!(used.cpu / wall < MAX_CPU, "{:.1} % of a core", 100.0 * used.cpu / wall);
    }
    let half = &used.last[used.last.len() / 2..];
    let (early, late) = (half[0], half[half.len() - 1]);
    assert!(late < early * MAX_GROWTH + 4.0, "memory grew from {early:.1} to {late:.1} MiB");
}

fn report(logs: &[Log], acts: [usize; 4], used: &Used, wall: f64) {
    let lines: i64 = logs.iter().map(|l| l.written).sum();
    say::figure(&format!(
        "tail soak: {FILES} files, {:.0} lines/s for {wall:.0} s, {lines} steps each once and in order; exporter killed {} times, \
         {} renames, {} copytruncates, {} truncations, {} deletions; {:.1} % of a core, memory {:.1} MiB at most, {:.1} MiB at the end",
        lines as f64 / wall,
        used.kills,
        acts[0],
        acts[1],
        acts[2],
        acts[3],
        100.0 * used.cpu / wall,
        used.peak,
        used.last.last().copied().unwrap_or_default(),
    ));
}
