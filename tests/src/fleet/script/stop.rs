//! Interruptions: the run stops, with or without a dead process.

use super::{Culprit, Do, Kind, State, Victim, World, words};
use crate::fleet::layout::GPUS;
use crate::fleet::words::Xid;

const FELL_OFF: Xid =
    (79, "GPU has fallen off the bus", "error", "reboot_node", "Drain the node, power-cycle it");
const DOUBLE_BIT: Xid =
    (48, "Double-bit ECC error", "error", "drain_reset", "Expect 63 or 64 and 94 or 95 next, they decide");
const REMAPPED: Xid =
    (63, "Row remap recorded", "warn", "drain_reset", "No hurry: reset the GPU at the next drain");
const CONTAINED: Xid =
    (94, "Contained ECC error", "warn", "restart_app", "Restart the job elsewhere or here");
const UNCONTAINED: Xid = (95, "Uncontained ECC error", "error", "reset_gpu", "Drain and reset the GPU now");
const UNRECOVERED: Xid = (140, "Unrecovered ECC error", "error", "reset_gpu", "Drain and reset the GPU");
const NVLINK: Xid = (74, "NVLink error", "error", "reset_gpu", "Find the link in the line and its peer");
const HALTED: Xid =
    (62, "PMU halted", "error", "reset_gpu", "Drain and reset the GPU; if it returns, replace the board");
const GSP: Xid = (
    119,
    "GSP firmware did not answer in time",
    "error",
    "reset_gpu",
    "Drain and reset the GPU; update the driver",
);
const CLEANED_UP: Xid =
    (45, "Preemptive channel removal", "info", "none", "Follow the XID that is named as the cause");

const ECC: &str = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered";
const LAUNCH: &str = "torch.AcceleratorError: CUDA error: unspecified launch failure";
const REMOTE: &str =
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error";
const BUGS: [&str; 5] = [
    "IndexError: index 50304 is out of bounds for dimension 0 with size 50304",
    "RuntimeError: DataLoader worker (pid 31337) exited unexpectedly",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "AssertionError: sequence length 8193 exceeds 8192",
    "KeyError: 'input_ids'",
];
/// The seconds after which an exporter reports a link that is down as lost.
const DROPPED: f64 = 30.0;
/// The share of jobs whose launcher ends all ranks when one is dead.
const TORN_DOWN: f64 = 0.7;

impl World {
    pub(super) fn stop(&mut self, kind: Kind, v: Victim) {
        let down = self.noise.between(150.0, 300.0);
        match kind {
            Kind::FaultyGpu => self.faulty_gpu(v, down),
            Kind::Hbm => self.memory(v, down, kind, &[DOUBLE_BIT, REMAPPED, CONTAINED, UNCONTAINED]),
            Kind::Sram => self.memory(v, down, kind, &[UNRECOVERED, UNCONTAINED]),
            Kind::Gsp => self.gsp(v, down),
            Kind::Software => self.bug(v, down),
            Kind::Network => self.network(v, down),
            Kind::Maintenance => self.maintenance(v, down),
            Kind::Host => self.host(v, down),
            Kind::Nic => self.nic_down(v, down),
            Kind::Ssd => self.ssd(v, down),
            Kind::NcclTimeout => self.watchdog(v),
            Kind::EvalDeadlock => self.eval_deadlock(v),
            _ => self.loader_deadlock(v),
        }
    }

    /// An XID that the kernel logs near the time of the fault, mostly before and sometimes after
    /// the process died.
    fn xid(&mut self, v: Victim, xid: Xid, after: f64) {
        let e = words::xid(&self.nodes[v.node], v.gpu, xid);
        self.nodes[v.node].marked.push(v.gpu);
        let late = if self.noise.chance(0.1) { self.noise.between(1.0, 15.0) } else { 0.0 };
        self.say(after + late, v.node, e);
    }

