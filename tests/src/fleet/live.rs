//! Runs the fleet in real time, over loopback, with the real alerter.
//!
//! A few streams carry the events of many nodes each, because 5,000 sockets on one machine would
//! measure the machine. It measures the work of a central alerter for a fleet: read, parse, align,
//! evaluate, store.

use core::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use stepwatch_model::time::Ts;
use stepwatch_wire::Event;

use super::world::{Listener, START};
use super::{Options, simulate};
use crate::bins;

/// The bytes of each stream that are buffered before sending, and the longest interval between two
/// sends in milliseconds.
const BLOCK: usize = 64 * 1024;
const FLUSH: i64 = 50;
/// The time limit for the alerter to start, and to catch up at the end.
const PATIENCE: Duration = Duration::from_mins(1);
/// The clock ticks per second of Linux's processor times.
const TICKS: f64 = 100.0;

/// The measurements.
#[derive(Debug, Clone)]
pub struct Live {
    pub ranks: usize,
    pub events: u64,
    pub bytes: u64,
    pub virtual_secs: f64,
    pub wall_secs: f64,
    /// The longest delay of the streams because they were not read.
    pub behind: f64,
    /// The processor seconds of the alerter, and its peak memory in bytes.
    pub cpu_secs: f64,
    pub memory: u64,
    /// The number of records that its engine received, by its own report.
    pub fed: u64,
}

/// Sends to the connected readers, at the pace of the clock.
struct Wire {
    streams: Vec<(TcpStream, String)>,
    began: Instant,
    flushed: i64,
    seq: u64,
    bytes: u64,
    behind: Duration,
    broken: Option<std::io::Error>,
}

impl Wire {
    fn flush(&mut self, from: usize) {
        for (stream, block) in self.streams.iter_mut().filter(|(_, b)| b.len() > from) {
            self.bytes += block.len() as u64;
            if let Err(e) = stream.write_all(block.as_bytes()) {
                self.broken.get_or_insert(e);
            }
            block.clear();
        }
    }

    fn pace(&mut self, at: Ts) {
        let ms = at.0 - START.0;
        if ms - self.flushed < FLUSH {
            return;
        }
        self.flushed = ms;
        self.flush(0);
        let due = Duration::from_millis(ms.max(0) as u64);
        match due.checked_sub(self.began.elapsed()) {
            Some(early) => wait(early),
            None => self.behind = self.behind.max(self.began.elapsed().saturating_sub(due)),
        }
    }
}

impl Listener for Wire {
    fn receive(&mut self, at: Ts, source: &str, event: &Event) {
        self.pace(at);
        // All events of a node use the same stream.
        let digits = source.bytes().filter(u8::is_ascii_digit).take(5);
        let node = digits.fold(0, |n, d| n * 10 + usize::from(d - b'0'));
        self.seq += 1;
        let way = node % self.streams.len();
        let block = &mut self.streams[way].1;
        event.write_record("f1ee7", self.seq, block);
        block.push('\n');
        if block.len() > BLOCK {
            self.flush(BLOCK);
        }
    }

    fn lost(&mut self, _: Ts, _: &str, _: &str) {}
    fn found(&mut self, _: Ts, _: &str) {}
    fn mended(&mut self, _: Ts, _: &str) {}

    fn pass(&mut self, at: Ts) {
        self.pace(at);
        self.flush(0);
    }
}

/// The alerter process, which ends with this one.
struct Alerter(Child);

impl Drop for Alerter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Alerter {
    fn start(dir: &std::path::Path, exporters: &[SocketAddr], listen: SocketAddr) -> anyhow::Result<Self> {
        let list: Vec<_> = exporters.iter().map(|a| format!("\"{a}\"")).collect();
        let config = format!(
            "listen: \"{listen}\"\nstorage: {{sqlite: {}}}\nsources:\n  - exporters: {{static: [{}], nodes: many}}\nreceivers:\n  - name: out\n    stdout: {{}}\n",
            dir.join("alerter.db").display(),
            list.join(", ")
        );
        let file = dir.join("alerter.yml");
        std::fs::write(&file, config)?;
        let log = std::fs::File::create(dir.join("alerter.log"))?;
        let mut command = Command::new(bins::path(bins::ALERTER)?);
        command.args(["run", "--config"]).arg(&file);
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        Ok(Self(command.spawn().context("cannot start the alerter")?))
    }

