//! One run: the merged reports of its ranks and sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_wire::names::{exporter_event, hello, metric};
use stepwatch_wire::{Event, Kind, Value};

use super::archive::{PastRank, PastRun};
use super::checkpoint::Checkpoints;
use super::epoch::{Observed, RankEpoch, RunEpoch, Speaker, is_jump};
use super::families::{ELSEWHERE, GAUGES};
use super::gauge::{At, Gauge};
use super::gpus::SaidGpus;
use super::metric_dedup::{MetricDedup, Names, Sifted};
use super::mfu::{self, Convention, Model, Setting};
use super::nonfinite::Nonfinite;
use super::peaks::{self, Dtype};
use super::rank::Rank;
use super::role::Role;
use super::window::WindowMax;
use crate::drops::Reason;
use crate::origin::Priority;
use crate::principal::Principal;

/// The most distinct evaluation sets of a run that are exported.
const MAX_DATASETS: usize = 32;
/// The most conventions of counting FLOPs that are exported for a run: the published ones and the
/// trainer's own.
const MAX_CONVENTIONS: usize = 5;

/// Metrics that imply that there should be an MFU, if the model is known.
const PACES: &[&str] = &[
    metric::TOKENS,
    metric::SAMPLES,
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_GPU,
    metric::TFLOPS_REPORTED,
    metric::MFU_REPORTED,
];
/// The most log lines about a missing MFU: a trainer may describe a different model each time.
const MAX_REMARKS: u32 = 8;
/// The most users that are named for reporting a run of another user.
const MAX_REFUSED: usize = 16;

/// Fields of `hello` for the info family.
#[derive(Debug, Clone, Default)]
pub(super) struct About {
    pub(super) framework: String,
    pub(super) version: String,
    pub(super) dtype: String,
    pub(super) gpu: String,
    pub(super) job: String,
}

/// The largest values of the last minutes.
#[derive(Debug, Clone)]
pub(super) struct Extremes {
    pub(super) loss: [WindowMax; 2],
    pub(super) grad_norm: [WindowMax; 2],
}

/// The label and the seconds of each window in [`Extremes`].
pub(super) const WINDOWS: [(&str, f64); 2] = [("1m", 60.0), ("5m", 300.0)];

#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: Arc<str>,
    /// The owner of the run.
    pub(super) owner: Principal,
    /// Whether root itself reported a step, so that it did not open the run for another user.
    pub(super) settled: bool,
    /// How many events of each other principal were refused.
    pub(super) refused: BTreeMap<Principal, u64>,
    pub(super) opened: f64,
    pub(super) epoch: RunEpoch,
    pub(super) ranks: BTreeMap<u32, Rank>,
    pub(super) world: Option<u32>,
    pub(super) said_gpus: SaidGpus,
    pub(super) about: About,
    pub(super) model: Model,
    /// The kind of source that gave the model.
    model_by: Word,
    /// How many times a remark about its MFU was logged.
    remarks: u32,
    /// Whether steps had metrics that imply an MFU.
    is_paced: bool,
    dtype_by: Word,
    pub(super) peak: Option<f64>,
    pub(super) gauges: [Option<Gauge>; GAUGES.len()],
    pub(super) custom: BTreeMap<Box<str>, Option<Gauge>>,
    pub(super) mfu: BTreeMap<Box<str>, Option<Gauge>>,
    pub(super) evals: BTreeMap<Box<str>, f64>,
    pub(super) extremes: Extremes,
    pub(super) nonfinite: Nonfinite,
    pub(super) checkpoints: Checkpoints,
    pub(super) step: Option<(u32, i64)>,
    pub(super) last_step_ts: Option<f64>,
    pub(super) steps: f64,
    pub(super) tokens: f64,
    tokens_at: Option<(u32, i64)>,
    pub(super) skipped: f64,
    skipped_at: Option<(u32, i64)>,
    pub(super) restarts: u64,
    pub(super) deaths: u64,
    /// The Unix time when the last event arrived.
    pub(super) heard: f64,
    names: Names,
    /// Ranks that were reported only before a restart of this exporter.
    past_ranks: BTreeMap<u32, PastRank>,
}

