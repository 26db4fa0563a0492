//! The simulation of time: the order of due actions, and the reports of every exporter.
//!
//! Events do not arrive in the order in which they occur: exporters have different latencies,
//! clocks differ by milliseconds, and some events are late. The world never reads the engine's
//! output.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use stepwatch_model::time::Ts;
use stepwatch_wire::{CkptPhase, Edge, Event, Kind as EventKind, Value};

use super::Options;
use super::job::{CKPT_EVERY, EVAL_EVERY, Job, Spread, State};
use super::layout::{self, GPUS, Node};
use super::noise::Noise;
use super::truth::Truth;
use super::words;

/// The receiver of the fleet's events.
pub trait Listener {
    /// Receives an event. `at` never decreases.
    fn receive(&mut self, at: Ts, source: &str, event: &Event);
    fn lost(&mut self, at: Ts, source: &str, reason: &str);
    fn found(&mut self, at: Ts, source: &str);
    /// People have repaired a run and restart it: they close its open incidents.
    fn mended(&mut self, at: Ts, run: &str);
    /// Advances the time: no event comes before `at`.
    fn pass(&mut self, at: Ts);
}

pub(super) const START: Ts = Ts(1_795_227_416_000);
#[derive(Debug)]
pub(super) enum Do {
    Pulse,
    Step { job: usize, epoch: u32 },
    Say { node: usize, event: Box<Event> },
    Die { job: usize, rank: usize, event: Option<Box<Event>> },
    Teardown { job: usize, epoch: u32 },
    Fault { job: usize, attempt: u32 },
    Benign { job: usize },
    Stop { job: usize, seconds: f64, swap: Option<usize> },
    Restart { job: usize, swap: Option<usize> },
    Resume { job: usize, epoch: u32 },
    Unbalance { job: usize, stage: usize, factor: f64 },
    Lose { node: usize, reason: &'static str },
    Return { node: usize },
    Heal { node: usize },
    Blink { job: usize, attempt: u32, node: usize, device: usize, seconds: f64 },
}

#[derive(Debug)]
struct Due {
    at: i64,
    seq: u64,
    what: Do,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) options: Options,
    pub(super) nodes: Vec<Node>,
    pub(super) jobs: Vec<Job>,
    pub(super) truths: Vec<Truth>,
    pub(super) noise: Noise,
    /// The randomness of readings, which are many, so that they do not affect the faults.
    pub(super) static_noise: Noise,
    due: BinaryHeap<Reverse<Due>>,
    seq: u64,
    /// Milliseconds since the start.
    pub(super) now: i64,
    last_arrival: i64,
    pub(super) second: u64,
    pub(super) said: u64,
    pub(super) step: Event,
    pub(super) beat: Event,
    pub(super) gpu: Event,
    pub(super) nic: Event,
    pub(super) setup: Event,
}

impl World {
    pub(super) fn new(options: Options) -> Self {
        let mut noise = Noise::new(options.seed);
        let mut nodes = layout::nodes(options.nodes, &mut noise);
        let jobs = layout::jobs(&mut nodes, options.step_seconds, &mut noise);
        let static_noise = noise.fork();
        let mut world = Self {
            options,
            nodes,
            jobs,
            truths: Vec::new(),
            noise,
            static_noise,
            due: BinaryHeap::new(),
            seq: 0,
            now: 0,
            last_arrival: 0,
            second: 0,
            said: 0,
            step: Event::new(EventKind::Step),
            beat: Event::new(EventKind::Hb),
            gpu: words::reading("gpu"),
            nic: words::reading("rdma"),
            setup: words::setup(),
        };
        world.at(0, Do::Pulse);
        for job in 0..world.jobs.len() {
            world.plan_fault(job);
            world.plan_benign(job);
        }
        world
    }

    /// Runs the fleet.
    pub(super) fn run(&mut self, listener: &mut dyn Listener) {
        for job in 0..self.jobs.len() {
            self.begin(job, listener);
        }
        let end = (self.options.hours * 3_600_000.0) as i64;
        while let Some(Reverse(due)) = self.due.pop() {
            if due.at > end {
                break;
            }
            self.now = due.at.max(self.now);
            self.act(due.what, listener);
        }
        self.now = end;
        listener.pass(Ts(START.0 + end));
    }

    /// Schedules an action in `ms` milliseconds.
    pub(super) fn at(&mut self, ms: i64, what: Do) {
        self.seq += 1;
        self.due.push(Reverse(Due { at: self.now + ms.max(0), seq: self.seq, what }));
    }

    pub(super) fn in_secs(&mut self, secs: f64, what: Do) {
        self.at((secs * 1000.0) as i64, what);
    }

    /// Schedules an event of a node in `secs` seconds, plus its latency.
    pub(super) fn say(&mut self, secs: f64, node: usize, mut event: Event) {
        let n = &self.nodes[node];
        event.ts = Some(self.clock() + secs + n.skew);
        if words::holds(&event) {
            self.nodes[node].holds.push(event.clone());
        }
        let way = self.way(node);
        self.at((secs * 1000.0) as i64 + way, Do::Say { node, event: Box::new(event) });
    }

