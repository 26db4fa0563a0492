//! Composition only: inputs to runs, verdicts to incidents, incidents to notifications.

use crate::config::EngineConfig;
use crate::effect::{Effect, Input};
use crate::incident::IncidentRecord;
use crate::time::Ts;

#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
}

/// A part of the state that changed since the last call of [`Engine::take_dirty`]: `None` means it is gone.
pub type StatePart = (String, Option<Vec<u8>>);

impl Engine {
    pub fn new(config: EngineConfig) -> Self {
        Self { config }
    }

    /// Feeds one input that happened at `now`.
    pub fn handle(&mut self, now: Ts, input: Input<'_>, out: &mut Vec<Effect>) {
        let _ = (now, input, out, &self.config);
    }

    /// Runs what is due at `now`.
    pub fn tick(&mut self, now: Ts, out: &mut Vec<Effect>) {
        let _ = (now, out);
    }

    /// When `tick` must be called next, and why.
    pub fn next_deadline(&self) -> Option<(Ts, &'static str)> {
        None
    }

    /// Replaces the configuration; open incidents keep their level.
    pub fn reconfigure(&mut self, config: EngineConfig) {
        self.config = config;
    }

    /// The parts of the state that changed, as key and opaque bytes, to be stored with the effects in one transaction.
    pub fn take_dirty(&mut self) -> Vec<StatePart> {
        Vec::new()
    }

    /// Rebuilds an engine from stored parts. A part of another version, or damaged, is named in the second value and left out.
    pub fn restore(
        config: EngineConfig,
        parts: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> (Self, Vec<String>) {
        let _ = parts.into_iter().count();
        (Self::new(config), Vec::new())
    }

    /// Incidents that are not resolved.
    pub fn open_incidents(&self) -> impl Iterator<Item = &IncidentRecord> {
        core::iter::empty()
    }
}
