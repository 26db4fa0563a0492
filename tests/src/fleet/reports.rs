//! The periodic reports of exporters and clients: steps, readings, heartbeats.

use stepwatch_wire::{Event, Kind as EventKind, Metrics};

use super::job::{Job, State, Style};
use super::layout::GPUS;
use super::words::{self, Load};
use super::world::{Do, Listener, World};

/// The seconds between two readings of one kind.
const GPU_EVERY: u64 = 10;
const NIC_EVERY: u64 = 30;
const HEARTBEAT: u64 = 5;
const SETUP_EVERY: u64 = 600;
/// The share of exporters whose report of a step is late.
const LATE: f64 = 0.002;

impl World {
    /// Reports the step for every rank except `without`.
    pub(super) fn report(
        &mut self,
        job: usize,
        (loss, grad): (f64, f64),
        without: Option<usize>,
        listener: &mut dyn Listener,
    ) {
        let mut e = core::mem::replace(&mut self.step, Event::new(EventKind::Step));
        let clock = self.clock();
        let j = &self.jobs[job];
        e.run.get_or_insert_default().clear();
        e.run.get_or_insert_default().push_str(j.name);
        (e.step, e.attempt) = (Some(j.step), Some(j.attempt));
        e.t = Metrics::default();
        let (slots, leader) = (j.slots.len(), j.leader());
        for slot in 0..slots {
            let node = self.jobs[job].slots[slot];
            if !self.nodes[node].up {
                continue;
            }
            let late = self.static_noise.chance(LATE);
            let n = &self.nodes[node];
            e.node.get_or_insert_default().clone_from(&n.name);
            e.ts = Some(clock + n.skew);
            let at = self.arrives((slot as i64 * 60) / slots as i64);
            for rank in slot * GPUS..(slot + 1) * GPUS {
                let j = &self.jobs[job];
                if !j.alive[rank] || without == Some(rank) {
                    continue;
                }
                let own = j.own_loss(rank, loss, &mut self.static_noise).map(|own| (own, grad));
                fill(&mut e, j, rank, own.or((rank == leader).then_some((loss, grad))), rank == leader);
                if late && rank != leader {
                    let way = self.static_noise.exponential(700.0) as i64;
                    self.at(way, Do::Say { node, event: Box::new(e.clone()) });
                } else {
                    self.said += 1;
                    listener.receive(at, &self.nodes[node].source, &e);
                }
            }
        }
        self.step = e;
    }

    /// Sends the reports of one second.
    pub(super) fn pulse(&mut self, listener: &mut dyn Listener) {
        let second = self.second;
        self.second += 1;
        self.at(1000, Do::Pulse);
        for node in 0..self.nodes.len() {
            let (turn, h) = (second + node as u64, &mut self.nodes[node].health);
            for (seen, errors) in h.errors_seen.iter_mut().zip(h.errors) {
                *seen += errors;
            }
            if !self.nodes[node].up {
                continue;
            }
            if turn % GPU_EVERY == 0 || turn % NIC_EVERY == 0 {
                self.read(node, turn, listener);
            }
            if turn % SETUP_EVERY == 0 {
                let e = self.setup.clone();
                self.say(0.0, node, e);
            }
            if turn % HEARTBEAT == 0 {
                self.heartbeats(node, listener);
            }
        }
    }

    fn load(&self, node: usize, gpu: usize) -> Load {
        let Some((job, slot)) = self.nodes[node].at else { return Load::Idle };
        let (j, rank) = (&self.jobs[job], slot * GPUS + gpu);
        match j.state {
            State::Running => Load::Train,
            State::Stuck if j.alive[rank] && j.apart.is_none_or(|(apart, _)| apart != rank) => Load::Spin,
            _ => Load::Idle,
        }
    }

    fn read(&mut self, node: usize, turn: u64, listener: &mut dyn Listener) {
        let at = self.arrives(2);
        let clock = self.clock();
        let (mut gpu, mut nic) = (self.gpu.clone(), self.nic.clone());
        for i in 0..GPUS {
            let load = self.load(node, i);
            let n = &self.nodes[node];
            for e in [&mut gpu, &mut nic] {
                e.node.get_or_insert_default().clone_from(&n.name);
                e.ts = Some(clock + n.skew);
            }
            if turn.is_multiple_of(GPU_EVERY) {
                words::read_gpu(&mut gpu, n, i, load, &mut self.static_noise);
                listener.receive(at, &n.source, &gpu);
                self.said += 1;
            }
            if turn.is_multiple_of(NIC_EVERY) {
                words::read_nic(&mut nic, n, i, load, clock, &mut self.static_noise);
                listener.receive(at, &n.source, &nic);
                self.said += 1;
            }
        }
        (self.gpu, self.nic) = (gpu, nic);
    }

    fn heartbeats(&mut self, node: usize, listener: &mut dyn Listener) {
        let Some((job, slot)) = self.nodes[node].at else { return };
        let at = self.arrives(1);
        let clock = self.clock();
        let (j, n, e) = (&self.jobs[job], &self.nodes[node], &mut self.beat);
        e.node.get_or_insert_default().clone_from(&n.name);
        e.run.get_or_insert_default().clear();
        e.run.get_or_insert_default().push_str(j.name);
        (e.ts, e.step, e.attempt) = (Some(clock + n.skew), Some(j.step), Some(j.attempt));
        for rank in (slot * GPUS..(slot + 1) * GPUS).filter(|r| j.alive[*r]) {
            e.rank = Some(rank as u32);
            let phase = j.apart.filter(|(apart, _)| *apart == rank).map_or("step", |(_, phase)| phase);
            e.extra.insert("phase_name".into(), words::text(phase));
            listener.receive(at, &n.source, e);
            self.said += 1;
        }
    }
}

fn fill(e: &mut Event, j: &Job, rank: usize, learned: Option<(f64, f64)>, leads: bool) {
    e.rank = Some(rank as u32);
    e.m = Metrics::default();
    if let Some((loss, grad)) = learned {
        e.m.set("loss", (loss * 1e4).round() / 1e4);
        e.m.set("grad_norm", (grad * 1e4).round() / 1e4);
    }
    if leads {
        e.m.set("lr", 1.5e-4);
        e.m.set("tokens_per_second", (j.ranks() * 12_000) as f64 / j.step_time);
        e.m.set("mfu", 0.42 * j.base / j.step_time);
    }
    e.m.set("step_time", (j.step_time * 1e6).round() / 1e6);
    let [data, compute, comm, optim] = j.parts(rank);
    match j.style {
        Style::Detailed => {
            for (name, v) in [
                ("data", data),
                ("fwd", compute / 3.0),
                ("bwd", compute * 2.0 / 3.0),
                ("comm", comm),
                ("optim", optim),
            ] {
                e.t.set(name, v);
            }
        }
        Style::Coarse => {
            for (name, v) in [("data", data), ("fwd_bwd", compute), ("optim", optim)] {
                e.t.set(name, v);
            }
        }
    }
}
