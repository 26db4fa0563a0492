//! Decides which checkpoints count as saved.
//!
//! Where only saves are shown, a checkpoint counts when its save ends. A run that ever shows a
//! later stage writes its checkpoints while it makes steps. From then on, a checkpoint counts once
//! the last stage that the run is known to reach has ended: its `durable` or, if the run never
//! shows that, its `upload` or `write`. A checkpoint with a stage that failed never counts. The
//! work since a checkpoint is the work since its save, whenever it became durable.
//!
//! Whoever looks at the disk sees that a checkpoint is whole, and neither whether the steps waited
//! for it nor what becomes of it later. This completes the checkpoints of a run that writes them
//! while it makes steps, and stands for the end of the save where nobody reports that. It does not
//! make the run one that writes meanwhile: else every save would wait once nobody looks at the disk
//! any more, and so would each that goes to another directory.

use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event};

use super::checkpoints::{Checkpoints, Outcome, SaveReport, Written, keep, median};
use super::loads::Loads;
use super::save_windows::{SaveWindows, Slowing, StepTime};
use super::sizes::{Sizes, Sort};
use super::stages::{CheckpointStages, Stage, StageReport, Staged, Stages};

/// The number of times between saves from which the usual one is known.
const GAPS_KNOWN: usize = 2;

/// How the attempt relates to a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptBounds {
    /// The attempt began after the report.
    pub(crate) is_after: bool,
    pub(crate) first_step: Option<i64>,
}

impl Checkpoints {
    /// The stages of the last checkpoints, if any was reported.
    pub(crate) fn stages(&self) -> Option<&Stages> {
        self.stages.as_deref()
    }

    pub(crate) fn stages_mut(&mut self) -> Option<&mut Stages> {
        self.stages.as_deref_mut()
    }

    /// What steps take while checkpoints are written or uploaded, and otherwise.
    pub(crate) fn windows(&self) -> Option<&SaveWindows> {
        self.stages()?.windows()
    }

    /// The stage of saves in which steps surely take longer.
    pub(crate) fn slowing(&self) -> Option<Slowing> {
        self.windows()?.slowing()
    }

    /// Steps of training, of so many seconds each, ended at this time.
    pub(crate) fn stepped(&mut self, at: Ts, secs: f64, steps: i64) {
        if let Some(stages) = self.stages.as_deref_mut().filter(|_| secs.is_finite() && secs > 0.0) {
            stages.stepped(StepTime { at, secs, steps });
        }
    }

    /// The stages of the last checkpoints of this attempt, oldest first. At most 16 are kept.
    pub fn stage_table(&self) -> Vec<CheckpointStages> {
        self.stages().map_or_else(Vec::new, Stages::table)
    }

    /// The last load of a checkpoint.
    pub fn last_load(&self) -> Option<CheckpointStages> {
        self.stages()?.loaded()
    }

    /// Takes the path of a checkpoint whose stages are known.
    pub(crate) fn note_path(&mut self, stage: Stage, step: Option<i64>, path: &str) {
        if let Some(stages) = self.stages.as_deref_mut() {
            stages.note_path(stage, step, path);
        }
    }

    pub(crate) fn is_asynchronous(&self) -> bool {
        self.stages().is_some_and(Stages::is_asynchronous)
    }

    /// Whether the run uploads its checkpoints.
    pub(crate) fn are_uploaded(&self) -> bool {
        self.stages().is_some_and(Stages::uploads)
    }

    /// The usual seconds between the ends of two saves, once they are known.
    pub(crate) fn usual_gap(&self) -> Option<f64> {
        let gaps = &self.stages()?.gaps;
        (gaps.len() >= GAPS_KNOWN).then(|| median(gaps.iter().copied()))
    }

    /// The usual seconds from the end of a save until the checkpoint counts; 0 if it does at once.
    pub(crate) fn usual_lag(&self) -> f64 {
        self.stages().map_or(0.0, |stages| median(stages.lags.iter().copied()))
    }

    /// A save began.
    pub(crate) fn save_began(&mut self, r: &StageReport) {
        self.start(r.now);
        let Some(step) = r.step else { return };
        let stages = self.stages.get_or_insert_default();
        if stages.find(step).is_some_and(|one| one.is_saved_again(r)) {
            stages.renew(step);
        }
        stages.take(step, r);
    }

