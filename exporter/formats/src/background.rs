//! Checkpoints that a trainer writes while it makes steps.

use std::collections::BTreeSet;

use stepwatch_wire::CkptPhase::{End, Start};
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{Event, Value};

use crate::format::{Line, Out};

/// The most checkpoints that are written at the same time.
const MAX_OPEN: usize = 16;

/// The checkpoints whose save is over and that are not written yet, by a log that shows when they
/// are.
#[derive(Debug, Default)]
pub(crate) struct Background {
    open: BTreeSet<i64>,
}

impl Background {
    /// The steps no longer wait for the save.
    pub(crate) fn begin(&mut self, step: i64, line: &Line<'_>) -> Event {
        if self.open.len() >= MAX_OPEN {
            self.open.pop_first();
        }
        self.open.insert(step);
        line.stage(ckpt::WRITE, Start, Some(step))
    }

    /// This log said that it goes on, and not yet that it is written.
    pub(crate) fn is_open(&self, step: i64) -> bool {
        self.open.contains(&step)
    }

    /// It is written. False if this log did not say that it goes on.
    pub(crate) fn end(&mut self, step: i64, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        let is_open = self.open.remove(&step);
        if is_open {
            out.push(line.stage(ckpt::WRITE, End, Some(step)));
        }
        is_open
    }
}

/// A restart would take the checkpoint of this step.
pub(crate) fn durable(step: i64, line: &Line<'_>) -> Event {
    line.stage(ckpt::DURABLE, End, Some(step))
}

/// The same of a checkpoint whose beginning was not read, so that it is not known whether the steps
/// waited for it.
pub(crate) fn whole(step: i64, line: &Line<'_>) -> Event {
    let mut event = durable(step, line);
    event.extra.insert(ckpt::SEEN.into(), Value::Bool(true));
    event
}

/// The phases, stages and steps of the checkpoints among some events.
#[cfg(test)]
pub(crate) fn stages(events: &[Event]) -> Vec<(stepwatch_wire::CkptPhase, &str, Option<i64>)> {
    let mut found = Vec::new();
    for e in events {
        let stage = e.extra.get(ckpt::STAGE).and_then(Value::as_str).unwrap_or(ckpt::SAVE);
        found.extend(e.ckpt.map(|phase| (phase, stage, e.step)));
    }
    found
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::number::Resolution;

    #[test]
    fn only_so_many_are_open_and_the_oldest_is_forgotten() {
        let inner = Cell::new(None);
        let line = Line { text: "x", raw: "x", ts: None, utc_offset: 0.0, inner: &inner };
        let (mut events, mut resolution) = (Vec::new(), Resolution::default());
        let mut out = Out::new(&mut events, &mut resolution, None);
        let mut background = Background::default();
        for step in 1..=17 {
            let event = background.begin(step, &line);
            out.push(event);
        }
        assert!(!background.end(1, &line, &mut out) && background.end(2, &line, &mut out));
        assert!(!background.end(2, &line, &mut out), "once");
        assert_eq!(stages(&events)[16..], [(Start, "write", Some(17)), (End, "write", Some(2))]);
    }
}