    pub(super) fn way(&mut self, node: usize) -> i64 {
        self.nodes[node].latency + self.noise.exponential(20.0) as i64
    }

    /// The time in Unix seconds.
    pub(super) fn clock(&self) -> f64 {
        (START.0 + self.now) as f64 / 1000.0
    }

    pub(super) fn ts(&self, secs: f64) -> Ts {
        Ts(START.0 + self.now + (secs * 1000.0) as i64)
    }

    fn act(&mut self, what: Do, listener: &mut dyn Listener) {
        match what {
            Do::Pulse => self.pulse(listener),
            Do::Step { job, epoch } if self.jobs[job].epoch == epoch => self.step(job, listener),
            Do::Say { node, event } => self.pass_on(node, &event, listener),
            // A process cannot die twice.
            Do::Die { job, rank, .. } if !self.jobs[job].alive[rank] => {}
            Do::Die { job, rank, event } => {
                self.jobs[job].alive[rank] = false;
                let node = self.jobs[job].slots[rank / GPUS];
                event.iter().for_each(|e| self.pass_on(node, e, listener));
            }
            Do::Teardown { job, epoch } if self.jobs[job].epoch == epoch => self.teardown(job),
            Do::Fault { job, attempt } if self.jobs[job].attempt == attempt => self.fault(job),
            Do::Unbalance { job, stage, factor } => self.jobs[job].balance(Some((stage, factor))),
            Do::Benign { job } => self.benign(job),
            Do::Stop { job, seconds, swap } => self.stop_by_hand(job, seconds, swap),
            Do::Restart { job, swap } => self.restart(job, swap, listener),
            Do::Resume { job, epoch } if self.jobs[job].epoch == epoch => self.next(job, 0.0),
            Do::Lose { node, reason } => {
                self.nodes[node].up = false;
                let at = self.arrives(0);
                listener.lost(at, &self.nodes[node].source, reason);
            }
            Do::Return { node } => {
                self.nodes[node].up = true;
                let at = self.arrives(0);
                listener.found(at, &self.nodes[node].source);
            }
            Do::Heal { node } => self.heal(node),
            Do::Blink { job, attempt, node, device, seconds } if self.jobs[job].attempt == attempt => {
                self.blink(job, node, device, seconds);
            }
            Do::Step { .. }
            | Do::Teardown { .. }
            | Do::Resume { .. }
            | Do::Fault { .. }
            | Do::Blink { .. } => {}
        }
    }

    /// The arrival time of a message that is sent now with the latency `way`.
    pub(super) fn arrives(&mut self, way: i64) -> Ts {
        self.last_arrival = self.last_arrival.max(self.now + way);
        Ts(START.0 + self.last_arrival)
    }

    /// Passes an event on through its exporter, if the exporter is up.
    pub(super) fn pass_on(&mut self, node: usize, event: &Event, listener: &mut dyn Listener) {
        if !self.nodes[node].up {
            return;
        }
        let at = self.arrives(0);
        let n = &self.nodes[node];
        self.said += 1;
        let mut event = event.clone();
        event.node = Some(n.name.clone());
        listener.receive(at, &n.source, &event);
    }

    /// All ranks of a run send their hello, and the run continues.
    fn begin(&mut self, job: usize, listener: &mut dyn Listener) {
        let ts = self.clock();
        for rank in 0..self.jobs[job].ranks() {
            let j = &self.jobs[job];
            let mut e = words::of_run(EventKind::Hello, j.name, rank as u32, j.attempt);
            (e.world, e.ts) = (Some(j.ranks() as u32), Some(ts));
            let (tp, framework) = match j.spread {
                Spread::Data => (1, "torchtitan"),
                Spread::Pipeline => (GPUS, "megatron"),
            };
            for (key, n) in [("tp", tp), ("pp", j.stages)] {
                e.extra.insert(key.into(), Value::Number(n as f64));
            }
            e.extra.insert("framework".into(), words::text(framework));
            let node = j.slots[rank / GPUS];
            self.pass_on(node, &e, listener);
        }
        self.next(job, 0.0);
    }

    /// Schedules the end of the next step.
    fn next(&mut self, job: usize, pause: f64) {
        let now = self.now as f64 / 1000.0;
        let j = &mut self.jobs[job];
        let (secs, epoch) = (j.plan(now, pause), j.epoch);
        self.in_secs(secs, Do::Step { job, epoch });
    }

    /// Ends a step on every rank.
    fn step(&mut self, job: usize, listener: &mut dyn Listener) {
        self.jobs[job].step += 1;
        let learned = self.jobs[job].learn();
        self.report(job, learned, None, listener);
        let step = self.jobs[job].step;
        let mut pause = 0.0;
        if step % CKPT_EVERY == 0 {
            pause = self.save(job);
        }
        if step % EVAL_EVERY == 0 {
            let seconds = self.jobs[job].noise.between(14.0, 22.0);
            return self.evaluate(job, Some(pause + seconds));
        }
        self.next(job, pause);
    }

