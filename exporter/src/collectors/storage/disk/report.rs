//! Publishes conditions of disks: those that fill up or became read-only, drives that are not live,
//! and checkpoints that will not fit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use super::devices::Controller;
use super::{Answers, CHECKPOINTS_LAST, CHECKPOINTS_LEFT, DIRECTORY, Disk, DiskReader, READ_ONLY, rooms};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::collectors::storage::mounts::table::Mount;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::training::CheckpointPlace;

const FILLING: NodeCondition = NodeCondition::DiskFilling;
const FELL_READ_ONLY: NodeCondition = NodeCondition::FilesystemReadonly;
const NVME: NodeCondition = NodeCondition::NvmeError;

/// The name of the saved state.
const STATE_NAME: &str = "read-only-filesystems";

/// A file system with less free space than both of these counts as full.
const FULL_BYTES: f64 = 10.0 * 1_073_741_824.0;
const FULL_RATIO: f64 = 0.02;
const FULL_INODES_RATIO: f64 = 0.01;
/// A reported condition ends only when the disk has, or would last, so many times as much.
const HYSTERESIS: f64 = 1.5;

/// File systems that were reported as having become read-only. If every mount is read-only for the
/// exporter, nothing else shows after its restart that they were writable.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Fallen {
    boot: String,
    mounts: Vec<String>,
}

impl Fallen {
    /// Loads the file systems of this boot.
    fn load(roots: &Roots) -> Self {
        let boot = roots::read(&roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
        let saved: Self = persisted_state::load(roots.state.as_deref(), STATE_NAME);
        if saved.boot == boot { saved } else { Self { boot, mounts: Vec::new() } }
    }

    fn remember(&mut self, roots: &Roots, mounts: Vec<String>) {
        if self.mounts == mounts {
            return;
        }
        self.mounts = mounts;
        if let Err(error) = persisted_state::save(roots.state.as_deref(), STATE_NAME, self) {
            tracing::warn!(%error, "cannot save which file systems turned read-only; a restart will not know");
        }
    }
}

impl DiskReader {
    pub(super) fn report_read_only(
        &mut self,
        cx: &Context<'_>,
        mounts: &[Mount],
        disks: &BTreeMap<String, Disk>,
        out: &mut Samples,
    ) {
        let wanted = self.wanted.file_systems(mounts);
        let mut fallen = self.fallen.take().unwrap_or_else(|| Fallen::load(cx.roots));
        let named: BTreeSet<String> = wanted.iter().map(|m| m.name()).chain(disks.keys().cloned()).collect();
        // The table is the kernel's own, so it also contains a file system that does not answer.
        for mount in mounts.iter().filter(|m| named.contains(&m.name())) {
            let (name, read_only) = (mount.name(), mount.read_only());
            out.set(&READ_ONLY, &[&name], read_only);
            let was_writable =
                *self.writable.entry(name.clone()).or_insert(!read_only || fallen.mounts.contains(&name));
            let holds = mount.fell_read_only() || read_only && was_writable;
            self.conditions.report(cx, FELL_READ_ONLY, &name, holds, || {
                let text = if holds {
                    format!(
                        "{name} ({} on {}) turned read-only: the kernel does that after an error",
                        mount.fstype, mount.source
                    )
                } else {
                    format!("{name} can be written again")
                };
                of_mount(&name, "error", text)
            });
        }
        self.writable.retain(|name, _| named.contains(name));
        self.end_those_gone(cx, FELL_READ_ONLY, |name| named.contains(name));
        fallen.remember(cx.roots, self.conditions.keys(FELL_READ_ONLY));
        self.fallen = Some(fallen);
    }

    pub(super) fn report_filling(&mut self, cx: &Context<'_>, disks: &BTreeMap<String, Disk>) {
        for (name, disk) in disks {
            let slack = if self.conditions.holds(FILLING, name) { HYSTERESIS } else { 1.0 };
            let why = filling(disk, self.config.horizon.as_duration().as_secs_f64(), slack);
            let holds = why.is_some();
            self.conditions.report(cx, FILLING, name, holds, || {
                let (level, text) = why.unwrap_or(("info", "has room again".into()));
                of_mount(name, level, format!("{name} {text}"))
            });
        }
    }

    /// Checks whether the next checkpoint of each run fits. While one is being written, part of its
    /// space is used already.
    pub(super) fn checkpoints(
        &mut self,
        cx: &Context<'_>,
        runs: &[CheckpointPlace],
        answers: &Answers,
        out: &mut Samples,
    ) {
        let Answers { disks, places } = answers;
        for place in runs {
            let Some(dir) = rooms::directory(place) else { continue };
            let Some((mount, disk)) = places.get(&dir).and_then(|name| disks.get_key_value(name)) else {
                continue;
            };
            let labels: &[&str] = &[&place.run, mount];
            out.set(&DIRECTORY, &[&place.run, mount, &dir], 1u64);
            let key = format!("{mount}\n{}", place.run);
            let Some(bytes) = place.bytes.filter(|bytes| *bytes >= 1.0) else { continue };
            let left = (disk.room.free as f64 / bytes).floor();
            out.set(&CHECKPOINTS_LEFT, labels, left);
            out.maybe(&CHECKPOINTS_LAST, labels, place.every.map(|every| (left + 1.0) * every));
            if place.writing {
                continue;
            }
            self.conditions.report(cx, FILLING, &key, left < 1.0, || {
                let free = size(disk.room.free as f64);
                let text = if left < 1.0 {
                    format!(
                        "the next checkpoint of {} ({}) does not fit on {mount}: {free} are free",
                        place.run,
                        size(bytes)
                    )
                } else {
                    format!("the next checkpoint of {} fits on {mount} again: {free} are free", place.run)
                };
                // A user's report about a run must not page anyone about the node.
                let level = if place.principal.is_trusted() { "error" } else { "warn" };
                of_mount(mount, level, text)
            });
        }
    }

