//! The checkpoints of a run, and the work that it would lose.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Value};

use super::exposure::Exposure;
use super::loads::Loads;
use super::on_disk::OnDisk;
use super::sizes::Sizes;
use super::stages::Stages;
use super::trust::Trust;
use stepwatch_model::time::{Span, Ts};

/// Seconds of work between two runs of the clock detectors for a run that makes steps.
const LOOK_EVERY_SECS: f64 = 10.0;
pub(super) const CHECKPOINTS_KEPT: usize = 8;
const GOOD_KEPT: usize = 2;
/// The most checkpoints in the list for people, and the most characters of a failure.
const LISTED: usize = 32;
const MAX_WHY: usize = 200;
/// Failures with the same text within this time are one failure, reported by several ranks.
const SAME_FAILURE: Span = Span::secs(60);

/// Checkpoints, and the work that would be lost without the next one. Work is counted in the run's
/// own time while it moves: neither a queue, nor a pause, nor a clock that differs from ours makes
/// a checkpoint stale.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Checkpoints {
    /// When the last success arrived, by our clock.
    pub last_at: Option<Ts>,
    pub last_step: Option<i64>,
    /// Steps of the last ones, oldest first.
    pub steps: VecDeque<i64>,
    pub in_progress: Option<Ts>,
    /// Seconds of work since the last success or the start of the attempt; where checkpoints are
    /// written meanwhile, since the save of the last one that counts.
    pub work: f64,
    pub(crate) looked_at: f64,
    /// Part of the work since the last success was not observed, so that it does not count as
    /// usual.
    pub(crate) unsure: bool,
    /// Seconds of work between the last successes, and the saves themselves, where their start or
    /// their duration was reported.
    pub intervals: VecDeque<f64>,
    pub saves: VecDeque<Save>,
    pub failure: Option<(Ts, String)>,
    /// The last checkpoints with their outcomes, for people; oldest first.
    pub list: VecDeque<Written>,
    /// The stages of the last ones, once any is reported.
    pub(super) stages: Option<Box<Stages>>,
    /// What speaks against some of them, once anything does.
    pub(super) trust: Option<Box<Trust>>,
    /// Which of them a watcher of their directory has seen, once there is one.
    pub(super) on_disk: Option<Box<OnDisk>>,
    /// All work, and the failures that ended it.
    pub(crate) exposure: Box<Exposure>,
    /// The sizes of the last ones, once any is reported.
    pub(super) sizes: Option<Box<Sizes>>,
    /// The last load of one, once any is reported.
    pub(super) loads: Option<Box<Loads>>,
}

/// A checkpoint as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    pub at: Ts,
    pub step: Option<i64>,
    /// Seconds that it took, and its size, where that is known.
    pub secs: Option<f64>,
    pub bytes: Option<f64>,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Saved,
    /// The checkpoint existed before the attempt began.
    Found,
    Failed(String),
}

/// One save.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Save {
    pub at: Ts,
    pub secs: f64,
    pub bytes: Option<f64>,
}

/// The trainer's report of a save that ended: seconds and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SaveReport {
    pub(crate) secs: Option<f64>,
    pub(crate) bytes: Option<f64>,
}

impl SaveReport {
    pub(crate) fn from_event(e: &Event) -> Self {
        let number =
            |key| e.extra.get(key).and_then(Value::as_f64).filter(|v: &f64| v.is_finite() && *v > 0.0);
        Self { secs: number("seconds"), bytes: number("bytes") }
    }
}

impl Checkpoints {
    /// Counts seconds of work; true if the clock detectors must run.
    pub(crate) fn worked(&mut self, secs: f64) -> bool {
        self.work += secs;
        self.exposure.worked(secs);
        let look = self.work - self.looked_at > LOOK_EVERY_SECS;
        if look {
            self.looked_at = self.work;
        }
        look
    }

    fn reset_work(&mut self) {
        (self.work, self.looked_at, self.unsure) = (0.0, 0.0, false);
    }

    /// The run restarted: unsaved work is lost already, and the next checkpoint may be of a step
    /// that was saved before.
    pub(crate) fn restarted(&mut self) {
        self.in_progress = None;
        self.reset_work();
        self.unsure = true;
        self.stages.iter_mut().for_each(|stages| stages.restarted());
        self.sizes.iter_mut().for_each(|sizes| sizes.restarted());
    }

    pub(crate) fn start(&mut self, now: Ts) {
        self.in_progress.get_or_insert(now);
    }

    /// A checkpoint of an earlier attempt was found on disk. It bounds what would be lost, but
    /// saves no work of this attempt.
    pub(crate) fn found(&mut self, at: Ts, step: Option<i64>) {
        if self.last_at.is_none_or(|last| last < at) {
            (self.last_at, self.last_step) = (Some(at), step);
            self.saved(step);
            self.enlist(Written { at, step, secs: None, bytes: None, outcome: Outcome::Found });
        }
    }

