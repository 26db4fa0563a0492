//! Harmless events of any fleet.

use super::{Do, State, Victim, World, words};
use crate::fleet::layout::GPUS;

/// The seconds between two of them in one run.
const EVERY: f64 = 1500.0;
const BY_HAND: i64 = 143;

impl World {
    pub(in crate::fleet) fn plan_benign(&mut self, job: usize) {
        let wait = self.noise.exponential(EVERY);
        self.in_secs(wait, Do::Benign { job });
    }

    pub(in crate::fleet) fn benign(&mut self, job: usize) {
        self.plan_benign(job);
        let (slot, gpu) = (self.noise.index(self.jobs[job].slots.len()), self.noise.index(GPUS));
        let victim = Victim { job, slot, gpu, node: self.jobs[job].slots[slot] };
        let well = self.jobs[job].state == State::Running && !self.jobs[job].faulty;
        match self.noise.index(6) {
            0 if well && self.noise.chance(0.5) => {
                self.jobs[job].faulty = true;
                self.stop_by_hand(job, 45.0, None);
            }
            1 => self.jobs[job].hiccup = self.noise.between(2.0, 8.0),
            2 => self.jobs[job].blip = self.noise.between(3.0, 9.0),
            3 => self.maintain_idle(),
            _ => self.complaint(victim.node, victim.gpu, 0.0),
        }
    }

    /// Another node of the run reports an unrelated fault at the same time.
    pub(super) fn decoy(&mut self, v: Victim) {
        let n = self.jobs[v.job].slots.len();
        if n < 2 {
            return;
        }
        let slot = (v.slot + 1 + self.noise.index(n - 1)) % n;
        let (node, gpu) = (self.jobs[v.job].slots[slot], self.noise.index(GPUS));
        let after = self.noise.between(0.0, 60.0);
        self.complaint(node, gpu, after);
    }

    /// Reports a true fault of the class of tickets that does not affect the run.
    fn complaint(&mut self, node: usize, gpu: usize, after: f64) {
        let uuid = self.nodes[node].gpus[gpu].clone();
        let e = match self.noise.index(5) {
            0 => words::link("eth0", "ethernet", "down", "warn", "went down"),
            1 => words::hw(
                "row_remap_pending",
                "warn",
                "a row of its memory waits to be remapped",
                &[("gpu", &uuid)],
            ),
            2 => words::hw("disk_filling", "warn", "/var is 91 % full", &[("mount", "/var")]),
            3 => words::hw("clock_unsynced", "warn", "the clock has not been synchronised for 1h", &[]),
            _ => {
                let xid =
                    (31, "GPU memory page fault", "info", "restart_app", "An illegal address in a kernel");
                return self.say(after, node, words::xid(&self.nodes[node], gpu, xid));
            }
        };
        let lasts = self.noise.between(20.0, 600.0);
        self.say(after, node, e.clone());
        self.say(after + lasts, node, words::over(e));
    }

    /// Switches a node without a run off and on again.
    fn maintain_idle(&mut self) {
        let idle: Vec<usize> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].at.is_none() && self.nodes[*n].up).collect();
        // One node is kept as a spare.
        if idle.len() < 2 {
            return;
        }
        let node = *self.noise.pick(&idle);
        self.in_secs(0.0, Do::Lose { node, reason: "connection refused" });
        let back = self.noise.between(300.0, 900.0);
        self.in_secs(back, Do::Return { node });
    }

    /// A person ends the run and restarts it.
    pub(in crate::fleet) fn stop_by_hand(&mut self, job: usize, seconds: f64, swap: Option<usize>) {
        let j = &mut self.jobs[job];
        if j.state != State::Running {
            return;
        }
        j.epoch += 1;
        j.state = State::Down;
        let (name, attempt, ranks) = (j.name, j.attempt, j.ranks());
        for rank in 0..ranks {
            let node = self.jobs[job].slots[rank / GPUS];
            let event = words::bye(name, rank as u32, attempt, BY_HAND, "SIGTERM");
            let wait = (1000.0 * self.noise.unit()) as i64 + self.way(node);
            self.at(wait, Do::Die { job, rank, event: Some(Box::new(event)) });
        }
        self.in_secs(seconds, Do::Restart { job, swap });
    }
}
