//! Publishes events about GPUs: conditions that begin and end, links that go down and come up, and
//! errors.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::Platform;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

use super::families::{
    CLOCK, ECC, FABRIC_HEALTH, FABRIC_STATE, MIG_INFO, NVLINK_UP, RECOVERY, REMAP_FAILED, REMAP_PENDING,
    SRAM_THRESHOLD, TEMPERATURE, THROTTLE, UTILIZATION, values_of,
};
use super::history::GpuHistory;
use super::pass::{GpuReading, Reading};
use super::{decode, nvlink};
use crate::collector::Context;
use crate::collectors::kernel::recovery_action;
use crate::condition::Conditions;
use crate::family::Family;
use crate::nvml::{Call, Identity};
use crate::origin::Origin;
use crate::samples::{Labels, Samples};

/// A shorter throttling of a GPU is not reported.
const THROTTLED_FOR: Duration = Duration::from_secs(10);
/// A GPU with less utilization than this is not reported as throttled.
const BUSY: f64 = 0.5;
/// A fabric manager takes up to this long to start.
const FABRIC_FOR: Duration = Duration::from_mins(1);
/// Loading or replacing a driver takes up to this long.
const USELESS_FOR: Duration = Duration::from_mins(1);
/// How often the event of a link that is down is repeated, as that of a condition is.
const AGAIN: Duration = Duration::from_mins(10);
/// Throttling reasons of the hardware: failed cooling or an insufficient power supply. A power cap
/// is normal operation.
const HARDWARE: &[&str] = &["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"];
const HEALTHY_FABRIC: &str = "completed";

/// The reason why no GPU can be used.
#[derive(Debug)]
pub(super) enum Useless {
    /// The kernel has no driver for them.
    Driverless,
    /// The loaded driver and its library have different versions.
    Mismatch(String),
}

impl Useless {
    pub(super) fn mismatch(self) -> Option<String> {
        match self {
            Self::Driverless => None,
            Self::Mismatch(why) => Some(why),
        }
    }
}

/// The state of what was published.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    pub(super) conditions: Conditions,
    /// When each fact began that is published only if it lasts.
    pub(super) since: BTreeMap<(&'static str, String), Instant>,
    /// The last count of uncorrected errors since the driver was loaded, by UUID.
    uncorrected: BTreeMap<String, f64>,
    /// The links that were ever up: whether they are up now, and when that was last published.
    links: BTreeMap<(String, String), (bool, Instant)>,
    /// The stuck call that was reported and concerns no single GPU.
    pub(super) stuck: Option<Call>,
    /// GPUs that have reported a state of a fabric.
    in_fabric: BTreeSet<String>,
}

/// The GPU that an event is about.
pub(super) struct Subject<'a> {
    uuid: &'a str,
    pci: &'a str,
    /// The name for texts.
    pub(super) name: String,
    /// The Unix time of its reading.
    at: f64,
    /// Its place in the rack.
    platform: Option<&'a Platform>,
}

impl Subject<'_> {
    pub(super) fn of_gpu(id: &Identity, at: f64) -> Subject<'_> {
        let Identity { index, uuid, pci, name, platform, .. } = id;
        let platform = platform.as_ref();
        Subject { uuid, pci, name: format!("GPU {index} ({name}, {pci})"), at, platform }
    }

    pub(super) fn event(&self, kind: Kind, level: &str, text: String) -> Event {
        let (level, ts) = (Some(level.into()), Some(self.at));
        let mut event = Event { level, text: Some(text), ts, ..Event::new(kind) };
        for (key, value) in [("gpu", self.uuid), ("pci", self.pci)] {
            if !value.is_empty() {
                event.extra.insert(key.into(), Value::Text(value.into()));
            }
        }
        if let Some(Platform { chassis, slot, tray, host, .. }) = self.platform {
            event.extra.insert("chassis".into(), Value::Text(chassis.clone()));
            for (key, number) in [("slot", slot), ("tray", tray), ("host", host)] {
                event.extra.insert(key.into(), Value::Number((*number).into()));
            }
        }
        event
    }
}

/// The GPUs that the node should have.
pub(super) struct Inventory {
    /// GPUs that have worked, by UUID.
    pub(super) seen: BTreeMap<String, Arc<Identity>>,
    /// PCI addresses that the kernel driver lists.
    pub(super) listed: Vec<String>,
    pub(super) expected: usize,
}

