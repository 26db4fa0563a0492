//! One run: what its ranks and sources reported, put together.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepwatch_wire::names::{exporter_event, hello, metric};
use stepwatch_wire::{Event, Kind, Value};

use super::archive::{PastRank, PastRun};
use super::checkpoint::Checkpoints;
use super::epoch::{Observed, RankEpoch, RunEpoch, Speaker, is_jump};
use super::families::{ELSEWHERE, GAUGES};
use super::gauge::{At, Gauge};
use super::metric_dedup::{MetricDedup, Names, Sifted};
use super::mfu::{self, Convention, Model, Setting};
use super::nonfinite::Nonfinite;
use super::peaks::{self, Dtype};
use super::rank::Rank;
use super::window::WindowMax;
use crate::drops::Reason;
use crate::origin::Priority;
use crate::principal::Principal;

/// Distinct evaluation sets of a run on the page.
const MAX_DATASETS: usize = 32;
/// Ways of counting FLOPs of a run on the page: the published ones, and one that the trainer counts
/// by.
const MAX_CONVENTIONS: usize = 5;

/// Metrics that a trainer of a language model counts, of which and of the model there is an MFU.
const PACES: &[&str] = &[
    metric::TOKENS,
    metric::SAMPLES,
    metric::TOKENS_PER_SECOND,
    metric::TOKENS_PER_SECOND_PER_GPU,
    metric::TFLOPS_REPORTED,
    metric::MFU_REPORTED,
];
/// Times that the reason for no MFU is logged: a trainer may describe another model each time.
const MAX_REMARKS: u32 = 8;
/// Users that are named as having reported a run of another.
const MAX_REFUSED: usize = 16;

/// Fields of `hello`, for the info family.
#[derive(Debug, Clone, Default)]
pub(super) struct About {
    pub(super) framework: String,
    pub(super) version: String,
    pub(super) dtype: String,
    pub(super) gpu: String,
    pub(super) job: String,
}

/// Largest values of the last minutes.
#[derive(Debug, Clone)]
pub(super) struct Extremes {
    pub(super) loss: [WindowMax; 2],
    pub(super) grad_norm: [WindowMax; 2],
}

/// Labels of the windows in [`Extremes`].
pub(super) const WINDOWS: [(&str, f64); 2] = [("1m", 60.0), ("5m", 300.0)];

#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: Arc<str>,
    /// Whose it is.
    pub(super) owner: Principal,
    /// Root itself made a step in this run of root's, so it did not open it for another user.
    pub(super) settled: bool,
    /// Events of others that were refused, by whose they were.
    pub(super) refused: BTreeMap<Principal, u64>,
    pub(super) opened: f64,
    pub(super) epoch: RunEpoch,
    pub(super) ranks: BTreeMap<u32, Rank>,
    pub(super) world: Option<u32>,
    pub(super) about: About,
    pub(super) model: Model,
    /// Which source gave the model.
    model_by: Word,
    /// How often the reason about its MFU was logged, and which one.
    remarks: u32,
    /// Steps had something of which there could be an MFU.
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
    /// Arrival of the last event.
    pub(super) heard: f64,
    names: Names,
    /// Ranks of an earlier life of this exporter without a report in this one.
    past_ranks: BTreeMap<u32, PastRank>,
}

/// Whose word on the model counts: the later ones beat the earlier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    /// A file beside a checkpoint, which does not contain the length of a sequence.
    #[default]
    Checkpoint,
    /// What the trainer prints.
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

/// What a step is judged by, besides the run itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) now: f64,
    pub(super) source: Priority,
    /// Which source; `None` is the trainer itself.
    pub(super) name: Option<&'a Arc<str>>,
    pub(super) pid: Option<u32>,
    pub(super) convention: Convention,
    pub(super) max_custom: usize,
    /// The GPU of this node, from the configuration or the driver.
    pub(super) gpu: Gpu<'a>,
}

/// Which source gives the GPU: the operator before the trainer before the driver.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gpu<'a> {
    pub(super) configured: Option<&'a str>,
    pub(super) detected: Option<&'a str>,
}

