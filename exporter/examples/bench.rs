//! Measures the exporter: `cargo run --release -p stepwatch-exporter --example bench`.
//!
//! In one process on a free port, with an 8-rank run of 4 custom metrics a step: the cost of a
//! publish, the time from a packet on the socket to its record at a reader of the stream, the time
//! of a scrape over a connection that is kept, and what the process takes while 8 ranks step once a
//! second.
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use stepwatch_exporter::app::{App, Setup};
use stepwatch_exporter::config::Config;
use stepwatch_exporter::hub::{Hub, Parts};
use stepwatch_exporter::origin::Origin;
use stepwatch_exporter::training::Archive;
use stepwatch_kit::logging::LogControl;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::Event;

const RANKS: u32 = 8;
const PUBLISHES: i64 = 200_000;
const LATENCIES: i64 = 5_000;
const SCRAPES: usize = 3_000;
const IDLE: Duration = Duration::from_secs(10);

fn step(rank: u32, step: i64) -> String {
    format!(
        r#"{{"v":1,"k":"step","ts":{ts},"run":"llama-70b","rank":{rank},"world":8,"step":{step},"m":{{"loss":2.3456,"grad_norm":0.87,"lr":0.0003,"step_time":1.01,"tokens":4194304,"a":1,"b":2,"c":3,"d":4}},"t":{{"data":0.02,"fwd_bwd":0.9,"optim":0.09}}}}"#,
        ts = 1_795_227_416 + step,
    )
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
    println!("{what:<28} p50 {:>10.1?}  p99 {:>10.1?}  max {:>10.1?}", at(0.5), at(0.99), at(1.0));
}

fn main() -> Result<()> {
    publish()?;
    let dir = std::env::temp_dir().join(format!("stepwatch-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (trigger, shutdown) = Shutdown::manual();
    let text = format!(
        "listen: '127.0.0.1:0'\ningest: {{socket: '{0}/ingest.sock'}}\nstate_dir: '{0}/state'",
        dir.display()
    );
    let config = Config::parse("bench", &text)?;
    let app = runtime.block_on(App::bind(Setup::default(), config))?;
    let addr = app.addr()?;
    let running = runtime.spawn(app.run(LogControl::detached(), shutdown));
    let sockets = (0..RANKS).map(|_| connect(&dir.join("ingest.sock"))).collect::<Result<Vec<_>>>()?;
    latency(addr, &sockets)?;
    scrapes(addr)?;
    idle(&sockets)?;
    trigger.fire();
    runtime.block_on(running)??;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn publish() -> Result<()> {
    let config = Config::default();
    let hub = Hub::new(Parts {
        node: "n".into(),
        boot: "bench".into(),
        ring: config.ring(),
        training: config.training(),
        archive: Archive::default(),
        keep: None,
    });
    let lines: Vec<String> = (0..PUBLISHES).map(|i| step((i % 8) as u32, i / 8)).collect();
    let (mut parsed, mut published) = (Vec::new(), Vec::new());
    for line in &lines {
        let began = Instant::now();
        let event = Event::parse(line.as_bytes())?;
        parsed.push(began.elapsed());
        let began = Instant::now();
        hub.publish(Origin::Http(stepwatch_exporter::principal::Principal::Exporter), event);
        published.push(began.elapsed());
    }
    report("parse", parsed);
    report("publish", published);
    Ok(())
}

fn connect(path: &Path) -> Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn send(socket: &OwnedFd, packet: &str) -> Result<()> {
    rustix::net::send(socket, packet.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// From before a packet is sent to after its record was read, with the other ranks sending as well.
fn latency(addr: SocketAddr, sockets: &[OwnedFd]) -> Result<()> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(b"GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut times = Vec::new();
    for i in 0..LATENCIES {
        let began = Instant::now();
        for (rank, socket) in sockets.iter().enumerate() {
            send(socket, &step(rank as u32, i))?;
        }
        let mut line = String::new();
        for _ in sockets {
            while !line.contains("\"k\":\"step\"") {
                line.clear();
                ensure!(reader.read_line(&mut line)? > 0, "the stream ended");
            }
            line.clear();
        }
        times.push(began.elapsed());
    }
    report("8 packets to stream reader", times);
    Ok(())
}

fn scrapes(addr: SocketAddr) -> Result<()> {
    let mut reader = BufReader::new(TcpStream::connect(addr)?);
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..SCRAPES {
        let began = Instant::now();
        reader.get_mut().write_all(
            b"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: application/openmetrics-text;version=1.0.0\r\naccept-encoding: gzip\r\n\r\n",
        )?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if let Some(n) = line.strip_prefix("content-length: ") {
                length = n.trim().parse()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        times.push(began.elapsed());
        bytes = length;
    }
    report("scrape", times);
    println!("{:<28} {bytes} bytes, gzip", "page");
    Ok(())
}

/// Memory and CPU while each rank steps once a second, and one page a second is made.
fn idle(sockets: &[OwnedFd]) -> Result<()> {
    let usage = || -> Result<(f64, u64)> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let fields: Vec<&str> = stat.rsplit_once(')').context("stat")?.1.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        let status = std::fs::read_to_string("/proc/self/status")?;
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
        Ok((ticks / 100.0, rss.split_whitespace().next().context("VmRSS")?.parse()?))
    };
    let ((cpu, _), began, mut i) = (usage()?, Instant::now(), LATENCIES);
    while began.elapsed() < IDLE {
        for (rank, socket) in sockets.iter().enumerate() {
            send(socket, &step(rank as u32, i))?;
        }
        i += 1;
        let (_never, wait) = std::sync::mpsc::sync_channel::<()>(0);
        let _ = wait.recv_timeout(Duration::from_secs(1));
    }
    let (after, rss) = usage()?;
    let share = (after - cpu) / began.elapsed().as_secs_f64() * 100.0;
    println!(
        "{:<28} {share:.2} % of a core, {:.1} MiB resident (with this bench in it)",
        "8 ranks, 1 step/s",
        rss as f64 / 1024.0
    );
    Ok(())
}
