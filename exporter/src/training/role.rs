//! The role of a sender, which a launcher and a command declare in their events.

use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Value};

/// What the sender of an event is to its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Trainer,
    /// It started the trainer.
    Launcher,
    /// It sends one event, as `stepwatch-exporter emit` does.
    Command,
}

impl Role {
    pub(super) fn of(event: &Event) -> Self {
        match event.extra.get(hello::ROLE).and_then(Value::as_str) {
            Some(hello::LAUNCHER) => Self::Launcher,
            Some(hello::COMMAND) => Self::Command,
            _ => Self::Trainer,
        }
    }
}
