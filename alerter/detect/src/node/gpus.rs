//! The accelerators of a node as they were last read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Metrics, Value};

use super::Activity;
use super::conditions::word;
use super::liveness::Liveness;
use stepwatch_model::time::{Span, Ts};

/// The most accelerators kept for a node.
const MAX_GPUS: usize = 64;
/// The most throttle counters kept for each accelerator.
const MAX_REASONS: usize = 16;
/// A GPU is at work from any of these ratios on: busy time, tensor cores, power against its limit.
/// Engineering limits.
const BUSY: f64 = 0.5;
const TENSOR: f64 = 0.05;
const POWER: f64 = 0.5;
/// Weight of a reading in the usual power of a GPU: above the usual power, and below it.
const RISES: f64 = 0.1;
const FALLS: f64 = 0.01;
/// Energy between two readings that are further apart is not attributed: the node may have had
/// other jobs.
const METERED: Span = Span::secs(600);
/// A power in watts that no accelerator draws: a counter with a higher one is wrong. An engineering
/// limit.
const MAX_WATTS: f64 = 5000.0;
/// A GPU that is busy for less than this share of the time computes nothing: a program that only
/// displays its state takes as much. An engineering limit.
const COMPUTES: f64 = 0.01;
/// Throttle reasons of the driver that are no fault.
const NO_COMPLAINT: [&str; 5] =
    ["gpu_idle", "idle", "applications_clocks_setting", "display_clock_setting", "none"];

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub index: Option<u32>,
    pub pci: String,
    /// The number of readings ever taken.
    pub readings: u64,
    pub last: Reading,
    /// Its usual power at work, in watts; 0 before it has worked.
    pub usual_power: f64,
    /// When it was last seen to compute, or first read after a time without readings.
    computed_at: Ts,
    /// Its energy counter in joules, and when it was read, by the node's clock. Not stored: nodes
    /// are stored less often than runs, so that a restart would count some energy twice.
    #[serde(skip)]
    energy: Option<(Ts, f64)>,
    /// Seconds that each reason has throttled it for, as last read.
    throttled: BTreeMap<String, f64>,
}

/// Energy that a GPU used between two readings.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedEnergy {
    pub gpu: String,
    pub joules: f64,
    pub lasted: Span,
}

/// The readings of one moment; `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    pub at: Ts,
    pub sm_clock: Option<f64>,
    pub sm_clock_max: Option<f64>,
    pub power: Option<f64>,
    pub power_limit: Option<f64>,
    pub temperature: Option<f64>,
    pub utilization: Option<f64>,
    pub tensor: Option<f64>,
    pub ecc_corrected: Option<f64>,
    pub remapped_correctable: Option<f64>,
    pub remapped_uncorrectable: Option<f64>,
    /// Why the driver limits its clocks, or has limited them since the last reading.
    pub reasons: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Gpus {
    all: BTreeMap<String, Gpu>,
    /// When any of the GPUs was read.
    heard: Liveness,
}

impl Reading {
    fn from_metrics(now: Ts, m: &Metrics) -> Self {
        let get = |name: &str| m.get(name).filter(|v| v.is_finite());
        Self {
            at: now,
            sm_clock: get("sm_clock_hertz"),
            sm_clock_max: get("sm_clock_max_hertz"),
            power: get("power_watts"),
            power_limit: get("power_limit_watts"),
            temperature: get("temperature_celsius"),
            utilization: get("utilization_ratio"),
            tensor: get("tensor_active_ratio"),
            ecc_corrected: get("ecc_corrected"),
            remapped_correctable: get("remapped_rows_correctable"),
            remapped_uncorrectable: get("remapped_rows_uncorrectable"),
            reasons: Vec::new(),
        }
    }

    /// Whether it is at work. False if it reports neither utilization, tensor activity nor power.
    pub fn is_loaded(&self) -> bool {
        let power =
            self.power.zip(self.power_limit).is_some_and(|(p, limit)| limit > 0.0 && p / limit >= POWER);
        self.utilization.is_some_and(|u| u >= BUSY) || self.tensor.is_some_and(|t| t >= TENSOR) || power
    }

