//! The stages of the checkpoint of each step: the save, which blocks the step, and then perhaps a
//! write, an upload and the report that it is durable. The load is the stage of a checkpoint that
//! is read again.
//!
//! A run that ever shows a stage after the save writes its checkpoints while it makes steps. What
//! this means for the checkpoints that count is in `durable.rs`, what it does to the steps in
//! `save_windows.rs`, and what people see of them in `stages/table.rs`.

mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use super::behind::Behind;
use super::save_nodes::SavingNodes;
use super::save_windows::{SaveWindows, StepTime};
use serde::{Deserialize, Serialize};
use stepwatch_model::SaveStage;
use stepwatch_model::time::{Span, Ts};
use stepwatch_wire::names::ckpt;
use stepwatch_wire::{CkptPhase, Event, Value};

pub use table::{CheckpointStages, StageTimes};

/// The most steps whose stages are kept, the most ranks that are followed in one stage, and in all.
const STEPS_KEPT: usize = 16;
const RANKS_KEPT: usize = 4096;
const OPEN_KEPT: usize = 2 * RANKS_KEPT;
/// Up to so many ranks in a stage their nodes are counted with each that begins, and then with one
/// of so many, and with the first that ends.
const COUNTED: usize = 256;
const COUNTED_AGAIN: usize = 32;
/// The most times of the same sort that are kept.
const TIMES_KEPT: usize = 8;
/// The longest path that is kept, in bytes. A part of a longer one would lead nowhere.
const MAX_PATH: usize = 1024;

/// How many later checkpoints must be complete before one counts as overtaken: two uploads at once
/// may end in any order. It is no news once so many are. And the number of complete checkpoints for
/// each overtaken one below which the run completes only some on purpose. Engineering limits.
const OVERTAKEN_BY: usize = 2;
const OLD_NEWS: usize = 5;
const COMPLETE: usize = 4;

/// The stages in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// Blocks the step.
    #[default]
    Save,
    Write,
    Upload,
    Durable,
    Load,
}

/// What an event says of a stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageReport {
    pub(crate) stage: Stage,
    pub(crate) phase: CkptPhase,
    pub(crate) step: Option<i64>,
    pub(crate) rank: u32,
    /// When it arrived, by our clock, and when it happened, by the clock of the event.
    pub(crate) now: Ts,
    pub(crate) at: Ts,
    pub(crate) secs: Option<f64>,
    pub(crate) bytes: Option<f64>,
    /// The checkpoint itself was seen on disk. That says nothing of how the run writes it.
    pub(crate) seen: bool,
}

/// One stage of one checkpoint, by the clock of its events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StageRecord {
    pub(crate) start: Option<Ts>,
    pub(crate) end: Option<Ts>,
    pub(crate) bytes: Option<f64>,
    /// The rank that failed last, and when.
    failure: Option<(u32, Ts)>,
    /// The ranks that are in the stage, and since when.
    open: BTreeMap<u32, Ts>,
    /// The number of further ranks in it, which are too many to follow.
    beyond: u32,
}

/// The stages of the checkpoint of one step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Staged {
    pub(crate) step: i64,
    /// When its save ended, by our clock.
    pub(crate) saved_at: Option<Ts>,
    /// Seconds of work from the save of the last checkpoint that counted until its own.
    pub(super) work: f64,
    /// Seconds from the end of its save until it was durable.
    pub(super) lag: Option<f64>,
    /// The checkpoint counts as saved.
    pub(super) counted: bool,
    /// Where it is, as the last report with a path says.
    path: Option<String>,
    /// By [`Stage`], without the load.
    records: [StageRecord; 4],
}

/// The last load of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) step: Option<i64>,
    path: Option<String>,
    pub(crate) record: StageRecord,
}

/// The stages of the last checkpoints of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// The last stage that the run is known to reach.
    pub(super) reaches: Stage,
    /// Of the current attempt, by step.
    pub(super) steps: VecDeque<Staged>,
    pub(super) load: Option<Load>,
    /// Seconds between the ends of the last saves, by our clock.
    pub(super) gaps: VecDeque<f64>,
    /// Seconds from the end of a save until its checkpoint was durable.
    pub(super) lags: VecDeque<f64>,
    last_saved: Option<Ts>,
    /// How many checkpoints waited after the last save, or after one of them became durable since.
    backlog: u32,
    /// The number of saves in a row after which more checkpoints waited than before.
    growing: u32,
    pub(super) behind: Behind,
    /// What steps take meanwhile.
    windows: Option<Box<SaveWindows>>,
    /// The nodes that save, write and upload: one stage moves bytes at another rate than the next.
    nodes: [Option<Box<SavingNodes>>; 3],
}

