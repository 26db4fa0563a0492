//! Free space on the disks of the node and in all checkpoint directories: how much is left, how
//! fast it is used up, and whether the next checkpoint will fit.
//!
//! Checkpoint directories are known from the configuration and from the runs themselves. A
//! directory on a network file system is queried by a thread of its own, like all others here. File
//! systems that became read-only and drives that fail are reported as well, and `traffic` publishes
//! what the busiest disks write.

mod devices;
mod report;
mod rooms;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;

pub(super) use self::rooms::Directory;
use self::rooms::{Look, Room};
use super::mounts::prober::Prober;
use super::mounts::table::{self, Mount};
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::fill::{Fill, Rate};
use crate::principal::{Principal, in_turn};
use crate::samples::Samples;
use crate::training::CheckpointPlace;

pub const ABOUT: &str = "room on disks and for checkpoints, file systems turned read-only, drives";
pub const NEEDS: &str =
    "/proc/self/mountinfo, statfs of each local file system; any user; a container sees its own mounts";
pub const COST: &str = "one call a file system, each on a thread that may hang";

const MOUNT: &[&str] = &["mount"];
const RUN: &[&str] = &["run", "mount"];

pub static SIZE: Family = Family::gauge("disk_size_bytes", "bytes", MOUNT, "Size of the file system");
pub static FREE: Family = Family::gauge(
    "disk_free_bytes",
    "bytes",
    MOUNT,
    "Room on the file system for programs without privileges",
);
pub static INODES: Family = Family::gauge(
    "disk_inodes",
    "",
    MOUNT,
    "Files that the file system can hold; absent where it has no limit",
);
pub static FREE_INODES: Family =
    Family::gauge("disk_free_inodes", "", MOUNT, "Files that the file system still has room for");
pub static READ_ONLY: Family = Family::gauge(
    "disk_read_only",
    "",
    MOUNT,
    "Whether the file system can only be read on this node, not only where the exporter sees it",
);
pub static INFO: Family = Family::gauge(
    "disk_info",
    "",
    &["mount", "fstype", "source"],
    "File system and the device or server that it is on; always 1",
);
pub static FILL: Family = Family::gauge(
    "disk_fill_bytes_per_second",
    "",
    MOUNT,
    "How fast the room is used up, on average over the window; negative when it grows",
);
pub static FULL: Family = Family::gauge(
    "disk_full_seconds",
    "seconds",
    MOUNT,
    "Time until the file system is full at the rate of the window; absent when it does not fill",
);
pub static CHECKPOINTS_LEFT: Family = Family::gauge(
    "disk_checkpoints_left",
    "",
    RUN,
    "How many more checkpoints of the run's last size fit, if none is deleted",
);
pub static CHECKPOINTS_LAST: Family = Family::gauge(
    "disk_checkpoints_full_seconds",
    "seconds",
    RUN,
    "Time until a checkpoint of the run does not fit, at its size and cadence, if none is deleted",
);
pub static DIRECTORY: Family = Family::gauge(
    "disk_checkpoint_directory_info",
    "",
    &["run", "mount", "path"],
    "Where the checkpoints of a run go, and the file system that it is on; always 1",
);

pub static FAMILIES: &[&Family] = &[
    &SIZE,
    &FREE,
    &INODES,
    &FREE_INODES,
    &READ_ONLY,
    &INFO,
    &FILL,
    &FULL,
    &CHECKPOINTS_LEFT,
    &CHECKPOINTS_LAST,
    &DIRECTORY,
    &devices::READ_ONLY,
    &devices::SIZE,
    &devices::IO_ERRORS,
    &devices::INFO,
    &devices::FS_ERRORS,
    &devices::MISSING,
    &devices::NVME_UP,
    &devices::NVME_INFO,
    &devices::NVME_TEMPERATURE,
];

/// How long a pass waits for answers.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// The time over which the rate is averaged; longer than the time between two checkpoints.
    pub window: Period,
    /// A disk that will be full within this time is reported.
    pub horizon: Period,
    /// Patterns with `*` of file system types.
    pub types: Vec<String>,
    /// Mounts of other types to include.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
}