    /// Whether it computes. A GPU that does not report its utilization is taken to compute.
    fn computes(&self) -> bool {
        let busy = [self.utilization, self.tensor].into_iter().flatten();
        self.utilization.is_none() || busy.fold(0.0, f64::max) > COMPUTES
    }

    /// The SM clock as a share of the highest one.
    pub fn clock_ratio(&self) -> Option<f64> {
        let (clock, max) = self.sm_clock.zip(self.sm_clock_max)?;
        (clock > 0.0 && max > 0.0).then(|| clock / max)
    }
}

impl Gpus {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Gpu)> {
        self.all.iter().map(|(uuid, gpu)| (uuid.as_str(), gpu))
    }

    pub fn get(&self, uuid: &str) -> Option<&Gpu> {
        self.all.get(uuid)
    }

    /// Whether a known GPU is still read, as the others of the node are.
    pub fn is_there(&self, uuid: &str) -> bool {
        self.get(uuid).is_some_and(|gpu| self.heard.has(gpu.last.at))
    }

    /// Finds a GPU by UUID, or by PCI address if only that is known. Of several GPUs that were in
    /// that slot, the one that was read last.
    pub fn find(&self, uuid: &str, pci: &str) -> Option<(&str, &Gpu)> {
        if !uuid.is_empty() {
            return self.all.get_key_value(uuid).map(|(uuid, gpu)| (uuid.as_str(), gpu));
        }
        let there = self.iter().filter(|(_, gpu)| !pci.is_empty() && gpu.pci.eq_ignore_ascii_case(pci));
        there.max_by_key(|(_, gpu)| gpu.last.at)
    }

    /// The UUID of the GPU that an event is about, as the event gives it or found by its PCI
    /// address. Empty if it is about none.
    pub(crate) fn named(&self, e: &Event) -> String {
        let given = word(e, "gpu");
        if given.starts_with("GPU-") {
            return given;
        }
        self.find("", &word(e, "pci")).map(|(uuid, _)| uuid.to_owned()).unwrap_or_default()
    }

    /// Learns the UUID and PCI address of a GPU from any event that has them.
    pub(crate) fn learn(&mut self, e: &Event) {
        let text = |key: &str| e.extra.get(key).and_then(Value::as_str).filter(|v| !v.is_empty());
        let Some(uuid) = text("gpu").filter(|v| v.starts_with("GPU-")) else { return };
        if !self.all.contains_key(uuid) && self.all.len() >= MAX_GPUS {
            // A GPU that was replaced long ago makes room.
            let oldest = self.all.iter().min_by_key(|(_, gpu)| gpu.last.at).map(|(uuid, _)| uuid.clone());
            self.all.remove(&oldest.unwrap_or_default());
        }
        let gpu = self.all.entry(uuid.to_owned()).or_default();
        if let Some(pci) = text("pci").filter(|pci| *pci != gpu.pci) {
            pci.clone_into(&mut gpu.pci);
        }
        if let Some(index) = e.extra.get("index").and_then(Value::as_f64).filter(|n| *n >= 0.0) {
            gpu.index = Some(index as u32);
        }
    }

    /// Records a reading; true if the event has one.
    pub(crate) fn take(&mut self, now: Ts, e: &Event) -> bool {
        let Some(gpu) = e.extra.get("gpu").and_then(Value::as_str).and_then(|uuid| self.all.get_mut(uuid))
        else {
            return false;
        };
        self.heard.hear(now);
        let is_seen = gpu.readings > 0 && now - gpu.last.at <= METERED;
        gpu.last = Reading::from_metrics(now, &e.m);
        if !is_seen || gpu.last.computes() {
            gpu.computed_at = now;
        }
        gpu.readings += 1;
        gpu.worked();
        for (name, v) in e.m.iter() {
            let Some(reason) = gpu.throttled_by(name, v) else { continue };
            if !NO_COMPLAINT.contains(&reason) && !gpu.last.reasons.iter().any(|had| had == reason) {
                gpu.last.reasons.push(reason.to_owned());
            }
        }
        gpu.last.reasons.sort();
        true
    }

    /// The energy that the GPU used since the reading before, if that is known.
    pub(crate) fn meter(&mut self, now: Ts, e: &Event) -> Option<UsedEnergy> {
        let joules = e.m.get("energy_joules").filter(|joules| joules.is_finite())?;
        let gpu = e.extra.get("gpu").and_then(Value::as_str)?;
        let at = e.ts.map_or(now, Ts::from_secs_f64);
        let (joules, lasted) = self.all.get_mut(gpu)?.meter(at, joules)?;
        Some(UsedEnergy { gpu: gpu.to_owned(), joules, lasted })
    }

    /// Whether a GPU computes, and since when it does not.
    pub(crate) fn activity(&self, now: Ts, uuid: &str) -> Activity {
        let is_read = |gpu: &&Gpu| self.is_there(uuid) && now - gpu.last.at <= METERED;
        match self.get(uuid).filter(is_read) {
            None => Activity::Unknown,
            Some(gpu) if gpu.last.computes() => Activity::Computes,
            Some(gpu) => Activity::Idle { since: gpu.computed_at },
        }
    }

    /// The number of GPUs that are still read.
    pub(crate) fn count(&self) -> usize {
        self.all.keys().filter(|uuid| self.is_there(uuid)).count()
    }

    /// The median share of the highest clock over the GPUs at work, without one of them.
    pub fn loaded_clock(&self, without: &str) -> Option<(f64, usize)> {
        let others = self.iter().filter(|(uuid, gpu)| *uuid != without && gpu.last.is_loaded());
        let mut clocks: Vec<f64> = others.filter_map(|(_, gpu)| gpu.last.clock_ratio()).collect();
        clocks.sort_by(f64::total_cmp);
        Some((*clocks.get(clocks.len() / 2)?, clocks.len()))
    }
}

