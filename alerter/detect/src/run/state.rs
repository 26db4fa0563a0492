//! The state of a run, apart from its signals.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use super::align::Arrival;
use super::attempts::{self, Attempts};
use super::checkpoints::Checkpoints;
use super::config_groups::{ConfigGroups, Setup};
use super::failures::course;
use super::gpus::KnownGpus;
use super::ledger::Ledger;
use super::lost_source::Lost;
use super::on_disk::is_gone;
use super::pace::{Pace, TimeResolution};
use super::peers::Peers;
use super::rank_compute_time::RankComputeTimes;
use super::rank_loss::{self, RankLosses};
use super::reports::Reports;
use super::startup::{StartPhase, Starting};
use crate::batches::BatchSize;
use crate::sample::StepSample;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Course, Target};

/// The most deaths kept for a run: the first one matters most.
const MAX_DEATHS: usize = 64;
/// Exit codes after Ctrl-C and SIGTERM: a person or a scheduler stopped the run, so nobody is
/// notified.
pub(super) const STOPPED: [i64; 2] = [130, 143];
/// The number of steps after a death that prove that the run goes on without that rank.
const PROOF_STEPS: u64 = 3;
/// Multiples of the 99th percentile of the pace. A gap beyond `PAUSE` is a pause; no deadline is
/// shorter than the longest gap beyond `LONG`. Engineering limits.
const PAUSE: f64 = 3.0;
const LONG: f64 = 1.5;
/// The number of lines by which a step may be out of order.
const OUT_OF_ORDER: i64 = 3;
/// How long steps of the previous attempt may still arrive.
const IN_FLIGHT: Span = Span::secs(30);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunState {
    pub name: String,
    /// Restart epoch, counted here.
    pub attempt: u32,
    pub world: Option<u32>,
    pub(crate) known_gpus: KnownGpus,
    pub first_seen: Ts,
    /// When the last record of the run arrived.
    pub last_heard: Ts,
    pub last_step: Option<i64>,
    /// When a step arrived last, by our clock.
    pub last_progress: Ts,
    /// When the trainer last showed progress of another kind: a phase, a checkpoint or an
    /// evaluation began or ended.
    pub last_sign: Ts,
    /// When that step happened, by its own clock.
    pub last_step_at: Option<Ts>,
    /// When the attempt began, by our clock.
    pub attempt_at: Ts,
    pub attempts: Attempts,
    /// The most informative exit code of the attempt, not the last one.
    pub worst_code: i64,
    /// The number of samples since the attempt began, and in total.
    pub attempt_steps: u64,
    pub total_steps: u64,
    /// The number of steps between two samples.
    pub interval: i64,
    pub pace: Pace,
    /// The longest pause that the run survived, in seconds: mostly an undeclared evaluation.
    pub longest_pause: f64,
    pub time_resolution: TimeResolution,
    /// Seconds between the first two samples: compilation, and often the first evaluation.
    pub first_gap: f64,
    pub heartbeats: bool,
    /// The trainer declares its phases, checkpoints or evaluations, so a pause that it does not
    /// declare is none of them.
    pub declares: bool,
    /// A process of the run has sent a `hello` itself.
    pub greeted: bool,
    /// The start of the next attempt, until its first step.
    pub starting: Option<Box<Starting>>,
    /// The labels that the trainer declared, by which routes and silences may select.
    pub labels: BTreeMap<String, String>,
    pub ranks: BTreeMap<u32, Rank>,
    /// The number of ranks of this attempt on each node.
    pub nodes: BTreeMap<String, u32>,
    /// Nodes that came or went since the last call of `place`.
    #[serde(skip)]
    pub(crate) moved: Vec<String>,
    /// The setups of those nodes.
    pub config_groups: ConfigGroups,
    /// Open phases, and how long each kind took at most.
    pub phases: BTreeMap<String, Phase>,
    pub checkpoints: Checkpoints,
    pub(crate) evals: Option<Box<super::evals::Evals>>,
    /// The accounts of its time.
    pub ledger: Ledger,
    /// Samples a step, from which the position of the run in its data follows.
    pub batch_size: BatchSize,
    pub deaths: BTreeMap<u32, Death>,
    pub reports: Reports,
    /// When NCCL last reported that ranks wait for others.
    pub stuck_at: Option<Ts>,
    /// Since when its GPUs have been seen to wait in a collective that none of them computes for.
    pub waiting_since: Option<Ts>,
    /// When most of its GPUs were last seen to compute although no step was reported for a while.
    pub computed_at: Option<Ts>,
    /// The compute time of each rank.
    pub compute_times: RankComputeTimes,
    /// The losses of the ranks on their own batches.
    pub rank_losses: RankLosses,
    /// The usual readings of its GPUs and ports.
    pub peers: Peers,
    steps_since_death: u64,
    pub ended: Option<Ended>,
    /// The sources that report the run, and when each last did.
    pub live: BTreeMap<String, Ts>,
    pub lost: BTreeMap<String, Lost>,
    /// Nodes with a source that does not answer and another that does. Not stored, because it
    /// follows from which sources answer.
    #[serde(skip)]
    pub(crate) heard_elsewhere: BTreeSet<String>,
    /// Since when the run has been received without interruption: silence before it does not count.
    pub live_since: Ts,
    /// When the alerter last resumed. Not stored: it is set anew when stored state is restored.
    #[serde(skip)]
    pub(crate) resumed_at: Ts,
    /// The clock detectors must run before their deadline.
    pub wants_look: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rank {
    pub node: Option<String>,
    /// Its number among the ranks of its node.
    pub local_rank: Option<u32>,
    /// Stage of the pipeline that it computes.
    pub stage: Option<u32>,
    pub attempt: Option<u32>,
    pub last_step: Option<i64>,
    /// The last two steps with a gap between them, which late steps may fill.
    hole: Option<(i64, i64)>,
    pub last_seen: Ts,
    /// The run restarted, and this rank has not reported a step since.
    pub stale: bool,
    pub done: bool,
    /// The last process that said hello, as far as that is known: its pid, and when it began.
    pub(super) pid: Option<u32>,
    pub(super) started: Option<Ts>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Phase {
    pub open: Option<Ts>,
    pub ranks: BTreeSet<u32>,
    /// Longest completed one, in seconds.
    pub longest: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    pub at: Ts,
    /// The time of death by the clock of the program that saw it.
    pub when: Ts,
    pub text: String,
    pub course: Course,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub at: Ts,
    /// Exit code; 0 is a clean end.
    pub code: i64,
    pub text: Option<String>,
    /// The end was not reported: the log ended without an error.
    pub silent: bool,
}

/// The pipeline stage of a rank, as the event gives it or derived from the number of stages:
/// Megatron, torchtitan and DeepSpeed all give neighbouring ranks to one stage.
fn stage(rank: u32, world: Option<u32>, e: &Event) -> Option<u32> {
    let given = ["stage", "pp_stage", "pp_rank", "pipeline_rank"].iter().find_map(|key| number(e, key));
    given.or_else(|| {
        let stages = number(e, "pp").filter(|n| *n > 1)?;
        let world = world.filter(|world| world % stages == 0 && *world >= stages)?;
        Some(rank / (world / stages))
    })
}

/// A small integer beside the metrics or, in a step, among them.
pub(super) fn number(e: &Event, key: &str) -> Option<u32> {
    let v = e.extra.get(key).and_then(Value::as_f64).or_else(|| e.m.get(key))?;
    (v >= 0.0 && v <= f64::from(u32::MAX) && v.fract() == 0.0).then_some(v as u32)
}

impl Ended {
    /// Whether the run completed, or a person or scheduler stopped it.
    pub fn well(&self) -> bool {
        self.code == 0 || self.by_hand()
    }

    pub fn by_hand(&self) -> bool {
        STOPPED.contains(&self.code)
    }
}

impl Rank {
    /// Whether a step before the last one was not reported yet, so that it is only out of order. A
    /// rewind reports steps again.
    fn is_late(&self, last: i64, step: i64, interval: i64) -> bool {
        let near = last.saturating_sub(step) <= interval.saturating_mul(OUT_OF_ORDER);
        near && self.hole.is_some_and(|(from, to)| from < step && step < to)
    }
}

impl RunState {
    pub fn new(name: &str, now: Ts) -> Self {
        Self {
            name: name.to_owned(),
            attempt: 0,
            world: None,
            known_gpus: KnownGpus::default(),
            first_seen: now,
            last_heard: now,
            last_step: None,
            last_progress: now,
            last_sign: now,
            last_step_at: None,
            attempt_steps: 0,
            total_steps: 0,
            interval: 1,
            pace: Pace::default(),
            longest_pause: 0.0,
            time_resolution: TimeResolution::default(),
            first_gap: 0.0,
            heartbeats: false,
            declares: false,
            greeted: false,
            starting: None,
            labels: BTreeMap::new(),
            attempt_at: now,
            attempts: Attempts::default(),
            worst_code: 0,
            ranks: BTreeMap::new(),
            nodes: BTreeMap::new(),
            moved: Vec::new(),
            config_groups: ConfigGroups::default(),
            phases: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            evals: None,
            ledger: Ledger::default(),
            batch_size: BatchSize::default(),
            deaths: BTreeMap::new(),
            reports: Reports::default(),
            stuck_at: None,
            waiting_since: None,
            computed_at: None,
            compute_times: RankComputeTimes::default(),
            rank_losses: RankLosses::default(),
            peers: Peers::default(),
            steps_since_death: 0,
            ended: None,
            live: BTreeMap::new(),
            lost: BTreeMap::new(),
            heard_elsewhere: BTreeSet::new(),
            live_since: now,
            resumed_at: Ts::default(),
            wants_look: false,
        }
    }

    /// The number of ranks as far as it is known: runs are compared by it, and never priced.
    pub fn ranks_known(&self) -> u32 {
        self.world.unwrap_or(0).max(self.ranks.len() as u32).max(1)
    }

    pub(crate) fn heard(&mut self, now: Ts, source: &str, e: &Event) {
        self.last_heard = now;
        match e.kind {
            Kind::Hello => {
                self.last_sign = now;
                self.greeted |= !e.extra.contains_key(hello::SOURCE);
            }
            // Whoever logs its start may leave out its evaluations.
            Kind::Phase if StartPhase::is_only_of_start(e) => {
                let goes_on = self.starting.is_some() || self.may_start();
                self.last_sign = if goes_on { now } else { self.last_sign };
            }
            // Whoever cleans up a directory is no sign of the run.
            Kind::Phase | Kind::Ckpt | Kind::Eval if !is_gone(e) => {
                self.last_sign = now;
                self.declares = true;
            }
            _ => {}
        }
        if e.world.is_some() {
            self.world = e.world;
        }
        match self.live.get_mut(source) {
            Some(at) => *at = now,
            None => {
                self.live.insert(source.to_owned(), now);
            }
        }
        if let Some(rank) = e.rank {
            if let Some(r) = self.ranks.get_mut(&rank) {
                r.last_seen = now;
                if e.node.is_some() && r.node != e.node {
                    let left = core::mem::replace(&mut r.node, e.node.clone()).filter(|_| !r.stale);
                    let counts = !r.stale;
                    left.iter().for_each(|node| self.leave(node));
                    e.node.iter().filter(|_| counts).for_each(|node| self.arrive(node));
                }
            } else if self.ranks.len() < super::MAX_RANKS {
                self.ranks.insert(rank, Rank { node: e.node.clone(), last_seen: now, ..Rank::default() });
                e.node.iter().for_each(|node| self.arrive(node));
            }
        }
    }

    fn arrive(&mut self, node: &str) {
        if let Some(ranks) = self.nodes.get_mut(node) {
            *ranks += 1;
            return;
        }
        self.nodes.insert(node.to_owned(), 1);
        self.moved.push(node.to_owned());
    }

    fn leave(&mut self, node: &str) {
        match self.nodes.get_mut(node) {
            Some(ranks) if *ranks > 1 => *ranks -= 1,
            _ => {
                self.nodes.remove(node);
                self.config_groups.left(node);
                self.moved.push(node.to_owned());
            }
        }
    }

    /// Records the setup of a node of the run. Setups of other nodes are not kept.
    pub(crate) fn set_up(&mut self, now: Ts, node: &str, setup: &Setup) {
        if self.nodes.contains_key(node) {
            self.wants_look |= self.config_groups.take(now, node, setup);
        }
    }

    pub(crate) fn hello(&mut self, e: &Event) {
        let rank = e.rank.unwrap_or(0);
        let world = self.world;
        self.known_gpus.take(rank, e, number(e, hello::DEVICES));
        if let Some(r) = self.ranks.get_mut(&rank) {
            r.done = false;
            r.local_rank = number(e, "local_rank").or(r.local_rank);
            r.stage = stage(rank, world, e).or(r.stage);
        }
        if rank == 0 {
            attempts::take_labels(&mut self.labels, e);
            self.attempts.declare(e);
        }
        if let Some(ended) = self.ended.take() {
            // How the run that begins again will end says nothing of how it ended before.
            self.worst_code = 0;
            self.attempts.left = Some(ended);
            self.wants_look = true;
        }
    }

    /// Records the times of the parts of a rank's step; true if a step can be compared now.
    pub(crate) fn sectioned(&mut self, rank: u32, step: i64, e: &Event) -> bool {
        let Some(r) = self.ranks.get_mut(&rank).filter(|r| !r.stale && r.last_step == Some(step)) else {
            return false;
        };
        r.stage = number(e, "stage").or(r.stage);
        self.compute_times.take(rank, r.stage, step, e)
    }

    /// Records a rank's own loss. True if a rank deviates. A rank of an earlier attempt is not
    /// counted.
    pub(crate) fn take_rank_loss(&mut self, rank: u32, step: i64, loss: f64) -> bool {
        let counts = || self.ranks.get(&rank).is_some_and(|r| !r.stale && r.last_step == Some(step));
        self.ranks.len() >= rank_loss::FEWEST && counts() && self.rank_losses.take(rank, step, loss)
    }

    pub(crate) fn bye(&mut self, now: Ts, e: &Event) {
        let silent = e.code.is_none() && e.extra.contains_key(hello::SOURCE);
        if silent && !self.deaths.is_empty() {
            return; // the reported deaths say more about its end than this event
        }
        let code = e.code.unwrap_or(0);
        let rank = e.rank.unwrap_or(0);
        if let Some(r) = self.ranks.get_mut(&rank) {
            r.done = true;
        }
        if !silent {
            self.start_loses(now, e.rank, e.ts.map_or(now, Ts::from_secs_f64));
        }
        let failed = code != 0 && !STOPPED.contains(&code);
        if failed {
            let last_words = e.text.as_deref().map(|t| format!(": {t}")).unwrap_or_default();
            let when = e.ts.map_or(now, Ts::from_secs_f64);
            let text = format!("exited with code {code}{last_words}");
            let course = course(&text);
            self.died(rank, Death { at: now, when, text, course }, true);
        } else if !silent {
            self.attempts.ends.ended(now, rank, None);
        }
        if failed || self.worst_code == 0 {
            self.worst_code = code;
        }
        // The run is over when every rank of this attempt has ended. A rank that never reported is
        // not waited for.
        if e.rank.is_none() || self.members().all(|(_, r)| r.done) {
            self.ended = Some(Ended { at: now, code: self.worst_code, text: e.text.clone(), silent });
        }
    }

    /// The ranks of the current attempt: after a restart with fewer ranks, the others do not count.
    pub fn members(&self) -> impl Iterator<Item = (u32, &Rank)> {
        let world = self.world.unwrap_or(u32::MAX);
        self.ranks.iter().filter(move |(n, r)| !r.stale && **n < world).map(|(n, r)| (*n, r))
    }

    /// Records a death. `reported` means that an event has its cause; otherwise the rank was only
    /// seen to be gone.
    pub(crate) fn died(&mut self, rank: u32, death: Death, reported: bool) {
        self.steps_since_death = 0;
        self.attempts.ends.ended(death.at, rank, Some(&death));
        self.start_loses(death.at, Some(rank), death.when);
        // A rank may die again after a restart.
        let news = self.deaths.get(&rank).is_none_or(|d| d.at < self.last_progress);
        if news && self.deaths.len() < MAX_DEATHS {
            self.deaths.insert(rank, death);
        } else if let Some(had) = self.deaths.get_mut(&rank).filter(|_| reported) {
            *had = Death { at: had.at, when: had.when.min(death.when), ..death };
        }
    }

    /// Classifies a step of `rank`, and updates the rank.
    pub(crate) fn rank_step(&mut self, now: Ts, rank: u32, step: i64, attempt: Option<u32>) -> Arrival {
        let (run_step, attempt_at, interval) = (self.last_step, self.attempt_at, self.interval);
        let r = self.ranks.entry(rank).or_default();
        r.last_seen = now;
        let restarted = match (r.last_step, r.attempt, attempt) {
            (None, ..) => false,
            (Some(_), Some(old), Some(new)) if new != old => new > old,
            (Some(last), None, None) => step < last && !r.is_late(last, step, interval),
            _ => false,
        };
        if restarted {
            let follows = r.stale;
            (r.last_step, r.hole, r.attempt, r.stale) = (Some(step), None, attempt, false);
            if let Some(node) = r.node.clone().filter(|_| follows) {
                self.arrive(&node);
            }
            return if follows || run_step.is_none() { Arrival::Next } else { Arrival::Restarted };
        }
        if r.last_step.is_some_and(|last| step <= last) {
            // Another source of the same rank may be minutes behind. Its reports of another attempt
            // do not count for this one.
            return match r.stale {
                true => Arrival::Stale,
                false if attempt == r.attempt => Arrival::Again,
                false => Arrival::Duplicate,
            };
        }
        // Steps of the attempt that was left may still be on their way. A rank that goes on after
        // that was never part of the restart.
        if r.stale && now - attempt_at < IN_FLIGHT && run_step.is_none_or(|last| step > last + 1) {
            return Arrival::Stale;
        }
        let node = if r.stale { r.node.clone() } else { None };
        r.stale = false;
        if let Some(last) = r.last_step.filter(|last| step.saturating_sub(*last) > 1) {
            r.hole = Some((last, step));
        }
        (r.last_step, r.attempt) = (Some(step), attempt.or(r.attempt));
        node.iter().for_each(|node| self.arrive(node));
        Arrival::Next
    }

    /// Begins a new attempt: rank `first` reported an earlier step, and the others are expected to
    /// follow.
    pub(crate) fn restarted(&mut self, now: Ts, first: u32) {
        self.end_attempt();
        self.attempt += 1;
        self.attempt_at = now;
        self.attempt_steps = 0;
        self.worst_code = 0;
        self.last_step = None;
        self.last_step_at = None;
        self.last_progress = now;
        self.ended = None;
        self.deaths.clear();
        self.wants_look = true;
        self.close_phases();
        self.checkpoints.restarted();
        self.compute_times.restarted();
        self.rank_losses.restarted();
        for (_, r) in self.ranks.iter_mut().filter(|(rank, _)| **rank != first) {
            r.stale = r.last_step.is_some();
        }
        self.moved.extend(core::mem::take(&mut self.nodes).into_keys());
        let places: Vec<String> =
            self.ranks.values().filter(|r| !r.stale).filter_map(|r| r.node.clone()).collect();
        places.iter().for_each(|node| self.arrive(node));
        let nodes = &self.nodes;
        self.config_groups.retain(now, |node| nodes.contains_key(node));
    }

    /// The rank as a target of suspicion.
    pub(crate) fn rank_target(&self, rank: u32) -> Target {
        let r = self.ranks.get(&rank);
        let node = r.and_then(|r| r.node.clone());
        let local_rank = r.filter(|_| node.is_some()).and_then(|r| r.local_rank);
        Target::Rank { rank: Some(rank), local_rank, node }
    }

    /// Whether the attempt has made more steps than the first one.
    pub(crate) fn steps_since_restart(&self) -> bool {
        self.last_progress > self.attempt_at
    }

    pub(crate) fn advanced(&mut self, now: Ts, s: &StepSample) {
        // A pause during which nothing was received is no measure of the run.
        let watched = self.live_since <= self.last_progress;
        if let Some(before) = self.last_step_at {
            let secs = (s.ts - before).as_secs_f64();
            let usual = self.pace.quantile(0.99).unwrap_or(f64::INFINITY);
            self.wants_look |= self.checkpoints.worked(secs.clamp(0.0, 3.0 * usual));
            self.checkpoints.unsure |= !watched;
            match self.attempt_steps {
                _ if !watched => {}
                0 => {}
                1 => self.first_gap = secs,
                _ => self.paced(secs, usual),
            }
        }
        if !self.deaths.is_empty() {
            self.steps_since_death += 1;
            if self.steps_since_death >= PROOF_STEPS {
                self.deaths.clear();
                self.wants_look = true;
            }
        }
        self.wants_look |= !self.deaths.is_empty()
            || self.reports.is_fresh(self.total_steps)
            || self.ended.is_some()
            || (now - self.last_progress) >= Span::secs(30);
        if self.starting.is_some() {
            self.start_ends(now, s);
        }
        self.last_step = Some(s.step);
        self.last_step_at = Some(s.ts);
        self.last_progress = now;
        self.interval = s.interval.max(1);
        self.attempt_steps += 1;
        self.total_steps += 1;
        self.ended = None;
        self.goes_on(s.step);
    }

    /// Records a gap of `secs` seconds. `usual` is the 99th percentile of the gaps.
    fn paced(&mut self, secs: f64, usual: f64) {
        self.wants_look |= secs > PAUSE * usual;
        self.time_resolution.add(secs);
        if secs > LONG * usual {
            self.longest_pause = self.longest_pause.max(secs);
        } else {
            // Decays, so that one pause does not make the deadline long for ever.
            self.longest_pause *= 0.9999;
        }
        // A pause counts as a slow step. If it is one, the next steps show it.
        self.pace.add(secs.min(PAUSE * usual));
    }

    /// Seconds that this many steps usually take.
    pub fn takes(&self, steps: i64) -> f64 {
        steps.max(0) as f64 / self.interval as f64 * self.pace.quantile(0.5).unwrap_or(0.0)
    }
}