    /// A rank dies, with or without an error message.
    pub(super) fn die(&mut self, job: usize, rank: usize, after: f64, last_words: Option<&str>) {
        let j = &self.jobs[job];
        let (name, attempt, step, node) = (j.name, j.attempt, j.step, j.slots[rank / GPUS]);
        let mut event = match last_words {
            Some(text) => words::bye(name, rank as u32, attempt, 1, text),
            None => words::rank_dead(name, rank as u32, attempt, step, 4000 + rank as u32),
        };
        event.ts = Some(self.clock() + after + self.nodes[node].skew);
        let way = self.way(node);
        self.at((after * 1000.0) as i64 + way, Do::Die { job, rank, event: Some(Box::new(event)) });
    }

    /// The reaction of the other ranks, and the restart of the run.
    pub(super) fn aftermath(&mut self, v: Victim, down: f64, swap: bool) {
        let epoch = self.jobs[v.job].epoch;
        if self.noise.chance(TORN_DOWN) {
            let wait = self.noise.between(1.0, 12.0);
            self.in_secs(wait, Do::Teardown { job: v.job, epoch });
        }
        self.in_secs(down, Do::Restart { job: v.job, swap: swap.then_some(v.slot) });
    }

    /// The live ranks are ended, or end with an error of the collective, within a second or two.
    pub(in crate::fleet) fn teardown(&mut self, job: usize) {
        let killed = self.noise.chance(0.5);
        let alive: Vec<usize> = (0..self.jobs[job].ranks()).filter(|r| self.jobs[job].alive[*r]).collect();
        for rank in alive {
            let after = self.noise.between(0.0, 1.5);
            self.die(job, rank, after, (!killed).then_some(REMOTE));
        }
        self.jobs[job].state = State::Down;
    }

    fn faulty_gpu(&mut self, v: Victim, down: f64) {
        self.note(Kind::FaultyGpu, v, self.this_gpu(v), down);
        self.freeze(v.job);
        let said = self
            .noise
            .weighted(&[(Some(FELL_OFF), 0.5), (Some(NVLINK), 0.2), (Some(HALTED), 0.15), (None, 0.15)])
            .flatten();
        if let Some(xid) = said {
            self.xid(v, xid, 0.0);
        }
        if said.is_some_and(|x| x.0 == FELL_OFF.0) {
            let (uuid, pci) = (self.nodes[v.node].gpus[v.gpu].clone(), words::pci(v.gpu));
            let words = "the driver cannot reach the GPU any more";
            let e = words::hw("gpu_lost", "error", words, &[("gpu", &uuid), ("pci", &pci)]);
            let after = self.noise.between(1.0, 10.0);
            self.say(after, v.node, e);
            self.say(after + 0.2, v.node, words::xid(&self.nodes[v.node], v.gpu, CLEANED_UP));
        }
        let (after, text) = (self.noise.between(0.1, 2.0), self.noise.chance(0.6).then_some(LAUNCH));
        self.die(v.job, v.rank(), after, text);
        self.aftermath(v, down, true);
    }

    fn memory(&mut self, v: Victim, down: f64, kind: Kind, xids: &[Xid]) {
        self.note(kind, v, self.this_gpu(v), down);
        self.freeze(v.job);
        self.nodes[v.node].health.corrected[v.gpu] += self.noise.between(0.0, 30.0);
        let contained = self.noise.chance(0.5);
        for (i, xid) in xids.iter().enumerate() {
            // An error is either contained or not.
            if (xid.0 == CONTAINED.0) != contained
                && [CONTAINED.0, UNCONTAINED.0].contains(&xid.0)
                && xids.len() > 2
            {
                continue;
            }
            self.xid(v, *xid, 0.05 * i as f64);
        }
        let (after, text) = (self.noise.between(0.1, 1.0), self.noise.chance(0.8).then_some(ECC));
        self.die(v.job, v.rank(), after, text);
        self.aftermath(v, down, true);
    }

