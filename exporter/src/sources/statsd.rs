//! Receives statsd over UDP or over a datagram socket of the file system.
//!
//! Statsd has only names and numbers. Run and rank come from tags in DogStatsD's notation
//! (`|#run:a,rank:3,step:17`) or from the configuration. The step comes from a tag, from a gauge
//! called `step`, or else it is counted. Numbers of one rank are gathered into a step until the
//! step changes or nothing arrives for a moment. Datagrams that the kernel drops cannot be counted.

mod packet;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stepwatch_kit::serve::{Ends, ListenAddr};
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_sys::credentials::Received;
use stepwatch_wire::{Event, words};
use tokio::net::{UdpSocket, UnixDatagram};

use super::sink::{Sink, Surroundings};
use crate::clock::unix_now;
use crate::drops::Reason;
use crate::family::Family;
use crate::identity::peer;
use crate::ingest::datagram;
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::principal::Principal;
use crate::readings::{self, Meaning, Names, Reading, Readings, Report, Value, Who, whole};
use crate::roots::Roots;
use crate::source::SourceHandle;
use packet::{Line, StatsdType};

/// This kind has no families of its own.
pub(super) const FAMILIES: &[&Family] = &[];
/// The largest datagram of UDP; the buffer has one byte more to detect a longer one.
const MAX_PACKET: usize = 65_507;
/// Numbers of one step arrive within this time of each other.
const GATHER: Duration = Duration::from_millis(250);
/// The most numbers gathered for one rank.
const MAX_GATHERED: usize = 512;
/// The most ranks for which numbers are gathered at a time.
const MAX_RANKS: usize = 1024;
/// Searches of the table of sockets may take one part in `SEARCH_SHARE` of the time, and at most
/// `SEARCH_BURST` in a row.
const SEARCH_SHARE: u32 = 10;
const SEARCH_BURST: Duration = Duration::from_millis(20);
/// The pause after a socket failed to receive.
const PAUSE: Duration = Duration::from_millis(100);
/// The prefix for the path of a datagram socket.
const UNIX: &str = "unix:";

/// `statsd: {listen: "127.0.0.1:8125", run: llama-70b}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsdConfig {
    /// An address for UDP, or `unix:/path` for a datagram socket.
    pub listen: String,
    /// The run of numbers without a `run` tag; without either they are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The rank of numbers without a `rank` tag; 0 if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The prefix that is removed from names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The meanings of names: from theirs to ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, String>,
}

impl StatsdConfig {
    /// The errors of the configuration, each as `key: reason`.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = readings::check(&self.metrics);
        match self.listen.strip_prefix(UNIX) {
            Some(path) if !Path::new(path).is_absolute() => {
                wrong.push("listen: must be an absolute path".into())
            }
            Some(_) => {}
            None => {
                if let Err(why) = self.listen.parse::<ListenAddr>() {
                    wrong.push(format!("listen: {why}, or unix:/path"));
                }
            }
        }
        wrong
    }
}

/// Parses the data as one datagram for each line, and as a single one.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        let read = Line::read(line);
        if let Some(line) = &read {
            assert!(line.rate > 0.0 && line.count >= 1.0 && line.tag("").is_none_or(|v| !v.is_empty()));
        }
        let _ = packet::is_foreign(line);
    }
}

/// A socket, and the file that has to be removed at the end.
#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
}

/// The sender of a packet, as far as the socket shows it.
#[derive(Debug, Clone, Copy)]
enum Sender {
    Known {
        principal: Principal,
        /// Whether the sender attached descriptors to the datagram, which are closed.
        carried: bool,
    },
    At(Ends),
}

/// The numbers of one rank until its step is complete.
#[derive(Debug, Default)]
struct Gathered {
    step: Option<i64>,
    world: Option<u32>,
    readings: Vec<Reading<'static>>,
}

/// Run, rank, and the sender.
type Key = (String, u32, Principal);

/// The state of one socket.
struct Statsd {
    config: StatsdConfig,
    names: Names,
    gathered: BTreeMap<Key, Gathered>,
    /// The time that searches of the table of all sockets have used, and when it was last updated.
    searched: (Duration, Instant),
    /// The current values of gauges that have been changed by relative amounts.
    gauges: BTreeMap<String, f64>,
    readings: Readings,
    name: Arc<str>,
    sink: Box<dyn Sink>,
    roots: Roots,
    health: SourceHandle,
}

pub(super) fn start(config: StatsdConfig, around: &Surroundings, shutdown: Shutdown) {
    let statsd = Statsd::new(config, Box::new(around.hub.clone()), around.roots.clone());
    tokio::spawn(statsd.run(shutdown));
}