/// The kinds of sources of a model; later ones override earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    /// A file beside a checkpoint, which does not give the length of a sequence.
    #[default]
    Checkpoint,
    /// The output of the trainer.
    Printed,
    Trainer,
    Operator,
}

impl Word {
    fn from_event(event: &Event, source: Priority) -> Self {
        match event.extra.get(hello::SOURCE).and_then(Value::as_str) {
            _ if source == Priority::Client => Self::Trainer,
            Some(hello::CONFIGURED) => Self::Operator,
            Some(hello::MODEL_CONFIG) => Self::Checkpoint,
            _ => Self::Printed,
        }
    }
}

/// The context in which an event of the run is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) now: f64,
    pub(super) source: Priority,
    /// The name of the source; `None` is the trainer itself.
    pub(super) name: Option<&'a Arc<str>>,
    pub(super) pid: Option<u32>,
    pub(super) convention: Convention,
    pub(super) max_custom: usize,
    /// The GPU of this node, from the configuration or the driver.
    pub(super) gpu: Gpu<'a>,
}

/// The sources of the GPU's name: the operator's comes before the trainer's before the driver's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gpu<'a> {
    pub(super) configured: Option<&'a str>,
    pub(super) detected: Option<&'a str>,
}

/// The outcome of a step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Stepped {
    /// The reason why it was not accepted.
    pub(super) dropped: Option<Reason>,
    /// An event to publish before the step.
    pub(super) restart: Option<Event>,
    /// The number of custom metrics over the limit.
    pub(super) custom_dropped: u64,
    /// The number of values that an equally or more exact source had reported.
    pub(super) repeated: u64,
    /// Whether the event only corrects streamed values, so that only the metrics page gets it.
    pub(super) silent: bool,
}

impl Stepped {
    fn dropped(reason: Reason) -> Self {
        Self { dropped: Some(reason), ..Self::default() }
    }
}

impl<'a> Context<'a> {
    fn speaker(&self, event: &Event) -> Speaker<'a> {
        Speaker { priority: self.source, name: self.name, ts: event.ts, now: self.now }
    }
}

impl Run {
    pub(super) fn new(name: Arc<str>, owner: Principal, past: Option<&PastRun>, now: f64) -> Self {
        let windows = || WINDOWS.map(|(_, seconds)| WindowMax::new(seconds));
        Self {
            name,
            owner,
            settled: false,
            refused: BTreeMap::new(),
            opened: now,
            epoch: RunEpoch::new(past.map_or(0, |p| p.attempt), now),
            ranks: BTreeMap::new(),
            names: Names::default(),
            world: None,
            said_gpus: SaidGpus::default(),
            about: About::default(),
            model: Model::default(),
            model_by: Word::default(),
            remarks: 0,
            is_paced: false,
            dtype_by: Word::default(),
            peak: None,
            gauges: [None; GAUGES.len()],
            custom: BTreeMap::new(),
            mfu: BTreeMap::new(),
            evals: BTreeMap::new(),
            extremes: Extremes { loss: windows(), grad_norm: windows() },
            nonfinite: Nonfinite::default(),
            checkpoints: Checkpoints::default(),
            step: None,
            last_step_ts: None,
            steps: 0.0,
            tokens: 0.0,
            tokens_at: None,
            skipped: 0.0,
            skipped_at: None,
            restarts: 0,
            deaths: 0,
            heard: now,
            past_ranks: past.map(|p| p.ranks.clone()).unwrap_or_default(),
        }
    }

    /// The state of a rank, created at its first report; `None` if there are `limit` already.
    pub(super) fn rank(&mut self, rank: u32, limit: usize, now: f64) -> Option<&mut Rank> {
        if !self.ranks.contains_key(&rank) {
            if self.ranks.len() >= limit {
                return None;
            }
            let past = self.past_ranks.remove(&rank);
            let epoch = match &past {
                Some(p) => RankEpoch::restored(p.attempt, p.step, p.lead, now),
                None => RankEpoch::new(self.epoch.attempt, None),
            };
            let pid = past.and_then(|p| p.pid);
            self.ranks.insert(rank, Rank { pid, ..Rank::new(rank, epoch, now) });
        }
        self.ranks.get_mut(&rank)
    }