    /// A save of this attempt ended.
    pub(crate) fn save_ended(&mut self, r: &StageReport) {
        let report = SaveReport { secs: r.secs, bytes: r.bytes };
        let (asynchronous, work) = (self.is_asynchronous(), self.work);
        let failed = r.step.filter(|step| self.fails_elsewhere(*step, r));
        if let Some(step) = failed.filter(|_| !asynchronous) {
            self.in_progress = None;
            self.stages.get_or_insert_default().take(step, r);
            return;
        }
        if !asynchronous {
            self.success(r.now, r.step, report);
        }
        let is_last = r.step.is_some() && self.last_step == r.step;
        let stages = self.stages.get_or_insert_default();
        // Whoever looks at the disk repeats what counts already.
        let is_repeated = |step| asynchronous && is_last && stages.find(step).is_none();
        let Some(step) = r.step.filter(|step| !is_repeated(*step)) else {
            self.in_progress = None;
            return;
        };
        let took = stages.take(step, r);
        stages.moved(r, took);
        let one = stages.of_step(step);
        if one.saved_at.is_some() {
            self.in_progress = None;
            return; // another rank's word for the same save
        }
        one.saved_at = Some(r.now);
        // Of a run with saves only, the work is counted anew from here.
        one.work = if asynchronous { work } else { work - self.work };
        one.counted = !asynchronous && is_last;
        stages.saved(r.now);
        if asynchronous {
            self.blocked(r.now, report);
        }
    }

    /// The trainer begins a save before the last one is written.
    pub(crate) fn begins_behind(&mut self) {
        self.stages.get_or_insert_default().behind.said();
    }

    /// How many saves in a row, up to the last one, the trainer began so.
    pub(crate) fn begun_behind(&self) -> u32 {
        self.stages().map_or(0, |stages| stages.behind.saves())
    }

    /// Whether the trainer reported the checkpoint of this step.
    pub(crate) fn is_reported(&self, step: Option<i64>) -> bool {
        step.is_some_and(|step| self.stages().is_some_and(|stages| stages.find(step).is_some()))
    }

    fn fails_elsewhere(&self, step: i64, r: &StageReport) -> bool {
        let one = self.stages().and_then(|stages| stages.find(step));
        one.is_some_and(|one| one.ends_a_failed_save(r))
    }

    /// A save failed. `is_old`: it was one of an earlier attempt.
    pub(crate) fn save_failed(&mut self, r: &StageReport, is_old: bool, why: &str) {
        self.failed(r.now, r.step, why);
        if let Some(step) = r.step.filter(|_| !is_old) {
            let stages = self.stages.get_or_insert_default();
            let took_part = stages.find(step).is_some_and(|one| one.is_saving(r.rank));
            stages.take(step, r);
            // Another rank had ended it.
            if took_part && stages.find(step).is_some_and(Staged::is_counted) {
                self.withdraw(step);
            }
        }
    }

    /// A save of an earlier attempt ended. If the run writes its checkpoints while it makes steps,
    /// that alone makes no checkpoint.
    pub(crate) fn found_saved(&mut self, r: &StageReport) {
        if !self.is_asynchronous() {
            self.found(r.at, r.step);
        }
    }

    /// The checkpoints of the sort whose size or free space was reported last.
    pub(crate) fn sort(&self) -> Option<&Sort> {
        self.sizes()?.last()
    }

    /// The sizes of all sorts, once any is known.
    pub(crate) fn sizes(&self) -> Option<&Sizes> {
        self.sizes.as_deref()
    }

    /// The last load, rank by rank, if any was reported.
    pub(crate) fn loads(&self) -> Option<&Loads> {
        self.loads.as_deref()
    }

    /// Takes the size and the free space that a report of a stage carries.
    pub(crate) fn measured(&mut self, r: &StageReport, e: &Event, world: Option<u32>) {
        if r.bytes.is_some() || e.extra.contains_key(ckpt::FREE_BYTES) {
            self.sizes.get_or_insert_default().take(r, e, world);
        }
    }

    /// A process began or ended a load. Returns how long it took, if it is known. `progress`: when
    /// the run made its last step. `start`: when its start began, if it is in one.
    pub(crate) fn loaded(&mut self, r: &StageReport, progress: Ts, start: Option<Ts>) -> Option<Span> {
        self.loads.get_or_insert_default().take(r, progress, start);
        let paired = self.stages.get_or_insert_default().take_load(r);
        r.secs.map(Span::from_secs_f64).or(paired)
    }

    /// A stage that blocks no step began, ended or failed, or was seen on disk.
    pub(crate) fn later_stage(&mut self, r: &StageReport, attempt: AttemptBounds, why: &str) {
        let stages = self.stages.get_or_insert_default();
        // What is on this disk may have to be uploaded yet.
        let stage = if r.seen && stages.uploads() { Stage::Write } else { r.stage };
        let r = &StageReport { stage, ..*r };
        if !r.seen {
            stages.reaches = stages.reaches.max(r.stage);
        }
        let reaches = stages.reaches;
        let step = r.step.or_else(|| stages.meant(r));
        let is_known = step.is_some_and(|step| stages.find(step).is_some());
        let is_old =
            attempt.is_after || step.is_some_and(|step| attempt.first_step.is_some_and(|first| step < first));
        if r.phase == CkptPhase::Fail && r.seen && is_old && !is_known {
            return; // what an earlier attempt left behind when it ended
        }
        if r.phase == CkptPhase::Fail {
            // A save of a later step may be in progress meanwhile.
            let saving = self.in_progress;
            self.failed(r.now, step, why);
            self.in_progress = saving;
        }
        let Some(step) = step else { return };
        if is_old && !is_known {
            if r.phase == CkptPhase::End && r.stage >= reaches {
                let outcome = Outcome::Found;
                self.beside(
                    Written { at: r.at, step: Some(step), secs: None, bytes: r.bytes, outcome },
                    step,
                );
            }
            return;
        }
        let stages = self.stages.get_or_insert_default();
        let took = stages.take(step, r);
        stages.moved(r, took);
        let one = stages.of_step(step);
        match (one.is_complete(reaches), one.counted) {
            (true, false) => self.count(r, step),
            (false, true) => self.withdraw(step),
            _ => {}
        }
    }

