//! Detects a GPU that is slower than its peers, and why.
//!
//! Under load the SM clock of every GPU of a job settles near the same share of its maximum; one
//! that is held down holds back all of them (BLOOM-176B lost 5 % to one such GPU, and a weekend to
//! finding it). Each reading of a GPU at work is a vote: is its clock below `ratio` of its peers'?
//! Peers are the other GPUs at work on the node, or the other nodes of the run where those are
//! faster: a node whose eight GPUs are all held down by its power supply looks even by itself.
//! Enough votes of the last 8 make a ticket, and more are asked for where the driver gives no
//! reason. A slow one that goes idle is no faster for it: it stays slow until it was seen at work
//! again, a day at most, or is not there any more.
//!
//! What the driver itself reports as throttling (`gpu_throttled`) is a ticket too: a GPU may have
//! no peers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::{Clause, Fact, Num, Slowed, clause};

use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Gpu, Level, NodeState, words};
use crate::stats::hit_window::HitWindow;
use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Kind, Observation, Sentence, Severity, Suspect};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// Share of the peers' clock below which a GPU is slow. The job waits for its slowest GPU, so a
    /// tenth of the clock may cost as much of the speed of the whole job.
    pub ratio: f64,
    /// The least number of peers at work.
    pub peers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ratio: 0.9, peers: 3 }
    }
}