    pub(super) fn last_step(&self, rank: u32) -> Option<i64> {
        let past = || self.past_ranks.get(&rank).map(|r| r.step);
        self.ranks.get(&rank).map_or_else(past, |r| r.epoch.last)
    }

    /// Takes over what an event contains about the model and its hardware.
    pub(super) fn describe(&mut self, event: &Event, cx: Context<'_>) {
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|n| event.extra.get(*n)?.as_str());
            found.map(|t| t.chars().take(64).collect::<String>())
        };
        let keep = |slot: &mut String, names: &[&str]| {
            if let Some(value) = text(names) {
                *slot = value;
            }
        };
        keep(&mut self.about.framework, &["framework"]);
        self.said_gpus.describe(event);
        keep(&mut self.about.version, &["version", "framework_version"]);
        let word = Word::from_event(event, cx.source);
        if word >= self.dtype_by && text(&["dtype", "precision"]).is_some() {
            keep(&mut self.about.dtype, &["dtype", "precision"]);
            self.dtype_by = word;
        }
        keep(&mut self.about.gpu, &["gpu", "gpu_name", "device"]);
        keep(&mut self.about.job, &["job", "job_id"]);
        self.learn_model(Model::from_hello(&event.extra), word);
        self.find_peak(cx.gpu);
    }

    pub(super) fn hello(&mut self, event: &Event, cx: Context<'_>) {
        self.describe(event, cx);
        let number = event.rank.unwrap_or(0);
        if cx.source != Priority::Client {
            return self.source_hello(number, event, cx);
        }
        if Role::of(event) != Role::Trainer {
            return;
        }
        let said = || match event.extra.get("pid") {
            Some(Value::Number(n)) => Some(*n as u32),
            _ => None,
        };
        // Any process may say any pid. The kernel knows that of a connection.
        let rank = self.ranks.get(&number);
        let is_known = rank.is_some_and(|rank| rank.process.is_some() && !rank.connections.is_empty());
        let pid = cx.pid.or_else(|| said().filter(|_| !is_known));
        self.hear_restarts(number, event);
        self.said_gpus.take(number, event);
        if let Some(rank) = self.ranks.get_mut(&number) {
            // The same process sends `hello` again when it reconnects. A different one has taken
            // over the rank.
            if let (Some(new), Some(old)) = (pid, rank.pid) {
                if new != old {
                    rank.epoch.reborn(new);
                }
            }
            rank.pid = pid.or(rank.pid);
        }
    }

    fn learn_model(&mut self, model: Model, word: Word) {
        let says = model.is_known() || model.name.is_some();
        if !says || word < self.model_by && self.model.is_known() {
            return;
        }
        let remark = model.remark().filter(|new| self.model.remark() != Some(*new));
        if let Some(remark) = remark.filter(|_| self.remarks < MAX_REMARKS) {
            self.remarks += 1;
            tracing::warn!(run = %self.name, model = model.name, "MFU: {remark}");
        }
        if model != self.model {
            self.forget_mfu(); // the figures are of the model before
        }
        (self.model, self.model_by) = (model, word);
    }

    /// Removes the MFU. It is unknown until the next step.
    fn forget_mfu(&mut self) {
        self.mfu.clear();
        self.is_paced = false;
    }

    /// The reason why there is no MFU although the model was given, or what it leaves out.
    pub(super) fn mfu_remark(&self) -> Option<&str> {
        let is_due = self.mfu.is_empty() && self.is_paced;
        let missing = match self.peak {
            _ if !self.model.is_known() => {
                is_due.then_some("neither the parameters nor the dimensions of the model are known")
            }
            None => Some("no peak FLOP/s is known of this GPU and number format"),
            Some(_) => is_due.then(|| self.model.lacks(self.has(metric::TOKENS_PER_SECOND))),
        };
        self.model.remark().or(missing)
    }

    fn has(&self, name: &str) -> bool {
        GAUGES.iter().zip(&self.gauges).any(|((known, _, _), gauge)| *known == name && gauge.is_some())
    }

    /// Records that a launcher or scheduler counted more restarts than this exporter: the job came
    /// from other nodes.
    fn restarted_elsewhere(&mut self, number: u32, restarts: u32) {
        if self.step.is_none() && self.past_ranks.is_empty() {
            self.epoch.attempt = restarts;
            self.ranks.values_mut().for_each(|rank| rank.epoch = RankEpoch::new(restarts, None));
        } else if let Some(rank) = self.ranks.get_mut(&number) {
            rank.restarts = Some(restarts);
        }
    }

    /// Takes over the launcher's number of restarts, if `hello` has it.
    fn hear_restarts(&mut self, number: u32, event: &Event) {
        let restarts = event.extra.get(hello::RESTARTS).and_then(Value::as_f64).map(|n| n as u32);
        if let Some(restarts) = restarts.filter(|n| *n > self.epoch.attempt) {
            self.restarted_elsewhere(number, restarts);
        }
    }

    /// Handles a `hello` of a source. A file sends one whenever it is opened anew; only if it
    /// declares a new process is there one. `discover` reads the restarts from the process for its
    /// log, which does not show a restart if its steps continue without a gap.
    fn source_hello(&mut self, number: u32, event: &Event, cx: Context<'_>) {
        self.hear_restarts(number, event);
        let resumed = event.extra.get(hello::RESUMED) == Some(&Value::Bool(true));
        if let Some(rank) = self.ranks.get_mut(&number).filter(|_| resumed) {
            rank.epoch.source_reborn(cx.speaker(event), &self.epoch);
        }
    }

    /// Looks the peak up again, because the GPU or the number format may have become known.
    pub(super) fn find_peak(&mut self, gpu: Gpu<'_>) {
        let theirs = Some(self.about.gpu.as_str()).filter(|g| !g.is_empty());
        let dtype = match self.about.dtype.as_str() {
            "" => Some(Dtype::Bf16),
            named => Dtype::parse(named),
        };
        let name = gpu.configured.or(theirs).or(gpu.detected);
        let peak = name.zip(dtype).and_then(|(name, dtype)| peaks::peak(name, dtype));
        if peak != self.peak {
            self.forget_mfu(); // the figures are of the peak before
        }
        self.peak = peak;
    }

    /// Takes in a step. Afterwards `event` has what goes to the stream.
    pub(super) fn step(&mut self, event: &mut Event, cx: Context<'_>) -> Stepped {
        let (Some(step), number) = (event.step, event.rank.unwrap_or(0)) else { return Stepped::default() };
        let gpus = self.gpus();
        let Some(rank) = self.ranks.get_mut(&number) else { return Stepped::default() };
        let (last, lived) = (rank.epoch.last, rank.epoch.attempt);
        let here = self.step.filter(|(attempt, _)| *attempt == self.epoch.attempt).map(|(_, step)| step);
        if rank.epoch.doubts(step, here) {
            return Stepped::dropped(Reason::StepJump);
        }
        let who = cx.speaker(event);
        let jumped = last.is_some_and(|last| is_jump(last, step));
        event.attempt = event.attempt.max(rank.restarts.take());
        let raised = event.attempt.is_some_and(|a| self.epoch.raise(a, step, who));
        if event.attempt == Some(self.epoch.attempt) {
            rank.epoch.counted_by_launcher();
        }
        rank.epoch.stepped_by(cx.pid);
        let observed = rank.epoch.observe(&mut self.epoch, step, who);
        let Observed::Step { advanced, restarted_from, leads } = observed else {
            return Stepped::dropped(Reason::PastAttempt);
        };
        let restarted = raised || restarted_from.is_some();
        if rank.epoch.attempt != lived {
            rank.dedup.clear();
        }
        event.attempt = Some(rank.epoch.attempt);
        if cx.source == Priority::Telemetry {
            rank.stale.look(event);
        }
        let sifted = rank.dedup.sift(&mut self.names, cx.source, event);
        if sifted.nothing_new {
            return Stepped::dropped(Reason::Duplicate);
        }
        if leads {
            rank.derive_step_time(event, advanced, restarted || jumped || last.is_none());
        }
        let setting = Setting { gpus, model: &self.model, peak: self.peak, prefer: cx.convention };
        let mfu = mfu::enrich(&mut event.m, setting);
        let timed = !self.about.framework.is_empty() && event.m.get(metric::STEP_TIME).is_some();
        self.is_paced |= timed || PACES.iter().any(|name| event.m.get(name).is_some());
        rank.dedup.note(&mut self.names, cx.source, event, &sifted);
        rank.record_step(&event.m, &event.t, sifted.corrects(metric::STEP_TIME));
        let at = At { attempt: rank.epoch.attempt, step, rank: number, now: cx.now };
        let restart = restarted.then(|| self.restarted(number, restarted_from.or(last), event));
        self.count(event, &sifted, at);
        let custom_dropped = self.set_gauges(event, &mfu, at, cx.max_custom);
        let silent = !MetricDedup::for_stream(event, &sifted);
        Stepped { dropped: None, restart, custom_dropped, repeated: sifted.repeated, silent }
    }

    fn restarted(&mut self, rank: u32, from: Option<i64>, event: &Event) -> Event {
        self.restarts += 1;
        self.checkpoints.restarted(rank);
        let step = event.step.unwrap_or_default();
        let text = match from {
            Some(from) if step < from => format!("steps went back from {from} to {step}: the run restarted"),
            Some(from) => format!("a new process continues after step {from} at step {step}"),
            None => format!("a new attempt begins at step {step}"),
        };
        let mut restart = Event {
            ts: event.ts,
            run: event.run.clone(),
            rank: event.rank,
            world: event.world.or(self.world),
            step: event.step,
            attempt: Some(self.epoch.attempt),
            node: event.node.clone(),
            name: Some(exporter_event::RESTART.into()),
            level: Some("info".into()),
            text: Some(text),
            ..Event::new(Kind::Event)
        };
        if let Some(from) = from {
            restart.extra.insert("from_step".into(), Value::Number(from as f64));
        }
        restart
    }

    /// Updates the counters of the run. Each step counts once, however many ranks report it.
    fn count(&mut self, event: &Event, sifted: &Sifted, at: At) {
        let here = (at.attempt, at.step);
        let interval = |before: Option<(u32, i64)>| match before {
            // The true distance over a jump is unknown, so it counts as one.
            Some((attempt, step)) if attempt == at.attempt && is_jump(step, at.step) => 1.0,
            Some((attempt, step)) if attempt == at.attempt => at.step.saturating_sub(step).max(0) as f64,
            Some(before) if before > here => 0.0,
            _ => 1.0,
        };
        let steps = interval(self.step);
        if self.step.is_none_or(|s| s <= here) {
            self.steps += steps;
            self.step = Some(here);
            self.last_step_ts = event.ts.or(Some(at.now)).map(|ts| ts.min(at.now));
        }
        let number = |name| event.m.get(name).filter(|v| v.is_finite() && *v > 0.0);
        if let Some(tokens) = number(metric::TOKENS) {
            self.tokens += tokens * interval(self.tokens_at);
            self.tokens_at = self.tokens_at.max(Some(here));
        }
        if let Some(skipped) = number(metric::SKIPPED).filter(|_| self.skipped_at < Some(here)) {
            self.skipped += skipped;
            self.skipped_at = Some(here);
        }
        self.nonfinite.step(event, sifted, at.attempt);
    }

    /// Sets the gauges. Returns how many custom metrics found no room.
    fn set_gauges(&mut self, event: &Event, mfu: &[(String, f64)], at: At, max_custom: usize) -> u64 {
        let mut dropped = 0;
        for (name, value) in event.m.iter() {
            if let Some(i) = GAUGES.iter().position(|(known, _, _)| *known == name) {
                let taken = Gauge::offer(&mut self.gauges[i], value, at);
                let windows = match name {
                    metric::LOSS => &mut self.extremes.loss,
                    metric::GRAD_NORM => &mut self.extremes.grad_norm,
                    _ => continue,
                };
                if taken {
                    windows.iter_mut().for_each(|w| w.record(value, at.now));
                }
            } else if !ELSEWHERE.contains(&name)
                && !offer_named(&mut self.custom, name, value, at, max_custom)
            {
                dropped += 1;
            }
        }
        for (convention, ratio) in mfu {
            offer_named(&mut self.mfu, convention, *ratio, at, MAX_CONVENTIONS);
        }
        dropped
    }

    pub(super) fn eval(&mut self, event: &Event) {
        self.nonfinite.eval(event, self.epoch.attempt);
        let loss = ["loss", "eval_loss"].iter().find_map(|n| event.m.get(n)).filter(|v| v.is_finite());
        let dataset = event.name.as_deref().unwrap_or("");
        if let Some(loss) = loss {
            if self.evals.len() < MAX_DATASETS || self.evals.contains_key(dataset) {
                self.evals.insert(dataset.into(), loss);
            }
        }
    }

    /// Applies a `bye` without a rank, as in a log, to all ranks that cannot send their own.
    pub(super) fn ended(&mut self, event: &Event) {
        for rank in self.ranks.values_mut().filter(|r| r.connections.is_empty()) {
            (rank.said_bye, rank.completed) = (true, event.code == Some(0));
        }
    }

    /// Whether every reported rank sent `bye`.
    pub(super) fn is_over(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.values().all(|r| r.said_bye)
    }

    /// Whether the run is over and all ranks ended well. After a crash its owner starts it again.
    pub(super) fn is_completed(&self) -> bool {
        self.is_over() && self.ranks.values().all(|r| r.completed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.ranks.values().any(|r| !r.connections.is_empty() || !r.launchers.is_empty())
    }

    /// Records a report by a user who may not report the run.
    pub(super) fn refuse(&mut self, principal: Principal) {
        if self.refused.len() < MAX_REFUSED || self.refused.contains_key(&principal) {
            *self.refused.entry(principal).or_default() += 1;
        }
    }

    /// The state that survives a restart of this exporter.
    pub(super) fn past(&self) -> PastRun {
        let mut ranks = self.past_ranks.clone();
        ranks.extend(self.ranks.iter().filter_map(|(number, rank)| {
            let (step, lead) = rank.epoch.last.zip(rank.epoch.lead())?;
            Some((*number, PastRank { attempt: rank.epoch.attempt, step, lead, pid: rank.pid }))
        }));
        let (attempt, heard) = (self.epoch.attempt, self.heard);
        let (owner, settled) = (self.owner, self.settled);
        PastRun { attempt, heard, owner, settled, completed: self.is_completed(), ranks }
    }
}

/// Whether an event only describes the model, as a file does long before or after the run: it shows
/// no process.
pub(super) fn only_describes(event: &Event, source: Priority) -> bool {
    let said_by = event.extra.get(hello::SOURCE).and_then(Value::as_str);
    let describes = matches!(said_by, Some(hello::MODEL_CONFIG | hello::PRINTED));
    event.kind == Kind::Hello && source != Priority::Client && describes
}

/// Offers a value to the gauge `name`; false if there is no room for another name.
fn offer_named(
    all: &mut BTreeMap<Box<str>, Option<Gauge>>,
    name: &str,
    value: f64,
    at: At,
    limit: usize,
) -> bool {
    if let Some(slot) = all.get_mut(name) {
        Gauge::offer(slot, value, at);
    } else if all.len() < limit {
        let mut slot = None;
        Gauge::offer(&mut slot, value, at);
        all.insert(name.into(), slot);
    } else {
        return false;
    }
    true
}