impl Stage {
    /// The stage that an event names. Words that are not known stand for the save, as no word does.
    pub(crate) fn from_event(e: &Event) -> Self {
        match e.extra.get(ckpt::STAGE).and_then(Value::as_str) {
            Some(ckpt::WRITE) => Self::Write,
            Some(ckpt::UPLOAD) => Self::Upload,
            Some(ckpt::DURABLE) => Self::Durable,
            Some(ckpt::LOAD) => Self::Load,
            _ => Self::Save,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Save => ckpt::SAVE,
            Self::Write => ckpt::WRITE,
            Self::Upload => ckpt::UPLOAD,
            Self::Durable => ckpt::DURABLE,
            Self::Load => ckpt::LOAD,
        }
    }
}

impl StageRecord {
    /// Takes a report. Returns how long the rank was in the stage, if it leaves the stage now.
    fn take(&mut self, r: &StageReport) -> Option<Span> {
        self.bytes = r.bytes.or(self.bytes);
        match r.phase {
            CkptPhase::Start => {
                self.start.get_or_insert(r.at);
                if self.open.len() < RANKS_KEPT || self.open.contains_key(&r.rank) {
                    self.open.insert(r.rank, r.at);
                } else {
                    self.beyond = self.beyond.saturating_add(1);
                }
                return None;
            }
            CkptPhase::End => {
                self.end = self.end.max(Some(r.at));
                if r.seen {
                    // It is whole, whichever ranks said that they write, and whoever gave it up.
                    self.open.clear();
                    (self.beyond, self.failure) = (0, None);
                }
            }
            CkptPhase::Fail => self.failure = Some((r.rank, r.at)),
        }
        let since = self.open.remove(&r.rank);
        if since.is_none() {
            self.beyond = self.beyond.saturating_sub(1);
        }
        since.map(|since| r.at - since)
    }

