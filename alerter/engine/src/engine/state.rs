//! The stored form of the engine: one part a run, a node, a source and an incident.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Engine, Key, run_deadline};
use crate::batches::Batches;
use crate::cause::Remedies;
use crate::config::EngineConfig;
use crate::incident::Scope;
use crate::incident::Subject;
use crate::incident::book::Incident;
use crate::incident::ledger::LedgerRow;
use crate::incident::origin::Origin;
use crate::incident::stored::Later;
use crate::incident::v4::IncidentV4;
use crate::node::Node;
use crate::run::{Run, Tellers};

/// Version of the stored form of every part; a part of another version is not restored.
const STATE_VERSION: u8 = 11;
/// Since when the ledger has its form.
const LEDGER_SINCE: u8 = 4;
/// Since when all have theirs but runs and nodes, which learn again.
const OTHERS_SINCE: u8 = 5;
/// Since when an incident ends with who has paged in it, and what has to be done stands after it; since when a source ends with the nodes
/// that it speaks for.
const GREW_AT: u8 = 9;
/// Since when what came to it later stands after that.
const GREW_AGAIN_AT: u8 = 10;
/// Since when a run ends with who told of it, and an incident with where it comes from.
const ORIGINS_SINCE: u8 = 11;
/// Since when runs and nodes have had their form but for that.
const RUNS_SINCE: u8 = 10;
/// How that is written where there is none of it: both are sets.
const EMPTY: u8 = 0;
/// What the names of the parts of memories begin with.
const MEMORY: &str = "memory/";

/// A part of the state that changed since the last call of [`Engine::take_dirty`]: `None` means it is gone.
pub type StatePart = (String, Option<Vec<u8>>);

impl Engine {
    /// The parts of the state that changed, as key and opaque bytes, to be stored with the effects in one transaction.
    pub fn take_dirty(&mut self) -> Vec<StatePart> {
        let dirty = core::mem::take(&mut self.dirty);
        for key in &dirty {
            if let Key::Run(run) = key {
                if let Some(run) = self.runs.get_mut(run) {
                    run.noted.dirty = false;
                }
            }
        }
        dirty.into_iter().map(|key| (key.name(), self.part(&key))).collect()
    }

    /// Of these, those that do not follow from the streams: enough to be stored with what a person said, or another program, while
    /// what the streams said has led to nothing since all was stored. The rest waits for [`Self::take_dirty`].
    pub fn take_dirty_answers(&mut self) -> Vec<StatePart> {
        let (streams, answers) = core::mem::take(&mut self.dirty).into_iter().partition(Key::is_of_streams);
        self.dirty = streams;
        answers.into_iter().map(|key| (key.name(), self.part(&key))).collect()
    }

    fn part(&self, key: &Key) -> Option<Vec<u8>> {
        match key {
            // Stored by themselves, in tables that people read.
            Key::Alerts | Key::Silence(_) => None,
            Key::Incident(id) => {
                let kept = self.book.open.get(id).or_else(|| self.book.closed.get(id));
                kept.and_then(|i| encode(&(i, &i.summary.remedies, Later::of(i), &i.origin)))
            }
            Key::Batches => encode(&self.batches),
            Key::Storms => encode(&self.book.storms),
            Key::Calendar(name) => self.book.oncall.stored_calendar(name).as_ref().and_then(encode),
            Key::Ledger => encode(&self.book.ledger.row()),
            Key::Memory(subject) => self.book.ledger.memory(subject).and_then(encode),
            Key::Node(name) => self.nodes.get(name).and_then(encode),
            Key::Run(name) => self.runs.get(name).and_then(|run| encode(&(run, &run.tellers))),
            Key::Source(name) => self.sources.get(name).and_then(encode),
            Key::Standard(key) => self.standards.get(key).and_then(encode),
        }
    }

