//! Finds sources without configuration: the training processes of this node, their runs, and the
//! files that they write.
//!
//! Discovery is opt-in, because it inspects other users' processes: a few variables of their
//! environment, the files that they have open for writing, and their working directory. That takes
//! their own user, or `CAP_SYS_PTRACE`; a process that may not be inspected is counted and skipped.
//! The files found are tailed like configured ones, until some minutes after their process has
//! exited.

mod beside;
mod files;
mod rank;
mod trainer;
mod trainers;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_kit::shutdown::Shutdown;
use stepwatch_wire::names::hello;
use stepwatch_wire::{Event, Kind, Value};

use super::poll::{self, Poll, Polling};
use super::sink::Surroundings;
use crate::clock::unix_now;
use crate::fair_share;
use crate::family::Family;
use crate::identity::{self, Claim};
use crate::origin::Priority;
use crate::origin::{Origin, Via};
use crate::principal::Principal;
use crate::processes;
use crate::processes::Tree;
use crate::reach::View;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::source::{NOT_OWNER, SourceHandle};
use files::{Files, SLACK};

use rank::Identity;
use trainer::Trainer;
use trainers::Trainers;

/// Clock ticks of `/proc/PID/stat` in a second. It is a constant of the kernel's interface on every
/// architecture that trains.
const TICKS_PER_SECOND: u64 = 100;
/// The most trainers inspected in one pass: a node has eight GPUs, or sixteen.
const MAX_TRAINERS: usize = 256;

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
    "Restarts of the job by the launcher's own count: torchrun's, or Slurm's",
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
    /// Patterns of control groups whose processes train, relative to the cgroup mount. For nodes
    /// without a GPU driver.
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
    files: Files,
    /// The processes whose `hello` was published, by pid and start time.
    greeted: BTreeSet<(u32, u64)>,
    /// The processes whose dump was published.
    dumped: BTreeSet<(u32, u64)>,
    /// The processes of the last pass.
    last: Vec<Trainer>,
}

/// The process as it was in the last pass. If it cannot be read now, it has not ended for that.
fn as_before(tree: &Tree, pid: u32, last: &mut Vec<Trainer>) -> Option<Trainer> {
    let started = tree.started(pid)?;
    let at = last.iter().position(|t| t.pid == pid && t.started == started)?;
    Some(last.swap_remove(at))
}

impl Discovery {
    fn new(config: DiscoverConfig, around: Surroundings) -> Self {
        let health = around.hub.source("discover", "discover");
        let trainers = Trainers::new(&config.cgroups, around.nvml.clone());
        let files = Files::new(around.clone(), health.clone());
        let (greeted, dumped, last) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        Self { config, around, health, trainers, files, greeted, dumped, last }
    }

    fn look(&mut self, now: Instant) {
        let tree = Tree::read(&self.around.roots);
        let found = self.trainers.find(&self.around.roots, &tree);
        let roots = &self.around.roots;
        // Within one user's processes, the oldest are kept.
        let started = |pid: &u32| Reverse(tree.started(*pid));
        let (found, over) = fair_share::fair(
            found.into_iter().collect(),
            MAX_TRAINERS,
            |pid| processes::user(roots, *pid),
            started,
        );
        if !over.is_empty() {
            self.health.dropped("too_many_processes", over.len() as u64);
            let whose = fair_share::by_user(over.iter().filter_map(|pid| processes::user(roots, *pid)));
            tracing::warn!(whose, "more processes train than are looked at");
        }
        let booted = booted(roots);
        let mut last = core::mem::take(&mut self.last);
        let mut as_before = |pid| as_before(&tree, pid, &mut last);
        let trainer = |pid| self.trainer(&tree, booted, pid).or_else(|| as_before(pid));
        let trainers: Vec<Trainer> = found.into_iter().filter_map(trainer).collect();
        self.greeted.retain(|(pid, started)| tree.started(*pid) == Some(*started));
        self.dumped.retain(|process| self.greeted.contains(process));
        for trainer in &trainers {
            self.greet(trainer);
            self.dump(trainer);
        }
        self.files.follow(&tree, &trainers, self.config.working_directory, now);
        self.report(&trainers);
        self.last = trainers;
    }

