//! What a command prints that `stepwatch run` started: read as a log is, line by line, for each
//! rank and stream by itself.
//!
//! The launcher sends lines as events called `output`. They end here: what they say goes on as
//! events of a log, the lines themselves do not, for they are neither measured nor meant for
//! whoever reads the stream. A launcher is not the process that trains: what its goodbye says is
//! true of every rank whose lines came through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use stepwatch_formats::LogReader;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::hub::Hub;
use crate::lock::Locked as _;
use crate::origin::Priority;
use crate::origin::{Origin, Outcome, Via};
use crate::source::SourceHandle;
use crate::voice::Voice;
use crate::zone::Zone;

/// Streams that are read at once; the one that was silent for longest makes room.
const MAX_STREAMS: usize = 256;
/// A stream that said nothing for so many seconds is over.
const FORGET_AFTER: f64 = 24.0 * 3600.0;
/// Ranks that the lines of one launcher tell of.
const MAX_RANKS: usize = 64;

/// Name of the event.
const OUTPUT: &str = "output";

/// Run, rank and name of the stream.
type Key = (String, u32, String);

/// The streams of every launcher.
#[derive(Debug, Default)]
struct Outputs(Mutex<BTreeMap<Key, Arc<Mutex<Stream>>>>);

#[derive(Debug)]
struct Stream {
    reader: LogReader,
    zone: Zone,
    name: Arc<str>,
    health: SourceHandle,
    heard: f64,
    unmatched: u64,
    /// Ranks that it told of, beside the launcher's own.
    ranks: BTreeSet<u32>,
}

/// Whether an event is a batch of lines.
fn is_output(event: &Event) -> bool {
    event.kind == Kind::Event && event.name.as_deref() == Some(OUTPUT) && event.extra.contains_key("lines")
}

/// Whether a launcher says that its command has ended.
fn is_end(event: &Event) -> bool {
    event.kind == Kind::Bye && event.extra.get(hello::ROLE).and_then(Value::as_str) == Some(hello::LAUNCHER)
}

/// Where trainers and launchers bring their events: batches of a launcher's lines are read here,
/// everything else is for the hub.
#[derive(Debug, Clone)]
pub(crate) struct Intake {
    pub(crate) hub: Hub,
    outputs: Arc<Outputs>,
}

impl Intake {
    pub(crate) fn new(hub: Hub) -> Self {
        Self { hub, outputs: Arc::default() }
    }

    pub(crate) fn publish(&self, origin: &Origin, event: Event) -> Outcome {
        self.publish_at(unix_now(), origin, event)
    }

    fn publish_at(&self, now: f64, origin: &Origin, mut event: Event) -> Outcome {
        let voice = origin.voice();
        if is_output(&event) || is_end(&event) {
            self.hub.set_apart(origin, &mut event);
        }
        if is_output(&event) {
            // Lines are read as they came.
            let refused = self.hub.stranger(now, voice, &mut event);
            return refused.unwrap_or_else(|| self.outputs.take(&self.hub, now, voice, &event));
        }
        if is_end(&event) {
            let mut bye = event.clone();
            bye.clean();
            if let Some(refused) = self.hub.stranger(now, voice, &mut bye) {
                return refused;
            }
            self.outputs.end(&self.hub, now, origin, &bye);
        }
        self.hub.publish_at(now, origin, event)
    }
}

impl Outputs {
    /// Reads a batch of lines and publishes what they say.
    fn take(&self, hub: &Hub, now: f64, voice: Voice, batch: &Event) -> Outcome {
        let Some(run) = batch.run.clone() else { return Outcome::Accepted };
        let key = (run, batch.rank.unwrap_or(0), text(batch, "stream"));
        let stream = self.stream(hub, now, key);
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
        // While the stream is held: its events are published in its order.
        stream.publish(hub, now, voice, events);
        Outcome::Accepted
    }

