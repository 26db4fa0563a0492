//! One training run: its state, the alignment of its ranks by step, and its detectors.

mod saves;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::{ckpt, exporter_event, hello, metric};
use stepwatch_wire::{Edge, Event, Kind as EventKind, Value};

use super::scraped::origin_of;
use crate::detector::RunAt;
use crate::detector::shared::Standard;
use crate::detectors::{Detectors, DetectorsConfig, rank_dead};
use crate::expectation::{Expectations, Recording};
use crate::run::align::{Align, Arrival, Samples, StepReport};
use crate::run::signals::{Left, Place, Signals, set_of};
use crate::run::{
    Accounts, Death, Fleet, Greeter, Greeting, MAX_RANKS, PLANNED_RESTART, Reporters, RunState, Size,
    StartPhase, Steps, declared, phase_class,
};
use crate::sample::{Extra, Parts, Reading, StepClass, StepSample};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Course, Finding};
use stepwatch_model::{Fact, clause};
use stepwatch_model::{Origin, SaveCost};

/// The number of steps whose class is kept.
const CLASSES_KEPT: usize = 16;
/// An exporter finds a process within this, unless the exporter was not there when it began.
const FOUND_WITHIN: Span = Span::secs(600);

/// Counters of samples that were evaluated or dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Step samples judged.
    pub steps: u64,
    /// Step events that repeated a step of the same rank and attempt.
    pub duplicates: u64,
    /// Step events of ranks that have not followed a restart.
    pub stale: u64,
    pub over_limit: u64,
    /// Numbers of signals beyond the limit.
    pub signals_over_limit: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    pub state: RunState,
    pub counters: Counters,
    align: Align,
    pub(super) signals: Signals,
    /// The mark that gives the next sample its class.
    class: Option<ClassMark>,
    /// The last steps that were no plain training steps, for signals that arrive later.
    classes: VecDeque<(i64, StepClass)>,
    detectors: Detectors,
    pub(crate) reporters: Reporters,
    /// The last look at its setup.
    pub(super) setup_look: Option<Box<SetupLook>>,
    /// Another run was in the job of the process that says hello.
    #[serde(skip)]
    pub(super) shares_job: bool,
    #[serde(skip)]
    pub(crate) noted: Noted,
    #[serde(skip)]
    pub(crate) recording: Recording,
}

/// A look at the setup of a run, which the next one is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SetupLook {
    /// Equal setups have equal hashes.
    pub(super) hash: u64,
    pub(super) at: Ts,
    /// The steps of the attempt.
    pub(super) steps: u64,
}

/// Marks that save the engine from doing the same work twice for a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Noted {
    /// The run is already marked for storing.
    pub(crate) dirty: bool,
    /// The timer that is set, or a later time.
    pub(crate) timer: Option<Ts>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum ClassMark {
    Eval,
    Checkpoint,
}

impl Run {
    pub fn new(name: &str, now: Ts, config: &Arc<DetectorsConfig>) -> Self {
        let mut detectors = Detectors::new(config);
        detectors.named(name);
        Self {
            state: RunState::new(name, now),
            counters: Counters::default(),
            align: Align::default(),
            signals: Signals::default(),
            class: None,
            classes: VecDeque::new(),
            detectors,
            reporters: Reporters::default(),
            setup_look: None,
            shares_job: false,
            noted: Noted::default(),
            recording: Recording::default(),
        }
    }

    /// The source of the reports about it, and the user who owns it.
    pub(crate) fn origin(&self) -> Origin {
        let source = origin_of(self.reporters.first().unwrap_or_default()).to_owned();
        Origin::of_exporter(source, self.reporters.uid).since(self.known_since())
    }

    /// Since when the run is known as one of its current owner.
    pub(crate) fn known_since(&self) -> Ts {
        self.reporters.since.unwrap_or(self.state.first_seen)
    }