    /// Rebuilds an engine from stored parts, exactly as it was. A part of another version, or damaged, is named in the second
    /// value and left out; what it told of ends with [`Self::resume`], unless it is told again.
    pub fn restore(
        config: EngineConfig,
        parts: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> (Self, Vec<String>) {
        let mut engine = Self::new(config);
        let mut unusable = Vec::new();
        for (name, bytes) in parts {
            let usable = match Key::parse(&name) {
                Some(Key::Incident(id)) => decode_incident(&bytes).map(|i| engine.book.restore(id, i)),
                Some(Key::Batches) => {
                    decode_since::<Batches>(OTHERS_SINCE, &bytes).map(|b| engine.batches = b)
                }
                Some(Key::Calendar(name)) => decode_since(OTHERS_SINCE, &bytes).map(|c| {
                    if !Arc::make_mut(&mut engine.book.oncall).restore_calendar(&name, c) {
                        engine.dirty.insert(Key::Calendar(name));
                    }
                }),
                Some(Key::Storms) => decode_since(OTHERS_SINCE, &bytes).map(|s| engine.book.storms = s),
                Some(Key::Ledger) => {
                    decode_since::<LedgerRow>(LEDGER_SINCE, &bytes).map(|row| engine.book.ledger.restore(row))
                }
                Some(Key::Run(run)) => decode_run(&bytes).map(|mut r| {
                    r.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Run(run.clone()), run_deadline(&r));
                    engine.runs.insert(run, r);
                }),
                Some(Key::Node(node)) => decode_since::<Node>(RUNS_SINCE, &bytes).map(|mut n| {
                    n.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Node(node.clone()), Some(n.deadline()));
                    engine.nodes.insert(node, n);
                }),
                Some(Key::Source(source)) => decode_grown(&bytes).map(|s| {
                    engine.sources.insert(source, s);
                }),
                Some(Key::Standard(key)) => decode_since(OTHERS_SINCE, &bytes).map(|s| {
                    engine.standards.insert(key, s);
                }),
                None if name.starts_with(MEMORY) => {
                    decode_since(OTHERS_SINCE, &bytes).map(|m| engine.book.ledger.remember(m))
                }
                Some(Key::Alerts | Key::Memory(_) | Key::Silence(_)) | None => None,
            };
            if usable.is_none() {
                match Key::parse(&name) {
                    Some(Key::Run(run)) => drop(engine.unread.insert(Scope::Run(run))),
                    Some(Key::Node(node)) => drop(engine.unread.insert(Scope::Node(node))),
                    _ => {}
                }
                unusable.push(name);
            }
        }
        engine.place_all();
        engine.book.restored();
        engine.settle();
        (engine, unusable)
    }

    /// What is not stored follows from what is.
    fn place_all(&mut self) {
        for (name, run) in &self.runs {
            for node in run.facts.nodes.keys() {
                self.placement.came(name, node);
            }
        }
        for (name, source) in &self.sources {
            self.speakers.note(name, source);
        }
        self.count_ranks();
        for (name, node) in &self.nodes {
            self.placement.set_clock(name, node.facts.gpus.loaded_clock("").map(|(clock, _)| clock));
            self.fabric.note(&node.facts);
        }
    }
}

impl Key {
    /// Stored with the cursors up to which the streams were read.
    fn is_of_streams(&self) -> bool {
        matches!(self, Self::Batches | Self::Node(_) | Self::Run(_) | Self::Source(_) | Self::Standard(_))
    }