    /// The stream with this key, made when it is first heard of.
    fn stream(&self, hub: &Hub, now: f64, key: Key) -> Arc<Mutex<Stream>> {
        let mut all = self.0.locked();
        if !all.contains_key(&key) {
            all.retain(|_, s| s.try_lock().map_or(true, |s| now - s.heard < FORGET_AFTER));
            if all.len() >= MAX_STREAMS {
                let heard = |s: &Mutex<Stream>| s.try_lock().map_or(f64::INFINITY, |s| s.heard);
                let oldest = all.iter().min_by(|(_, a), (_, b)| heard(a).total_cmp(&heard(b)));
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    all.remove(&oldest);
                }
            }
        }
        if let Some(stream) = all.get(&key) {
            return Arc::clone(stream);
        }
        let stream = Arc::new(Mutex::new(Stream::new(hub, &key.0, key.1, &key.2, now)));
        all.insert(key, Arc::clone(&stream));
        stream
    }

    /// The command has ended: gives out what was gathered, and says goodbye for the ranks that only
    /// its lines told of.
    fn end(&self, hub: &Hub, now: f64, origin: &Origin, bye: &Event) {
        let Some(run) = &bye.run else { return };
        let own = bye.rank.unwrap_or(0);
        let mut ended = Vec::new();
        self.0.locked().retain(|(r, rank, _), stream| {
            let theirs = r == run && *rank == own;
            if theirs {
                ended.push(Arc::clone(stream));
            }
            !theirs
        });
        let mut ranks = BTreeSet::new();
        for stream in ended {
            let mut stream = stream.locked();
            let mut events = Vec::new();
            stream.reader.rest(&mut events);
            let events = stream.named(events, bye);
            stream.publish(hub, now, origin.voice(), events);
            ranks.extend(stream.ranks.iter().copied());
        }
        for rank in ranks {
            hub.publish_at(now, origin, Event { rank: Some(rank), ..bye.clone() });
        }
    }
}

impl Stream {
    fn new(hub: &Hub, run: &str, rank: u32, stream: &str, now: f64) -> Self {
        let name: Arc<str> = format!("{run}/{rank}/{stream}").into();
        let zone = Zone::of_host(now);
        // Only a name can be unknown.
        let mut reader = LogReader::new(None).unwrap_or_else(|_| LogReader::with_keys([]));
        if let Some(step) = hub.last_step(run, rank) {
            reader.resume(step);
        }
        let health = hub.source(&name, "launcher");
        Self { reader, zone, health, name, heard: now, unmatched: 0, ranks: BTreeSet::new() }
    }

    /// What lines say that were written just now.
    fn read(&mut self, lines: &[&str], batch: &Event, now: f64) -> Vec<Event> {
        self.heard = now;
        let mut events = Vec::new();
        for line in lines {
            let (first, before) = (events.len(), self.reader.local_stamp());
            self.reader.set_utc_offset(self.zone.offset());
            self.reader.line(line, &mut events);
            // A line that was just printed tells which zone its stamp is in.
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

    /// Whose events they are. How the command ended its launcher will say.
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

    fn publish(&self, hub: &Hub, now: f64, voice: Voice, events: Vec<Event>) {
        let origin = Origin::said_by(Via::Launcher, &self.name, Priority::Log, voice);
        for event in events {
            self.health.lag_seconds(now - event.ts.unwrap_or(now));
            hub.publish_at(now, &origin, event);
        }
    }
}

fn text(event: &Event, key: &str) -> String {
    event.extra.get(key).and_then(Value::as_str).unwrap_or_default().chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Peer;
    use crate::samples::Samples;
    use crate::source::{DROPPED, UNMATCHED, UP};
    use crate::testing::{hub, published};

    const NOW: f64 = 1_795_227_416.0;
    const PEER: Origin = Origin::Peer(Peer { connection: 1, pid: None, uid: 0 });

    fn intake() -> Intake {
        Intake::new(hub())
    }

    fn send(intake: &Intake, text: &str) -> Outcome {
        let mut event = Event::parse(text.as_bytes()).unwrap();
        event.ts = event.ts.or(Some(NOW));
        intake.publish_at(NOW, &PEER, event)
    }

    fn output(intake: &Intake, stream: &str, lines: &[&str]) {
        let lines = serde_json::to_string(lines).unwrap();
        let text = format!(
            r#"{{"k":"event","name":"output","role":"launcher","run":"r","rank":0,"world":8,"stream":"{stream}","lines":{lines}}}"#
        );
        assert_eq!(send(intake, &text), Outcome::Accepted);
    }

    const HELLO: &str = r#"{"k":"hello","role":"launcher","run":"r","rank":0,"command":"torchrun"}"#;
    const BYE: &str = r#"{"k":"bye","role":"launcher","run":"r","rank":0,"code":1,"text":"ValueError: no"}"#;

    fn line(step: u32, loss: f64) -> String {
        format!("iteration {step}/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss: {loss:.2E} |")
    }

    #[test]
    fn lines_become_events_and_go_no_further() {
        let intake = intake();
        send(&intake, HELLO);
        output(&intake, "stdout", &["hello", &line(7, 2.5)]);
        output(&intake, "stderr", &["a warning"]);
        output(&intake, "stdout", &[&line(8, 2.25)]);
        let events = published(&intake.hub);
        assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Hello, Kind::Step, Kind::Step]);
        let step = &events[2];
        assert_eq!((step.run.as_deref(), step.rank, step.world), (Some("r"), Some(0), Some(8)));
        assert_eq!((step.step, step.m.get("loss"), step.ts), (Some(8), Some(2.25), Some(NOW)));
        let mut page = Samples::default();
        intake.hub.write(&mut page);
        assert_eq!(page.get(&UP, &["r/0/stdout", "launcher"]), Some(1.0));
        assert_eq!(page.get(&UNMATCHED, &["r/0/stderr", "launcher"]), Some(1.0));
    }

