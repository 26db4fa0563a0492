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
use crate::node::Node;
use crate::run::{Run, Tellers};

/// Version of the stored form of every part; a part of another version is not restored.
const STATE_VERSION: u8 = 12;
/// What the names of the parts of memories begin with.
const MEMORY: &str = "memory/";

/// A part of the state that changed since the last call of [`Engine::take_dirty`]: `None` means it
/// is gone.
pub type StatePart = (String, Option<Vec<u8>>);

impl Engine {
    /// The parts of the state that changed, as key and opaque bytes, to be stored with the effects
    /// in one transaction.
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

    /// Of these, those that do not follow from the streams: enough to be stored with what a person
    /// said, or another program, while what the streams said has led to nothing since all was
    /// stored. The rest waits for [`Self::take_dirty`].
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

    /// Rebuilds an engine from stored parts, exactly as it was. A part of another version, or
    /// damaged, is named in the second value and left out; what it told of ends with
    /// [`Self::resume`], unless it is told again.
    pub fn restore(
        config: EngineConfig,
        parts: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> (Self, Vec<String>) {
        let mut engine = Self::new(config);
        let mut unusable = Vec::new();
        for (name, bytes) in parts {
            let usable = match Key::parse(&name) {
                Some(Key::Incident(id)) => decode_incident(&bytes).map(|i| engine.book.restore(id, i)),
                Some(Key::Batches) => decode::<Batches>(&bytes).map(|b| engine.batches = b),
                Some(Key::Calendar(name)) => decode(&bytes).map(|c| {
                    if !Arc::make_mut(&mut engine.book.oncall).restore_calendar(&name, c) {
                        engine.dirty.insert(Key::Calendar(name));
                    }
                }),
                Some(Key::Storms) => decode(&bytes).map(|s| engine.book.storms = s),
                Some(Key::Ledger) => decode::<LedgerRow>(&bytes).map(|row| engine.book.ledger.restore(row)),
                Some(Key::Run(run)) => decode_run(&bytes).map(|mut r| {
                    r.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Run(run.clone()), run_deadline(&r));
                    engine.runs.insert(run, r);
                }),
                Some(Key::Node(node)) => decode::<Node>(&bytes).map(|mut n| {
                    n.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Node(node.clone()), Some(n.deadline()));
                    engine.nodes.insert(node, n);
                }),
                Some(Key::Source(source)) => decode(&bytes).map(|s| {
                    engine.sources.insert(source, s);
                }),
                Some(Key::Standard(key)) => decode(&bytes).map(|s| {
                    engine.standards.insert(key, s);
                }),
                None if name.starts_with(MEMORY) => decode(&bytes).map(|m| engine.book.ledger.remember(m)),
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

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first()?;
    (*version == STATE_VERSION).then(|| postcard::from_bytes(rest).ok())?
}

fn decode_run(bytes: &[u8]) -> Option<Run> {
    let (run, tellers): (Run, Tellers) = decode(bytes)?;
    Some(run.with_tellers(tellers))
}

fn decode_incident(bytes: &[u8]) -> Option<Incident> {
    let (mut incident, remedies, later, origin): (Incident, Remedies, Later, Option<Origin>) = decode(bytes)?;
    incident.summary.remedies = remedies;
    incident.origin = origin;
    later.give_to(&mut incident);
    Some(incident)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stepwatch_wire::Event;

    use super::*;
    use crate::effect::Input;
    use crate::time::{Span, Ts};

    #[test]
    fn a_part_of_another_version_is_named_and_left_out() {
        let (_, id, mut parts) = paged();
        for (_, part) in &mut parts {
            part.iter_mut().for_each(|bytes| bytes[0] -= 1);
        }
        let named: Vec<String> = parts.iter().map(|(name, _)| name.clone()).collect();
        let parts = parts.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
        let (restored, unusable) = Engine::restore(EngineConfig::default(), parts);
        assert_eq!((restored.open_count(), unusable == named), (0, true), "{id}: {unusable:?}");
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