    /// Handles one event of this run.
    pub fn event(&mut self, now: Ts, source: &str, e: &Event, out: &mut Vec<Finding>) {
        if e.step.is_some_and(|step| step.unsigned_abs() > MAX_STEP) {
            self.counters.over_limit += 1;
            return;
        }
        self.state.heard(now, source, e);
        let at = e.ts.map_or(now, Ts::from_secs_f64);
        match e.kind {
            EventKind::Step => return self.step(now, at, e, out),
            EventKind::Hello => {
                self.state.hello(e);
                self.greet(now, at, e);
            }
            EventKind::Hb => self.state.heartbeats = true,
            EventKind::Phase => self.phase(now, at, e),
            EventKind::Ckpt => self.checkpoint(now, at, e),
            EventKind::Eval => self.eval(at, e, out),
            EventKind::Bye => {
                self.state.bye(now, e);
                self.leave(now, at, e);
                self.note_silent_end(now, out);
            }
            // If the process lives on, a closed socket is no death. If the run stops, other
            // detectors find that.
            EventKind::Event if e.name.as_deref() == Some(exporter_event::RANK_DEAD) && !process_lives(e) => {
                let text = e.text.clone().unwrap_or_default();
                self.state.died(
                    e.rank.unwrap_or(0),
                    Death { at: now, when: at, text, course: Course::Silent },
                    false,
                );
                self.state.ledger.died(at);
            }
            EventKind::Event => {
                self.note(now, e);
                self.state.reports.take(now, self.state.total_steps, e);
            }
            EventKind::Xid | EventKind::Link | EventKind::Hw | EventKind::Health | EventKind::Gap => {}
        }
        self.look(now, out);
    }

    /// Takes note of what an event of the trainer says of its attempt.
    fn note(&mut self, now: Ts, e: &Event) {
        if e.name.as_deref() == Some(PLANNED_RESTART) {
            self.state.attempts.plan(now, e.extra.get("seconds").and_then(Value::as_f64));
        } else if e.name.as_deref() == Some(ckpt::BACKLOG) {
            self.state.checkpoints.begins_behind();
        }
    }

    /// Records the start of a process, if the `hello` comes from one and not from a description of
    /// one.
    fn greet(&mut self, now: Ts, at: Ts, e: &Event) {
        let word = |key| e.extra.get(key).and_then(Value::as_str);
        if matches!(word(hello::SOURCE), Some(hello::MODEL_CONFIG | hello::PRINTED)) {
            return;
        }
        let number = |key| e.extra.get(key).and_then(Value::as_f64);
        let g = Greeting {
            now,
            at,
            rank: e.rank.unwrap_or(0),
            found: word(hello::SOURCE) == Some(hello::DISCOVERED),
            tells: word(hello::SOURCE).is_none(),
            initialised: e.extra.get(hello::INITIALISED) == Some(&Value::Bool(true)),
            submitted: number(hello::SUBMITTED),
            allocated: number(hello::ALLOCATED),
            started: number(hello::STARTED),
        };
        let pid = number("pid").filter(|_| word(hello::SOURCE).is_none()).map(|pid| pid as u32);
        // A launcher is another process than the rank that it starts.
        let is_rank = word(hello::ROLE).is_none();
        let greeter =
            if is_rank { self.state.greeter(g.rank, pid, g.plausible(g.started)) } else { Greeter::Unsure };
        if greeter != Greeter::Known {
            self.state.attempts.greeted(now, g.rank);
        }
        if is_rank {
            self.state.starts(&g, greeter);
        }
        let size = self.size();
        let is_again = number(hello::RESTARTS).is_some_and(|restarts| restarts > 0.0);
        let is_new = self.state.ledger.is_new();
        // A process that is found late, or that was restarted before anybody knew of the run, may
        // have trained in the meantime. So may one that connects late.
        let is_old = g.plausible(g.started).is_some_and(|began| at - began > FOUND_WITHIN);
        let is_unseen = is_old && (g.found || is_new) || is_again && is_new || self.shares_job;
        let given = g.plausible(g.allocated).filter(|_| !is_unseen);
        self.state.ledger.greeted(at, word(hello::JOB), given, size);
        if is_unseen {
            self.state.ledger.began_unseen();
        }
    }