    #[test]
    fn a_client_in_the_script_is_believed_before_its_output() {
        let intake = intake();
        send(&intake, r#"{"k":"step","run":"r","rank":0,"step":7,"m":{"loss":2.4999}}"#);
        output(&intake, "stdout", &[&line(7, 2.5)]);
        let losses: Vec<_> = published(&intake.hub).iter().filter_map(|e| e.m.get("loss")).collect();
        assert_eq!(losses, [2.4999]);
    }

    #[test]
    fn zones_are_found_out() {
        let intake = intake();
        // Two hours ahead of UTC.
        output(&intake, "stdout", &[&format!(" [2026-11-21 04:16:55.5] {}", line(7, 2.5))]);
        assert_eq!(published(&intake.hub)[0].ts, Some(1_795_227_415.5));
    }

    #[test]
    fn the_end_is_that_of_every_rank_that_was_heard_through_it() {
        let intake = intake();
        send(&intake, HELLO);
        output(
            &intake,
            "stdout",
            &[&format!("[rank3]: {}", line(7, 2.5)), &format!("[rank0]: {}", line(7, 2.5))],
        );
        send(&intake, BYE);
        let events = published(&intake.hub);
        let byes: Vec<_> = events.iter().filter(|e| e.kind == Kind::Bye).map(|e| (e.rank, e.code)).collect();
        assert_eq!(byes, [(Some(3), Some(1)), (Some(0), Some(1))]);
        assert_eq!(events.last().unwrap().text.as_deref(), Some("ValueError: no"));
        let mut page = Samples::default();
        intake.hub.write(&mut page);
        assert_eq!(page.get(&UP, &["r/0/stdout", "launcher"]), None, "its streams are over");
    }

    #[test]
    fn what_was_lost_on_the_way_is_counted() {
        let intake = intake();
        let text = r#"{"k":"event","name":"output","run":"r","rank":0,"stream":"stdout","lines":["x"],"cut":2,"lost_bytes":500}"#;
        send(&intake, text);
        let mut page = Samples::default();
        intake.hub.write(&mut page);
        assert_eq!(page.get(&DROPPED, &["r/0/stdout", "launcher", "line_cut"]), Some(2.0));
        assert_eq!(page.get(&DROPPED, &["r/0/stdout", "launcher", "launcher_bytes"]), Some(500.0));
    }

    #[test]
    fn streams_are_bounded() {
        let intake = intake();
        for i in 0..MAX_STREAMS + 10 {
            output(&intake, &i.to_string(), &["x"]);
        }
        let mut page = Samples::default();
        intake.hub.write(&mut page);
        assert_eq!(page.iter().filter(|s| s.family == &UP).count(), MAX_STREAMS);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(lines: Vec<String>, stream: String) {
            let intake = intake();
            let extra = [
                ("lines".to_owned(), Value::List(lines.into_iter().map(Value::Text).collect())),
                ("stream".to_owned(), Value::Text(stream)),
            ];
            let name = Some(OUTPUT.to_owned());
            let event = Event { run: Some("r".into()), name, extra: extra.into(), ..Event::new(Kind::Event) };
            intake.publish_at(NOW, &PEER, event);
            send(&intake, BYE);
        }
    }
}
