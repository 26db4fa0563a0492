//! The input of the checks: one pass of the collectors that they need. No fact is read in a second
//! way.

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

/// A healthy GPU answers all queries of a pass in a tenth of this.
const TOO_SLOW: Duration = Duration::from_millis(500);
/// Many times the events that one pass of all collectors can publish.
const RING: Limits = Limits { records: 8192, bytes: 4 << 20 };

pub(super) struct Node<'a> {
    pub(super) config: &'a Config,
    pub(super) reference: Option<&'a Path>,
    pub(super) roots: Arc<Roots>,
    samples: Samples,
    collectors: Vec<Status>,
    events: Vec<Event>,
    mounts: Vec<Mount>,
    unsized_checkpoints: Vec<String>,
    /// The GPU whose calls took longest, by index, if NVML was used.
    slowest: Option<(u32, Spent)>,
    /// The NVML call that had not returned at the end of the time, and its duration.
    hanging: Option<(&'static str, Duration)>,
    end: Instant,
}

impl<'a> Node<'a> {
    /// Makes each of the collectors `wanted` run one pass, as in service, and waits for it until
    /// `end`.
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
            // Only this check reads these events.
            keep: None,
        });
        let unsized_checkpoints =
            if wanted.contains(&"disk") { report_checkpoints(config, &hub, end) } else { Vec::new() };
        // Without the table nothing is known about mounts, which the check of collectors reports.
        let mounts = table::read(roots).unwrap_or_default();
        let learned = Learned::copy(&config.state_dir);
        let roots = Arc::new(Roots { state: learned.dir(), ..roots.clone() });
        let entries = COLLECTORS.iter().filter(|entry| wanted.contains(&entry.name));
        let collectors = for_a_job(&config.collectors);
        let nvml = Nvml::default();
        let access = Access {
            roots: Arc::clone(&roots),
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
            roots,
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

    /// The input from values that were read elsewhere, for tests.
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
            roots: Arc::default(),
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

    #[cfg(test)]
    pub(super) fn set_state(&mut self, name: &'static str, state: State) {
        self.collectors.push(Status { name, state, detail: String::new() });
    }

    pub(super) fn rows(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.samples.rows(family)
    }

    /// The rows of a family of booleans whose value is true.
    pub(super) fn set(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.rows(family).filter(|row| row.value != 0.0)
    }

    /// The events of the collectors. One pass cannot show changes, but it shows conditions that
    /// hold.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(super) fn collectors(&self) -> &[Status] {
        &self.collectors
    }

    /// How this collector ended, if it was run.
    pub(super) fn state(&self, collector: &str) -> Option<State> {
        self.collectors.iter().find(|c| c.name == collector).map(|c| c.state)
    }

    /// Whether there are values of this collector: one that failed may have read some.
    pub(super) fn has_read(&self, collector: &str) -> bool {
        let healthy = self.collectors.iter().any(|c| c.name == collector && c.state == State::Healthy);
        let families = || COLLECTORS.iter().filter(|c| c.name == collector).flat_map(|c| c.families);
        healthy || families().any(|family| self.rows(family).next().is_some())
    }

    /// The error of a collector, if it failed.
    pub(super) fn failure(&self, collector: &str) -> Option<&str> {
        let failed = |c: &&Status| c.name == collector && c.state == State::Failed;
        self.collectors.iter().find(failed).map(|c| c.detail.as_str())
    }

    /// The first of these collectors that was run and did not complete its work.
    pub(super) fn unread(&self, collectors: &[&'static str]) -> Option<&'static str> {
        let open = |name: &&&'static str| self.collectors.iter().any(|c| c.name == **name && !answered(c));
        collectors.iter().find(open).copied()
    }

    /// The name of a GPU for people: its index and its address, if known.
    pub(super) fn gpu(&self, uuid: &str) -> String {
        let row = self.rows(&gpu::INFO).find(|row| row.label("gpu") == uuid);
        match row.map(|row| (row.label("index"), row.label("pci"))) {
            Some((index, pci)) if !index.is_empty() => format!("GPU {index} ({pci})"),
            Some((_, pci)) => format!("GPU {pci}"),
            None => format!("GPU {uuid}"),
        }
    }

    /// Whether no collector that was run failed, or is still running.
    pub(super) fn all_answered(&self) -> bool {
        self.collectors.iter().all(answered)
    }

    /// The GPU that took so long that the others were not read.
    pub(super) fn waits_for(&self) -> Option<(u32, Spent)> {
        self.slowest.filter(|(_, spent)| spent.total >= TOO_SLOW)
    }

    /// The NVML call that had not returned, although it takes no time on a healthy driver.
    pub(super) fn hanging_call(&self) -> Option<(&'static str, Duration)> {
        self.hanging.filter(|(_, since)| *since >= TOO_SLOW)
    }

    /// Whether a mount of the disk collector is on the network, so that its faults are the same on
    /// every node.
    pub(super) fn is_shared(&self, mount: &str) -> bool {
        let info = self.rows(&disk::INFO).find(|row| row.label("mount") == mount);
        info.is_some_and(|row| self.config.collectors.mounts.is_network(row.label("fstype")))
    }

    /// The mount that contains a path without symbolic links.
    pub(super) fn mount_of(&self, path: &Path) -> Option<&Mount> {
        table::containing(&self.mounts, path)
    }

    /// Whether an automounter has mounted this path, or would.
    pub(super) fn automounts(&self, path: &str) -> bool {
        self.mounts.iter().any(|m| m.automounts(Path::new(path)))
    }

    /// Checkpoint directories whose last checkpoint could not be measured in time.
    pub(super) fn unsized_checkpoints(&self) -> &[String] {
        &self.unsized_checkpoints
    }

    /// Runs work that may block in the kernel, until the end of the check's time.
    pub(super) fn in_time<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        within(self.end.saturating_duration_since(Instant::now()), work)
    }
}

/// Whether the collector completed its work, or has none.
fn answered(c: &Status) -> bool {
    [State::Healthy, State::Unsupported, State::Disabled].contains(&c.state)
}

/// The result; `None` if it takes longer than `limit`. The work then continues in the background.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    std::thread::Builder::new().name("check".into()).spawn(move || done.send(work())).ok()?;
    result.recv_timeout(limit.max(LAST_CHANCE)).ok()
}

/// The configuration for a check in a job, which may have only a part of the node, from that of the
/// node's exporter.
fn for_a_job(config: &CollectorsConfig) -> CollectorsConfig {
    let mut config = config.clone().with_everything();
    config.gpu.devices = gpu::Devices::Job;
    config
}

/// Reports the checkpoints in the configured directories to the hub, as the source that watches
/// them does, so that the collector of disks can compute the space for the next one. Takes at most
/// half of the time. Returns the directories for which that was too short.
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

/// The time for each piece of work after the check's time is over, which suffices for fast ones.
const LAST_CHANCE: Duration = Duration::from_millis(20);

fn published(hub: &Hub) -> Vec<Event> {
    let (mut events, mut after) = (Vec::new(), 0);
    while let Read::Records { chunk, last } = hub.ring().read(after) {
        events.extend(chunk.split(|b| *b == b'\n').filter_map(|line| Event::parse(line).ok()));
        after = last;
    }
    events
}
