//! A format that has begun to read what the trusted one cannot, and must prove itself.

use stepwatch_wire::{Event, Kind};

use crate::line_formats::Belief;

/// Lines in a row that another trainer's grammar must read, while the current one reads none, to
/// take its place.
const TAKEOVER: u32 = 3;
/// Lines with rising steps that the last resort must read where no trainer's grammar reads the log:
/// a stray line of text is no run.
const AGREE: u32 = 2;
/// And where one has read it before, which may only be silent for long. An engine must wait as
/// long.
const SILENT: u32 = 16;
/// Events held back while another format is proving itself.
const MAX_HELD: usize = 64;

#[derive(Debug)]
pub(super) struct Rival {
    candidate: usize,
    matches: u32,
    pub(super) held: Vec<Event>,
}

impl Rival {
    /// The rival so far if it is the same, or a new one.
    pub(super) fn after(before: Option<Self>, candidate: usize, belief: Belief, events: &[Event]) -> Self {
        match before {
            Some(r) if r.candidate == candidate && (belief != Belief::LastResort || r.agrees(events)) => r,
            _ => Self { candidate, matches: 0, held: Vec::new() },
        }
    }

    /// Takes note of a line that it read; true once that is enough to take the place of the trusted
    /// format, if there is one.
    pub(super) fn takes(&mut self, belief: Belief, trusted: bool, events: Vec<Event>) -> bool {
        if belief == Belief::Trainer || self.rises(&events) {
            self.matches += 1;
        }
        self.held.extend(events);
        self.held.truncate(MAX_HELD);
        let needed = match (belief, trusted) {
            (Belief::Trainer, _) => TAKEOVER,
            (Belief::LastResort, false) => AGREE,
            (Belief::LastResort | Belief::Engine, _) => SILENT,
        };
        self.matches >= needed
    }

    /// Whether a line may be of the same log as the held ones: its step is not behind theirs, and
    /// most of its metrics are theirs.
    fn agrees(&self, events: &[Event]) -> bool {
        let steps = |e: &&Event| e.kind == Kind::Step;
        let (Some(held), Some(new)) = (self.held.iter().rfind(steps), events.iter().find(steps)) else {
            return true;
        };
        let shared = held.m.iter().filter(|(name, _)| new.m.get(name).is_some()).count();
        let all = held.m.iter().count() + new.m.iter().count() - shared;
        held.step <= new.step && 2 * shared >= all
    }

    /// Whether a line reports a later step than the held ones.
    fn rises(&self, events: &[Event]) -> bool {
        let last = |events: &[Event]| events.iter().rev().find(|e| e.kind == Kind::Step).and_then(|e| e.step);
        last(events).is_some_and(|new| last(&self.held).is_none_or(|held| held < new))
    }
}