    /// Ends the conditions of file systems and runs that are gone. One that merely does not answer
    /// is not gone.
    pub(super) fn end_filling(&mut self, cx: &Context<'_>, mounts: &[Mount], runs: &[CheckpointPlace]) {
        self.end_those_gone(cx, FILLING, |key| {
            let (mount, run) = key.split_once('\n').map_or((key, None), |(mount, run)| (mount, Some(run)));
            mounts.iter().any(|m| m.name() == mount)
                && run.is_none_or(|run| runs.iter().any(|r| r.run == run))
        });
    }

    /// Reports controllers. A state in two consecutive passes is not a short reset.
    pub(super) fn report_nvme(&mut self, cx: &Context<'_>, controllers: Vec<Controller>) {
        let mut not_live = Vec::new();
        for controller in &controllers {
            let live = matches!(&*controller.state, "live" | "new" | "");
            let holds = !live && (controller.state == "dead" || self.not_live.contains(&controller.name));
            self.conditions.report(cx, NVME, &controller.name, holds, || {
                let text = if holds {
                    format!("NVMe drive {} is {}", controller.name, controller.state)
                } else {
                    format!("NVMe drive {} is live again", controller.name)
                };
                let mut event = hw("error", text);
                event.extra.insert("device".into(), Value::Text(controller.name.clone()));
                if !controller.pci.is_empty() {
                    event.extra.insert("pci".into(), Value::Text(controller.pci.clone()));
                }
                event
            });
            if !live {
                not_live.push(controller.name.clone());
            }
        }
        self.not_live = not_live;
        for name in self.conditions.keys(NVME).iter().filter(|n| controllers.iter().all(|c| c.name != **n)) {
            self.conditions.report(cx, NVME, name, false, || {
                let mut event = hw("info", format!("NVMe drive {name} is not there any more"));
                event.extra.insert("device".into(), Value::Text(name.clone()));
                event
            });
        }
    }

    fn end_those_gone(&mut self, cx: &Context<'_>, condition: NodeCondition, there: impl Fn(&str) -> bool) {
        for key in self.conditions.keys(condition).iter().filter(|key| !there(key)) {
            let mount = key.split_once('\n').map_or(key.as_str(), |(mount, _)| mount);
            self.conditions.report(cx, condition, key, false, || {
                of_mount(mount, "info", format!("{mount} is not watched any more"))
            });
        }
    }
}

/// The level and the text if a file system has too little space, or soon will: less than `slack`
/// times the limits.
fn filling(disk: &Disk, horizon: f64, slack: f64) -> Option<(&'static str, String)> {
    let room = &disk.room;
    // A read-only file system does not fill up.
    if disk.mount.read_only() {
        return None;
    }
    let free = size(room.free as f64);
    let ratio = room.free as f64 / room.size as f64;
    if (room.free as f64) < FULL_BYTES * slack && ratio < FULL_RATIO * slack {
        return Some(("error", format!("is full: {free} are free, {:.1} %", ratio * 100.0)));
    }
    if let Some((all, left)) = room.inodes {
        if (left as f64) < all as f64 * FULL_INODES_RATIO * slack {
            return Some(("error", format!("has no room for more files: {left} inodes of {all} are free")));
        }
    }
    let rate = disk.rate.filter(|rate| rate.trusted)?;
    let lasts = rate.lasts(room.free).filter(|seconds| *seconds < horizon * slack)?;
    let speed = size(rate.bytes_per_second);
    Some((
        "warn",
        format!("will be full in {}: {free} are free, and {speed} more are used every second", time(lasts)),
    ))
}

fn hw(level: &str, text: String) -> Event {
    Event { ts: Some(unix_now()), level: Some(level.to_owned()), text: Some(text), ..Event::new(Kind::Hw) }
}

fn of_mount(mount: &str, level: &str, text: String) -> Event {
    let mut event = hw(level, text);
    event.extra.insert("mount".into(), Value::Text(mount.to_owned()));
    event
}

/// A size for people, in decimal units as disks are sold.
fn size(bytes: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = UNITS.iter().find(|(_, one)| bytes >= *one);
    unit.map_or_else(|| format!("{bytes:.0} bytes"), |(name, one)| format!("{:.1} {name}", bytes / one))
}

fn time(seconds: f64) -> String {
    if seconds < 7200.0 { format!("{:.0} min", seconds / 60.0) } else { format!("{:.1} h", seconds / 3600.0) }
}