impl Gpu {
    /// Its power as a share of its usual power at work.
    pub fn power_share(&self) -> Option<f64> {
        self.last.power.filter(|_| self.usual_power > 0.0).map(|power| power / self.usual_power)
    }

    /// The energy since the last reading, and the time that it covers. A counter that fell far was
    /// reset, and the energy before that is unknown. One that fell a little, or that was read
    /// earlier, is a late reading, perhaps of another exporter, and is already counted.
    fn meter(&mut self, at: Ts, joules: f64) -> Option<(f64, Span)> {
        let is_late = |(before, had): (Ts, f64)| {
            let (fell, ago) = (had - joules, before - at);
            ago >= Span::ZERO && ago <= METERED || fell > 0.0 && fell <= MAX_WATTS * METERED.as_secs_f64()
        };
        if self.energy.is_some_and(is_late) {
            return None;
        }
        let (before, had) = self.energy.replace((at, joules))?;
        let (used, lasted) = (joules - had, at - before);
        let most = MAX_WATTS * (lasted.as_secs_f64() + 1.0);
        let is_known = lasted > Span::ZERO && lasted <= METERED && (0.0..=most).contains(&used);
        is_known.then_some((used, lasted))
    }

    /// Updates the usual power. A standstill lasts for minutes and must not become usual.
    fn worked(&mut self) {
        let busy = self.last.utilization.is_some_and(|u| u >= BUSY);
        let Some(power) = self.last.power.filter(|_| busy) else { return };
        let weight = if power > self.usual_power { RISES } else { FALLS };
        let first = self.usual_power == 0.0;
        self.usual_power += if first { power } else { weight * (power - self.usual_power) };
    }

    /// The reason for throttling that a metric counts, if it rose.
    fn throttled_by<'a>(&mut self, name: &'a str, v: f64) -> Option<&'a str> {
        if let Some(reason) = name.strip_prefix("throttle_") {
            return (v > 0.0).then_some(reason);
        }
        let reason = name.strip_prefix("throttled_")?.strip_suffix("_seconds")?;
        let before = self.throttled.get(reason).copied();
        if before.is_some() || self.throttled.len() < MAX_REASONS {
            self.throttled.insert(reason.to_owned(), v);
        }
        before.is_some_and(|before| v > before).then_some(reason)
    }
}
