//! Parses the output of a command that `stepwatch run` started. It is read as a log is, line by
//! line, for each rank and stream separately.
//!
//! The launcher sends lines as events called `output`. Their content is published as events of a
//! log. The lines themselves are not published, because readers of the stream do not need them. A
//! launcher is not the process that trains: its `bye` is valid for every rank whose lines it sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use stepwatch_formats::LogReader;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value, words};

use super::event_rate::EventRates;
use crate::clock::unix_now;
use crate::drops::Reason;
use crate::hub::Hub;
use crate::lock::Locked as _;
use crate::origin::Priority;
use crate::origin::{Origin, Outcome, Via};
use crate::principal::Principal;
use crate::source::SourceHandle;
use crate::unfinished::{self, Share};
use crate::zone::Zone;

/// The most streams that are read at a time. Above it, the user with the most loses one: of its
/// connections, the one with the most, and of that one's streams, the one with the oldest line.
const MAX_STREAMS: usize = 256;
/// Seconds between two log lines about streams that made room.
const LOG_SECONDS: f64 = 60.0;
/// Seconds without lines after which a stream is over.
const FORGET_AFTER: f64 = 24.0 * 3600.0;
/// The most ranks that the lines of one stream may name.
const MAX_RANKS: usize = 64;

/// The name of the event.
const OUTPUT: &str = "output";

/// Run, rank and name of the stream.
type Key = (String, u32, String);

/// The streams of every launcher.
#[derive(Debug, Default)]
struct Outputs(Mutex<Streams>);

#[derive(Debug, Default)]
struct Streams {
    all: BTreeMap<Key, Entry>,
    logged: Option<f64>,
}

#[derive(Debug)]
struct Entry {
    sender: Sender,
    heard: f64,
    stream: Arc<Mutex<Stream>>,
}

/// A user, and the connection that last sent lines.
type Sender = (Principal, Option<u64>);

#[derive(Debug)]
struct Stream {
    reader: LogReader,
    zone: Zone,
    name: Arc<str>,
    health: SourceHandle,
    unmatched: u64,
    /// The stream's share of the memory for incomplete lines.
    held: Share,
    /// Whether the lack of room for it was logged.
    logged: bool,
    /// The ranks that its lines named, beside the launcher's own.
    ranks: BTreeSet<u32>,
}

/// Whether an event is a batch of output lines.
fn is_output(event: &Event) -> bool {
    let name = event.name.as_deref().map(words::line);
    event.kind == Kind::Event && name.as_deref() == Some(OUTPUT) && event.extra.contains_key("lines")
}

/// Whether a launcher reports that its command has ended.
fn is_end(event: &Event) -> bool {
    let role = event.extra.get(hello::ROLE).and_then(Value::as_str).map(words::line);
    event.kind == Kind::Bye && role.as_deref() == Some(hello::LAUNCHER)
}

/// Receives the events of trainers and launchers. Batches of a launcher's lines are read here; all
/// other events go to the hub.
#[derive(Debug, Clone)]
pub(crate) struct Intake {
    pub(crate) hub: Hub,
    pub(super) rates: Arc<EventRates>,
    outputs: Arc<Outputs>,
}

impl Intake {
    pub(crate) fn new(hub: Hub) -> Self {
        Self { hub, rates: Arc::default(), outputs: Arc::default() }
    }

    pub(crate) fn publish(&self, origin: &Origin, event: Event) -> Outcome {
        self.publish_at(unix_now(), origin, event)
    }

    pub(crate) fn publish_at(&self, now: f64, origin: &Origin, mut event: Event) -> Outcome {
        let principal = origin.principal();
        if is_output(&event) || is_end(&event) {
            self.hub.set_apart(origin, &mut event);
        }
        if is_output(&event) {
            // The lines become steps, so the sender needs the right to report steps.
            let refused = self.hub.stranger(now, principal, Kind::Step, &mut event);
            return refused.unwrap_or_else(|| self.outputs.take(&self.hub, now, origin, &event));
        }
        if is_end(&event) {
            let mut bye = event.clone();
            bye.clean();
            if let Some(refused) = self.hub.stranger(now, principal, Kind::Bye, &mut bye) {
                return refused;
            }
            self.outputs.end(&self.hub, now, origin, &bye);
        }
        self.hub.publish_at(now, origin, event)
    }
}