    /// Follows a rank no more.
    fn forget(&mut self, rank: u32) {
        if self.open.remove(&rank).is_some() {
            self.beyond = self.beyond.saturating_add(1);
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether a rank that begins tries again what has failed. One that began before the failure
    /// takes part in what failed, however late that is heard.
    fn is_tried_again(&self, r: &StageReport) -> bool {
        self.failure.is_some_and(|(rank, at)| rank == r.rank || r.at > at)
    }

    /// Whether the rank is known to be in it, or may be.
    fn may_have(&self, rank: u32) -> bool {
        self.open.contains_key(&rank) || self.beyond > 0
    }

    fn is_open(&self) -> bool {
        !self.open.is_empty() || self.beyond > 0
    }

    /// Whether every rank that was seen to begin the stage has ended it.
    fn has_ended(&self) -> bool {
        self.end.is_some() && !self.is_open()
    }
}

impl Staged {
    fn new(step: i64) -> Self {
        Self { step, ..Self::default() }
    }

    /// Takes a report. Returns how long the rank was in the stage, if it leaves the stage now.
    pub(super) fn take(&mut self, r: &StageReport) -> Option<Span> {
        self.records.get_mut(r.stage as usize)?.take(r)
    }

    fn record(&self, stage: Stage) -> Option<&StageRecord> {
        self.records.get(stage as usize)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.records.iter().any(StageRecord::has_failed)
    }

    /// Whether the save failed, and a rank begins it again.
    pub(super) fn is_saved_again(&self, r: &StageReport) -> bool {
        self.record(Stage::Save).is_some_and(|record| record.is_tried_again(r))
    }

    /// Whether the rank began to save, and has not ended.
    pub(super) fn is_saving(&self, rank: u32) -> bool {
        self.record(Stage::Save).is_some_and(|record| record.may_have(rank))
    }

    /// Whether the rank ends its part of a save that failed on another one.
    pub(super) fn ends_a_failed_save(&self, r: &StageReport) -> bool {
        let failed = self.record(Stage::Save).is_some_and(StageRecord::has_failed);
        failed && !r.seen && self.is_saving(r.rank)
    }

    /// Whether it has reached the last stage of the run, or was seen beyond, and none has failed.
    pub(super) fn is_complete(&self, reaches: Stage) -> bool {
        !self.has_failed() && self.records.iter().skip(reaches as usize).any(StageRecord::has_ended)
    }

    /// Whether a stage was reported of it.
    fn shows(&self, stage: Stage) -> bool {
        self.record(stage).is_some_and(|record| record.start.is_some() || record.end.is_some())
    }

    /// Whether it counts as saved.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }

    /// When a stage of it was first reported, by the clock of its events.
    pub(crate) fn first_sign(&self) -> Option<Ts> {
        self.records.iter().find_map(|record| record.start.or(record.end))
    }

    /// Whether it began, and neither counts nor failed.
    fn is_incomplete(&self) -> bool {
        let began = || self.record(Stage::Save).is_some_and(|record| record.start.is_some());
        !self.counted && !self.has_failed() && (self.saved_at.is_some() || began())
    }

    /// The ranks that began a stage and did not end it.
    pub(crate) fn open_ranks(&self) -> impl Iterator<Item = u32> {
        self.records
            .iter()
            .find(|record| !record.open.is_empty())
            .into_iter()
            .flat_map(|r| r.open.keys().copied())
    }

    /// The number of ranks in all of its stages.
    fn open(&self) -> usize {
        self.records.iter().map(|record| record.open.len()).sum()
    }

    fn is_open(&self) -> bool {
        self.saved_at.is_some() && !self.counted && !self.has_failed()
    }

    /// Seconds from its first sign until then.
    pub(super) fn took(&self, until: Ts) -> Option<f64> {
        Some((until - self.first_sign()?).as_secs_f64().max(0.0))
    }

    pub(super) fn bytes(&self) -> Option<f64> {
        self.records.iter().rev().find_map(|record| record.bytes)
    }
}

impl Load {
    /// Takes a report. Returns how long the rank loaded, if it has ended now.
    fn take(&mut self, r: &StageReport) -> Option<Span> {
        let had = &self.record;
        let is_another = r.step.is_some() && self.step.is_some() && r.step != self.step;
        let is_new = match r.phase {
            // A rank that begins again was interrupted before.
            CkptPhase::Start if had.is_open() => had.open.contains_key(&r.rank),
            CkptPhase::Start => !had.has_failed() || is_another || had.is_tried_again(r),
            // A log may show only the end of the load after one that failed.
            CkptPhase::End => had.has_failed() && !had.may_have(r.rank),
            CkptPhase::Fail => false,
        };
        if is_new {
            *self = Self::default();
        }
        self.step = r.step.or(self.step);
        self.record.take(r)
    }
}

impl Stages {
    /// Whether the run writes its checkpoints while it makes steps.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.reaches > Stage::Save
    }

    /// Whether its checkpoints are copied elsewhere once they are on disk.
    pub(super) fn uploads(&self) -> bool {
        self.reaches == Stage::Upload || self.steps.iter().any(|one| one.shows(Stage::Upload))
    }

    /// Whether more checkpoints waited after each of the last so many saves than after the one
    /// before.
    pub(crate) fn grew(&self, saves: u32) -> bool {
        self.growing >= saves
    }

    /// Seconds until the last checkpoint was durable after its save.
    pub(crate) fn last_lag(&self) -> Option<f64> {
        self.lags.back().copied()
    }

    /// The checkpoints that are saved and not durable, oldest first. One that a later one made
    /// superfluous waits no longer. At most 16 are kept.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Staged> {
        let from = if self.is_asynchronous() { self.after_counted() } else { self.steps.len() };
        self.steps.iter().skip(from).filter(|one| one.is_open())
    }

    /// The last stage that the run is known to reach.
    pub(crate) fn reaches(&self) -> Stage {
        self.reaches
    }

    /// The last checkpoint that began, did not become complete, and was overtaken by later ones, of
    /// a run that completes nearly all; and how many later ones are complete.
    pub(crate) fn overtaken(&self) -> Option<(&Staged, usize)> {
        let mut complete = 0;
        let mut overtaken = Vec::new();
        for one in self.steps.iter().rev() {
            complete += usize::from(one.counted);
            if one.is_incomplete() && complete >= OVERTAKEN_BY {
                overtaken.push((one, complete));
            }
        }
        let (one, later) = *overtaken.first()?;
        (later < OLD_NEWS && complete >= COMPLETE * overtaken.len()).then_some((one, later))
    }

    /// The index behind the last checkpoint that counts.
    fn after_counted(&self) -> usize {
        self.steps.iter().rposition(|one| one.counted).map_or(0, |at| at + 1)
    }