    /// The last pod of the run was given its node then.
    pub(super) fn given(&mut self, at: Ts) {
        let size = self.size();
        self.state.ledger.given(at, size);
    }

    /// A job left a node of the run, perhaps its last one.
    pub(super) fn released(&mut self, at: Ts, freed: bool) {
        let size = self.size();
        self.state.ledger.released(at, freed, size);
    }

    /// Another run began in its job.
    pub(super) fn pass_on(&mut self, at: Ts) {
        let size = self.size();
        self.state.ledger.pass_on(at, size);
    }

    fn leave(&mut self, now: Ts, at: Ts, e: &Event) {
        let size = self.size();
        let ended = self.state.ended.as_ref().filter(|ended| ended.at == now);
        match ended.map(|ended| (ended.code, ended.silent)) {
            Some((0, true)) => self.state.ledger.fell_silent(at),
            Some((0, false)) => self.state.ledger.over(at),
            Some(_) => self.state.ledger.died(at),
            None if e.code.is_some_and(|code| code != 0) => return self.state.ledger.died(at),
            None => return,
        }
        self.state.ledger.close(size);
    }

    fn size(&self) -> Size {
        Size { gpus: self.state.gpus(), dollars_per_gpu_hour: self.detectors.dollars_per_gpu_hour() }
    }

    /// The accounts of the run, if there are any.
    pub(super) fn take_accounts(&mut self) -> Option<Box<Accounts>> {
        let size = self.size();
        self.state.ledger.take_accounts(size)
    }

    /// Annotates a log that ended without an error. The annotation notifies nobody.
    fn note_silent_end(&self, now: Ts, out: &mut Vec<Finding>) {
        let f = &self.state;
        if f.ended.as_ref().is_none_or(|e| !e.silent || e.at != now) {
            return;
        }
        let after = f.last_step.map(|step| clause!(" after step {step}", step = Fact::Step(step)));
        let why = clause!("the log of the run ended{after} without a word: it is taken for over", after);
        out.push(rank_dead::silent_end(RunAt { now, run: f }, why));
    }

    /// Takes note of what was found of it. True if it had something to tell the fleet.
    pub(super) fn note_found(&mut self, found: &[Finding], fleet: &mut Fleet) -> bool {
        let (attempt, steps) = (self.state.attempt, self.state.attempt_steps);
        self.state.checkpoints.note_trouble(found, attempt, steps);
        let seen = self.state.take_exposure();
        seen.into_iter().for_each(|seen| fleet.add(self.reporters.uid, seen));
        seen.is_some()
    }

    /// What its saves cost, once some were counted.
    pub(crate) fn save_cost(&self) -> Option<SaveCost> {
        let (f, usual) = (&self.state, self.detectors.save_cost()?);
        let steps = usual.lines * f.interval.max(1) as f64;
        Some(SaveCost {
            seconds: usual.seconds,
            measured: usual.saves,
            interval: usual.interval,
            lag: f.checkpoints.usual_lag(),
            saves_counted: f.checkpoints.saves_counted(usual.interval + usual.seconds),
            step_seconds: if steps > 0.0 { Some(usual.interval / steps) } else { f.step_seconds() },
        })
    }

    pub fn dollars_per_gpu_hour(&self) -> Option<f64> {
        self.detectors.dollars_per_gpu_hour()
    }

    /// Takes over changed settings.
    pub fn configure(&mut self, config: &Arc<DetectorsConfig>) {
        self.detectors.configure(config);
        self.detectors.named(&self.state.name);
    }

    /// Runs the clock detectors, which detect that something does not happen.
    pub fn look(&mut self, now: Ts, out: &mut Vec<Finding>) {
        self.detectors.look(now, &self.state, out);
    }

    pub fn deadline(&self) -> Option<Ts> {
        self.detectors.deadline(&self.state)
    }

    /// Whether a block of steps has been measured that can be compared with other runs.
    pub(crate) fn wants_standard(&self) -> bool {
        let speed = self.detectors.speed();
        speed.block.is_some() && (speed.standard.is_none() || speed.settled.is_some())
    }

    /// Whether its first start goes on, and no other start is known that it can be compared with.
    pub(crate) fn wants_starts(&self) -> bool {
        self.state.wants_starts()
    }

