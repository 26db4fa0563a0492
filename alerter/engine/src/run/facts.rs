//! What is known of a run, apart from its numbers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Kind};

use super::align::Arrival;
use super::pace::Pace;
use crate::sample::{StepClass, StepSample};
use crate::time::{Span, Ts};

/// Phases remembered a run.
const MAX_PHASES: usize = 32;
/// Deaths remembered a run: the first one is the one that matters.
const MAX_DEATHS: usize = 64;
/// Exit code after Ctrl-C: a person stopped it and needs no telling.
const INTERRUPTED: i64 = 130;
const CHECKPOINTS_KEPT: usize = 8;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    pub name: String,
    /// Restart epoch, counted here.
    pub attempt: u32,
    pub world: Option<u32>,
    pub first_seen: Ts,
    /// When anything of the run arrived last.
    pub last_heard: Ts,
    pub last_step: Option<i64>,
    /// When a step arrived last, by our clock.
    pub last_progress: Ts,
    /// When the trainer last showed that it moves in another way: a phase, a checkpoint or an evaluation began or ended.
    pub last_sign: Ts,
    /// When that step happened, by its own clock.
    pub last_step_at: Option<Ts>,
    /// Samples since the attempt began, and ever.
    pub attempt_steps: u64,
    pub total_steps: u64,
    /// Steps between two samples.
    pub interval: i64,
    pub pace: Pace,
    /// The longest pause that the run survived, in seconds: an evaluation that nobody declared.
    pub longest_pause: f64,
    /// Seconds between the first two samples: compilation, and often the first evaluation.
    pub first_gap: f64,
    /// The trainer sends heartbeats, so it would also declare its phases.
    pub heartbeats: bool,
    pub ranks: BTreeMap<u32, Rank>,
    /// Open phases, and how long each kind took at most.
    pub phases: BTreeMap<String, Phase>,
    pub checkpoints: Checkpoints,
    pub deaths: BTreeMap<u32, Death>,
    pub ended: Option<Ended>,
    /// Sources that feed the run.
    pub live: BTreeSet<String>,
    pub lost: BTreeMap<String, Lost>,
    /// Since when we have seen the run without interruption: silence before it says nothing.
    pub live_since: Ts,
    /// Something happened that the clock detectors should look at before their deadline.
    pub wants_look: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rank {
    pub node: Option<String>,
    pub attempt: Option<u32>,
    pub last_step: Option<i64>,
    pub last_seen: Ts,
    /// The run restarted and this rank has not followed yet.
    pub stale: bool,
    pub done: bool,
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
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub at: Ts,
    /// Exit code; 0 is a clean end.
    pub code: i64,
    pub text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub since: Ts,
    pub reason: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Checkpoints {
    pub last_at: Option<Ts>,
    pub last_step: Option<i64>,
    pub in_progress: Option<Ts>,
    /// Seconds between the last successes, and seconds each took.
    pub intervals: VecDeque<f64>,
    pub durations: VecDeque<f64>,
    pub failure: Option<(Ts, String)>,
}

/// What a declared phase means for the steps around it.
pub(super) fn phase_class(name: &str) -> Option<StepClass> {
    let lower = name.to_ascii_lowercase();
    if lower.contains("ckpt") || lower.contains("checkpoint") || lower.contains("save") {
        Some(StepClass::Checkpoint)
    } else if lower.contains("eval") || lower.contains("valid") || lower == "val" || lower == "test" {
        Some(StepClass::Eval)
    } else {
        None
    }
}

impl Facts {
    pub fn new(name: &str, now: Ts) -> Self {
        Self {
            name: name.to_owned(),
            attempt: 0,
            world: None,
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
            first_gap: 0.0,
            heartbeats: false,
            ranks: BTreeMap::new(),
            phases: BTreeMap::new(),
            checkpoints: Checkpoints::default(),
            deaths: BTreeMap::new(),
            ended: None,
            live: BTreeSet::new(),
            lost: BTreeMap::new(),
            live_since: now,
            wants_look: false,
        }
    }

    /// GPUs that burn money while the run is sick.
    pub fn gpus(&self) -> u32 {
        self.world.unwrap_or(0).max(self.ranks.len() as u32).max(1)
    }

    pub(super) fn heard(&mut self, now: Ts, source: &str, e: &Event) {
        self.last_heard = now;
        if matches!(e.kind, Kind::Hello | Kind::Phase | Kind::Ckpt | Kind::Eval) {
            self.last_sign = now;
        }
        if e.world.is_some() {
            self.world = e.world;
        }
        if !self.live.contains(source) {
            self.live.insert(source.to_owned());
        }
        if let Some(rank) = e.rank {
            if let Some(r) = self.ranks.get_mut(&rank) {
                r.last_seen = now;
                if e.node.is_some() && r.node != e.node {
                    r.node.clone_from(&e.node);
                }
            } else if self.ranks.len() < super::MAX_RANKS {
                self.ranks.insert(rank, Rank { node: e.node.clone(), last_seen: now, ..Rank::default() });
            }
        }
    }

    pub(super) fn hello(&mut self, e: &Event) {
        let rank = e.rank.unwrap_or(0);
        if let Some(r) = self.ranks.get_mut(&rank) {
            r.done = false;
        }
        if self.ended.take().is_some() {
            self.wants_look = true;
        }
    }

    pub(super) fn bye(&mut self, now: Ts, e: &Event) {
        let code = e.code.unwrap_or(0);
        let rank = e.rank.unwrap_or(0);
        if let Some(r) = self.ranks.get_mut(&rank) {
            r.done = true;
        }
        if code != 0 && code != INTERRUPTED {
            let last_words = e.text.as_deref().map(|t| format!(": {t}")).unwrap_or_default();
            self.died(now, rank, format!("exited with code {code}{last_words}"));
        }
        // The run is over when every rank we know has said so; one that never spoke is not waited for.
        if self.ranks.values().all(|r| r.done) || e.rank.is_none() {
            self.ended = Some(Ended { at: now, code, text: e.text.clone() });
        }
    }

    pub(super) fn died(&mut self, now: Ts, rank: u32, text: String) {
        if self.deaths.len() < MAX_DEATHS {
            self.deaths.entry(rank).or_insert(Death { at: now, text });
        }
    }

    /// Decides what a step of `rank` is, and moves the rank.
    pub(super) fn rank_step(&mut self, now: Ts, rank: u32, step: i64, attempt: Option<u32>) -> Arrival {
        let run_step = self.last_step;
        let r = self.ranks.entry(rank).or_default();
        r.last_seen = now;
        let restarted = match (r.last_step, r.attempt, attempt) {
            (None, ..) => false,
            (Some(_), Some(old), Some(new)) if new != old => new > old,
            (Some(last), None, None) => step < last,
            _ => false,
        };
        if restarted {
            let follows = r.stale;
            (r.last_step, r.attempt, r.stale) = (Some(step), attempt, false);
            let back = run_step.is_some_and(|last| step <= last);
            return if back && !follows { Arrival::Restarted } else { Arrival::Next };
        }
        match r.last_step {
            Some(last) if step < last => return Arrival::Duplicate,
            Some(last) if step == last => return Arrival::Again,
            _ => {}
        }
        // Without attempt numbers, a rank has followed a restart when it is where the run is.
        if r.stale && (attempt.is_some() || run_step.is_none_or(|last| step > last + 1)) {
            return Arrival::Stale;
        }
        r.stale = false;
        (r.last_step, r.attempt) = (Some(step), attempt.or(r.attempt));
        Arrival::Next
    }

    /// Rank `first` came back at an earlier step; the others are expected to follow.
    pub(super) fn restarted(&mut self, now: Ts, first: u32) {
        self.attempt += 1;
        self.attempt_steps = 0;
        self.last_step = None;
        self.last_step_at = None;
        self.last_progress = now;
        self.ended = None;
        self.deaths.clear();
        self.wants_look = true;
        self.phases.values_mut().for_each(|p| {
            p.open = None;
            p.ranks.clear();
        });
        self.checkpoints.in_progress = None;
        for (_, r) in self.ranks.iter_mut().filter(|(rank, _)| **rank != first) {
            r.stale = r.last_step.is_some();
        }
    }

    pub(super) fn advanced(&mut self, now: Ts, s: &StepSample) {
        // A pause that nobody watched says nothing about the run.
        let watched = self.live_since <= self.last_progress;
        if let Some(before) = self.last_step_at.filter(|_| watched) {
            let secs = (s.ts - before).as_secs_f64();
            match self.attempt_steps {
                0 => {}
                1 => self.first_gap = secs,
                _ => self.paced(secs),
            }
        }
        self.wants_look |=
            !self.deaths.is_empty() || self.ended.is_some() || (now - self.last_progress) >= Span::secs(30);
        self.last_step = Some(s.step);
        self.last_step_at = Some(s.ts);
        self.last_progress = now;
        self.interval = s.interval.max(1);
        self.attempt_steps += 1;
        self.total_steps += 1;
        self.ended = None;
    }

    fn paced(&mut self, secs: f64) {
        let usual = self.pace.quantile(0.99).unwrap_or(f64::INFINITY);
        if secs > 3.0 * usual {
            self.longest_pause = self.longest_pause.max(secs);
            self.wants_look = true;
        } else {
            // A pause seen once need not keep the deadline long for ever.
            self.longest_pause *= 0.9999;
        }
        // A pause counts as a slow step; were it one, the next steps would show it.
        self.pace.add(secs.min(3.0 * usual));
    }

    pub(super) fn phase_begin(&mut self, at: Ts, name: &str, rank: u32) {
        if !self.phases.contains_key(name) && self.phases.len() >= MAX_PHASES {
            return;
        }
        let p = self.phases.entry(name.to_owned()).or_default();
        p.open.get_or_insert(at);
        p.ranks.insert(rank);
    }

    pub(super) fn phase_end(&mut self, at: Ts, name: &str, rank: u32) {
        let Some(p) = self.phases.get_mut(name) else { return };
        p.ranks.remove(&rank);
        if p.ranks.is_empty() {
            if let Some(since) = p.open.take() {
                p.longest = p.longest.max((at - since).as_secs_f64());
            }
        }
    }

    /// The open phase that explains a pause best, if any.
    pub fn open_phase(&self) -> Option<(&str, &Phase, Ts)> {
        let (name, phase) =
            self.phases.iter().filter(|(_, p)| p.open.is_some()).max_by_key(|(_, p)| p.open)?;
        Some((name, phase, phase.open?))
    }

    /// Nobody listened until `now`.
    pub(crate) fn resume(&mut self, now: Ts) {
        self.live_since = now;
        for lost in self.lost.values_mut() {
            lost.since = now;
        }
    }

    pub fn source_up(&mut self, now: Ts, source: &str) {
        if self.lost.remove(source).is_some() {
            self.live_since = now;
        }
        self.live.insert(source.to_owned());
    }

    pub fn source_down(&mut self, now: Ts, source: &str, reason: &str) {
        self.live.remove(source);
        self.lost.entry(source.to_owned()).or_insert(Lost { since: now, reason: reason.to_owned() });
    }

    pub fn source_gone(&mut self, source: &str) {
        self.live.remove(source);
        self.lost.remove(source);
    }
}

impl Checkpoints {
    pub(super) fn start(&mut self, at: Ts) {
        self.in_progress.get_or_insert(at);
    }

    pub(super) fn success(&mut self, at: Ts, step: Option<i64>) {
        if step.is_some() && step == self.last_step {
            self.in_progress = None;
            return; // another rank's word for the same checkpoint
        }
        if let Some(last) = self.last_at {
            keep(&mut self.intervals, (at - last).as_secs_f64());
        }
        if let Some(start) = self.in_progress.take() {
            keep(&mut self.durations, (at - start).as_secs_f64());
        }
        self.last_at = Some(at);
        self.last_step = step;
        self.failure = None;
    }

    pub(super) fn failed(&mut self, at: Ts, why: &str) {
        self.in_progress = None;
        self.failure = Some((at, why.to_owned()));
    }

    /// Median of the last intervals, once there are two.
    pub fn usual_interval(&self) -> Option<f64> {
        (self.intervals.len() >= 2).then(|| median(&self.intervals))
    }

    pub fn usual_duration(&self) -> Option<f64> {
        (self.durations.len() >= 2).then(|| median(&self.durations))
    }
}

fn keep(ring: &mut VecDeque<f64>, secs: f64) {
    if ring.len() == CHECKPOINTS_KEPT {
        ring.pop_front();
    }
    ring.push_back(secs.max(0.0));
}

fn median(ring: &VecDeque<f64>) -> f64 {
    let mut v: Vec<f64> = ring.iter().copied().collect();
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}
