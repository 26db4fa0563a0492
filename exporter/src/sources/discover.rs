//! Sources found without configuration: the processes that train on this node, who they are, and what they write.
//!
//! Opt-in, because it looks into other people's processes: at a few variables of their environment, at which files they have open for
//! writing, and into the directory they work in. That takes their own user, or `CAP_SYS_PTRACE`; a process that may not be looked at is
//! counted and left alone. What is found becomes tails like those of the configuration, which end some minutes after their process.

pub(crate) mod processes;
mod rank;
mod trainers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_kit::shutdown::{Shutdown, Trigger};
use stepwatch_wire::names::hello;
use stepwatch_wire::run_name::Named;
use stepwatch_wire::{Event, Kind, Value};

use super::poll::{self, Poll};
use super::{Surroundings, TailConfig, tail};
use crate::family::Family;
use crate::hub::{Origin, Via, unix_now};
use crate::identity::{self, Claim};
use crate::samples::Samples;
use crate::source::SourceHandle;
use crate::training::Priority;
use crate::voice::Voice;
use processes::{OpenFile, Tree};
use rank::Identity;
use trainers::Trainers;

/// Files followed at once.
const MAX_FILES: usize = 256;
/// Trainers looked at in one pass: a node has eight GPUs, or sixteen.
const MAX_TRAINERS: usize = 256;
/// How long a file is followed after the process that it was found by has gone: its end is still to be read.
const LINGER: Duration = Duration::from_mins(10);
/// A file that was last written this long before the process started is of an earlier job.
const SLACK: Duration = Duration::from_secs(5);

static PROCESSES: Family = Family::gauge(
    "job_discovered_processes",
    "",
    &["run"],
    "Training processes of this node that were found without configuration",
);
static RESTARTS: Family = Family::gauge(
    "job_restart_count",
    "",
    &["run"],
    "How often the launcher says that it has restarted the job: torchrun's count, or Slurm's",
);
static FILES: Family = Family::gauge(
    "job_discovered_files",
    "",
    &[],
    "Files that are followed because a training process was found to write them, or to have come with them",
);

pub(super) static FAMILIES: &[&Family] = &[&PROCESSES, &RESTARTS, &FILES];

/// `discover: {}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscoverConfig {
    #[serde(default = "interval")]
    pub interval: Period,
    /// Control groups whose processes train, for nodes without a GPU driver; patterns, relative to where cgroups are mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<String>,
    /// Also look for files of metrics in the directory that a process works in.
    #[serde(default = "yes")]
    pub working_directory: bool,
}

fn interval() -> Period {
    Period::secs(15)
}

fn yes() -> bool {
    true
}

impl DiscoverConfig {
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.interval < Period::millis(100) {
            wrong.push("interval: must be at least 100ms".into());
        }
        for (i, pattern) in self.cgroups.iter().enumerate() {
            if let Err(err) = glob::Pattern::new(pattern) {
                wrong.push(format!("cgroups[{i}]: {err}"));
            }
        }
        wrong
    }
}

struct Discovery {
    config: DiscoverConfig,
    around: Surroundings,
    health: SourceHandle,
    trainers: Trainers,
    /// Tails start within it.
    runtime: tokio::runtime::Handle,
    followed: BTreeMap<PathBuf, Followed>,
    /// Processes that were greeted, by pid and start.
    greeted: BTreeSet<(u32, u64)>,
    /// Processes whose dump was told of.
    dumped: BTreeSet<(u32, u64)>,
}

/// A tail; it ends when this is dropped.
struct Followed {
    seen: Instant,
    stop: Trigger,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.stop.fire();
    }
}

/// A file to follow, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    path: PathBuf,
    run: String,
    /// Only of what one process alone writes.
    rank: Option<u32>,
    world: Option<u32>,
}

/// A process that trains.
#[derive(Debug)]
struct Trainer {
    pid: u32,
    started: u64,
    identity: Identity,
    named: Named,
    /// What its run is called.
    run: String,
    /// Whose process it is.
    voice: Voice,
}

impl Discovery {
    fn new(config: DiscoverConfig, around: Surroundings) -> Self {
        let health = around.hub.source("discover", "discover");
        let trainers = Trainers::new(&config.cgroups, around.hub.nvml().clone());
        let runtime = tokio::runtime::Handle::current();
        Self {
            config,
            around,
            health,
            trainers,
            runtime,
            followed: BTreeMap::new(),
            greeted: BTreeSet::new(),
            dumped: BTreeSet::new(),
        }
    }