    pub(crate) fn measure_by(&mut self, standard: Standard) {
        self.detectors.speed_mut().standard.get_or_insert(standard);
    }

    /// The expected values of its next sample.
    pub fn expectations(&self) -> Expectations {
        self.detectors.expectations()
    }

    /// The speed of this run, if it has just been measured.
    pub(crate) fn settled(&self) -> Option<Standard> {
        self.detectors.speed().settled
    }

    fn step(&mut self, now: Ts, at: Ts, e: &Event, out: &mut Vec<Finding>) {
        let (Some(step), rank) = (e.step, e.rank.unwrap_or(0)) else { return };
        if self.state.ranks.len() >= MAX_RANKS && !self.state.ranks.contains_key(&rank) {
            self.counters.over_limit += 1;
            return;
        }
        let arrival = self.state.rank_step(now, rank, step, e.attempt);
        match arrival {
            Arrival::Next | Arrival::Again => {}
            Arrival::Restarted => {
                self.align.restart();
                self.signals.restart();
                self.classes.clear();
                self.state.restarted(now, rank);
                self.state.checkpoints.went_back_to(step);
            }
            Arrival::Duplicate => return self.counters.duplicates += 1,
            Arrival::Stale => return self.counters.stale += 1,
        }
        let (values, mut ready) = (self.align.read(e), Samples::default());
        let report = StepReport { step, ts: at, has_time: e.ts.is_some(), rank, values };
        let known = !self.align.take(report, &mut ready);
        let strays = values.loss().is_some_and(|loss| self.state.take_rank_loss(rank, step, loss));
        for sample in ready.iter_mut() {
            self.judge(now, sample, out);
        }
        let place = Place { step, ts: at, attempt: self.state.attempt, rank };
        let news = values.more && self.beside(place, e, out);
        self.counters.duplicates += u64::from(arrival == Arrival::Again && known && !news);
        let parted = (values.more || !e.extra.is_empty()) && self.state.sectioned(rank, step, e);
        if parted || strays {
            self.look(now, out);
        }
    }

    fn judge(&mut self, now: Ts, sample: &mut StepSample, out: &mut Vec<Finding>) {
        let advanced = sample.interval > 0 && !sample.adds;
        sample.class = if advanced { self.classify(sample.step) } else { self.class_of(sample) };
        if advanced {
            self.account(sample);
            self.state.advanced(now, sample);
            self.counters.steps += 1;
        }
        if let (StepClass::Train, true, Some(secs)) = (sample.class, sample.interval > 0, sample.step_time) {
            self.state.checkpoints.stepped(sample.ts, secs, sample.interval);
        }
        sample.attempt = self.state.attempt;
        self.detectors.price(self.state.gpus());
        let expected = self.recording.wants_expectations().then(|| self.detectors.expectations());
        self.detectors.step(sample, out);
        if self.recording.on {
            self.recording.push(&self.state.name, sample, expected);
        }
        if advanced && self.state.wants_look {
            self.state.wants_look = false;
            self.look(now, out);
        }
    }

    fn account(&mut self, s: &StepSample) {
        let tokens = s.tokens_per_second.zip(s.step_time).map(|(rate, secs)| rate * secs);
        let steps = Steps {
            at: s.ts,
            last: s.step,
            count: s.interval.max(1),
            class: s.class,
            tokens: tokens.filter(|tokens| tokens.is_finite() && *tokens > 0.0),
            reported: s.step_time.map(|secs| secs * 1e3).filter(|ms| ms.is_finite()),
            watched: self.state.live_since <= self.state.last_progress,
        };
        let size = self.size();
        self.state.ledger.steps(steps, size);
    }