    /// The GPU's system processor hangs: driver calls do not return, and no process dies.
    fn gsp(&mut self, v: Victim, down: f64) {
        self.note(Kind::Gsp, v, self.this_gpu(v), down);
        self.freeze(v.job);
        let after = self.noise.between(2.0, 8.0);
        self.xid(v, GSP, after);
        if self.noise.chance(0.5) {
            self.die(v.job, v.rank(), after + 1.0, Some(LAUNCH));
        }
        self.aftermath(v, down, true);
    }

    fn bug(&mut self, v: Victim, down: f64) {
        self.note(Kind::Software, v, Culprit::Software { first: Some(v.rank() as u32) }, down);
        self.freeze(v.job);
        let text = *self.noise.pick(&BUGS);
        self.die(v.job, v.rank(), 0.0, Some(text));
        // A few more ranks fail in the same way before the launcher ends all.
        for _ in 0..self.noise.index(3) {
            let (rank, after) = (self.noise.index(self.jobs[v.job].ranks()), self.noise.between(0.1, 0.9));
            if rank != v.rank() {
                self.die(v.job, rank, after, Some(REMOTE));
            }
        }
        self.aftermath(v, down, false);
    }

    /// A fault of one node's cable, or of the switch of several nodes.
    fn network(&mut self, v: Victim, down: f64) {
        let leaf = self.nodes[v.node].leaf;
        let hit: Vec<usize> =
            self.jobs[v.job].slots.iter().copied().filter(|n| self.nodes[*n].leaf == leaf).collect();
        let switch = hit.len() > 1 && self.noise.chance(0.5);
        let culprit = if switch {
            Culprit::Switch { nodes: hit.iter().map(|n| self.nodes[*n].name.clone()).collect() }
        } else {
            self.this_node(v)
        };
        self.note(Kind::Network, v, culprit, down);
        self.freeze(v.job);
        for node in if switch { hit } else { vec![v.node] } {
            let name = words::device(v.gpu);
            self.link_lost(node, v.gpu, 1.5, down);
            self.say(down, node, words::link(&name, "infiniband", "up", "info", "is up again"));
            if self.noise.chance(0.3) {
                let slot = self.nodes[node].at.map_or(v.slot, |(_, slot)| slot);
                let later = self.noise.between(8.0, 30.0);
                self.die(v.job, slot * GPUS + v.gpu, later, Some(REMOTE));
            }
        }
        self.aftermath(v, down, false);
    }

    fn maintenance(&mut self, v: Victim, down: f64) {
        self.note(Kind::Maintenance, v, self.this_node(v), down);
        self.freeze(v.job);
        let polite = self.noise.chance(0.6);
        for rank in v.ranks() {
            let after = self.noise.between(0.0, 0.5);
            if polite {
                self.die(v.job, rank, after, None);
            } else {
                self.at((after * 1000.0) as i64, Do::Die { job: v.job, rank, event: None });
            }
        }
        let after = self.noise.between(1.0, 4.0);
        self.in_secs(after, Do::Lose { node: v.node, reason: "connection reset by peer" });
        self.aftermath(v, down, true);
    }

    /// Power, chassis, board, CPU or memory: the node is lost at once, or its kernel logs something
    /// first.
    fn host(&mut self, v: Victim, down: f64) {
        self.note(Kind::Host, v, self.this_node(v), down);
        self.freeze(v.job);
        if self.noise.chance(0.5) {
            for rank in v.ranks() {
                self.at(0, Do::Die { job: v.job, rank, event: None });
            }
            // A power failure closes no connection, so it is noticed by the silence.
            let silence = self.noise.between(12.0, 16.0);
            self.nodes[v.node].up = false;
            self.in_secs(silence, Do::Lose { node: v.node, reason: "silent for 15 s" });
        } else {
            let text = "the processor reports a hardware error that it could not correct (memory controller, bank 7)";
            self.say(0.0, v.node, words::once(words::hw("mce", "error", text, &[])));
            for rank in v.ranks() {
                let after = self.noise.between(0.2, 2.0);
                self.die(v.job, rank, after, None);
            }
        }
        self.aftermath(v, down, true);
    }