/// What became of a step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Stepped {
    /// Why it was not taken.
    pub(super) dropped: Option<Reason>,
    /// An event to publish before the step.
    pub(super) restart: Option<Event>,
    /// Custom metrics that the page has no room for.
    pub(super) custom_dropped: u64,
    /// Values that a source as exact or better had reported before.
    pub(super) repeated: u64,
    /// It only corrects what has been streamed: it is for the page.
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

    /// The state of a rank, made at its first report; `None` when there are `limit` already.
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

    /// What an event contains about the model and what it runs on.
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
        if is_launcher(event) {
            return; // the process that starts the one that trains
        }
        let pid = cx.pid.or_else(|| match event.extra.get("pid") {
            Some(Value::Number(n)) => Some(*n as u32),
            _ => None,
        });
        self.hear_restarts(number, event);
        if let Some(rank) = self.ranks.get_mut(&number) {
            // The same process sends `hello` again when it reconnects; a different one has taken
            // the rank over.
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

    /// Until the next step it is not known what there is.
    fn forget_mfu(&mut self) {
        self.mfu.clear();
        self.is_paced = false;
    }

    /// Why there is no MFU although the model was given, or what it leaves out.
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

    /// A launcher or a scheduler counted more restarts than were seen here: the job came from other
    /// nodes.
    fn restarted_elsewhere(&mut self, number: u32, restarts: u32) {
        if self.step.is_none() && self.past_ranks.is_empty() {
            self.epoch.attempt = restarts;
            self.ranks.values_mut().for_each(|rank| rank.epoch = RankEpoch::new(restarts, None));
        } else if let Some(rank) = self.ranks.get_mut(&number) {
            rank.restarts = Some(restarts);
        }
    }

    /// Takes over the restarts that the launcher has counted, where `hello` has them.
    fn hear_restarts(&mut self, number: u32, event: &Event) {
        let restarts = event.extra.get(hello::RESTARTS).and_then(Value::as_f64).map(|n| n as u32);
        if let Some(restarts) = restarts.filter(|n| *n > self.epoch.attempt) {
            self.restarted_elsewhere(number, restarts);
        }
    }

    /// A file publishes `hello` whenever it is opened anew, which is no new process, unless it
    /// declares one. What `discover` read of the environment of a process counts for its log, which
    /// shows no restart if it goes on exactly behind its last step.
    fn source_hello(&mut self, number: u32, event: &Event, cx: Context<'_>) {
        self.hear_restarts(number, event);
        let resumed = event.extra.get(hello::RESUMED) == Some(&Value::Bool(true));
        if let Some(rank) = self.ranks.get_mut(&number).filter(|_| resumed) {
            rank.epoch.source_reborn(cx.speaker(event), &self.epoch);
        }
    }

    /// Looks the peak up again: the GPU or the number format may have become known.
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

    /// Takes a step in; what is left of `event` is for the stream.
    pub(super) fn step(&mut self, event: &mut Event, cx: Context<'_>) -> Stepped {
        let (Some(step), number) = (event.step, event.rank.unwrap_or(0)) else { return Stepped::default() };
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
        let setting = Setting {
            world: event.world.or(self.world),
            model: &self.model,
            peak: self.peak,
            prefer: cx.convention,
        };
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
        self.checkpoints.abandon(rank);
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

    /// Counters of the run; each step counts once however many ranks report it.
    fn count(&mut self, event: &Event, sifted: &Sifted, at: At) {
        let here = (at.attempt, at.step);
        let interval = |before: Option<(u32, i64)>| match before {
            // How far it really went over a jump is not known.
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

    /// Returns how many custom metrics found no room.
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

    /// A `bye` without a rank, as logs have it, is that of all ranks that cannot send their own.
    pub(super) fn ended(&mut self, event: &Event) {
        for rank in self.ranks.values_mut().filter(|r| r.connections.is_empty()) {
            (rank.said_bye, rank.completed) = (true, event.code == Some(0));
        }
    }

    /// Whether every reported rank sent `bye`.
    pub(super) fn is_over(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.values().all(|r| r.said_bye)
    }

    /// Whether it is over and all went well. After a crash its owner starts it again.
    pub(super) fn is_completed(&self) -> bool {
        self.is_over() && self.ranks.values().all(|r| r.completed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.ranks.values().any(|r| !r.connections.is_empty() || !r.launchers.is_empty())
    }

    /// Records that a user reported it who may not.
    pub(super) fn refuse(&mut self, principal: Principal) {
        if self.refused.len() < MAX_REFUSED || self.refused.contains_key(&principal) {
            *self.refused.entry(principal).or_default() += 1;
        }
    }

    /// What must survive a restart of this exporter.
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

/// Whether it only describes the model, as a file does long after a run began or ended: no process
/// has come.
pub(super) fn only_describes(event: &Event, source: Priority) -> bool {
    let said_by = event.extra.get(hello::SOURCE).and_then(Value::as_str);
    let describes = matches!(said_by, Some(hello::MODEL_CONFIG | hello::PRINTED));
    event.kind == Kind::Hello && source != Priority::Client && describes
}

/// Whether a launcher reports, and not the process that it started.
pub(super) fn is_launcher(event: &Event) -> bool {
    event.extra.get(hello::ROLE).and_then(Value::as_str) == Some(hello::LAUNCHER)
}

/// Offers a value to a gauge that is known by name; false when there is no room for another name.
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