    /// The oldest waiting checkpoint that a report without a step may be about.
    pub(super) fn meant(&self, r: &StageReport) -> Option<i64> {
        let is_meant = |one: &&Staged| {
            one.record(r.stage).is_some_and(|record| match r.phase {
                CkptPhase::Start => record.start.is_none(),
                CkptPhase::End | CkptPhase::Fail => record.end.is_none(),
            })
        };
        self.waiting().find(is_meant).map(|one| one.step)
    }

    /// Whether a stage of a checkpoint of the attempt was reported.
    pub(crate) fn has_any(&self) -> bool {
        !self.steps.is_empty()
    }

    pub(crate) fn find(&self, step: i64) -> Option<&Staged> {
        self.steps.iter().find(|one| one.step == step)
    }

    /// Whether ranks have not ended the save of this step, of a run that only saves.
    pub(super) fn is_half_saved(&self, step: i64) -> bool {
        let save = self.find(step).and_then(|one| one.record(Stage::Save));
        !self.is_asynchronous() && save.is_some_and(StageRecord::is_open)
    }

    pub(super) fn find_mut(&mut self, step: i64) -> Option<&mut Staged> {
        self.steps.iter_mut().find(|one| one.step == step)
    }

    /// The stages of a step, new ones if none are known.
    pub(super) fn of_step(&mut self, step: i64) -> &mut Staged {
        if self.steps.len() >= STEPS_KEPT && self.find(step).is_none() {
            self.make_room();
        }
        let at = self.steps.partition_point(|one| one.step < step);
        if self.steps.get(at).is_none_or(|one| one.step != step) {
            self.steps.insert(at, Staged::new(step));
        }
        &mut self.steps[at]
    }

    /// Takes a report about the checkpoint of a step. Returns how long the rank was in the stage,
    /// if it leaves the stage now.
    pub(super) fn take(&mut self, step: i64, r: &StageReport) -> Option<Span> {
        let took = self.of_step(step).take(r);
        if r.phase == CkptPhase::Start && self.steps.iter().map(Staged::open).sum::<usize>() > OPEN_KEPT {
            let record = self.of_step(step).records.get_mut(r.stage as usize);
            record.into_iter().for_each(|record| record.forget(r.rank));
        }
        took
    }

    /// Drops what matters least: what is older than the last checkpoint that counts, then what does
    /// not wait. The one that has waited longest stays.
    fn make_room(&mut self) {
        let from = self.after_counted();
        let drop = if from > 1 {
            0
        } else {
            let idle = self.steps.iter().skip(from).position(|one| !one.is_open());
            from + idle.unwrap_or(1)
        };
        self.steps.remove(drop);
    }

    /// Begins the stages of a step again.
    pub(super) fn renew(&mut self, step: i64) {
        *self.of_step(step) = Staged::new(step);
    }

    /// Records that the save of another step ended.
    pub(super) fn saved(&mut self, now: Ts) {
        if let Some(last) = self.last_saved.replace(now) {
            push(&mut self.gaps, (now - last).as_secs_f64());
        }
        let waiting = self.waiting().count() as u32;
        let grew = waiting > self.backlog.max(1);
        self.growing = if grew { self.growing.saturating_add(1) } else { 0 };
        self.backlog = waiting;
        self.behind.saved();
        self.windows.get_or_insert_default().saved();
    }

    /// A rank of this checkpoint left a stage after so long.
    pub(super) fn moved(&mut self, r: &StageReport, took: Option<Span>) {
        if let (Some(took), Some(bytes), Some(nodes)) = (took, r.bytes, self.nodes.get_mut(r.stage as usize))
        {
            nodes.get_or_insert_default().moved(bytes, took);
        }
    }

    /// The record that a report was about.
    fn record_of(&self, r: &StageReport) -> Option<&StageRecord> {
        let of_step = |one: &Staged| r.step.is_none_or(|step| one.step == step);
        let began = |record: &&StageRecord| r.step.is_some() || record.start.is_some();
        let records = self.steps.iter().rev().filter(|one| of_step(one));
        records.filter_map(|one| one.record(r.stage)).find(began)
    }

    /// The ranks that are in the stage of a report, after it was taken.
    fn ranks_with(&self, r: &StageReport) -> impl Iterator<Item = u32> {
        self.record_of(r).into_iter().flat_map(|record| record.open.keys().copied())
    }

