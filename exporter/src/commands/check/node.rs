//! The input of the checks: one pass of the collectors that they need. Nothing is read a second
//! time in another way.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use stepwatch_wire::Event;

use super::learned::Learned;
use crate::collector::Access;
use crate::collectors::storage::disk;
use crate::collectors::storage::mounts::table::{self, Mount};
use crate::collectors::{COLLECTORS, CollectorsConfig, gpu};
use crate::config::{Config, SourceConfig};
use crate::family::Family;
use crate::hub::{Hub, Parts};
use crate::nvml::Nvml;
use crate::nvml::Spent;
use crate::roots::Roots;
use crate::samples::{Row, Samples};
use crate::schedule::{Schedule, State, Status};
use crate::sources;
use crate::stream::{Limits, Read};
use crate::training::Archive;

/// A GPU answers all that is asked of it in a tenth of this.
const TOO_SLOW: Duration = Duration::from_millis(500);
/// What one pass of all collectors can publish, many times over.
const RING: Limits = Limits { records: 8192, bytes: 4 << 20 };

pub(super) struct Node<'a> {
    pub(super) config: &'a Config,
    pub(super) reference: Option<&'a Path>,
    samples: Samples,
    collectors: Vec<Status>,
    events: Vec<Event>,
    mounts: Vec<Mount>,
    unsized_checkpoints: Vec<String>,
    /// The GPU whose calls took most, by index, where NVML was asked.
    slowest: Option<(u32, Spent)>,
    /// The call into NVML that had not returned when the time was over, and for how long.
    hanging: Option<(&'static str, Duration)>,
    end: Instant,
}

impl<'a> Node<'a> {
    /// Lets each of the collectors `wanted` make one pass, as it would in service, and waits for it
    /// until `end`.
    pub(super) fn look(
        config: &'a Config,
        roots: &Roots,
        reference: Option<&'a Path>,
        wanted: &[&str],
        end: Instant,
    ) -> Self {
        let hub = Hub::new(Parts {
            node: config.node_name(),
            boot: "check".into(),
            ring: RING,
            training: config.training(),
            archive: Archive::default(),
            // Events seen here are published to nobody else: only this check reads them.
            keep: None,
        });
        let unsized_checkpoints =
            if wanted.contains(&"disk") { report_checkpoints(config, &hub, end) } else { Vec::new() };
        // Without it nothing is known of any mount, and the check of collectors reports that.
        let mounts = table::read(roots).unwrap_or_default();
        let learned = Learned::copy(&config.state_dir);
        let roots = Roots { state: learned.dir(), ..roots.clone() };
        let entries = COLLECTORS.iter().filter(|entry| wanted.contains(&entry.name));
        let collectors = for_a_job(&config.collectors);
        let nvml = Nvml::default();
        let access = Access {
            roots: Arc::new(roots),
            hub: hub.clone(),
            nvml: nvml.clone(),
            families: crate::commands::reference::families,
        };
        let schedule = Schedule::start(entries, &collectors, &access);
        schedule.wait_first_pass_until(Some(end));
        let mut samples = Samples::default();
        schedule.write(&mut samples, &mut Samples::default());
        let collectors = schedule.status();
        let slowest = nvml.slowest();
        let hanging = nvml.call().map(|call| (call.function, call.since.elapsed()));
        let events = published(&hub);
        Self {
            config,
            reference,
            samples,
            collectors,
            events,
            mounts,
            unsized_checkpoints,
            slowest,
            hanging,
            end,
        }
    }

    /// What was looked at elsewhere.
    #[cfg(test)]
    pub(super) fn seen(
        config: &'a Config,
        reference: Option<&'a Path>,
        samples: Samples,
        events: Vec<Event>,
    ) -> Self {
        let unsized_checkpoints = Vec::new();
        Self {
            config,
            reference,
            samples,
            collectors: Vec::new(),
            events,
            mounts: Vec::new(),
            unsized_checkpoints,
            slowest: None,
            hanging: None,
            end: Instant::now(),
        }
    }

    pub(super) fn rows(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.samples.rows(family)
    }

    /// The rows of a family of booleans whose value is true.
    pub(super) fn set(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.rows(family).filter(|row| row.value != 0.0)
    }

