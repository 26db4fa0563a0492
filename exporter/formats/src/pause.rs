//! Pauses between two steps that a log announces: they are no hang, however long they are.
//!
//! A pause is only published where the same log has steps too: a log that shows its beginning must
//! be able to show its end.

use stepwatch_wire::{CkptPhase, Edge, Event, Kind};

use crate::format::{Line, Out};

/// An evaluation whose beginning is printed.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    open: bool,
}

impl Evaluation {
    /// Repeating it while it lasts changes nothing.
    pub(crate) fn begin(&mut self, last_step: Option<i64>, line: &Line<'_>, out: &mut Out<'_>) {
        if last_step.is_some() && !self.open {
            self.open = true;
            out.push(edge(Edge::Begin, last_step, line));
        }
    }

    pub(crate) fn end(&mut self, last_step: Option<i64>, line: &Line<'_>, out: &mut Out<'_>) {
        if core::mem::take(&mut self.open) {
            out.push(edge(Edge::End, last_step, line));
        }
    }

    /// A step came: the pause is over. If steps fell back the process that paused is gone, and how
    /// long it was away is not how long an evaluation takes.
    pub(crate) fn step(&mut self, last_step: Option<i64>, step: i64, line: &Line<'_>, out: &mut Out<'_>) {
        if last_step.is_some_and(|last| step > last) {
            self.end(last_step, line, out);
        }
        self.open = false;
    }
}

fn edge(edge: Edge, step: Option<i64>, line: &Line<'_>) -> Event {
    Event { name: Some("eval".to_owned()), edge: Some(edge), ..line.event(Kind::Phase, step) }
}

/// A checkpoint whose beginning is printed and whose end is not, or not by every version, by a
/// trainer that does not go on before it is written.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    /// The step that is being saved.
    open: Option<i64>,
}

impl Saving {
    pub(crate) fn begin(&mut self, step: Option<i64>, line: &Line<'_>, out: &mut Out<'_>) -> bool {
        self.open = step;
        if step.is_some() {
            out.push(line.checkpoint(CkptPhase::Start, step));
        }
        step.is_some()
    }

    /// The log reported a checkpoint by itself: its beginning, or its end.
    pub(crate) fn seen(&mut self, checkpoint: &Event) {
        self.open = checkpoint.step.filter(|_| checkpoint.ckpt == Some(CkptPhase::Start));
    }

    /// A step came: what was being saved is written, unless the process that wrote it is gone.
    pub(crate) fn step(&mut self, step: i64, line: &Line<'_>, out: &mut Out<'_>) {
        if let Some(saved) = self.open.take().filter(|saved| step >= *saved) {
            out.push(line.checkpoint(CkptPhase::End, Some(saved)));
        }
    }
}
