//! Decides which PCIe links are degraded.
//!
//! A link should be as wide and as fast as the weaker of its two ends: a x16 card in a x8 slot is
//! as intended.
//!
//! * Width: fewer lanes than that are a fault, of any device at any time. No device gives up lanes
//!   to save power and gets them back.
//! * Speed: a GPU lowers the speed of its own link when it is idle, so a slow link of a GPU is a
//!   fault only while that GPU is at work. Cards, disks and the links between switches do not lower
//!   it; a slow one is a fault when it lasts.
//!
//! Corrected errors are published if there are many a second, because the link then mostly repeats
//! itself. Uncorrected ones are published when they happen.

use std::collections::BTreeMap;

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::aer::Severity;
use super::{Device, DeviceKind, Link};
use crate::collector::Context;
use crate::link::rates::{self, Limit, Rates};
use crate::link::{Change, Level, Medium, Standing, State, Subject};
use crate::origin::Origin;

/// Seconds that a fault must last: links train when they come up, and GPUs take a moment to speed
/// up.
const LASTING_SECONDS: f64 = 60.0;
/// The least seconds between two events about uncorrected errors of one device.
const PUBLISH_SECONDS: f64 = 600.0;
/// Corrected errors a minute; a good link has far fewer.
const CORRECTED_PER_MINUTE: u64 = 600;
const CORRECTED: &str = "corrected errors";

/// One evaluation of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look<'a> {
    pub(super) now: f64,
    pub(super) cx: &'a Context<'a>,
    pub(super) device: &'a Device,
}

#[derive(Debug)]
pub(super) struct Judge {
    limits: [Limit; 1],
    /// The key is the address.
    devices: BTreeMap<String, Standings>,
}

#[derive(Debug, Default)]
struct Standings {
    narrow_since: Option<f64>,
    slow_since: Option<f64>,
    degraded: Standing,
    errors: Standing,
    rates: Rates,
    uncorrected: BTreeMap<Severity, Uncorrected>,
}

#[derive(Debug, Default)]
struct Uncorrected {
    last: Option<u64>,
    /// Errors that were not published yet.
    new: u64,
    published_at: Option<f64>,
}

impl Default for Judge {
    fn default() -> Self {
        let meaning = "the slot, riser or card does not make good contact";
        let limits = [Limit::new(CORRECTED, 60.0, CORRECTED_PER_MINUTE, Level::Warn, meaning)];
        Self { limits, devices: BTreeMap::new() }
    }
}

impl Judge {
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.devices.retain(|address, _| keep(address));
    }

    /// Whether the link is too narrow and too slow; `None` if an end does not report it. `at_work`
    /// is called only for a GPU whose link is slow.
    pub(super) fn link(
        &mut self,
        look: Look<'_>,
        link: Link,
        upstream: Link,
        at_work: impl FnOnce() -> bool,
    ) -> [(&'static str, Option<bool>); 2] {
        let Look { now, device, .. } = look;
        let standings = self.devices.entry(device.address.clone()).or_default();
        let width = weaker(link.max_width, upstream.max_width);
        let speed = weaker(link.max_speed, upstream.max_speed);
        let narrow = link.width.zip(width).map(|(is, could)| is < could);
        let slow = link.speed.zip(speed).map(|(is, could)| is < could);
        let lasting = |since: &mut Option<f64>, is: bool| {
            *since = is.then(|| since.unwrap_or(now));
            since.is_some_and(|since| now - since >= LASTING_SECONDS)
        };
        let narrow = narrow.map(|is| lasting(&mut standings.narrow_since, is));
        let slow = slow.map(|is| {
            let faulty = is && (device.kind != DeviceKind::Gpu || at_work());
            lasting(&mut standings.slow_since, faulty)
        });
        let mut faults = Vec::new();
        if let (Some(true), Some(is), Some(could)) = (narrow, link.width, width) {
            faults.push(format!("x{is} of x{could}"));
        }
        if let (Some(true), Some(is), Some(could)) = (slow, link.speed, speed) {
            faults.push(format!("{} of {} GT/s a lane", is / 1e9, could / 1e9));
        }
        let level = if matches!(device.kind, DeviceKind::Nvme) { Level::Warn } else { Level::Error };
        let is = (!faults.is_empty()).then(|| (level, format!("runs at {}", faults.join(" and "))));
        let well = "is as wide and as fast as it should be again";
        report(look, standings.degraded.report(now, State::Degraded, is, well));
        [("width", narrow), ("speed", slow)]
    }

    pub(super) fn errors(&mut self, look: Look<'_>, severity: Severity, total: u64) {
        let Look { now, cx, device } = look;
        let standings = self.devices.entry(device.address.clone()).or_default();
        if severity == Severity::Correctable {
            standings.rates.take(now, &self.limits, &[(CORRECTED, total)]);
            let excesses = standings.rates.excesses(now, &self.limits);
            let is = excesses.first().map(|worst| (worst.limit.level, worst.text()));
            report(look, standings.errors.report(now, State::Errors, is, "has few errors again"));
            return;
        }
        let uncorrected = standings.uncorrected.entry(severity).or_default();
        let before = uncorrected.last.replace(total);
        uncorrected.new = uncorrected.new.saturating_add(before.map_or(0, |b| rates::delta(b, total)));
        let quiet = uncorrected.published_at.is_none_or(|at| !(0.0..PUBLISH_SECONDS).contains(&(now - at)));
        if uncorrected.new > 0 && quiet {
            uncorrected.published_at = Some(now);
            let count = std::mem::take(&mut uncorrected.new);
            cx.hub.publish(Origin::Node, happened(now, device, severity, count));
        }
    }
}

/// The capability of the weaker end. An end that does not report it does not count.
fn weaker<T: PartialOrd>(device: Option<T>, upstream: Option<T>) -> Option<T> {
    match (device, upstream) {
        (Some(a), Some(b)) => Some(if b < a { b } else { a }),
        (a, _) => a,
    }
}

fn report(look: Look<'_>, change: Option<Change>) {
    let Look { now, cx, device } = look;
    let Some(change) = change else { return };
    let hint = match device.kind {
        DeviceKind::Bridge => "everything behind this bridge shares it",
        _ => "",
    };
    let subject = Subject {
        medium: Medium::Pcie,
        name: &device.address,
        netdev: "",
        pci: &device.address,
        gpu: &device.gpu,
        hint,
    };
    let mut event = subject.event(now, &change);
    event.extra.insert("kind".into(), Value::Text(device.kind.as_str().into()));
    tracing::warn!(link = device.address, code = event.code, "{}", event.text.as_deref().unwrap_or_default());
    cx.hub.publish(Origin::Node, event);
}

fn happened(now: f64, device: &Device, severity: Severity, count: u64) -> Event {
    let (condition, level, text) = match severity {
        Severity::Fatal => {
            (NodeCondition::AerFatal, Level::Error, "fatal PCIe errors: its link was reset, or must be")
        }
        _ => (NodeCondition::AerNonfatal, Level::Warn, "PCIe errors that lost a transaction"),
    };
    let mut event = Event {
        ts: Some(now),
        name: Some(condition.name().into()),
        code: Some(1),
        level: Some(level.as_str().into()),
        text: Some(format!("{} {} had {count} {text}", device.kind.as_str(), device.address)),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("once".into(), Value::Bool(true));
    event.extra.insert("pci".into(), Value::Text(device.address.clone()));
    event.extra.insert("count".into(), Value::Number(count as f64));
    if !device.gpu.is_empty() {
        event.extra.insert("gpu".into(), Value::Text(device.gpu.clone()));
    }
    event
}