    /// Handles the parts of a step report that are not in its sample. False if nothing was new.
    fn beside(&mut self, p: Place, e: &Event, out: &mut Vec<Finding>) -> bool {
        if let Some(samples) = e.m.get(metric::SAMPLES) {
            self.state.batch_size.observe(samples);
        }
        let mut left = Left::default();
        let readings = self.signals.readings(p, e, &mut left);
        self.counters.signals_over_limit += left.over_limit;
        if !readings.is_empty() {
            self.detectors.extra(&Extra::Readings(&readings), out);
        }
        if !e.t.is_empty() {
            let step_time = e.m.get(metric::STEP_TIME);
            let (step, ts, attempt, rank) = (p.step, p.ts, p.attempt, p.rank);
            let parts = Parts { step, ts, attempt, rank, step_time, seconds: &e.t };
            self.detectors.extra(&Extra::Parts(parts), out);
        }
        !readings.is_empty()
    }

    fn eval(&mut self, at: Ts, e: &Event, out: &mut Vec<Finding>) {
        self.class = self.class.max(Some(ClassMark::Eval));
        let Some(step) = e.step.or(self.state.last_step) else { return };
        let p = Place { step, ts: at, attempt: self.state.attempt, rank: e.rank.unwrap_or(0) };
        let (attempt, run_step) = (p.attempt, self.state.last_step);
        self.state.evals.get_or_insert_default().take(set_of(e), attempt, step, run_step);
        let mut left = Left::default();
        if let Some(eval) = self.signals.eval(p, e, &mut left) {
            self.state.checkpoints.evaluated(eval.id, eval.step, eval.loss);
            self.detectors.extra(&Extra::Eval(eval), out);
        }
        let measured = self.signals.measured(p, e, &mut left);
        let measured = measured.iter().map(|(id, name, value, quantum)| {
            let (id, value, quantum) = (*id, *value, *quantum);
            Reading { id, name, step, ts: at, attempt: p.attempt, value, quantum }
        });
        let readings: Vec<Reading<'_>> = measured.collect();
        if !readings.is_empty() {
            self.detectors.extra(&Extra::Readings(&readings), out);
        }
        self.counters.signals_over_limit += left.over_limit;
    }

    fn classify(&mut self, step: i64) -> StepClass {
        let marked = self.class.take();
        let class = match marked {
            _ if self.state.attempt_steps == 0 => StepClass::First,
            Some(ClassMark::Checkpoint) => StepClass::Checkpoint,
            Some(ClassMark::Eval) => StepClass::Eval,
            None => return StepClass::Train,
        };
        if self.classes.len() == CLASSES_KEPT {
            self.classes.pop_front();
        }
        self.classes.push_back((step, class));
        class
    }

    /// The class of a sample. A signal that comes late covers all steps since its last value.
    fn class_of(&self, sample: &StepSample) -> StepClass {
        let covered = sample.step.saturating_sub(sample.interval).saturating_add(1)..=sample.step;
        let marked = self.classes.iter().rev().find(|(step, _)| covered.contains(step));
        marked.map_or(StepClass::Train, |(_, class)| *class)
    }

    fn phase(&mut self, now: Ts, at: Ts, e: &Event) {
        let name = e.name.as_deref().unwrap_or("phase");
        self.state.phase_of_start(now, at, e);
        // A step ends these, so outside a start they would stay open.
        if StartPhase::is_only_of_start(e) {
            return;
        }
        self.mark(name);
        match e.edge {
            Some(Edge::Begin) => self.state.phase_begin(at, name, e.rank.unwrap_or(0)),
            Some(Edge::End) => {
                let lasted = self.state.phase_end(at, name, e.rank.unwrap_or(0));
                if let (Some(what), Some(lasted)) = (declared(name), lasted) {
                    self.state.ledger.declared(what, at, lasted);
                }
            }
            None => {}
        }
    }

    fn mark(&mut self, phase: &str) {
        let mark = match phase_class(phase) {
            Some(StepClass::Checkpoint) => ClassMark::Checkpoint,
            Some(StepClass::Eval) => ClassMark::Eval,
            _ => return,
        };
        self.class = self.class.max(Some(mark));
    }
}

fn process_lives(e: &Event) -> bool {
    e.extra.get("process").and_then(Value::as_str) == Some("running")
}

/// The largest step number. Larger ones are rejected, so that computations with steps cannot
/// overflow.
const MAX_STEP: u64 = 1 << 53;
