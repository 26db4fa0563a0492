//! Lines with a step and nothing else: `{"step": 41}`, `step: 41`.
//!
//! One may be a step whose loss and gradient norm were left out. Or it only reports that the
//! program saves, loads or evaluates, or that it is done. So such a line counts only in a log of
//! one line a step, with steps equally far apart, which had no such line before, at the step that
//! is next, and once the line behind it reports the step after that. It is published with that
//! line.

use stepwatch_wire::Event;

use super::USUAL;

#[derive(Debug, Default)]
pub(super) struct Bare {
    last_step: Option<i64>,
    /// Between the last two lines, and lines in a row that were as far apart.
    stride: i64,
    even: u32,
    /// One was no step. No other is believed.
    idle: bool,
    /// One that may be a step.
    held: Option<Event>,
}

impl Bare {
    /// Another line reported a step: the one that is held is a step if this one is the next.
    pub(super) fn line(&mut self, step: i64) -> Option<Event> {
        let held = self.held.take();
        let known = held.as_ref().and_then(|e| e.step);
        let follows = known.is_some_and(|held| held.saturating_add(self.stride) == step);
        self.idle |= held.is_some() && !follows;
        if let Some(known) = known.filter(|_| follows) {
            self.moved(known);
        }
        self.moved(step);
        held.filter(|_| follows)
    }

    /// The log reported something else.
    pub(super) fn interrupt(&mut self) {
        self.idle |= self.held.take().is_some();
    }

    /// Whether a line without anything else may be the next step.
    pub(super) fn is_next(&self, step: i64) -> bool {
        let next = self.last_step.map(|last| last.saturating_add(self.stride));
        !self.idle && self.stride > 0 && self.even >= USUAL && next == Some(step)
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn hold(&mut self, e: Event) {
        self.held = Some(e);
    }

    /// Such a line was no step.
    pub(super) fn idles(&mut self) {
        self.idle = true;
    }

    fn moved(&mut self, step: i64) {
        let by = self.last_step.map_or(0, |last| step.saturating_sub(last));
        self.even = if by == self.stride { self.even.saturating_add(1) } else { 1 };
        (self.stride, self.last_step) = (by, Some(step));
    }
}
