//! The course of faults: their beginning, visible effects and end.

use core::ops::Range;

use super::job::{Effect, Numeric, State};
use super::kind::{Family, Kind};
use super::layout::GPUS;
use super::truth::{Culprit, Truth};
use super::words;
use super::world::{Do, World};

mod benign;
mod numeric;
mod slow;
mod stop;

/// The least seconds of a healthy run before the next fault.
const HEALTHY: f64 = 240.0;
/// The seconds before the end in which no fault begins, because it could no longer be noticed.
const LAST: f64 = 180.0;
/// The share of faults during which another node of the run has an unrelated fault.
const DECOY: f64 = 0.25;

/// The run, node and GPU of a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct Victim {
    job: usize,
    slot: usize,
    gpu: usize,
    node: usize,
}

impl Victim {
    fn rank(self) -> usize {
        self.slot * GPUS + self.gpu
    }

    fn ranks(self) -> Range<usize> {
        self.slot * GPUS..(self.slot + 1) * GPUS
    }
}

impl World {
    pub(super) fn plan_fault(&mut self, job: usize) {
        let mean = (self.options.fault_minutes * 60.0 - HEALTHY).max(1.0);
        let wait = HEALTHY + self.noise.exponential(mean);
        let attempt = self.jobs[job].attempt;
        self.in_secs(wait, Do::Fault { job, attempt });
    }

    pub(super) fn fault(&mut self, job: usize) {
        let Some(kind) = self.options.mix.draw(&mut self.noise) else { return };
        if self.now as f64 / 1000.0 > 3600.0 * self.options.hours - LAST {
            return;
        }
        let busy = self.jobs[job].state != State::Running || self.jobs[job].faulty;
        if busy {
            return;
        }
        let slot = self.noise.index(self.jobs[job].slots.len());
        let gpu = self.noise.index(GPUS);
        let victim = Victim { job, slot, gpu, node: self.jobs[job].slots[slot] };
        self.jobs[job].faulty = true;
        if self.noise.chance(DECOY) {
            self.decoy(victim);
        }
        match kind.family() {
            Family::Interruption => self.stop(kind, victim),
            Family::Slow => self.slow(kind, victim),
            Family::Numeric => self.numeric(kind, victim),
        }
    }

    /// Records what happened, for the scorer only.
    fn note(&mut self, kind: Kind, victim: Victim, culprit: Culprit, seconds: f64) {
        self.note_of(kind, victim, culprit, 0.0..seconds);
    }

    /// Records a fault that begins later.
    fn note_of(&mut self, kind: Kind, victim: Victim, culprit: Culprit, seconds: Range<f64>) {
        let j = &self.jobs[victim.job];
        self.truths.push(Truth {
            run: j.name.to_owned(),
            kind,
            culprit,
            onset: self.ts(seconds.start),
            until: self.ts(seconds.end),
            nodes: j.slots.len(),
        });
    }

    fn node_of(&self, victim: Victim, ranks: Range<usize>) -> Culprit {
        let ranks = ranks.map(|r| r as u32).collect();
        Culprit::Node { node: self.nodes[victim.node].name.clone(), ranks }
    }

    fn this_gpu(&self, victim: Victim) -> Culprit {
        self.node_of(victim, victim.rank()..victim.rank() + 1)
    }

    fn this_node(&self, victim: Victim) -> Culprit {
        self.node_of(victim, victim.ranks())
    }

    /// Makes the run hang.
    fn freeze(&mut self, job: usize) {
        self.jobs[job].epoch += 1;
        self.jobs[job].state = State::Stuck;
    }
}