    /// What the collectors published: changes cannot be seen by looking once, conditions that hold
    /// can.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn collectors(&self) -> &[Status] {
        &self.collectors
    }

    /// Whether there is anything from this collector: one that failed may have read a part.
    pub(super) fn has_read(&self, collector: &str) -> bool {
        let healthy = self.collectors.iter().any(|c| c.name == collector && c.state == State::Healthy);
        let families = || COLLECTORS.iter().filter(|c| c.name == collector).flat_map(|c| c.families);
        healthy || families().any(|family| self.rows(family).next().is_some())
    }

    /// What went wrong with a collector, if it failed.
    pub(super) fn failure(&self, collector: &str) -> Option<&str> {
        let failed = |c: &&Status| c.name == collector && c.state == State::Failed;
        self.collectors.iter().find(failed).map(|c| c.detail.as_str())
    }

    /// The first of these collectors that was asked and did not do all of its work.
    pub(super) fn unread(&self, collectors: &[&'static str]) -> Option<&'static str> {
        let open = |name: &&&'static str| self.collectors.iter().any(|c| c.name == **name && !answered(c));
        collectors.iter().find(open).copied()
    }

    /// The label of a GPU for people: its number and its place, where they are known.
    pub(super) fn gpu(&self, uuid: &str) -> String {
        let row = self.rows(&gpu::INFO).find(|row| row.label("gpu") == uuid);
        match row.map(|row| (row.label("index"), row.label("pci"))) {
            Some((index, pci)) if !index.is_empty() => format!("GPU {index} ({pci})"),
            Some((_, pci)) => format!("GPU {pci}"),
            None => format!("GPU {uuid}"),
        }
    }

    /// Whether nothing that was asked failed, or is still to answer.
    pub(super) fn all_answered(&self) -> bool {
        self.collectors.iter().all(answered)
    }

    /// The GPU that took so long that no other was asked.
    pub(super) fn waits_for(&self) -> Option<(u32, Spent)> {
        self.slowest.filter(|(_, spent)| spent.total >= TOO_SLOW)
    }

    /// The call into NVML that had not returned, of those that take no time on a driver that is
    /// well.
    pub(super) fn hanging_call(&self) -> Option<(&'static str, Duration)> {
        self.hanging.filter(|(_, since)| *since >= TOO_SLOW)
    }

    /// Whether the servers of the network keep this mount of a disk collector's: what is wrong with
    /// it is wrong on every node alike.
    pub(super) fn is_shared(&self, mount: &str) -> bool {
        let info = self.rows(&disk::INFO).find(|row| row.label("mount") == mount);
        info.is_some_and(|row| self.config.collectors.mounts.is_network(row.label("fstype")))
    }

    /// The mount that a path without symbolic links lies on.
    pub(super) fn mount_of(&self, path: &Path) -> Option<&Mount> {
        table::containing(&self.mounts, path)
    }

    /// Whether an automounter mounted this path, or will when it is needed.
    pub(super) fn automounts(&self, path: &str) -> bool {
        self.mounts.iter().any(|m| m.automounts(Path::new(path)))
    }

    /// Directories of checkpoints whose last checkpoint could not be measured in time.
    pub(super) fn unsized_checkpoints(&self) -> &[String] {
        &self.unsized_checkpoints
    }

    /// Does what may block in the kernel, and gives it up with the rest of the check.
    pub(super) fn in_time<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        within(self.end.saturating_duration_since(Instant::now()), work)
    }
}

/// Whether it did all of its work, or has none.
fn answered(c: &Status) -> bool {
    [State::Healthy, State::Unsupported, State::Disabled].contains(&c.state)
}

/// The result, unless it takes longer than `limit`; the work then goes on in the background.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("check".into()).spawn(move || done.send(work())).ok()?;
    result.recv_timeout(limit.max(LAST_CHANCE)).ok()
}

/// A check may run in a job that was given a part of the node, with the configuration of an
/// exporter that has all of it.
fn for_a_job(config: &CollectorsConfig) -> CollectorsConfig {
    let mut config = config.clone().with_everything();
    config.gpu.devices = gpu::Devices::Job;
    config
}

/// Reports the checkpoints in the configured directories to the hub, as the source that watches
/// them would, so that the collector of disks can compute the room that the next one needs. Takes
/// at most half of the time; returns the directories where that was too short.
fn report_checkpoints(config: &Config, hub: &Hub, end: Instant) -> Vec<String> {
    let until = Instant::now() + end.saturating_duration_since(Instant::now()) / 2;
    let mut late = Vec::new();
    for source in &config.sources {
        let SourceConfig::Checkpoints(checkpoints) = source else { continue };
        let (config, hub) = (checkpoints.clone(), hub.clone());
        let left = until.saturating_duration_since(Instant::now());
        if within(left, move || sources::report_last_checkpoint(config, &hub)).is_none() {
            late.push(checkpoints.path.display().to_string());
        }
    }
    late
}

/// Given to each piece of work when the time of the check is over: what is quick at all is quicker
/// than this.
const LAST_CHANCE: Duration = Duration::from_millis(20);

fn published(hub: &Hub) -> Vec<Event> {
    let (mut events, mut after) = (Vec::new(), 0);
    while let Read::Records { chunk, last } = hub.ring().read(after) {
        events.extend(chunk.split(|b| *b == b'\n').filter_map(|line| Event::parse(line).ok()));
        after = last;
    }
    events
}