    /// The ranks whose nodes are counted with a report that was taken: all that were in the stage
    /// until then, if they may be more than before.
    pub(crate) fn counted_with(&self, r: &StageReport) -> impl Iterator<Item = u32> {
        let of_stage = self.nodes.get(r.stage as usize);
        let open = self.record_of(r).map_or(0, |record| record.open.len());
        let counts = of_stage.is_some_and(|nodes| match r.phase {
            CkptPhase::Start => open <= COUNTED || open.is_multiple_of(COUNTED_AGAIN),
            CkptPhase::End | CkptPhase::Fail => nodes.as_deref().is_some_and(SavingNodes::rises),
        });
        self.ranks_with(r).chain([r.rank]).filter(move |_| counts)
    }

    /// Follows when stages are at work, after a report was taken. `nodes`: those of the ranks that
    /// are counted with it.
    pub(crate) fn follow(&mut self, r: &StageReport, nodes: u32) {
        let is_open = self.record_of(r).is_some_and(StageRecord::is_open);
        let (waits, asynchronous) = (self.waiting().next().is_some(), self.is_asynchronous());
        if let Some(of_stage) = self.nodes.get_mut(r.stage as usize) {
            let of_stage = of_stage.get_or_insert_default();
            of_stage.follow(r.now, r.phase == CkptPhase::Start, nodes, is_open);
        }
        let windows = self.windows.get_or_insert_default();
        let stage = if r.stage == Stage::Upload { SaveStage::Upload } else { SaveStage::Write };
        match (r.stage, r.phase) {
            (Stage::Write | Stage::Upload, CkptPhase::Start) => windows.begin(stage, r.at, true),
            (Stage::Write | Stage::Upload, _) if windows.is_told() && !is_open => windows.end(stage, r.at),
            // A run that never says when it begins to write does so once the save ends.
            (Stage::Save, CkptPhase::End) if asynchronous && waits && !windows.is_told() => {
                windows.begin(stage, r.at, false);
            }
            (Stage::Write | Stage::Upload | Stage::Durable, _) if !waits => {
                windows.end(SaveStage::Write, r.at);
                windows.end(SaveStage::Upload, r.at);
            }
            _ => {}
        }
    }

    /// Takes plain steps of training.
    pub(super) fn stepped(&mut self, steps: StepTime) {
        if let Some(windows) = &mut self.windows {
            windows.step(steps);
        }
    }

    pub(crate) fn windows(&self) -> Option<&SaveWindows> {
        self.windows.as_deref()
    }

    pub(crate) fn saving_nodes(&self) -> impl Iterator<Item = &SavingNodes> {
        self.nodes.iter().filter_map(Option::as_deref)
    }

    /// Records that a checkpoint is durable so many seconds after its save.
    pub(super) fn became_durable(&mut self, lag: Option<f64>) {
        lag.into_iter().for_each(|lag| push(&mut self.lags, lag));
        (self.growing, self.backlog) = (0, self.waiting().count() as u32);
    }

    /// Takes the path that a report has.
    pub(super) fn note_path(&mut self, stage: Stage, step: Option<i64>, path: &str) {
        let place = match (stage, step) {
            (Stage::Load, _) => self.load.as_mut().map(|load| &mut load.path),
            (_, Some(step)) => self.find_mut(step).map(|one| &mut one.path),
            (_, None) => None,
        };
        if let Some(place) = place.filter(|_| path.len() <= MAX_PATH) {
            *place = Some(path.to_owned());
        }
    }

    /// Takes a report of a load. Returns how long the rank loaded, if it has ended now.
    pub(super) fn take_load(&mut self, r: &StageReport) -> Option<Span> {
        self.load.get_or_insert_default().take(r)
    }

    /// The step of the checkpoint that could not be loaded last, unless a later load succeeded.
    pub(super) fn failed_load(&self) -> Option<i64> {
        self.load.as_ref().filter(|load| load.record.has_failed())?.step
    }

    /// A new attempt began. What the processes of the last one were writing is lost, and it may
    /// save in another way.
    pub(super) fn restarted(&mut self) {
        self.steps.clear();
        self.reaches = Stage::Save;
        (self.last_saved, self.backlog, self.growing, self.behind) = (None, 0, 0, Behind::default());
        (self.windows, self.nodes) = (None, [None, None, None]);
    }
}

fn push(times: &mut VecDeque<f64>, secs: f64) {
    if times.len() == TIMES_KEPT {
        times.pop_front();
    }
    times.push_back(secs.max(0.0));
}