    /// A link is down, and after half a minute it counts as lost.
    fn link_lost(&mut self, node: usize, device: usize, within: f64, down: f64) {
        let (name, after) = (words::device(device), self.noise.between(0.0, within));
        self.nodes[node].health.downs[device] += 1.0;
        self.say(after, node, words::link(&name, "infiniband", "down", "warn", "went down"));
        if down > after + DROPPED {
            let text = "has been down for 30s, longer than what runs over it waits";
            self.say(after + DROPPED, node, words::link(&name, "infiniband", "drop", "error", text));
        }
    }

    fn nic_down(&mut self, v: Victim, down: f64) {
        self.note(Kind::Nic, v, self.this_node(v), down);
        self.freeze(v.job);
        self.link_lost(v.node, v.gpu, 1.0, down);
        if self.noise.chance(0.4) {
            let words = format!("PCIe: {} reports a fatal error", words::pci(v.gpu));
            self.say(
                0.0,
                v.node,
                words::hw("aer_fatal", "error", &words, &[("device", &words::device(v.gpu))]),
            );
        }
        let after = self.noise.between(5.0, 25.0);
        self.die(v.job, v.rank(), after, Some(REMOTE));
        self.aftermath(v, down, true);
    }

    fn ssd(&mut self, v: Victim, down: f64) {
        self.note(Kind::Ssd, v, self.this_node(v), down);
        self.freeze(v.job);
        self.say(
            0.0,
            v.node,
            words::hw(
                "nvme_error",
                "error",
                "nvme0 reports a critical warning: the device is read-only",
                &[("device", "nvme0")],
            ),
        );
        self.say(
            0.4,
            v.node,
            words::hw(
                "filesystem_readonly",
                "error",
                "/scratch has become read-only",
                &[("mount", "/scratch")],
            ),
        );
        let after = self.noise.between(0.5, 3.0);
        self.die(
            v.job,
            v.rank(),
            after,
            Some("OSError: [Errno 30] Read-only file system: '/scratch/cache/shard-00017'"),
        );
        self.aftermath(v, down, true);
    }

    /// A collective that does not end; NCCL may report who did not join.
    fn watchdog(&mut self, v: Victim) {
        let down = self.noise.between(420.0, 700.0);
        let known = self.noise.chance(0.5);
        let culprit = if known { self.this_gpu(v) } else { Culprit::Software { first: None } };
        self.note(Kind::NcclTimeout, v, culprit, down);
        self.freeze(v.job);
        if known {
            self.jobs[v.job].apart = Some((v.rank(), "step"));
            self.ras(v);
        }
        self.aftermath_of_hang(v, down);
    }

    fn ras(&mut self, v: Victim) {
        let (host, reporter) = (self.nodes[v.node].name.clone(), self.jobs[v.job].slots[0]);
        let (size, step) = (self.jobs[v.job].ranks(), self.jobs[v.job].step);
        let after = self.noise.between(120.0, 150.0);
        self.say(after, reporter, words::ras_stuck(v.rank() as u32, &host, size, step * 40, 120));
    }

    fn aftermath_of_hang(&mut self, v: Victim, down: f64) {
        let epoch = self.jobs[v.job].epoch;
        self.in_secs(down - 5.0, Do::Teardown { job: v.job, epoch });
        self.in_secs(down, Do::Restart { job: v.job, swap: None });
    }

    fn eval_deadlock(&mut self, v: Victim) {
        let down = self.noise.between(420.0, 700.0);
        self.note(Kind::EvalDeadlock, v, Culprit::Software { first: None }, down);
        self.freeze(v.job);
        self.evaluate(v.job, None);
        self.aftermath_of_hang(v, down);
    }

    fn loader_deadlock(&mut self, v: Victim) {
        let down = self.noise.between(420.0, 700.0);
        self.note(Kind::LoaderDeadlock, v, self.this_gpu(v), down);
        self.freeze(v.job);
        self.jobs[v.job].apart = Some((v.rank(), "data"));
        if self.noise.chance(0.5) {
            self.ras(v);
        }
        self.aftermath_of_hang(v, down);
    }
}