const TYPES: [&str; 6] = ["ext*", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"];
/// The root of a container, and the places where NCCL and data loaders keep shared memory.
const INCLUDED: [&str; 3] = ["/", "/dev/shm", "/tmp"];

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("window", self.window)
            .patterns("types", &self.types)
            .patterns("include", &self.include)
            .patterns("exclude", &self.exclude)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(10),
            window: Period::secs(3600),
            horizon: Period::secs(4 * 3600),
            types: TYPES.map(str::to_owned).into(),
            include: INCLUDED.map(str::to_owned).into(),
            exclude: vec!["/boot*".into()],
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct DiskReader {
    config: Config,
    wanted: rooms::Wanted,
    prober: Prober<Look, Directory>,
    fills: BTreeMap<String, Fill>,
    conditions: Conditions,
    /// Whether each file system was writable in the last pass.
    writable: BTreeMap<String, bool>,
    /// The file systems that became read-only; `None` before the first lookup.
    fallen: Option<report::Fallen>,
    /// Controllers that were not live in the last pass.
    not_live: Vec<String>,
    traffic: traffic::Traffic,
}

/// The answers of one pass.
struct Answers {
    /// The file systems by mount point.
    disks: BTreeMap<String, Disk>,
    /// The file system of each directory.
    places: BTreeMap<String, String>,
}

/// The state of a file system.
#[derive(Debug)]
struct Disk {
    mount: Mount,
    room: Room,
    rate: Option<Rate>,
}

impl DiskReader {
    pub fn new(config: &Config) -> Self {
        Self {
            wanted: rooms::Wanted::new(&config.types, &config.include, &config.exclude),
            config: config.clone(),
            prober: Prober::new(rooms::look),
            fills: BTreeMap::new(),
            conditions: Conditions::default(),
            writable: BTreeMap::new(),
            fallen: None,
            not_live: Vec::new(),
            traffic: traffic::Traffic::default(),
        }
    }

    fn look(&mut self, now: Instant, mounts: &[Mount], directories: &[Directory]) -> Answers {
        let local = self.wanted.file_systems(mounts);
        let root = |m: &Mount| Directory { path: m.path.clone(), named_by: Principal::Exporter };
        let mut paths: Vec<_> = local.iter().map(|m| (rooms::key(m), root(m))).collect();
        paths.extend(directories.iter().map(|d| (d.key(), d.clone())));
        let probes = self.prober.ask(&paths, PATIENCE);
        // A path that has not answered has no value.
        let answered = |key: &str| {
            let probe = probes.get(key).filter(|probe| probe.owed.is_none())?;
            probe.last.as_ref().and_then(|(look, _)| look.clone())
        };
        let (mut disks, mut places) = (BTreeMap::new(), BTreeMap::new());
        for mount in local {
            if let Some((room, _)) = answered(&rooms::key(mount)) {
                disks.insert(mount.name(), Disk { mount: mount.clone(), room, rate: None });
            }
        }
        for directory in directories {
            let dir = directory.key();
            let Some((room, real)) = answered(&dir) else { continue };
            let Some(mount) = table::containing(mounts, &real) else { continue };
            // The same file system may be known under another of its mounts.
            let known = disks.values().find(|d| d.mount.device == mount.device).map(|d| d.mount.name());
            let name = known.unwrap_or_else(|| mount.name());
            disks.entry(name.clone()).or_insert_with(|| Disk { mount: mount.clone(), room, rate: None });
            places.insert(dir, name);
        }
        self.fills.retain(|name, _| disks.contains_key(name));
        for (name, disk) in &mut disks {
            let fill = self.fills.entry(name.clone()).or_default();
            disk.rate = fill.note(now, disk.room.used, self.config.window.into());
        }
        Answers { disks, places }
    }

    fn write(disks: &BTreeMap<String, Disk>, out: &mut Samples) {
        for (name, disk) in disks {
            let labels: &[&str] = &[name];
            let room = &disk.room;
            out.set(&SIZE, labels, room.size);
            out.set(&FREE, labels, room.free);
            out.maybe(&INODES, labels, room.inodes.map(|(all, _)| all));
            out.maybe(&FREE_INODES, labels, room.inodes.map(|(_, free)| free));
            out.set(&INFO, &[name, &disk.mount.fstype, &disk.mount.source], 1u64);
            out.maybe(&FILL, labels, disk.rate.map(|r| r.bytes_per_second));
            out.maybe(&FULL, labels, disk.rate.and_then(|r| r.lasts(room.free)));
        }
    }
}

/// The checkpoint directories and the state directory, which are or will be written to.
pub(super) fn directories(cx: &Context<'_>, runs: &[CheckpointPlace]) -> Vec<Directory> {
    let mut all: Vec<String> = cx.hub.source_names("checkpoints");
    all.extend(cx.roots.state.iter().map(|dir| dir.to_string_lossy().into_owned()));
    all.retain(|dir| dir.starts_with('/'));
    all.sort();
    all.dedup();
    let of_runs = runs.iter().filter_map(|run| Some((run.principal, rooms::directory(run)?)));
    let known: BTreeSet<String> = all.iter().cloned().collect();
    let of_users: BTreeSet<_> =
        of_runs.filter(|(_, dir)| dir.starts_with('/') && !known.contains(dir)).collect();
    // Users alternate, so that one who names many directories does not displace those of others.
    let of_users = in_turn(of_users.into_iter().map(|(user, dir)| (user, (user, dir))));
    let own = all.into_iter().map(|path| Directory { path: path.into(), named_by: Principal::Exporter });
    let users = of_users.into_iter().map(|(named_by, path)| Directory { path: path.into(), named_by });
    own.chain(users).take(rooms::MAX_DIRECTORIES).collect()
}

impl Collector for DiskReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let Some(mounts) = table::probe(cx.roots)? else {
            return Ok(Support::Unsupported("there is no table of mounts".into()));
        };
        let names = self.wanted.file_systems(&mounts).iter().map(|m| m.name()).collect::<Vec<_>>();
        Ok(Support::Supported(names.join(" ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let mounts = table::read(cx.roots)?;
        let runs = cx.hub.checkpoints();
        let directories = directories(cx, &runs);
        let answers = self.look(Instant::now(), &mounts, &directories);
        Self::write(&answers.disks, out);
        self.report_read_only(cx, &mounts, &answers.disks, out);
        self.report_filling(cx, &answers.disks);
        self.checkpoints(cx, &runs, &answers, out);
        self.end_filling(cx, &mounts, &runs);
        devices::block(cx.roots, out);
        self.traffic.pass(unix_now(), cx);
        let controllers = devices::nvme(cx.roots, out);
        self.report_nvme(cx, controllers);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