    fn name(&self) -> String {
        match self {
            Self::Alerts => "alerts".into(),
            Self::Incident(id) => format!("incident/{id}"),
            Self::Batches => "batches".into(),
            Self::Storms => "storms".into(),
            Self::Calendar(name) => format!("calendar/{name}"),
            Self::Ledger => "ledger".into(),
            Self::Memory(Subject { scope, cause }) => {
                let of = match scope {
                    Scope::Run(_) => "run",
                    Scope::Node(_) => "node",
                    Scope::Own(_) => "own",
                    Scope::Storm(_) => "storm",
                    Scope::Alert(_) => "alert",
                };
                format!("{MEMORY}{of}/{}/{}", cause.as_str(), scope.name())
            }
            Self::Node(name) => format!("node/{name}"),
            Self::Run(name) => format!("run/{name}"),
            Self::Silence(id) => format!("silence/{id}"),
            Self::Source(name) => format!("source/{name}"),
            Self::Standard(key) => format!("standard/{key}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        match name.split_once('/') {
            Some(("calendar", name)) => Some(Self::Calendar(name.to_owned())),
            Some(("incident", id)) => Some(Self::Incident(id.to_owned())),
            Some(("node", node)) => Some(Self::Node(node.to_owned())),
            Some(("run", run)) => Some(Self::Run(run.to_owned())),
            Some(("source", source)) => Some(Self::Source(source.to_owned())),
            Some(("standard", key)) => Some(Self::Standard(key.to_owned())),
            _ => match name {
                "batches" => Some(Self::Batches),
                "storms" => Some(Self::Storms),
                "ledger" => Some(Self::Ledger),
                _ => None,
            },
        }
    }
}

fn encode<T: Serialize>(part: &T) -> Option<Vec<u8>> {
    let mut bytes = vec![STATE_VERSION];
    bytes.extend(postcard::to_stdvec(part).ok()?);
    Some(bytes)
}

/// What was learned of a run before it was known who told of it stays learned.
fn decode_run(bytes: &[u8]) -> Option<Run> {
    if bytes.first().is_some_and(|version| *version < ORIGINS_SINCE) {
        return decode_since(RUNS_SINCE, bytes);
    }
    let (run, tellers) = decode_since::<(Run, Tellers)>(ORIGINS_SINCE, bytes)?;
    Some(run.with_tellers(tellers))
}

/// Of a part whose form has been the same since a version.
fn decode_since<T: DeserializeOwned>(since: u8, bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first()?;
    let known = (since..=STATE_VERSION).contains(version);
    known.then(|| postcard::from_bytes(rest).ok())?
}

/// Of a part that has one set more at its end than it had.
fn decode_grown<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    if bytes.first().is_some_and(|version| *version < GREW_AT) {
        return decode_since(OTHERS_SINCE, &[bytes, &[EMPTY]].concat());
    }
    decode_since(GREW_AT, bytes)
}