    fn trainer(&self, tree: &Tree, booted: Option<u64>, pid: u32) -> Option<Trainer> {
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
        let view = View::of_process(&self.around.roots, pid).map(Arc::new);
        if view.is_none() {
            self.health.dropped(NOT_OWNER, 1);
        }
        // Another process with other rights may have got the pid meanwhile.
        if processes::started(&self.around.roots, pid) != Some(started) {
            return None;
        }
        let begun = booted.map(|at| at + started / TICKS_PER_SECOND);
        let begun = begun.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        let named = identity::named(&self.around.roots, pid)?;
        // A program with borrowed rights (setuid) is nobody's: its environment is its caller's.
        let principal = Principal::from_uid(view.as_ref().map(|view| view.user()));
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
                principal,
            },
        );
        Some(Trainer {
            pid,
            started,
            begun,
            view,
            identity: Identity::parse(&environ),
            named,
            run,
            principal,
        })
    }

    /// Publishes the rank and job of a process. A process with the client reports more itself,
    /// later.
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
        greeting.extra.insert(hello::SOURCE.into(), Value::Text(hello::DISCOVERED.into()));
        greeting.extra.insert("pid".into(), Value::Number(f64::from(trainer.pid)));
        for (key, value) in [("local_rank", id.local_rank), (hello::RESTARTS, trainer.named.restarts)] {
            if let Some(value) = value {
                greeting.extra.insert(key.into(), Value::Number(f64::from(value)));
            }
        }
        for (key, value) in [(hello::SUBMITTED, id.submitted), (hello::ALLOCATED, id.allocated)] {
            if let Some(value) = value {
                greeting.extra.insert(key.into(), Value::Number(f64::from(value)));
            }
        }
        let begun = trainer.begun.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        if let Some(begun) = begun {
            greeting.extra.insert(hello::STARTED.into(), Value::Number(begun.as_secs_f64()));
        }
        if let Some(job) = &trainer.named.job {
            greeting.extra.insert(hello::JOB.into(), Value::Text(job.id.clone()));
        }
        self.publish(trainer.principal, greeting);
    }

    /// Publishes a dump of NCCL's flight recorder that this process left.
    fn dump(&mut self, trainer: &Trainer) {
        let id = &trainer.identity;
        let (Some(path), Some(begun), Some(view)) = (&id.dump, trainer.begun, &trainer.view) else { return };
        let written = view.find(path).and_then(|found| found.metadata.modified());
        let its_own = written.is_ok_and(|at| at + SLACK >= begun);
        if its_own && self.dumped.insert((trainer.pid, trainer.started)) {
            let event = stepwatch_formats::dump_event(path, id.rank);
            self.publish(trainer.principal, Event { run: Some(trainer.run.clone()), ..event });
        }
    }

    fn publish(&self, principal: Principal, event: Event) {
        let origin = Origin::said_by(Via::Discover, &Arc::from("discover"), Priority::Log, principal);
        self.around.hub.publish(origin, event);
    }

    fn report(&self, trainers: &[Trainer]) {
        let mut out = Samples::default();
        let runs: BTreeSet<&str> = trainers.iter().map(|t| t.run.as_str()).collect();
        for run in runs {
            let of_run = || trainers.iter().filter(move |t| t.run == run);
            out.set(&PROCESSES, &[run], of_run().count() as u64);
            out.maybe(&RESTARTS, &[run], of_run().filter_map(|t| t.named.restarts).max().map(f64::from));
        }
        out.set(&FILES, &[], self.files.len() as u64);
        self.health.samples(out);
    }
}

/// The Unix time in seconds when the machine booted.
fn booted(roots: &Roots) -> Option<u64> {
    let stat = roots::read(&roots.proc("stat"))?;
    stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
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
    poll::start(Polling { kind: "discover", name: "discover".into(), health, interval }, discovery, shutdown);
}

#[cfg(test)]
mod tests;