impl Socket {
    async fn bind(listen: &str) -> io::Result<Self> {
        let Some(path) = listen.strip_prefix(UNIX) else {
            let all = listen.strip_prefix(':').map(|port| format!("[::]:{port}"));
            return UdpSocket::bind(all.as_deref().unwrap_or(listen)).await.map(Self::Udp);
        };
        let path = PathBuf::from(path);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        // A socket that an earlier process left is removed. A file that is not a socket is not
        // ours.
        if UnixDatagram::unbound()?
            .connect(&path)
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
        {
            std::fs::remove_file(&path)?;
        }
        let socket = UnixDatagram::bind(&path)?;
        stepwatch_sys::credentials::ask(&socket)?;
        // Any process of the node may send, as at the ingest socket.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        Ok(Self::Unix(socket, path))
    }

    async fn recv(&self, packet: &mut [u8]) -> io::Result<(usize, Sender)> {
        match self {
            Self::Udp(socket) => {
                let (length, peer) = socket.recv_from(packet).await?;
                Ok((length, Sender::At(Ends::new(peer, socket.local_addr()?))))
            }
            Self::Unix(socket, _) => {
                let Received { length, uid, carried } = datagram::receive(socket, packet).await?;
                Ok((length, Sender::Known { principal: Principal::of_datagram(uid), carried }))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // The file may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Statsd {
    fn new(config: StatsdConfig, sink: Box<dyn Sink>, roots: Roots) -> Self {
        let name: Arc<str> = config.listen.as_str().into();
        Self {
            names: Names::new(&config.metrics),
            gathered: BTreeMap::new(),
            searched: (Duration::ZERO, Instant::now()),
            roots,
            gauges: BTreeMap::new(),
            readings: Readings::new(unix_now()),
            health: sink.source(&name, "statsd"),
            name,
            sink,
            config,
        }
    }

    async fn run(mut self, shutdown: Shutdown) {
        let socket = match Socket::bind(&self.config.listen).await {
            Ok(socket) => socket,
            Err(err) => return self.cannot_listen(&err, &shutdown).await,
        };
        self.health.up(true);
        if let Socket::Udp(udp) = &socket {
            tracing::info!(addr = ?udp.local_addr().ok(), "listening for statsd");
        }
        let mut packet = vec![0; MAX_PACKET + 1];
        let mut flushed = Instant::now();
        loop {
            // Flushes if packets never pause.
            if flushed.elapsed() > GATHER * 4 {
                self.flush();
                flushed = Instant::now();
            }
            let received = tokio::select! {
                () = shutdown.wait() => return self.flush(),
                received = tokio::time::timeout(GATHER, socket.recv(&mut packet)) => received,
            };
            match received {
                // Packets pause, so the gathered numbers are complete.
                Err(_) => self.flush(),
                Ok(Ok((n, _))) if n > MAX_PACKET => self.health.dropped("too_large", 1),
                Ok(Ok((n, sender))) => {
                    let principal = self.principal(sender);
                    self.packet(principal, &packet[..n]);
                }
                Ok(Err(err)) => {
                    tracing::warn!(listen = %self.name, %err, "cannot receive statsd");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Keeps the source registered as down.
    async fn cannot_listen(self, err: &io::Error, shutdown: &Shutdown) {
        tracing::error!(listen = %self.name, %err, "cannot listen for statsd");
        shutdown.wait().await;
    }

    /// The principal is looked up for every datagram, because the owner of a port may have changed.
    fn principal(&mut self, sender: Sender) -> Principal {
        match sender {
            Sender::Known { principal, carried } => {
                if carried {
                    self.health.dropped(Reason::Descriptors.as_str(), 1);
                }
                principal
            }
            Sender::At(ends) => {
                let uid = peer::uid_of_datagram(ends).or_else(|| self.search(ends.peer, Instant::now()));
                Principal::from_uid(uid)
            }
        }
    }

    /// The user by a search of the table; `None` once searches have used their share of the time.
    /// Any user can make the table long, and send from ports that are not in it.
    fn search(&mut self, from: SocketAddr, now: Instant) -> Option<u32> {
        let (took, at) = self.searched;
        let took = took.saturating_sub(now.saturating_duration_since(at) / SEARCH_SHARE);
        self.searched = (took, now);
        if took >= SEARCH_BURST {
            return None;
        }
        let began = Instant::now();
        let uid = peer::search_uid_of_datagram(&self.roots, from);
        self.searched.0 += began.elapsed();
        uid
    }

    fn packet(&mut self, principal: Principal, packet: &[u8]) {
        let text = String::from_utf8_lossy(packet);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match Line::read(line) {
                Some(read) => self.line(principal, &read),
                None if packet::is_foreign(line) => self.health.unmatched_lines(1),
                None => self.health.dropped("malformed", 1),
            }
        }
    }

    fn line(&mut self, principal: Principal, line: &Line<'_>) {
        let named = line.tag("run").map(|run| words::line(run).into_owned());
        let Some(run) = named.or_else(|| self.config.run.clone()) else {
            return self.health.dropped("no_run", 1);
        };
        let rank = line.tag("rank").and_then(|r| r.parse().ok()).or(self.config.rank).unwrap_or(0);
        let step = ["step", "global_step"].iter().find_map(|tag| whole(line.tag(tag)?.parse().ok()?));
        let key = (run, rank, principal);
        // A number of another step completes the previous one.
        let known = self.gathered.get(&key);
        if known.is_some_and(|g| g.step.is_some() && step.is_some() && g.step != step) {
            self.flush_rank(&key);
        }
        let prefix = self.config.prefix.as_deref().unwrap_or("");
        let name = line.name.strip_prefix(prefix).unwrap_or(line.name);
        let value = self.value(&key, name, line);
        let unit = if line.kind == StatsdType::Timer { "ms" } else { "" };
        let Reading { meaning, known, value } = self.names.reading(name, unit, value);
        let meaning = meaning.into_owned();
        let begins = meaning == Meaning::Step && self.gathered.get(&key).is_some_and(Gathered::has_step);
        if begins {
            self.flush_rank(&key);
        }
        if !self.gathered.contains_key(&key) && self.gathered.len() >= MAX_RANKS {
            self.flush();
        }
        let gathered = self.gathered.entry(key).or_default();
        gathered.step = step.or(gathered.step);
        gathered.world = line.tag("world").and_then(|w| w.parse().ok()).or(gathered.world);
        if gathered.readings.len() >= MAX_GATHERED {
            return self.health.dropped("gathered_limit", 1);
        }
        gathered.add(Reading { meaning, known, value });
    }

    /// The value of a line, which is the mean if there are several.
    fn value(&mut self, (run, rank, _): &Key, name: &str, line: &Line<'_>) -> Value {
        match line.kind {
            StatsdType::Counter => Value::Increment(line.sum / line.rate),
            StatsdType::Timer | StatsdType::Histogram => {
                let (count, sum) = (line.count / line.rate, line.sum / line.rate);
                Value::Durations { count, sum, cumulative: false, start: None }
            }
            StatsdType::Gauge => {
                let key = format!("{run}\n{rank}\n{name}");
                let before = if line.relative { self.gauges.get(&key).copied().unwrap_or(0.0) } else { 0.0 };
                let now = before + line.last;
                if self.gauges.len() < MAX_RANKS || self.gauges.contains_key(&key) {
                    self.gauges.insert(key, now);
                }
                Value::Measured(now)
            }
        }
    }

    fn flush(&mut self) {
        let all: Vec<_> = self.gathered.keys().cloned().collect();
        all.iter().for_each(|key| self.flush_rank(key));
    }

    fn flush_rank(&mut self, key: &Key) {
        let Some(gathered) = self.gathered.remove(key) else { return };
        let (run, rank, principal) = key.clone();
        if !self.sink.hears(principal, &run) {
            return self.health.dropped("not_owner", gathered.readings.len() as u64);
        }
        let now = unix_now();
        let known = self.sink.last_step(&run, rank);
        let who = Who { run, rank, principal, certain: true, world: gathered.world, ..Who::default() };
        let report =
            Report { time: Some(now), step: gathered.step, readings: gathered.readings, ..Report::default() };
        let taken = self.readings.take(&who, report, known, now);
        if taken.dropped > 0 {
            self.health.dropped("series_limit", taken.dropped);
        }
        self.health.lag_seconds(0.0);
        taken.events.into_iter().for_each(|event| self.publish(principal, event));
    }

    fn publish(&self, principal: Principal, event: Event) {
        self.sink.publish(Origin::said_by(Via::Statsd, &self.name, Priority::Telemetry, principal), event);
    }
}

impl Gathered {
    /// Whether a gauge gave the step.
    fn has_step(&self) -> bool {
        self.readings.iter().any(|r| r.meaning == Meaning::Step)
    }

    /// Replaces the value of a gauge, and adds up counters and timers.
    fn add(&mut self, new: Reading<'static>) {
        match self.readings.iter_mut().find(|r| r.meaning == new.meaning) {
            None => self.readings.push(new),
            Some(old) => old.value = old.value.joined(new.value),
        }
    }
}