impl Outputs {
    /// Parses a batch of lines and publishes the events in it.
    fn take(&self, hub: &Hub, now: f64, origin: &Origin, batch: &Event) -> Outcome {
        let Some(run) = batch.run.clone() else { return Outcome::Accepted };
        let key = (run, batch.rank.unwrap_or(0), text(batch, "stream"));
        let principal = origin.principal();
        let stream = self.stream(hub, now, key, (principal, connection(origin)));
        let mut stream = stream.locked();
        let lines = match batch.extra.get("lines") {
            Some(Value::List(lines)) => lines.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let events = stream.read(&lines, batch, now);
        for (key, reason) in [("cut", "line_cut"), ("lost_bytes", "launcher_bytes")] {
            let lost = batch.extra.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            if lost > 0.0 {
                stream.health.dropped(reason, lost as u64);
            }
        }
        stream.give_up_beyond_room(principal);
        // The stream is still locked, so that its events are published in their order.
        stream.publish(hub, now, principal, events);
        Outcome::Accepted
    }

    /// The stream with this key. It is created at the first line.
    fn stream(&self, hub: &Hub, now: f64, key: Key, sender: Sender) -> Arc<Mutex<Stream>> {
        let mut streams = self.0.locked();
        if let Some(entry) = streams.all.get_mut(&key) {
            (entry.sender, entry.heard) = (sender, now);
            return Arc::clone(&entry.stream);
        }
        streams.all.retain(|_, entry| now - entry.heard < FORGET_AFTER);
        if streams.all.len() >= MAX_STREAMS {
            streams.make_room(hub, now, sender);
        }
        let stream = Arc::new(Mutex::new(Stream::new(hub, &key.0, key.1, &key.2, now)));
        streams.all.insert(key, Entry { sender, heard: now, stream: Arc::clone(&stream) });
        stream
    }

    /// Handles the end of the command: publishes the events still held by the readers, and a `bye`
    /// for the ranks that only its lines named.
    fn end(&self, hub: &Hub, now: f64, origin: &Origin, bye: &Event) {
        let Some(run) = &bye.run else { return };
        let own = bye.rank.unwrap_or(0);
        let mut ended = Vec::new();
        self.0.locked().all.retain(|(r, rank, _), entry| {
            let theirs = r == run && *rank == own;
            if theirs {
                ended.push(Arc::clone(&entry.stream));
            }
            !theirs
        });
        let mut ranks = BTreeSet::new();
        for stream in ended {
            let mut stream = stream.locked();
            let mut events = Vec::new();
            stream.reader.rest(&mut events);
            let events = stream.named(events, bye);
            stream.publish(hub, now, origin.principal(), events);
            ranks.extend(stream.ranks.iter().copied());
        }
        for rank in ranks {
            hub.publish_at(now, origin, Event { rank: Some(rank), ..bye.clone() });
        }
    }
}

impl Streams {
    /// Drops the oldest stream of the user with the most. If several users have as many, the
    /// newcomer loses its own.
    fn make_room(&mut self, hub: &Hub, now: f64, newcomer: Sender) {
        let (mut users, mut senders) = (BTreeMap::new(), BTreeMap::new());
        for Entry { sender, .. } in self.all.values() {
            *users.entry(sender.0).or_insert(0_usize) += 1;
            *senders.entry(*sender).or_insert(0_usize) += 1;
        }
        let count = |sender: &Sender| (users.get(&sender.0).copied(), senders.get(sender).copied());
        let most = |entry: &Entry| {
            let sender = &entry.sender;
            let (of_user, of_sender) = count(sender);
            (of_user, sender.0 == newcomer.0, of_sender, *sender == newcomer)
        };
        let oldest = self
            .all
            .iter()
            .max_by(|(_, a), (_, b)| most(a).cmp(&most(b)).then_with(|| b.heard.total_cmp(&a.heard)));
        let Some((key, whose)) = oldest.map(|(key, entry)| (key.clone(), entry.sender.0)) else { return };
        self.all.remove(&key);
        let reason = if whose == newcomer.0 { Reason::Streams } else { Reason::StreamsShare };
        hub.drops().refuse(reason, whose, 1);
        if self.logged.is_none_or(|at| now - at >= LOG_SECONDS) {
            self.logged = Some(now);
            let (run, rank, stream) = &key;
            tracing::warn!(%whose, run, rank, stream, "too many streams of launchers: the user with the most loses one");
        }
    }
}

impl Stream {
    fn new(hub: &Hub, run: &str, rank: u32, stream: &str, now: f64) -> Self {
        let name: Arc<str> = format!("{run}/{rank}/{stream}").into();
        let zone = Zone::of_host(now);
        // Only a configured name can be unknown, and there is none.
        let mut reader = LogReader::new(None).unwrap_or_else(|_| LogReader::with_keys([]));
        if let Some(step) = hub.last_step(run, rank) {
            reader.resume(step);
        }
        let health = hub.source(&name, "launcher");
        let held = hub.room().share();
        Self { reader, zone, health, name, unmatched: 0, held, logged: false, ranks: BTreeSet::new() }
    }