/// What people know of and have answered outlives an upgrade, whatever else is learned again.
fn decode_incident(bytes: &[u8]) -> Option<Incident> {
    match bytes.split_first()? {
        (4, rest) => postcard::from_bytes::<IncidentV4>(rest).ok().map(Incident::from),
        (ORIGINS_SINCE.., _) => {
            let (mut incident, remedies, later, origin): (Incident, Remedies, Later, Option<Origin>) =
                decode_since(ORIGINS_SINCE, bytes)?;
            incident.summary.remedies = remedies;
            incident.origin = origin;
            later.give_to(&mut incident);
            Some(incident)
        }
        (GREW_AGAIN_AT.., _) => {
            let (mut incident, remedies, later): (Incident, Remedies, Later) =
                decode_since(GREW_AGAIN_AT, bytes)?;
            incident.summary.remedies = remedies;
            later.give_to(&mut incident);
            Some(incident)
        }
        (GREW_AT.., _) => {
            let (mut incident, remedies) = decode_since::<(Incident, Remedies)>(GREW_AT, bytes)?;
            incident.summary.remedies = remedies;
            Some(incident)
        }
        _ => {
            let mut incident: Incident = decode_grown(bytes)?;
            incident.remember_pages();
            Some(incident)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stepwatch_wire::{Event, names::metric};

    use super::*;
    use crate::effect::Input;
    use crate::time::{Span, Ts};

    #[test]
    fn what_people_know_of_and_what_was_measured_outlive_an_upgrade() {
        let mut engine = Engine::new(EngineConfig::default());
        for step in 1..60 {
            let mut e = Event::step("llama-70b", step);
            (e.rank, e.ts) = (Some(0), Some(step as f64));
            e.m.set(metric::LOSS, if step < 55 { 2.0 } else { f64::NAN });
            engine.handle(Ts(1000 * step), Input::Event { source: "n:1", event: &e }, &mut Vec::new());
        }
        let id = engine.open_incidents().next().map(|i| i.id.clone()).expect("a loss that is none");
        engine.handle(Ts(60_000), Input::Ack { incident: &id, by: "sam" }, &mut Vec::new());
        let parts: Vec<_> =
            engine.take_dirty().into_iter().filter_map(|(key, part)| Some((key, part?))).collect();
        let remedies = postcard::to_stdvec(&engine.book.open[&id].summary.remedies).unwrap().len();
        let later = postcard::to_stdvec(&Later::of(&engine.book.open[&id])).unwrap().len();
        let origin = postcard::to_stdvec(&engine.book.open[&id].origin).unwrap().len();
        let tellers = postcard::to_stdvec(&engine.runs["llama-70b"].tellers).unwrap().len();
        for version in OTHERS_SINCE..STATE_VERSION {
            let mut before = parts.clone();
            for (name, part) in &mut before {
                part[0] = version;
                // Then an incident ended before the runs and nodes that paged, one run here, before what has to be done, and before where it
                // comes from; a source before its nodes, of which there is none; and a run before who tells of it.
                let grown = match name.split('/').next() {
                    Some("incident") if version < GREW_AT => {
                        3 + "llama-70b".len() + remedies + later + origin
                    }
                    Some("incident") if version < GREW_AGAIN_AT => later + origin,
                    Some("incident") => origin,
                    Some("run") => tellers,
                    Some("source") if version < GREW_AT => 1,
                    _ => 0,
                };
                part.truncate(part.len() - grown);
            }
            let (restored, unusable) = Engine::restore(EngineConfig::default(), before);
            let open: Vec<_> =
                restored.open_incidents().map(|i| (i.id.as_str(), i.acked_by.as_deref())).collect();
            assert_eq!(open, [(id.as_str(), Some("sam"))], "of version {version}");
            let learns_again = if version < RUNS_SINCE { vec!["run/llama-70b"] } else { Vec::new() };
            assert_eq!(unusable, learns_again, "of version {version}");
        }
    }

    const NOW: Ts = Ts(1_795_227_416_000);

    fn names(parts: &[StatePart], of: &str) -> usize {
        parts.iter().filter(|(name, _)| name.starts_with(of)).count()
    }

    /// A page of a run, and all of it stored.
    fn paged() -> (Engine, String, Vec<StatePart>) {
        let mut engine =
            Engine::new(EngineConfig { receivers: vec!["chat".into()], ..EngineConfig::default() });
        step(&mut engine, "r", 1, "2.5");
        step(&mut engine, "r", 2, r#""NaN""#);
        let id = engine.open_incidents().next().unwrap().id.clone();
        let parts = engine.take_dirty();
        (engine, id, parts)
    }

    fn step(engine: &mut Engine, run: &str, step: i64, loss: &str) {
        let line =
            format!(r#"{{"k":"step","run":"{run}","rank":0,"world":8,"step":{step},"m":{{"loss":{loss}}}}}"#);
        let event = Event::parse(line.as_bytes()).unwrap();
        engine.handle(NOW, Input::Event { source: "n:1", event: &event }, &mut Vec::new());
    }

    #[test]
    fn an_answer_is_stored_without_what_the_streams_said_since() {
        let (mut engine, id, _) = paged();
        step(&mut engine, "other", 1, "2.5");
        engine.handle(NOW, Input::Ack { incident: &id, by: "ann" }, &mut Vec::new());
        let answers = engine.take_dirty_answers();
        assert_eq!(
            (names(&answers, "incident/"), names(&answers, "run/"), names(&answers, "source/")),
            (1, 0, 0)
        );
        let rest = engine.take_dirty();
        assert_eq!(
            (names(&rest, "incident/"), names(&rest, "run/other"), names(&rest, "source/")),
            (0, 1, 1)
        );
    }

    #[test]
    fn each_memory_is_a_part_of_its_own_and_goes_when_it_is_old() {
        let (mut engine, id, mut stored) = paged();
        engine.handle(NOW, Input::Resolve { incident: &id, by: "ann" }, &mut Vec::new());
        stored.extend(engine.take_dirty());
        let name = "memory/run/numerics/r";
        assert_eq!(names(&stored, name), 1);
        // The later word on a part counts.
        let parts: BTreeMap<String, Option<Vec<u8>>> = stored.into_iter().collect();
        let parts = parts.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
        let (mut restored, unusable) = Engine::restore(EngineConfig::default(), parts);
        assert_eq!(unusable, [""; 0]);
        step(&mut restored, "r", 3, r#""NaN""#);
        assert_eq!(restored.open_count(), 0, "a person closed it");
        // It clears, an hour goes by, and another incident opens: nobody remembers.
        step(&mut restored, "r", 4, "2.5");
        restored.take_dirty();
        let mut out = Vec::new();
        restored.tick(NOW + Span::secs(30 * 86_400), &mut out);
        let later =
            Event::parse(br#"{"k":"step","run":"new","rank":0,"step":1,"m":{"loss":"NaN"}}"#).unwrap();
        let input = Input::Event { source: "n:1", event: &later };
        restored.handle(NOW + Span::secs(30 * 86_400), input, &mut out);
        let gone = restored.take_dirty().into_iter().find(|(part, _)| part == name);
        assert_eq!(gone, Some((name.to_owned(), None)));
    }
}