    /// A checkpoint is durable: it counts.
    fn count(&mut self, r: &StageReport, step: i64) {
        let stages = self.stages.get_or_insert_default();
        let is_late = stages.steps.iter().any(|one| one.counted && one.step > step);
        let later_failed = stages.steps.iter().any(|one| one.step > step && one.has_failed());
        let one = stages.of_step(step);
        let (saved_at, work) = (one.saved_at, one.work);
        let lag = saved_at.map(|saved| (r.now - saved).as_secs_f64().max(0.0));
        let (secs, bytes) = (one.took(r.at), one.bytes());
        (one.counted, one.lag) = (true, lag);
        stages.became_durable(lag);
        let written = Written { at: r.now, step: Some(step), secs, bytes, outcome: Outcome::Saved };
        if is_late {
            return self.beside(written, step);
        }
        if saved_at.is_none() && self.last_step == Some(step) && !self.unsure {
            return; // it was reported before the attempt
        }
        if saved_at.is_some() && self.last_at.is_some() && !self.unsure {
            keep(&mut self.intervals, work);
        }
        self.enlist(written);
        (self.last_at, self.last_step) = (Some(r.now), Some(step));
        self.saved(Some(step));
        if !later_failed {
            self.failure = None;
        }
        self.unsure = false;
        self.count_work_from(if saved_at.is_some() { work } else { self.work });
    }

    /// Records a checkpoint that saves no further work: one of an earlier attempt, or one that was
    /// durable later than a later one.
    fn beside(&mut self, written: Written, step: i64) {
        let at = written.at;
        if let Err(place) = self.steps.binary_search(&step) {
            self.steps.insert(place, step);
            self.drop_oldest();
            self.enlist(written);
        }
        if self.last_step.is_none_or(|last| last < step) {
            (self.last_at, self.last_step) = (Some(at), Some(step));
        }
    }

    /// A checkpoint that counted is not whole: another rank still writes it, it failed, or the run
    /// shows a stage that nobody had known.
    fn withdraw(&mut self, step: i64) {
        let is_last = self.last_step == Some(step);
        let stages = self.stages.get_or_insert_default();
        // What an earlier one lacks is an old report, unless it failed.
        let Some(one) = stages.find_mut(step).filter(|one| is_last || one.has_failed()) else { return };
        let (work, lag) = (one.work, one.lag.take());
        if lag.is_some() {
            stages.lags.pop_back();
        }
        self.steps.retain(|had| *had != step);
        let is_it = |written: &Written| written.step == Some(step) && written.outcome == Outcome::Saved;
        if let Some(at) = self.list.iter().rposition(is_it) {
            self.list.remove(at);
        }
        if is_last {
            self.count_work_from(-work);
            if self.intervals.back() == Some(&work) {
                self.intervals.pop_back();
            }
            self.last_step = self.steps.back().copied();
            self.last_at = self.last_step.and_then(|step| self.written_at(step));
        }
        if let Some(one) = self.stages.as_deref_mut().and_then(|stages| stages.find_mut(step)) {
            one.counted = false;
        }
    }

    /// A checkpoint was removed: it is none to go back to, and nothing has failed.
    pub(super) fn removed(&mut self, step: i64) {
        let is_last = self.last_step == Some(step);
        let work = self.stages().and_then(|stages| stages.find(step)).map_or(0.0, |one| one.work);
        if let Some(stages) = self.stages.as_deref_mut() {
            stages.steps.retain(|one| one.step != step);
        }
        self.drop_steps(|saved| saved == step);
        if is_last {
            self.count_work_from(-work);
        }
    }

    /// Work counts from so many seconds of it later on, or earlier if that is negative.
    fn count_work_from(&mut self, secs: f64) {
        self.work = (self.work - secs).max(0.0);
        self.looked_at -= secs;
        let steps = self.stages.iter_mut().flat_map(|stages| stages.steps.iter_mut());
        steps.filter(|one| !one.counted).for_each(|one| one.work -= secs);
    }
}