impl Watcher {
    pub(super) fn released(&mut self, cx: &Context<'_>, released: bool) {
        self.conditions.report(cx, NodeCondition::NvmlReleased, "", released, || {
            let text = if released {
                "NVML was released on request: values of the GPUs are absent until it is taken back"
            } else {
                "NVML was taken back; the GPUs are read again"
            };
            Event { level: Some("info".into()), text: Some(text.into()), ..Event::new(Kind::Hw) }
        });
    }

    /// Reports that no GPU can be used although there should be some; the first reading ends it.
    pub(super) fn useless(&mut self, cx: &Context<'_>, why: Option<Useless>, expected: usize) {
        if !self.lasts("useless", "", why.is_some(), USELESS_FOR) {
            return;
        }
        let Some(why) = why else { return };
        self.conditions.report(cx, NodeCondition::GpuLost, "", true, || {
            let (level, text) = match why {
                Useless::Driverless => {
                    ("error", format!("No NVIDIA driver is loaded: none of {expected} GPUs can be used"))
                }
                // Running processes have loaded the right library already, so they continue.
                Useless::Mismatch(why) => (
                    "warn",
                    format!(
                        "None of {expected} GPUs can be used by what is started now: {why}; reboot the node, or load the module anew"
                    ),
                ),
            };
            Event { level: Some(level.into()), text: Some(text), ..Event::new(Kind::Hw) }
        });
    }