    /// The events of newly written lines.
    fn read(&mut self, lines: &[&str], batch: &Event, now: f64) -> Vec<Event> {
        let mut events = Vec::new();
        for line in lines {
            let (first, before) = (events.len(), self.reader.local_stamp());
            self.reader.set_utc_offset(self.zone.offset());
            self.reader.line(line, &mut events);
            // A line was just printed, so its stamp shows its time zone.
            let Some(stamp) = self.reader.local_stamp().filter(|stamp| Some(*stamp) != before) else {
                continue;
            };
            let wrong = stamp - self.zone.offset();
            if self.zone.observe(stamp, batch.ts.unwrap_or(now)) != 0.0 {
                let right = stamp - self.zone.offset();
                events[first..].iter_mut().filter(|e| e.ts == Some(wrong)).for_each(|e| e.ts = Some(right));
            }
        }
        self.health.up(true);
        let unmatched = self.reader.counters().unmatched;
        self.health.unmatched_lines(unmatched - core::mem::replace(&mut self.unmatched, unmatched));
        for (metric, step) in self.reader.resolution().iter() {
            if let Some(known) = stepwatch_wire::names::metric::ALL.iter().find(|known| **known == metric) {
                self.health.resolution(known, step);
            }
        }
        self.named(events, batch)
    }

    /// Discards the incomplete line if there is no room for it.
    fn give_up_beyond_room(&mut self, principal: Principal) {
        if self.held.hold(principal, self.reader.pending_bytes()) {
            return;
        }
        self.reader.give_up_pending();
        self.health.dropped(unfinished::LIMIT, 1);
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!(stream = %self.name, whose = %principal, "there is no room for the unfinished lines of a stream");
        }
    }

    /// Sets the run, rank and time of events. The launcher itself reports how the command ended.
    fn named(&mut self, mut events: Vec<Event>, of: &Event) -> Vec<Event> {
        events.retain(|event| event.kind != Kind::Bye);
        for event in &mut events {
            event.run.clone_from(&of.run);
            event.world = event.world.or(of.world);
            event.ts = event.ts.or(of.ts);
            let own = of.rank.unwrap_or(0);
            let rank = *event.rank.get_or_insert(own);
            if rank != own && self.ranks.len() < MAX_RANKS {
                self.ranks.insert(rank);
            }
        }
        events
    }

    fn publish(&self, hub: &Hub, now: f64, principal: Principal, events: Vec<Event>) {
        let origin = Origin::said_by(Via::Launcher, &self.name, Priority::Log, principal);
        for event in events {
            self.health.lag_seconds(now - event.ts.unwrap_or(now));
            hub.publish_at(now, &origin, event);
        }
    }
}

/// The connection that sent the lines, if it is one that stays open.
fn connection(origin: &Origin) -> Option<u64> {
    if let Origin::Peer(peer) = origin { Some(peer.connection) } else { None }
}

fn text(event: &Event, key: &str) -> String {
    event.extra.get(key).and_then(Value::as_str).unwrap_or_default().chars().take(32).collect()
}

#[cfg(test)]
mod tests;