    fn look(&mut self, now: Instant) {
        let tree = Tree::read(&self.around.roots);
        let found = self.trainers.find(&self.around.roots, &tree);
        let over = found.len().saturating_sub(MAX_TRAINERS);
        if over > 0 {
            self.health.dropped("too_many_processes", over as u64);
        }
        let trainers: Vec<Trainer> =
            found.into_iter().take(MAX_TRAINERS).filter_map(|pid| self.trainer(&tree, pid)).collect();
        self.greeted.retain(|(pid, started)| tree.started(*pid) == Some(*started));
        self.dumped.retain(|process| self.greeted.contains(process));
        for trainer in &trainers {
            self.greet(trainer);
            self.dump(trainer);
        }
        let mut wanted: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
        let speaking = || trainers.iter().filter(|t| !t.identity.silent);
        for file in speaking().flat_map(|trainer| self.files(&tree, trainer)) {
            let rank = file.rank;
            // What several ranks write is nobody's alone.
            wanted
                .entry(file.path.clone())
                .and_modify(|w| w.rank = w.rank.filter(|r| Some(*r) == rank))
                .or_insert(file);
        }
        if self.config.working_directory {
            for file in speaking().flat_map(|trainer| self.beside(trainer)) {
                wanted.entry(file.path.clone()).or_insert(file);
            }
        }
        self.follow(wanted, now);
        self.report(&trainers);
    }

    fn trainer(&self, tree: &Tree, pid: u32) -> Option<Trainer> {
        let environ = match processes::environ(&self.around.roots, pid) {
            Ok(environ) => environ,
            Err(err) => {
                if err.kind() == std::io::ErrorKind::PermissionDenied {
                    self.health.dropped("no_permission", 1);
                }
                return None;
            }
        };
        let started = tree.started(pid)?;
        let named = identity::named(&self.around.roots, pid)?;
        let voice = Voice::of(processes::user(&self.around.roots, pid));
        let run = self.around.hub.claim(
            unix_now(),
            Claim {
                kind: "discover".into(),
                source: format!("pid {pid}"),
                pid: Some(pid),
                job: named.job.as_ref().map(|job| job.id.clone()),
                run: named.run.clone(),
                by: Some(named.by),
                why: named.why.clone(),
                unnamed: Some(named.unnamed.clone()),
                voice,
            },
        );
        Some(Trainer { pid, started, identity: Identity::of(&environ), named, run, voice })
    }

    /// Tells the run's rank and job; a process that reports by itself says more, later and better.
    fn greet(&mut self, trainer: &Trainer) {
        let id = &trainer.identity;
        if id.rank.is_none() || !self.greeted.insert((trainer.pid, trainer.started)) {
            return;
        }
        let mut greeting = Event {
            run: Some(trainer.run.clone()),
            rank: id.rank,
            world: id.world,
            ..Event::new(Kind::Hello)
        };
        greeting.extra.insert("source".into(), Value::Text("discover".into()));
        greeting.extra.insert("pid".into(), Value::Number(f64::from(trainer.pid)));
        for (key, value) in [("local_rank", id.local_rank), (hello::RESTARTS, trainer.named.restarts)] {
            if let Some(value) = value {
                greeting.extra.insert(key.into(), Value::Number(f64::from(value)));
            }
        }
        if let Some(job) = &trainer.named.job {
            greeting.extra.insert(hello::JOB.into(), Value::Text(job.id.clone()));
        }
        self.publish(trainer.voice, greeting);
    }

    /// Tells of a dump of NCCL's flight recorder that this process left.
    fn dump(&mut self, trainer: &Trainer) {
        let id = &trainer.identity;
        let (Some(path), Some(started)) = (&id.dump, self.started(trainer)) else { return };
        let its_own =
            std::fs::metadata(path).and_then(|m| m.modified()).is_ok_and(|at| at + SLACK >= started);
        if its_own && self.dumped.insert((trainer.pid, trainer.started)) {
            let event = stepwatch_formats::dump_event(path, id.rank);
            self.publish(trainer.voice, Event { run: Some(trainer.run.clone()), ..event });
        }
    }

    fn publish(&self, voice: Voice, event: Event) {
        let origin = Origin::said_by(Via::Discover, &Arc::from("discover"), Priority::Log, voice);
        self.around.hub.publish(origin, event);
    }

