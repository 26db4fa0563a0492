//! Faults that make the run slower.

use super::{Culprit, Do, Effect, Kind, Victim, World, words};

/// The number of outages from which an exporter reports flapping.
const FLAPS: u32 = 3;

impl World {
    pub(super) fn slow(&mut self, kind: Kind, v: Victim) {
        let seconds = self.noise.between(420.0, 780.0);
        let swap = match kind {
            Kind::ThermalGpu => self.throttled(v, seconds),
            Kind::SlowHost => self.slow_host(v, seconds),
            Kind::SlowNic => self.slow_nic(v, seconds),
            Kind::FlakyLink => self.flaky(v, seconds),
            Kind::SlowStorage => self.slow_storage(v, seconds),
            Kind::LoaderWait => self.slow_loader(v, seconds),
            Kind::GcDroop => self.garbage(v, seconds),
            _ => return self.unbalanced(v, seconds),
        };
        self.in_secs(seconds, Do::Stop { job: v.job, seconds: 60.0, swap: swap.then_some(v.slot) });
    }

    fn slows(&mut self, v: Victim, effect: Effect) {
        let since = self.jobs[v.job].step + 1;
        self.jobs[v.job].effects.push((effect, since));
    }

    /// One GPU is throttled by heat or power.
    fn throttled(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::ThermalGpu, v, self.this_gpu(v), seconds);
        let share = self.noise.between(0.6, 0.88);
        let ramp = self.noise.between(1.0, 20.0);
        self.slows(v, Effect::Compute { ranks: v.rank()..v.rank() + 1, factor: 1.0 / share, ramp });
        let hot = self.noise.chance(0.6);
        let health = &mut self.nodes[v.node].health;
        health.clock[v.gpu] *= share;
        health.warmth[v.gpu] += if hot { 16.0 } else { 0.0 };
        if self.noise.chance(0.7) {
            self.nodes[v.node].health.reason = Some((v.gpu, words::REASONS[usize::from(!hot)]));
            if self.noise.chance(0.6) {
                let uuid = self.nodes[v.node].gpus[v.gpu].clone();
                let words = "is slowed down by its hardware";
                self.say(12.0, v.node, words::hw("gpu_throttled", "warn", words, &[("gpu", &uuid)]));
            }
        }
        true
    }

    /// All ranks of a node compute more slowly, and its GPUs look healthy.
    fn slow_host(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::SlowHost, v, self.this_node(v), seconds);
        let factor = self.noise.between(1.1, 1.5);
        self.slows(v, Effect::Compute { ranks: v.ranks(), factor, ramp: 3.0 });
        if self.noise.chance(0.3) {
            let words = "the cgroup of the job was throttled for 40 % of the last minute";
            self.say(60.0, v.node, words::hw("cgroup_throttled", "warn", words, &[("cgroup", "job_4711")]));
        }
        true
    }

    /// The collective waits for the slowest link, so that every rank looks the same.
    fn slow_nic(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::SlowNic, v, self.this_node(v), seconds);
        let more = self.noise.between(0.12, 0.6) * self.options.step_seconds;
        self.slows(v, Effect::Comm { seconds: more, share: 1.0 });
        let name = words::device(v.gpu);
        if self.noise.chance(0.6) {
            self.nodes[v.node].health.rate[v.gpu] = 0.25;
            let after = self.noise.between(2.0, 30.0);
            let words = "runs at 100 Gb/s, it could do 400 Gb/s";
            self.say(after, v.node, words::link(&name, "infiniband", "degraded", "warn", words));
        } else {
            self.nodes[v.node].health.errors[v.gpu] = self.noise.between(20.0, 400.0);
            if self.noise.chance(0.7) {
                let after = self.noise.between(10.0, 60.0);
                let words = "makes 84 errors a minute; a good link stays under 10";
                self.say(after, v.node, words::link(&name, "infiniband", "errors", "warn", words));
            }
        }
        true
    }

    /// A link is down briefly; data in flight waits for it and for the retransmission.
    fn flaky(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::FlakyLink, v, self.this_node(v), seconds);
        let every = self.noise.between(20.0, 90.0);
        let (mut at, attempt) = (0.0, self.jobs[v.job].attempt);
        while at < 0.8 * seconds {
            let seconds = self.noise.between(0.3, 6.0);
            self.in_secs(at, Do::Blink { job: v.job, attempt, node: v.node, device: v.gpu, seconds });
            at += 5.0 + self.noise.exponential(every);
        }
        true
    }

    /// A link is down briefly. Exporters check once a second, so a shorter outage is only visible
    /// in the counter, at its next reading.
    pub(in crate::fleet) fn blink(&mut self, job: usize, node: usize, device: usize, seconds: f64) {
        let more = self.noise.between(0.5, 2.0) * self.options.step_seconds;
        self.jobs[job].hiccup += seconds + more;
        let health = &mut self.nodes[node].health;
        health.downs[device] += 1.0;
        health.errors_seen[device] += (40.0 * seconds).floor();
        let (times, name) = (health.downs[device] as u32, words::device(device));
        let look = self.noise.unit();
        let seen = if seconds > look { look } else { 10.0 * self.noise.unit() + 10.0 };
        let up = if seconds > look { seconds + self.noise.unit() } else { seen };
        let link = |state, level, text: &str| words::link(&name, "infiniband", state, level, text);
        self.say(seen, node, link("down", "warn", "went down"));
        self.say(up, node, link("up", "info", "is up again"));
        if times >= FLAPS {
            let text = format!("flaps: it went down {times} times within 12h");
            self.say(up, node, link("flap", "warn", &text));
        }
    }

    /// All ranks wait for the same file system.
    fn slow_storage(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::SlowStorage, v, Culprit::Storage, seconds);
        let all = 0..self.jobs[v.job].ranks();
        let more = self.noise.between(0.25, 1.0) * self.options.step_seconds;
        let share = self.noise.between(0.5, 1.0);
        self.slows(v, Effect::Data { ranks: all, seconds: more, share });
        if self.noise.chance(0.5) {
            let nodes = self.jobs[v.job].slots.clone();
            for node in nodes {
                if self.noise.chance(0.3) {
                    let after = self.noise.between(5.0, 60.0);
                    let e = words::hw(
                        "nfs_stall",
                        "warn",
                        "reads of /data from nas-1 take 2.1 s",
                        &[("server", "nas-1")],
                    );
                    self.say(after, node, e.clone());
                    self.say(seconds, node, words::over(e));
                }
            }
        }
        false
    }

    /// One rank waits for its own data loader.
    fn slow_loader(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::LoaderWait, v, self.this_gpu(v), seconds);
        let more = self.noise.between(0.15, 0.8) * self.options.step_seconds;
        self.slows(v, Effect::Data { ranks: v.rank()..v.rank() + 1, seconds: more, share: 0.95 });
        false
    }

    /// Garbage collections at different times on each rank, longer each time.
    fn garbage(&mut self, v: Victim, seconds: f64) -> bool {
        self.note(Kind::GcDroop, v, Culprit::Software { first: None }, seconds);
        let chance = self.noise.between(0.3, 1.5) / self.jobs[v.job].ranks() as f64;
        let seconds = 0.08 * self.options.step_seconds;
        let growth = self.noise.between(0.0005, 0.002) * self.options.step_seconds;
        self.slows(v, Effect::Pauses { chance, seconds, growth });
        false
    }

    /// A restart with other settings: one pipeline stage has too many layers.
    fn unbalanced(&mut self, v: Victim, seconds: f64) {
        let (stages, factor) = (self.jobs[v.job].stages, self.noise.between(1.12, 1.4));
        if stages < 2 {
            self.garbage(v, seconds);
            return self.in_secs(seconds, Do::Stop { job: v.job, seconds: 60.0, swap: None });
        }
        self.note_of(Kind::StageImbalance, v, Culprit::Software { first: None }, 60.5..60.5 + seconds);
        let stage = self.noise.index(stages);
        self.stop_by_hand(v.job, 60.0, None);
        self.in_secs(60.5, Do::Unbalance { job: v.job, stage, factor });
        self.in_secs(60.0 + seconds, Do::Stop { job: v.job, seconds: 60.0, swap: None });
    }
}