/// Hits among the last 8 looks that make a ticket: with a reason, and without. Engineering limits:
/// a GPU that is slow in every second look, independently, has 6 of 8 in 14 % of the windows and
/// all 8 in 0.4 %.
const WITH_REASON: u32 = 6;
const WITHOUT: u32 = 8;
/// The most hits at which the incident ends.
const OVER: u32 = 1;
const KEPT: u32 = 8;
/// Readings without work, about a day of them, after which nothing is known of its speed any more.
const IDLE: u32 = 8640;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Throttle {
    gpus: BTreeMap<String, Watch>,
    raised: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watch {
    readings: u64,
    votes: HitWindow,
    idle: u32,
    raised: bool,
    /// The reasons of the driver while it was slow.
    reasons: Vec<String>,
    peers: f64,
}

impl Throttle {
    /// The faster of its two groups of peers.
    fn peers(c: &Config, view: NodeAt<'_>, uuid: &str) -> Option<f64> {
        let here = view.node.gpus.loaded_clock(uuid).filter(|(_, n)| *n >= c.peers);
        let elsewhere = view.tenants.iter().filter_map(|t| t.peer_clock).find(|(_, n)| *n + 1 >= c.peers);
        [here, elsewhere].into_iter().flatten().map(|(clock, _)| clock).max_by(f64::total_cmp)
    }

    fn vote(&mut self, c: &Config, uuid: &str, gpu: &Gpu, peers: Option<f64>) -> bool {
        let watch = self.gpus.entry(uuid.to_owned()).or_default();
        watch.readings = gpu.readings;
        if !gpu.last.is_loaded() {
            watch.idle = watch.idle.saturating_add(1);
            return false;
        }
        watch.idle = 0;
        let (Some(clock), Some(peers)) = (gpu.last.clock_ratio(), peers) else { return false };
        let slow = clock < c.ratio * peers;
        watch.votes.push(slow);
        watch.peers = peers;
        if slow && !gpu.last.reasons.is_empty() {
            watch.reasons.clone_from(&gpu.last.reasons);
        } else if watch.votes.count_last(KEPT) == 0 {
            watch.reasons.clear();
        }
        let needed = if watch.reasons.is_empty() { WITHOUT } else { WITH_REASON };
        let news = !watch.raised && watch.votes.count_last(KEPT) >= needed;
        watch.raised = news || watch.raised && watch.votes.count_last(KEPT) > OVER;
        news
    }

    /// Stops watching GPUs that cannot be seen to be fast again. Returns the reason, and when a GPU
    /// that is gone was last read.
    fn let_go(&mut self, f: &NodeState) -> Option<(Clause, Option<Ts>)> {
        let mut why = None;
        self.gpus.retain(|uuid, watch| {
            let there = f.gpus.is_there(uuid);
            let gpu = || words::gpu_of(f, uuid, "");
            if watch.raised && !there {
                let read = f.gpus.get(uuid).map(|gpu| gpu.last.at);
                why = Some((words::not_there(f, gpu()), read));
            } else if watch.raised && watch.idle >= IDLE {
                watch.raised = false;
                let idle = clause!(
                    "{gpu} of {node} has had no work for a day: it was not seen to be fast again",
                    gpu = Fact::Device(gpu()),
                    node = f.name.clone(),
                );
                why = Some((idle, None));
            }
            there
        });
        why
    }

    fn report(&self, view: NodeAt<'_>) -> Finding {
        let f = view.node;
        let mut v = view.finding(Kind::Throttle, "sm_clock", Change::Raise, Severity::Ticket);
        let slow: Vec<(&String, &Watch)> = self.gpus.iter().filter(|(_, w)| w.raised).collect();
        for (uuid, watch) in &slow {
            let Some(gpu) = f.gpus.get(uuid) else { continue };
            let target = words::gpu_of(f, uuid, "");
            let why = slowness(gpu, watch);
            if v.why.is_empty() {
                let max = gpu.last.sm_clock_max.unwrap_or(f64::NAN);
                (v.value, v.expected) = (gpu.last.sm_clock.unwrap_or(f64::NAN), watch.peers * max);
                v.score = v.expected / v.value;
                let (gpu, node) = (Fact::Device(target.clone()), f.name.clone());
                v.why = Sentence::from(&why).after(clause!("{gpu} of {node} is slow: ", gpu, node));
                v.why.name(target.clone());
            }
            v.suspects.push(Suspect::new(target, why));
        }
        if slow.len() > 1 {
            v.why.add(clause!("{more} more GPUs of the node too", more = slow.len() - 1));
        }
        for (key, c) in complaints(f) {
            if v.why.is_empty() {
                // The expected clock is not known; the text has the rest.
                (v.value, v.expected) = (f64::NAN, f64::NAN);
                v.why = Sentence::from(words::happened(f, key, c)).naming(words::target(f, key, c));
            }
            v.suspects.push(words::suspect(f, key, c));
        }
        v.why.add(words::hit(view.now, view.node, view.tenants));
        v
    }
}

fn complaints(f: &NodeState) -> impl Iterator<Item = (&crate::node::Key, &crate::node::Condition)> {
    f.conditions.iter().filter(|(key, c)| key.name == words::THROTTLED && c.holds() && c.level > Level::Info)
}

fn slowness(gpu: &Gpu, watch: &Watch) -> Observation {
    let r = &gpu.last;
    let reasons = watch.reasons.clone();
    Observation::SlowClock {
        value: r.sm_clock.unwrap_or(f64::NAN).into(),
        expected: (watch.peers * r.sm_clock_max.unwrap_or(f64::NAN)).into(),
        slowed: Slowed::first(&reasons),
        reasons,
        temperature: r.temperature.map(Num),
        power: r.power.zip(r.power_limit).map(|(power, limit)| [Num(power), Num(limit)]),
    }
}

impl NodeDetector for Throttle {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        if !c.enabled {
            return;
        }
        let f = view.node;
        let mut news = false;
        for (uuid, gpu) in f.gpus.iter().filter(|(uuid, _)| f.gpus.is_there(uuid)) {
            if self.gpus.get(uuid).is_none_or(|w| w.readings != gpu.readings) {
                let peers = Self::peers(c, view, uuid);
                news |= self.vote(c, uuid, gpu, peers);
            }
        }
        let gone = self.let_go(f);
        let complained = complaints(f).next().is_some();
        news |= complained && !self.raised;
        let slow = complained || self.gpus.values().any(|w| w.raised);
        if news {
            self.raised = true;
            out.push(self.report(view));
        } else if self.raised && !slow {
            self.raised = false;
            let mut v = view.finding(Kind::Throttle, "sm_clock", Change::Clear, Severity::Info);
            let fast =
                || clause!("the GPUs of {node} are as fast as their peers again", node = f.name.clone());
            let (why, read) = gone.unwrap_or_else(|| (fast(), None));
            v.why = why.into();
            if let Some(read) = read {
                (v.change, v.ts) = (Change::Lapse, read);
            }
            out.push(v);
        }
    }

    fn deadline(&self, _: &Config, _: &NodeState) -> Option<Ts> {
        None
    }
}