    /// Evaluates a reading.
    pub(super) fn look(&mut self, cx: &Context<'_>, reading: &Reading, inventory: &Inventory) {
        self.lost(cx, reading, inventory);
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            self.throttled(cx, gpu);
        }
    }

    /// Evaluates new values of the slow interval.
    pub(super) fn look_closely(
        &mut self,
        cx: &Context<'_>,
        reading: &Reading,
        slow: &BTreeMap<String, Samples>,
        known: &mut GpuHistory,
    ) {
        let usual = nvlink::usual(slow.values());
        // A GPU that fell off the bus may have returned and need a reset.
        for gpu in reading.gpus.iter().filter(|gpu| gpu.lost && gpu.needs_reset) {
            self.recovery(cx, gpu, &Samples::default());
        }
        for gpu in reading.gpus.iter().filter(|gpu| gpu.is_read()) {
            let Some(slow) = slow.get(&gpu.id.uuid) else { continue };
            self.recovery(cx, gpu, slow);
            self.memory(cx, gpu, slow);
            self.errors(cx, gpu, slow, known);
            self.fabric(cx, gpu, slow);
            self.links(cx, gpu, slow, &usual);
        }
    }

    fn lost(
        &mut self,
        cx: &Context<'_>,
        reading: &Reading,
        Inventory { seen, listed, expected }: &Inventory,
    ) {
        let expected = *expected;
        let read = |uuid: &str| reading.gpus.iter().find(|gpu| gpu.id.uuid == uuid);
        let mut missing = 0;
        for id in seen.values() {
            let lost = read(&id.uuid).is_none_or(|gpu| gpu.lost);
            missing += usize::from(lost);
            self.conditions.report(cx, NodeCondition::GpuLost, &id.uuid, lost, || {
                let who = Subject::of_gpu(id, reading.time);
                let with = read(&id.uuid).and_then(|gpu| gpu.lost_with.as_deref());
                let text = if lost {
                    let why = with.map(|error| format!("it answers nothing but errors ({error})"));
                    let why = why.unwrap_or_else(|| "it fell off the bus or is inaccessible".into());
                    format!("{} does not answer any more: {why}", who.name)
                } else {
                    format!("{} answers again", who.name)
                };
                who.event(Kind::Hw, "error", text)
            });
        }
        let broken = reading.unusable.iter().filter(|(_, error)| !error.not_ours());
        // GPUs that the kernel driver lists and that have never worked.
        let known = |pci: &str| seen.values().any(|id| id.pci == pci);
        let mut never: Vec<String> = listed.iter().filter(|pci| !known(pci)).cloned().collect();
        if listed.is_empty() {
            never.extend(broken.clone().map(|(index, _)| format!("index {index}")));
        }
        missing += never.len();
        let mut keys = self.conditions.keys(NodeCondition::GpuLost);
        keys.retain(|key| !seen.contains_key(key) && !key.is_empty());
        for key in keys.iter().chain(never.iter().filter(|key| !keys.contains(key))) {
            let lost = never.contains(key);
            self.conditions.report(cx, NodeCondition::GpuLost, key, lost, || {
                let why = broken.clone().next().map(|(_, why)| format!(": {why}")).unwrap_or_default();
                let text = if lost {
                    format!("The GPU at {key} is listed by the kernel driver and cannot be used{why}")
                } else {
                    format!("The GPU at {key} can be used")
                };
                let pci = if key.contains(':') { key.as_str() } else { "" };
                let who = Subject { uuid: "", pci, name: String::new(), at: reading.time, platform: None };
                who.event(Kind::Hw, "error", text)
            });
        }
        let (have, lacks) = (reading.answering(), expected.saturating_sub(seen.len() + never.len()));
        self.conditions.report(cx, NodeCondition::GpuLost, "", lacks > 0 && missing < expected, || Event {
            level: Some("error".into()),
            text: Some(format!("{have} of {expected} GPUs are there")),
            ts: Some(reading.time),
            ..Event::new(Kind::Hw)
        });
    }

    fn throttled(&mut self, cx: &Context<'_>, gpu: &GpuReading) {
        let uuid = gpu.id.uuid.as_str();
        let get = |family: &Family, labels: &[&str]| gpu.fast.get(family, labels);
        let held = |reason: &&&str| get(&THROTTLE, &[uuid, reason]) == Some(1.0);
        let reasons: Vec<&str> = HARDWARE.iter().filter(held).copied().collect();
        let busy = get(&UTILIZATION, &[uuid]).is_none_or(|u| u >= BUSY);
        // A published condition ends when the hardware stops throttling, not when the job pauses.
        let throttled = self.conditions.holds(NodeCondition::GpuThrottled, uuid);
        let lasts = self.lasts(
            NodeCondition::GpuThrottled.name(),
            uuid,
            !reasons.is_empty() && (busy || throttled),
            THROTTLED_FOR,
        );
        let holds = lasts || (throttled && !reasons.is_empty());
        self.conditions.report(cx, NodeCondition::GpuThrottled, uuid, holds, || {
            let who = Subject::of_gpu(&gpu.id, gpu.time);
            let hot = get(&TEMPERATURE, &[uuid, "gpu"]).map(|t| format!(" at {t:.0} °C")).unwrap_or_default();
            let clock =
                get(&CLOCK, &[uuid, "sm"]).map(|c| format!(" to {:.2} GHz", c / 1e9)).unwrap_or_default();
            let text = if holds {
                format!("{} is slowed down{clock} by its hardware{hot}: {}", who.name, reasons.join(", "))
            } else {
                format!("{} is no longer slowed down by its hardware", who.name)
            };
            let mut event = who.event(Kind::Hw, "warn", text);
            event.extra.insert(hw::REASON.into(), Value::Text(reasons.join(",")));
            event
        });
    }

    fn recovery(&mut self, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples) {
        let uuid = gpu.id.uuid.as_str();
        let wanted =
            values_of(slow, &RECOVERY).find(|(labels, value)| *value == 1.0 && labels.get(1) != "none");
        let wanted = wanted.map(|(labels, _)| labels.get(1).to_owned());
        let wanted = wanted.or_else(|| gpu.needs_reset.then(|| "gpu_reset".to_owned()));
        self.conditions.report(cx, NodeCondition::GpuRecoveryAction, uuid, wanted.is_some(), || {
            let who = Subject::of_gpu(&gpu.id, gpu.time);
            let action = wanted.as_deref().map_or(&recovery_action::ALL[0], recovery_action::by_name);
            let text = match &wanted {
                Some(wanted) => {
                    let (who, wanted) = (&who.name, wanted.replace('_', " "));
                    format!("The driver wants {who} to be recovered: {wanted}. {}", action.hint)
                }
                None => format!("The driver wants nothing done to {} any more", who.name),
            };
            let mut event = who.event(Kind::Hw, action.level.as_str(), text);
            event.extra.insert("action".into(), Value::Text(action.remedy.as_str().into()));
            event
        });
    }

    fn memory(&mut self, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples) {
        let uuid = gpu.id.uuid.as_str();
        let holds = |family: &Family| slow.get(family, &[uuid]) == Some(1.0);
        for (condition, level, family, begins, ends) in [
            (
                NodeCondition::RowRemapPending,
                "warn",
                &REMAP_PENDING,
                "has a row of memory to replace: reset it when the job is done",
                "has no row of memory to replace any more",
            ),
            (
                NodeCondition::RowRemapFailed,
                "error",
                &REMAP_FAILED,
                "could not replace a row of memory: it has no spare ones left, replace the GPU",
                "no longer reports that it could not replace a row of memory",
            ),
            (
                NodeCondition::SramThreshold,
                "error",
                &SRAM_THRESHOLD,
                "had more errors in the memory of its chip than its maker accepts: replace the GPU",
                "no longer reports that the memory of its chip had too many errors",
            ),
        ] {
            self.conditions.report(cx, condition, uuid, holds(family), || {
                let who = Subject::of_gpu(&gpu.id, gpu.time);
                let text = format!("{} {}", who.name, if holds(family) { begins } else { ends });
                who.event(Kind::Hw, level, text)
            });
        }
    }

    /// Reports new uncorrected memory errors. At the first call, these are the ones since this
    /// exporter last ran.
    fn errors(&mut self, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples, known: &mut GpuHistory) {
        let uuid = gpu.id.uuid.as_str();
        let sum = |lifetime: &str| {
            let wanted = |labels: &Labels| labels.get(1) == "uncorrected" && labels.get(2) == lifetime;
            values_of(slow, &ECC)
                .filter(|(labels, _)| wanted(labels))
                .map(|(_, errors)| errors)
                .reduce(|a, b| a + b)
        };
        let ever = sum("aggregate");
        let remembered = ever.and_then(|ever| known.count(uuid, ever));
        let loaded = sum("volatile");
        let before = loaded.and_then(|loaded| self.uncorrected.insert(uuid.to_owned(), loaded));
        let (more, when, total) = match (before, loaded, remembered, ever) {
            (Some(before), Some(loaded), ..) => (loaded - before, "since its driver was loaded", loaded),
            (_, _, Some(remembered), Some(ever)) => {
                (ever - remembered, "ever; they happened while this exporter did not run", ever)
            }
            _ => return,
        };
        if more <= 0.0 {
            return;
        }
        let who = Subject::of_gpu(&gpu.id, gpu.time);
        let mut text = format!("{} had {more} more uncorrected memory errors, {total} {when}", who.name);
        // The application that used the row has failed, and no other one gets the row (XID 63 and
        // 94). That is no reason to stop another one.
        let out_of_use = is(slow, &REMAP_PENDING) && !is(slow, &REMAP_FAILED) && !in_sram(slow);
        if out_of_use {
            text += "; their row is out of use, and is replaced when the GPU is reset";
        }
        let mut event = who.event(Kind::Hw, if out_of_use { "warn" } else { "error" }, text);
        event.name = Some(NodeCondition::EccUncorrected.name().into());
        event.code = Some(1);
        event.extra.insert("once".into(), Value::Bool(true));
        event.m.set("ecc_uncorrected", total);
        cx.hub.publish(Origin::Node, event);
    }

    fn fabric(&mut self, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples) {
        let uuid = gpu.id.uuid.as_str();
        let state = values_of(slow, &FABRIC_STATE)
            .find(|(_, value)| *value == 1.0)
            .map(|(labels, _)| labels.get(1).to_owned());
        let Some(state) = state else { return };
        let mut bad: Vec<&str> = values_of(slow, &FABRIC_HEALTH)
            .filter(|(_, value)| *value == 1.0)
            .map(|(labels, _)| labels.get(1))
            .collect();
        // The fabric goes on working while its manager restarts.
        let unmanaged = self.lasts("gfm", uuid, bad.contains(&decode::GFM_DISCONNECTED), FABRIC_FOR);
        bad.retain(|condition| unmanaged || *condition != decode::GFM_DISCONNECTED);
        let none = state == decode::NO_FABRIC;
        if !none {
            self.in_fabric.insert(uuid.to_owned());
        }
        // Many GPUs have no fabric. One that was in a fabric before has lost it, unless MIG is on.
        let alone = none && (!self.in_fabric.contains(uuid) || values_of(slow, &MIG_INFO).next().is_some());
        let outside = state != HEALTHY_FABRIC && !alone;
        let outside = self.lasts(NodeCondition::FabricUnhealthy.name(), uuid, outside, FABRIC_FOR);
        self.conditions.report(cx, NodeCondition::FabricUnhealthy, uuid, outside || !bad.is_empty(), || {
            let who = Subject::of_gpu(&gpu.id, gpu.time);
            let text = if !bad.is_empty() {
                format!(
                    "The NVLink fabric of {} is not healthy: {}",
                    who.name,
                    bad.join(", ").replace('_', " ")
                )
            } else if outside && none {
                format!("{} has left its NVLink fabric, and reports now that it has none", who.name)
            } else if outside {
                let state = state.replace('_', " ");
                format!(
                    "{} has not joined its NVLink fabric ({state}): does the fabric manager run?",
                    who.name
                )
            } else if alone {
                format!("{} has no NVLink fabric", who.name)
            } else {
                format!("The NVLink fabric of {} is healthy", who.name)
            };
            let level = if bad == [decode::GFM_DISCONNECTED] && !outside { "warn" } else { "error" };
            who.event(Kind::Hw, level, text)
        });
    }

    fn links(&mut self, cx: &Context<'_>, gpu: &GpuReading, slow: &Samples, usual: &BTreeSet<String>) {
        let now = Instant::now();
        let any = values_of(slow, &NVLINK_UP).any(|(_, value)| value == 1.0);
        for (labels, value) in values_of(slow, &NVLINK_UP) {
            let (uuid, link, up) = (&gpu.id.uuid, labels.get(1).to_owned(), value == 1.0);
            let key = (uuid.clone(), link);
            let again = match self.links.get(&key) {
                // The link was already down at the first reading: after a reboot, or a restart of
                // this program.
                None if !up && any && usual.contains(&key.1) => false,
                // A link without a far end was never up.
                None if !up => continue,
                None => {
                    self.links.insert(key, (up, now));
                    continue;
                }
                Some((before, published)) if *before == up => {
                    if up || published.elapsed() < AGAIN {
                        continue;
                    }
                    true
                }
                Some(_) => false,
            };
            let who = Subject::of_gpu(&gpu.id, gpu.time);
            let (state, level) = if up { ("up", "info") } else { ("down", "error") };
            let mut event =
                who.event(Kind::Link, level, format!("NVLink {} of {} is {state}", key.1, who.name));
            event.name = Some(format!("{uuid}/nvlink{}", key.1));
            event.code = Some(i64::from(up));
            for (name, value) in [("medium", "nvlink"), ("state", state)] {
                event.extra.insert(name.into(), Value::Text(value.into()));
            }
            if again {
                event.extra.insert("again".into(), Value::Bool(true));
            }
            cx.hub.publish(Origin::Node, event);
            self.links.insert(key, (up, now));
        }
    }

    /// Moves all starts back in time, for tests.
    #[cfg(test)]
    pub(super) fn age(&mut self, by: Duration) {
        self.since.values_mut().for_each(|since| *since -= by);
    }

    /// Whether something has held for at least `least`.
    fn lasts(&mut self, what: &'static str, uuid: &str, so: bool, least: Duration) -> bool {
        let key = (what, uuid.to_owned());
        if !so {
            self.since.remove(&key);
            return false;
        }
        self.since.entry(key).or_insert_with(Instant::now).elapsed() >= least
    }
}

/// Whether a value of the family is 1.
fn is(samples: &Samples, family: &'static Family) -> bool {
    values_of(samples, family).any(|(_, value)| value == 1.0)
}

/// Whether the SRAM of the chip, which has no spare rows, had uncorrected errors since the driver
/// was loaded.
fn in_sram(samples: &Samples) -> bool {
    let sram = ["uncorrected", "volatile", "sram"];
    values_of(samples, &ECC).any(|(labels, errors)| errors > 0.0 && labels.iter().skip(1).eq(sram))
}
