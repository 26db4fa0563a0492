//! Handles a change of a file's writers: where one run ends in it and another begins.

use stepwatch_wire::{Event, Kind, Value};

use super::super::TailConfig;
use super::super::owner::Asked;
use super::super::writers::Process;
use super::TailedFile;
use crate::sources::sink::Sink;

impl TailedFile {
    /// Records the writers of the file, and sets its run accordingly.
    pub(in super::super) fn settle(
        &mut self,
        config: &TailConfig,
        mut writers: Vec<Process>,
        asked: Asked<'_>,
    ) {
        writers.sort_unstable();
        writers.dedup();
        let (anew, over) = (std::mem::take(&mut self.returned), self.over);
        if anew && !over && writers.is_empty() {
            return; // it is of those who are gone
        }
        self.over &= !anew && writers.is_empty();
        let anew = anew && (self.ended || !writers.is_empty());
        let left = anew || self.owner.is_left(asked.processes) || self.owner.is_deserted(asked.processes);
        if anew {
            self.owner.begin_anew();
        }
        let named_by_path = self.labels.is_named_by_path();
        let changed = self.owner.settle(config, &self.labels.path, writers, asked) || anew;
        let before = self.labels.own_by(self.owner.run.clone(), self.owner.ruled);
        let Some(run) = self.owner.run.as_ref().filter(|run| changed && **run != before) else { return };
        if left {
            // Another process has replaced the previous one.
            let theirs = if over { 0 } else { self.count_of(&before, asked.sink) };
            self.end_of(before, theirs, asked.unix);
        } else if named_by_path && self.last_step.is_some() {
            asked.sink.join(asked.unix, asked.principal, &before, run);
        }
    }

    /// How many of the waiting events belong to a run whose writers have exited: the next run
    /// begins at an earlier step.
    fn count_of(&self, run: &str, sink: &dyn Sink) -> usize {
        let rank = |event: &Event| event.rank.unwrap_or(self.labels.default_run().1);
        let back = |e: &Event| e.step.is_some_and(|step| sink.last_step(run, rank(e)) >= Some(step));
        self.waiting.iter().position(back).unwrap_or(self.waiting.len())
    }

    /// Ends `run` after the first `theirs` of the waiting events; the rest of the file is of
    /// another run.
    fn end_of(&mut self, run: String, theirs: usize, unix: f64) {
        for event in &mut self.waiting[..theirs] {
            event.run.get_or_insert_with(|| run.clone());
        }
        let last = self.labels.last.clone().filter(|(last, _)| !self.ended && *last == run);
        if let Some((run, rank)) = last {
            let mut bye = Event { ts: Some(unix), run: Some(run), rank, ..Event::new(Kind::Bye) };
            bye.extra.insert("source".into(), Value::Text("tail".into()));
            self.waiting.insert(theirs, bye);
            self.watch.begin_anew();
        }
        self.labels.forget_model();
    }
}