    /// Writes a checkpoint, which pauses the run; returns the seconds.
    fn save(&mut self, job: usize) -> f64 {
        let seconds = self.jobs[job].noise.between(2.5, 5.0);
        let j = &mut self.jobs[job];
        j.saved = j.step;
        let (name, attempt, step, node) = (j.name, j.attempt, j.step, j.slots[0]);
        self.say(0.0, node, words::ckpt(name, attempt, step, CkptPhase::Start, 0.0));
        self.say(seconds, node, words::ckpt(name, attempt, step, CkptPhase::End, seconds));
        seconds
    }

    /// Starts an evaluation on all ranks; without `seconds` it does not end.
    pub(super) fn evaluate(&mut self, job: usize, seconds: Option<f64>) {
        let (name, attempt, ranks) = (self.jobs[job].name, self.jobs[job].attempt, self.jobs[job].ranks());
        for rank in 0..ranks {
            let node = self.jobs[job].slots[rank / GPUS];
            self.say(0.0, node, words::phase(name, rank as u32, attempt, "eval", Edge::Begin));
            if let Some(seconds) = seconds {
                self.say(seconds, node, words::phase(name, rank as u32, attempt, "eval", Edge::End));
            }
        }
        let Some(seconds) = seconds else { return };
        let j = &self.jobs[job];
        let mut e = words::of_run(EventKind::Eval, name, j.leader() as u32, attempt);
        (e.name, e.step) = (Some("val".into()), Some(j.step));
        e.m.set("loss", 1.75 + 6.0 * (j.step as f64).powf(-0.35));
        let (node, epoch) = (j.slots[j.leader() / GPUS], j.epoch);
        self.say(seconds, node, e);
        self.in_secs(seconds, Do::Resume { job, epoch });
    }

    /// Restarts the run from its last checkpoint, with another node in place of a faulty one.
    fn restart(&mut self, job: usize, swap: Option<usize>, listener: &mut dyn Listener) {
        if let Some(slot) = swap {
            self.swap(job, slot);
        }
        let at = self.arrives(0);
        listener.mended(at, self.jobs[job].name);
        let j = &mut self.jobs[job];
        j.alive.fill(true);
        (j.state, j.apart, j.numeric, j.faulty) = (State::Running, None, None, false);
        j.effects.clear();
        j.balance(None);
        j.attempt += 1;
        j.epoch += 1;
        (j.step, j.began) = (j.saved, j.saved);
        for slot in 0..self.jobs[job].slots.len() {
            let node = self.jobs[job].slots[slot];
            if !self.nodes[node].up {
                self.act(Do::Return { node }, listener);
            }
            self.unstick(node);
        }
        self.begin(job, listener);
        self.plan_fault(job);
    }

    fn heal(&mut self, node: usize) {
        let mut noise = self.static_noise.fork();
        let n = &mut self.nodes[node];
        n.health.mend(&mut noise);
        n.fit = true;
        for event in core::mem::take(&mut n.holds) {
            self.say(0.0, node, words::over(event));
        }
        for gpu in core::mem::take(&mut self.nodes[node].marked) {
            let uuid = self.nodes[node].gpus[gpu].clone();
            let e = words::hw("gpu_reset", "info", "was reset", &[("gpu", &uuid), ("pci", &words::pci(gpu))]);
            self.say(0.0, node, words::once(e));
        }
    }

    /// NCCL responds again and waits for nothing.
    fn unstick(&mut self, node: usize) {
        let held = core::mem::take(&mut self.nodes[node].holds);
        let (stuck, rest) = held.into_iter().partition(|e| e.name.as_deref() == Some(words::STUCK));
        self.nodes[node].holds = rest;
        let stuck: Vec<Event> = stuck;
        stuck.into_iter().for_each(|e| self.say(0.0, node, words::over(e)));
    }

    fn swap(&mut self, job: usize, slot: usize) {
        let faulty = self.jobs[job].slots[slot];
        let spare = (0..self.nodes.len())
            .find(|n| self.nodes[*n].at.is_none() && self.nodes[*n].up && self.nodes[*n].fit);
        let back = self.noise.between(1800.0, 5400.0);
        let Some(spare) = spare else {
            // There is no spare node: the faulty one was repaired in place.
            return self.at(0, Do::Heal { node: faulty });
        };
        (self.nodes[faulty].at, self.nodes[faulty].fit) = (None, false);
        self.nodes[spare].at = Some((job, slot));
        self.jobs[job].seat(slot, spare);
        self.in_secs(back, Do::Heal { node: faulty });
        if !self.nodes[faulty].up {
            self.in_secs(back, Do::Return { node: faulty });
        }
    }
}