    /// What a trainer, its children and whoever reads its output write, and what it leaves when it fails.
    fn files(&self, tree: &Tree, trainer: &Trainer) -> Vec<Wanted> {
        let roots = &self.around.roots;
        let id = &trainer.identity;
        let wanted = |path: PathBuf, rank| trainer.wants(path, rank);
        let mut files = Vec::new();
        let own = processes::written(roots, trainer.pid);
        files.extend(own.iter().filter(|f| is_ours(f)).map(|f| wanted(f.path.clone(), own_rank(f, id))));
        for child in tree.descendants(trainer.pid) {
            let theirs = processes::written(roots, child);
            files.extend(
                theirs.iter().filter(|f| is_ours(f)).map(|f| wanted(f.path.clone(), own_rank(f, id))),
            );
        }
        if !own.iter().any(|f| f.standard) {
            // Its output goes through a pipe to a launcher, which may write it down.
            for launcher in tree.ancestors(trainer.pid) {
                let theirs = processes::written(roots, launcher);
                files.extend(theirs.iter().filter(|f| is_ours(f)).map(|f| wanted(f.path.clone(), None)));
            }
        }
        files.extend(id.error_file.iter().map(|path| wanted(path.clone(), id.rank)));
        files
    }

    /// Files in the working directory that were written since the process started. TensorBoard opens its file anew for every record,
    /// so it is not among those that are open.
    fn beside(&self, trainer: &Trainer) -> Vec<Wanted> {
        let Some(cwd) = processes::cwd(&self.around.roots, trainer.pid).filter(|d| d.parent().is_some())
        else {
            return Vec::new();
        };
        let Some(started) = self.started(trainer) else { return Vec::new() };
        let found = tail::search(&cwd);
        if found.cut {
            self.health.dropped("directory_too_large", 1);
        }
        let fresh = |path: &PathBuf| {
            std::fs::metadata(path).and_then(|m| m.modified()).is_ok_and(|at| at + SLACK >= started)
        };
        found.files.into_iter().filter(fresh).map(|path| trainer.wants(path, None)).collect()
    }

    fn started(&self, trainer: &Trainer) -> Option<SystemTime> {
        /// Clock ticks of `/proc/PID/stat` in a second: a constant of the kernel's interface on every machine that trains.
        const TICKS_PER_SECOND: u64 = 100;
        let stat = crate::roots::read(&self.around.roots.proc("stat"))?;
        let booted: u64 = stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(booted + trainer.started / TICKS_PER_SECOND))
    }

    fn follow(&mut self, wanted: BTreeMap<PathBuf, Wanted>, now: Instant) {
        for (path, file) in wanted {
            if let Some(followed) = self.followed.get_mut(&path) {
                followed.seen = now;
            } else if self.followed.len() >= MAX_FILES {
                self.health.dropped("too_many_files", 1);
            } else {
                tracing::info!(path = %path.display(), run = file.run, rank = file.rank, "following a file that was found");
                let (stop, shutdown) = Shutdown::manual();
                let _within = self.runtime.enter();
                tail::start(file.tail(), &self.around, shutdown);
                self.followed.insert(path, Followed { seen: now, stop });
            }
        }
        self.followed.retain(|_, f| now.duration_since(f.seen) < LINGER);
    }

    fn report(&self, trainers: &[Trainer]) {
        let mut out = Samples::default();
        let runs: BTreeSet<&str> = trainers.iter().map(|t| t.run.as_str()).collect();
        for run in runs {
            let of_run = || trainers.iter().filter(move |t| t.run == run);
            out.set(&PROCESSES, &[run], of_run().count() as u64);
            out.maybe(&RESTARTS, &[run], of_run().filter_map(|t| t.named.restarts).max().map(f64::from));
        }
        out.set(&FILES, &[], self.followed.len() as u64);
        self.health.samples(out);
    }
}

impl Trainer {
    fn wants(&self, path: PathBuf, rank: Option<u32>) -> Wanted {
        Wanted { path, run: self.run.clone(), rank, world: self.identity.world }
    }
}

impl Wanted {
    fn tail(&self) -> TailConfig {
        TailConfig {
            found: Some(self.run.clone()),
            rank: self.rank,
            world: self.world,
            ..TailConfig::of(&self.path)
        }
    }
}

/// Standard output whatever its name is, and otherwise what has a name that we know.
fn is_ours(file: &OpenFile) -> bool {
    file.standard || stepwatch_formats::known_name(&file.path)
}

/// A log may be everybody's, a file of metrics is its writer's.
fn own_rank(file: &OpenFile, identity: &Identity) -> Option<u32> {
    identity.rank.filter(|_| !file.standard)
}

impl Poll for Discovery {
    fn poll(&mut self, now: Instant, _: f64) -> bool {
        self.look(now);
        self.health.up(true);
        false
    }
}

pub(super) fn start(config: DiscoverConfig, around: &Surroundings, shutdown: Shutdown) {
    let interval = config.interval.as_duration();
    let discovery = Discovery::new(config, around.clone());
    let health = discovery.health.clone();
    poll::start("discover", "discover".into(), health, interval, discovery, shutdown);
}

#[cfg(test)]
mod tests;
