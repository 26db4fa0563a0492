//! Findings about the watched series.
//!
//! Each series is evaluated by itself, like a run's own numbers ([`crate::detectors::generic`]).
//! Series of one metric that shift together, of one run or of none, are one incident.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::watched_series::{CHUNK, FORGET_AFTER, Heard, SWEEP_EVERY, scope_of};
use super::{Key, Monitor};
use crate::detectors::generic::{self, Said};
use crate::sample::Reading;
use crate::series::{SeriesName, SeriesReading};
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Clause, Context, Detected, Finding, Labels, Origin, RunSummary, clause};

impl Monitor {
    /// Handles values of series that are watched by their names.
    pub(super) fn readings(&mut self, now: Ts, readings: &[SeriesReading], out: &mut Vec<Detected>) {
        let config = Arc::clone(&self.config);
        if !config.generic.enabled {
            return;
        }
        for r in readings {
            let heard = self.series.take(r, &config.generic);
            let slot = heard.as_ref().map(|heard| heard.slot);
            if let Some(heard) = heard {
                self.report_series(now, heard, r, out);
            }
            let slot = slot.or_else(|| self.series.route(r.id));
            if let Some(slot) = slot.filter(|slot| self.series.is_due(now, *slot)) {
                self.dirty.insert(Key::Series(slot / CHUNK as u32));
            }
        }
        self.timers.set_earlier(&Key::SeriesSweep, Some(now + SWEEP_EVERY));
    }

    /// Reports the result of a series to its incident.
    fn report_series(&mut self, now: Ts, heard: Heard, r: &SeriesReading, out: &mut Vec<Detected>) {
        let Heard { slot, name, said } = heard;
        let scope = scope_of(&name);
        self.dirty.insert(Key::Series(slot / CHUNK as u32));
        let mut finding = match said {
            Said::News(mut finding) => {
                if finding.change == Change::Raise {
                    finding.suspects = self.series.beside(&scope, slot);
                    self.series.note(&scope, slot, true);
                }
                finding
            }
            // The incident of several series ends with the last of them.
            Said::Over(why) => {
                if self.series.note(&scope, slot, false) {
                    return;
                }
                over(r, &name, why)
            }
        };
        let run = self.runs.get(&*name.run);
        // Otherwise the name would be capitalised as the first word of a sentence.
        finding.why = finding.why.after(clause!("series "));
        // The count of values in the series means nothing to people.
        let step = run.and_then(|run| run.state.last_step).unwrap_or_default();
        (finding.step, finding.start_step) = (step, step);
        let summary = run.map(|run| self.summary_of(now, run)).unwrap_or_default();
        let mut summary = RunSummary { name: name.run.to_string(), ..summary };
        summary.labels.extend(labels_of(&name));
        let nodes = if name.node.is_empty() { BTreeSet::new() } else { [name.node.to_string()].into() };
        let context = Context {
            origin: Some(Origin::from_sender(&name.tenant)),
            ..Context::new(scope, summary, nodes, r.ts)
        };
        out.push(Detected::finding(&context, &finding));
    }

    /// After a start, sets the timer that checks whether the series are still read.
    pub(super) fn resume_series(&mut self, now: Ts) {
        if self.series.len() > 0 {
            self.timers.set(&Key::SeriesSweep, Some(now + FORGET_AFTER));
        }
    }

    /// Forgets series that have not been read for `FORGET_AFTER`.
    pub(super) fn sweep_series(&mut self, now: Ts, out: &mut Vec<Detected>) {
        let (chunks, over) = self.series.sweep(now);
        self.dirty.extend(chunks.into_iter().map(Key::Series));
        out.extend(over.into_iter().map(|(scope, heard_at)| Detected::Forgotten { scope, heard_at }));
        if self.series.len() > 0 {
            self.timers.set(&Key::SeriesSweep, Some(now + SWEEP_EVERY));
        }
    }

    /// Readings of series beyond the limit.
    pub fn dropped_series(&self) -> u64 {
        self.series.dropped()
    }

    /// Series of other programs that are watched.
    pub fn watched_series(&self) -> usize {
        self.series.len()
    }
}

fn over(r: &SeriesReading, name: &SeriesName, why: Clause) -> Finding {
    let reading =
        Reading { id: 0, name: &name.text, step: 0, ts: r.ts, attempt: 0, value: r.value, quantum: 0.0 };
    generic::finding(&reading, Change::Clear, &name.text, why)
}

/// The labels by which routes and silences may select its incident.
fn labels_of(name: &SeriesName) -> Labels {
    let labels = [("metric", &name.metric), ("job", &name.job), ("tenant", &name.tenant)];
    let given = labels.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(label, value)| (label.to_owned(), value.to_string())).collect()
}

#[cfg(test)]
mod tests;