    /// The processor seconds and the peak memory in bytes.
    fn cost(&self) -> anyhow::Result<(f64, u64)> {
        let proc = format!("/proc/{}", self.0.id());
        let stat = std::fs::read_to_string(format!("{proc}/stat"))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        let status = std::fs::read_to_string(format!("{proc}/status"))?;
        let peak =
            status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|v| v.split_whitespace().next());
        Ok(((ticks(11) + ticks(12)) / TICKS, 1024 * peak.and_then(|k| k.parse::<u64>().ok()).unwrap_or(0)))
    }
}

/// Answers the request for a stream; the rest of the connection is the stream.
fn accept(listener: &TcpListener) -> anyhow::Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().context("no request")??;
    ensure!(request.starts_with("GET /v1/stream"), "asked for something else: {request}");
    while !lines.next().context("no end of the request")??.is_empty() {}
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n")?;
    Ok(stream)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the fleet goes at the pace of the clock, on a thread of its own"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// A counter of the alerter's own metrics page, summed over its labels.
fn metric(addr: SocketAddr, name: &str) -> anyhow::Result<u64> {
    let mut stream = TcpStream::connect(addr)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n")?;
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let values =
        lines.filter(|l| l.starts_with(name)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum::<f64>() as u64)
}

/// Runs a fleet in real time, with a real alerter that reads `exporters` streams.
pub fn live(options: &Options, exporters: usize) -> anyhow::Result<Live> {
    let dir = tempfile::tempdir()?;
    let open = || TcpListener::bind(("127.0.0.1", 0));
    let listeners = (0..exporters.max(1)).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    let addrs = listeners.iter().map(TcpListener::local_addr).collect::<Result<Vec<_>, _>>()?;
    let page = open()?.local_addr()?;
    let alerter = Alerter::start(dir.path(), &addrs, page)?;
    let streams = listeners
        .iter()
        .map(|l| Ok((accept(l)?, String::with_capacity(2 * BLOCK))))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut wire = Wire {
        streams,
        began: Instant::now(),
        flushed: 0,
        seq: 0,
        bytes: 0,
        behind: Duration::ZERO,
        broken: None,
    };
    let (_, volume) = simulate(options, &mut wire);
    if let Some(e) = wire.broken {
        return Err(e).context("the alerter stopped reading");
    }
    let sent = Instant::now();
    let mut fed = 0;
    while fed < volume.events && sent.elapsed() < PATIENCE {
        wait(Duration::from_millis(100));
        fed = metric(page, "stepwatch_alerter_events_total{")?;
    }
    let (cpu_secs, memory) = alerter.cost()?;
    Ok(Live {
        ranks: volume.ranks,
        events: volume.events,
        bytes: wire.bytes,
        virtual_secs: options.hours * 3600.0,
        wall_secs: wire.began.elapsed().as_secs_f64(),
        behind: wire.behind.as_secs_f64(),
        cpu_secs,
        memory,
        fed,
    })
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_rank = self.memory as f64 / (self.ranks as f64).max(1.0);
        writeln!(
            f,
            "{} ranks, {} events and {:.1} GB in {:.0} s of their time, {:.1} s of ours",
            self.ranks,
            self.events,
            self.bytes as f64 / 1e9,
            self.virtual_secs,
            self.wall_secs
        )?;
        writeln!(
            f,
            "read by the alerter: {} ({:.2} %); the streams were {:.2} s behind at most",
            self.fed,
            100.0 * self.fed as f64 / self.events.max(1) as f64,
            self.behind
        )?;
        write!(
            f,
            "alerter: {:.2} cores for {:.0} events a second ({:.2} us each), {:.0} MB ({per_rank:.0} bytes a rank)",
            self.cpu_secs / self.virtual_secs.max(1e-9),
            self.events as f64 / self.virtual_secs.max(1e-9),
            1e6 * self.cpu_secs / self.events.max(1) as f64,
            self.memory as f64 / 1e6,
        )
    }
}
