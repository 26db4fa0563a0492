//! The stored form of the engine: one part a run, a node, a source and an incident.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Engine, Key, run_deadline};
use crate::batches::Batches;
use crate::config::EngineConfig;
use crate::incident::book::Incident;
use crate::incident::ledger::Ledger;
use crate::incident::v4::IncidentV4;
use crate::node::Node;
use crate::run::Run;

/// Version of the stored form of every part; a part of another version is not restored.
const STATE_VERSION: u8 = 6;
/// Since when the ledger has its form.
const LEDGER_SINCE: u8 = 4;
/// Since when all have theirs but runs and nodes, which learn again.
const OTHERS_SINCE: u8 = 5;

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

    fn part(&self, key: &Key) -> Option<Vec<u8>> {
        match key {
            // Stored by themselves, in tables that people read.
            Key::Alerts | Key::Silence(_) => None,
            Key::Incident(id) => self.book.open.get(id).and_then(encode),
            Key::Batches => encode(&self.batches),
            Key::Storms => encode(&self.book.storms),
            Key::Calendar(name) => self.book.oncall.stored_calendar(name).as_ref().and_then(encode),
            Key::Ledger => encode(&self.book.ledger),
            Key::Node(name) => self.nodes.get(name).and_then(encode),
            Key::Run(name) => self.runs.get(name).and_then(encode),
            Key::Source(name) => self.sources.get(name).and_then(encode),
            Key::Standard(key) => self.standards.get(key).and_then(encode),
        }
    }

    /// Rebuilds an engine from stored parts, exactly as it was. A part of another version, or damaged, is named in the second
    /// value and left out.
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
                    decode_since::<Ledger>(LEDGER_SINCE, &bytes).map(|l| engine.book.ledger = l)
                }
                Some(Key::Run(run)) => decode::<Run>(&bytes).map(|mut r| {
                    r.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Run(run.clone()), run_deadline(&r));
                    engine.runs.insert(run, r);
                }),
                Some(Key::Node(node)) => decode::<Node>(&bytes).map(|mut n| {
                    n.configure(&engine.book.config.detectors);
                    engine.timers.set(&Key::Node(node.clone()), Some(n.deadline()));
                    engine.nodes.insert(node, n);
                }),
                Some(Key::Source(source)) => decode_since(OTHERS_SINCE, &bytes).map(|s| {
                    engine.sources.insert(source, s);
                }),
                Some(Key::Standard(key)) => decode_since(OTHERS_SINCE, &bytes).map(|s| {
                    engine.standards.insert(key, s);
                }),
                Some(Key::Alerts | Key::Silence(_)) | None => None,
            };
            if usable.is_none() {
                unusable.push(name);
            }
        }
        engine.place_all();
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
        for (name, node) in &self.nodes {
            self.placement.set_clock(name, node.facts.gpus.loaded_clock("").map(|(clock, _)| clock));
        }
    }
}

impl Key {
    fn name(&self) -> String {
        match self {
            Self::Alerts => "alerts".into(),
            Self::Incident(id) => format!("incident/{id}"),
            Self::Batches => "batches".into(),
            Self::Storms => "storms".into(),
            Self::Calendar(name) => format!("calendar/{name}"),
            Self::Ledger => "ledger".into(),
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
    decode_since(STATE_VERSION, bytes)
}

/// Of a part whose form has been the same since a version.
fn decode_since<T: DeserializeOwned>(since: u8, bytes: &[u8]) -> Option<T> {
    let (version, rest) = bytes.split_first()?;
    let known = (since..=STATE_VERSION).contains(version);
    known.then(|| postcard::from_bytes(rest).ok())?
}

/// What people know of and have answered outlives an upgrade, whatever else is learned again.
fn decode_incident(bytes: &[u8]) -> Option<Incident> {
    match bytes.split_first()? {
        (4, rest) => postcard::from_bytes::<IncidentV4>(rest).ok().map(Incident::from),
        _ => decode_since(OTHERS_SINCE, bytes),
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, names::metric};

    use super::*;
    use crate::effect::Input;
    use crate::time::Ts;

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
        let mut parts: Vec<_> =
            engine.take_dirty().into_iter().filter_map(|(key, part)| Some((key, part?))).collect();
        parts.iter_mut().for_each(|(_, part)| part[0] = OTHERS_SINCE);
        let (restored, unusable) = Engine::restore(EngineConfig::default(), parts);
        let open: Vec<_> =
            restored.open_incidents().map(|i| (i.id.as_str(), i.acked_by.as_deref())).collect();
        assert_eq!(open, [(id.as_str(), Some("sam"))]);
        assert_eq!(unusable, ["run/llama-70b"], "it learns again");
    }
}
