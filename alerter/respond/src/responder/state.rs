//! The stored form of the responder, with one part for each incident.

use stepwatch_model::{
    Scope, Subject,
    stored::{StatePart, decode, encode},
};

use super::{Key, Responder};
use crate::config::ResponderConfig;
use crate::incident::correlator::flap_history::FlapHistoryRow;

/// The prefix of the names of parts with flap memories.
const MEMORY: &str = "memory/";

impl Responder {
    /// The parts of the state that changed since the last call. They must be stored in one
    /// transaction with the effects.
    pub fn take_dirty(&mut self) -> Vec<StatePart> {
        let dirty = core::mem::take(&mut self.dirty);
        dirty.into_iter().map(|key| (key.name(), self.part(&key))).collect()
    }

    fn part(&self, key: &Key) -> Option<Vec<u8>> {
        match key {
            // These have tables of their own, which people read.
            Key::Alerts | Key::Silence(_) => None,
            Key::Incident(id) => {
                let kept = self.manager.open.get(id).or_else(|| self.manager.closed.get(id));
                kept.and_then(encode)
            }
            Key::Storms => encode(self.manager.suppressor.storms()),
            Key::Calendar(name) => {
                self.manager.dispatcher.oncall().stored_calendar(name).as_ref().and_then(encode)
            }
            Key::FlapHistory => encode(&self.manager.correlator.flap_history().row()),
            Key::Memory(subject) => self.manager.correlator.flap_history().memory(subject).and_then(encode),
        }
    }

    /// Rebuilds a responder from stored parts, exactly as it was. The second value names the parts
    /// that were left out because they are damaged or of another version.
    pub fn restore(
        config: ResponderConfig,
        parts: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> (Self, Vec<String>) {
        let mut responder = Self::new(config);
        let mut unusable = Vec::new();
        for (name, bytes) in parts {
            if responder.take_back(&name, &bytes).is_none() {
                unusable.push(name);
            }
        }
        if !unusable.is_empty() {
            responder.manager.correlator.flap_history_mut().lost();
        }
        responder.manager.restored();
        responder.settle();
        (responder, unusable)
    }

    fn take_back(&mut self, name: &str, bytes: &[u8]) -> Option<()> {
        let manager = &mut self.manager;
        match name.split_once('/') {
            Some(("incident", id)) => manager.restore(id.to_owned(), decode(bytes)?),
            Some(("calendar", name)) => {
                if !manager.dispatcher.oncall_mut().restore_calendar(name, decode(bytes)?) {
                    self.dirty.insert(Key::Calendar(name.to_owned()));
                }
            }
            _ if name == "storms" => manager.suppressor.restore_storms(decode(bytes)?),
            _ if name == "flap_history" => {
                manager.correlator.flap_history_mut().restore(decode::<FlapHistoryRow>(bytes)?)
            }
            _ if name.starts_with(MEMORY) => manager.correlator.flap_history_mut().remember(decode(bytes)?),
            _ => return None,
        }
        Some(())
    }
}

impl Key {
    fn name(&self) -> String {
        match self {
            Self::Alerts => "alerts".into(),
            Self::Incident(id) => format!("incident/{id}"),
            Self::Storms => "storms".into(),
            Self::Calendar(name) => format!("calendar/{name}"),
            Self::FlapHistory => "flap_history".into(),
            Self::Memory(Subject { scope, cause }) => {
                let of = match scope {
                    Scope::Run(_) => "run",
                    Scope::Node(_) => "node",
                    Scope::Own(_) => "own",
                    Scope::Storm(_) => "storm",
                    Scope::Alert(_) => "alert",
                    Scope::Series(_) => "series",
                };
                format!("{MEMORY}{of}/{}/{}", cause.as_str(), scope.name())
            }
            Self::Silence(id) => format!("silence/{id}"),
        }
    }
}
