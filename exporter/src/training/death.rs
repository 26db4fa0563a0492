//! Events about processes that ended without a `bye`.

use stepwatch_wire::names::exporter_event;
use stepwatch_wire::{Event, Kind, Value};

use super::rank::Rank;

/// The state of a process whose connection closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessFate {
    Gone,
    Running,
    Unknown,
}

pub(super) fn launcher_dead(rank: &Rank, number: u32) -> Event {
    Event {
        rank: Some(number),
        step: rank.epoch.last,
        attempt: Some(rank.epoch.attempt),
        name: Some(exporter_event::LAUNCHER_DEAD.into()),
        level: Some("error".into()),
        text: Some(format!(
            "what started rank {number} closed its socket without a goodbye: its output is not read any more, and how it ends is not known"
        )),
        ..Event::new(Kind::Event)
    }
}

pub(super) fn rank_dead(rank: &Rank, number: u32, process: ProcessFate) -> Event {
    let who = rank.pid.map_or_else(|| "the process".to_owned(), |pid| format!("process {pid}"));
    let after = rank.epoch.last.map_or_else(|| "before its first step".into(), |s| format!("after step {s}"));
    let fate = match process {
        ProcessFate::Gone => "it is gone, and its exit status cannot be seen from here",
        ProcessFate::Running => "it still runs",
        ProcessFate::Unknown => "what became of it cannot be seen from here",
    };
    let mut event = Event {
        rank: Some(number),
        step: rank.epoch.last,
        attempt: Some(rank.epoch.attempt),
        name: Some(exporter_event::RANK_DEAD.into()),
        level: Some("error".into()),
        text: Some(format!("{who} of rank {number} closed its socket without a goodbye {after}; {fate}")),
        ..Event::new(Kind::Event)
    };
    if let Some(pid) = rank.pid {
        event.extra.insert("pid".into(), Value::Number(f64::from(pid)));
    }
    let process = match process {
        ProcessFate::Gone => "gone",
        ProcessFate::Running => "running",
        ProcessFate::Unknown => "unknown",
    };
    event.extra.insert("process".into(), Value::Text(process.into()));
    event
}