    pub(crate) fn success(&mut self, now: Ts, step: Option<i64>, report: SaveReport) {
        if step.is_some() && step == self.last_step && !self.unsure {
            self.in_progress = None;
            return; // another rank's word for the same checkpoint, or that of whoever looks at the disk, however late
        }
        if self.last_at.is_some() && !self.unsure {
            keep(&mut self.intervals, self.work);
        }
        let secs = self.blocked(now, report);
        self.enlist(Written { at: now, step, secs, bytes: report.bytes, outcome: Outcome::Saved });
        self.last_at = Some(now);
        self.last_step = step;
        self.saved(step);
        self.failure = None;
        self.reset_work();
    }

    /// A save blocks the run no longer. Returns the seconds that it did, if they are known.
    pub(super) fn blocked(&mut self, now: Ts, report: SaveReport) -> Option<f64> {
        let watched = self.in_progress.take().map(|start| (now - start).as_secs_f64());
        let secs = report.secs.or(watched)?;
        if self.saves.len() == CHECKPOINTS_KEPT {
            self.saves.pop_front();
        }
        self.saves.push_back(Save { at: now, secs: secs.max(0.0), bytes: report.bytes });
        Some(secs)
    }

    pub(super) fn saved(&mut self, step: Option<i64>) {
        let Some(step) = step else { return };
        // A checkpoint that is written again after a roll-back replaces the later ones.
        self.steps.retain(|had| *had < step);
        self.steps.push_back(step);
        self.drop_oldest();
    }

    /// Drops the oldest one beyond the limit, but not the last two from before what spoils the
    /// others: something else may be wrong with the last.
    pub(super) fn drop_oldest(&mut self) {
        if self.steps.len() > CHECKPOINTS_KEPT {
            let is_good = |step: &i64| self.spoilt().is_some_and(|spoilt| *step < spoilt.onset);
            let good = self.steps.partition_point(is_good);
            self.steps.remove(if good > GOOD_KEPT { 0 } else { good });
        }
    }

    /// Drops checkpoints to which the run cannot go back any more.
    pub(super) fn drop_steps(&mut self, is_dropped: impl Fn(i64) -> bool) {
        self.steps.retain(|step| !is_dropped(*step));
        if self.last_step.is_some_and(&is_dropped) {
            self.last_step = self.steps.back().copied();
            self.last_at = self.last_step.and_then(|step| self.written_at(step));
        }
    }

    /// When the checkpoint of this step was written, if that is known.
    pub(super) fn written_at(&self, step: i64) -> Option<Ts> {
        let is_it = |one: &&Written| one.step == Some(step) && !matches!(one.outcome, Outcome::Failed(_));
        self.list.iter().rev().find(is_it).map(|one| one.at)
    }

    pub(crate) fn failed(&mut self, now: Ts, step: Option<i64>, why: &str) {
        self.in_progress = None;
        // Every rank may report the failure.
        let known = self.failure.as_ref().is_some_and(|(at, had)| had == why && now - *at < SAME_FAILURE);
        self.failure = Some((now, why.to_owned()));
        if !known {
            let outcome = Outcome::Failed(why.chars().take(MAX_WHY).collect());
            self.enlist(Written { at: now, step, secs: None, bytes: None, outcome });
        }
    }

    pub(super) fn enlist(&mut self, one: Written) {
        if self.list.len() == LISTED {
            self.list.pop_front();
        }
        self.list.push_back(one);
    }

    /// Median of the last intervals, once there are two.
    pub fn usual_interval(&self) -> Option<f64> {
        (self.intervals.len() >= 2).then(|| median(self.intervals.iter().copied()))
    }

    /// Steps between the checkpoints that count, once two are known.
    pub(crate) fn usual_steps(&self) -> Option<f64> {
        let gaps = self.steps.iter().skip(1).zip(&self.steps).map(|(next, had)| (next - had) as f64);
        (self.steps.len() >= 2).then(|| median(gaps))
    }

    /// How many saves, which come in so many seconds each, there are for each checkpoint that
    /// counts.
    pub(crate) fn saves_counted(&self, secs: f64) -> f64 {
        self.usual_interval().map_or(1.0, |counted| (counted / secs).round().max(1.0))
    }

    /// Work that is unsaved just before a checkpoint counts, at the last one's duration.
    pub fn at_most(&self) -> f64 {
        let takes = self.saves.back().map_or(0.0, |s| s.secs);
        self.usual_interval().map_or(0.0, |interval| interval + takes + self.usual_lag())
    }

    pub fn usual_duration(&self) -> Option<f64> {
        (self.saves.len() >= 2).then(|| median(self.saves.iter().map(|s| s.secs)))
    }
}

pub(super) fn keep(ring: &mut VecDeque<f64>, secs: f64) {
    if ring.len() == CHECKPOINTS_KEPT {
        ring.pop_front();
    }
    ring.push_back(secs.max(0.0));
}

/// The median, the upper one of two in the middle; 0 without values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut v: Vec<f64> = values.collect();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(0.0)
}
