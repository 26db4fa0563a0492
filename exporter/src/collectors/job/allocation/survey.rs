//! One survey of the node: the jobs that any source knows, and their devices.
//!
//! The reports of several sources about one job are merged. For GPUs, the files of a prolog take
//! precedence, then the variables of the scheduler, then the devices that the processes have open.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::claimed::Claimed;
use super::config::Config;
use super::devices::{Device, Known};
use super::ended::Ended;
use super::environ::{Facts, Identity, Scheduler};
use super::found::{Found, Job, Pod, name_runs, pod_of};
use super::instances::Instances;
use super::kubelet::Container;
use super::{groups, prolog};
use crate::collector::Context;
use crate::gpus::inventory;
use crate::principal::Principal;
use crate::processes;
use crate::processes::stat::read_stat;
use crate::roots::{self, Roots};
use crate::training::TrainingProcess;

/// The most processes of one job whose environment is read; ranks come before the many workers that
/// they start.
const MAX_READ: usize = 256;
/// The most processes of one job whose open files are inspected.
const MAX_OPEN: usize = 64;
/// How long the list of devices that a process has open is reused.
const OPEN_AGAIN: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The processes that were inspected, by pid.
    seen: BTreeMap<u32, Seen>,
    /// The minor numbers of the GPUs that a process had open, and when.
    open: BTreeMap<u32, (Instant, BTreeSet<u32>)>,
    instances: Instances,
    claimed: Claimed,
    ended: Ended,
    pub(super) unreadable: usize,
    pub(super) unresolved: usize,
    pub(super) unresolved_pods: usize,
    pub(super) prolog_read: bool,
}

/// An inspected process. Its environment changes only when it executes another program.
#[derive(Debug)]
struct Seen {
    command: String,
    ticks: u64,
    /// The start time in seconds after boot.
    started: f64,
    /// The facts of the environment; `None` if it may not be read.
    facts: Option<Arc<Facts>>,
}

/// The facts about a job before its processes are read.
#[derive(Debug, Default)]
struct Draft {
    scheduler: Scheduler,
    pids: BTreeSet<u32>,
    /// The processes whose step has all of the job's devices here.
    with_all: BTreeSet<u32>,
    /// The devices from the files of a prolog.
    devices: BTreeSet<Device>,
    uid: Option<u32>,
    runs: BTreeSet<String>,
    in_group: bool,
    /// Whether a control group of the scheduler shows it, which no user can create.
    attested: bool,
    /// Whether it is over on this node, and only environments of processes name it.
    over: bool,
}

/// The inputs of one survey.
#[derive(Clone, Copy)]
struct Look<'a> {
    roots: &'a Roots,
    known: &'a Known,
    /// The Unix time of the boot.
    booted: Option<f64>,
    now: Instant,
}

impl Survey {
    pub(super) fn look(
        &mut self,
        cx: &Context<'_>,
        config: &Config,
        containers: &[Container],
        now: Instant,
    ) -> Found {
        let known = Known::new(inventory(cx.roots), self.instances.known());
        let mut drafts: BTreeMap<String, Draft> = BTreeMap::new();
        for (id, group) in groups::find(cx.roots, &config.cgroups) {
            let draft = Draft {
                scheduler: Scheduler::Slurm,
                pids: group.pids,
                with_all: group.with_all,
                uid: group.uid,
                in_group: true,
                attested: true,
                ..Draft::default()
            };
            drafts.insert(id, draft);
        }
        let training = cx.hub.processes(cx.roots);
        let is_known = groups::is_here(cx.roots, &config.cgroups);
        let loose = self.attach(cx.roots, &training, &mut drafts, is_known, now);
        self.prolog(config, &known, &mut drafts);
        self.unreadable = 0;
        self.unresolved = 0;
        let look = Look { roots: cx.roots, known: &known, booted: booted(cx.roots), now };
        let mut jobs: Vec<Job> = drafts.into_iter().map(|(id, draft)| self.job(look, id, draft)).collect();
        for job in &mut jobs {
            let named = job.named.iter().map(|run| cx.hub.canonical(run).into_owned());
            // A user who gives a process the name of another user's run does not get that run.
            let theirs = cx.hub.runs_of(Principal::from_uid(job.uid));
            job.named = named.filter(|run| theirs.contains(run)).collect();
        }
        name_runs(&mut jobs);
        let pods = self.pods(containers, &known);
        jobs.extend(self.jobs_of_pods(look, &pods, &jobs, &loose));
        let nameless = jobs.iter().flat_map(|j| &j.devices).any(|d| d.gpu.starts_with("MIG-"));
        self.instances.look(cx, nameless, now);
        self.forget(cx.roots);
        Found { jobs, pods }
    }

    /// The number of claims dropped because processes named too many jobs.
    pub(super) fn claims_dropped(&self) -> u64 {
        self.claimed.dropped
    }

    /// Assigns training processes to their jobs. Returns those that name no job. `is_known` tells
    /// whether Slurm's control groups can be read.
    fn attach<'a>(
        &mut self,
        roots: &Roots,
        training: &'a [TrainingProcess],
        drafts: &mut BTreeMap<String, Draft>,
        is_known: bool,
        now: Instant,
    ) -> Vec<&'a TrainingProcess> {
        let mut others = Vec::new();
        let mut outside = BTreeMap::new();
        for process in training {
            let group = roots::read(&roots.proc(process.pid.to_string()).join("cgroup")).unwrap_or_default();
            let Some(id) = groups::job_of_process(&group) else {
                // The group of a pod is the kubelet's, and an unread one shows nothing.
                if !group.trim().is_empty() && !group.contains("kubepods") {
                    outside.insert(process.pid, group);
                }
                others.push(process);
                continue;
            };
            let new = || Draft { scheduler: Scheduler::Slurm, attested: true, ..Draft::default() };
            let draft = drafts.entry(id.to_owned()).or_insert_with(new);
            draft.uid = draft.uid.or_else(|| groups::uid_of_process(&group));
            draft.pids.insert(process.pid);
            if groups::has_all(&group) {
                draft.with_all.insert(process.pid);
            }
            draft.runs.insert(process.run.clone());
        }
        for draft in drafts.values_mut() {
            draft.uid = draft.uid.or_else(|| user_of(roots, &draft.pids));
        }
        let shown = drafts.iter().filter(|(_, draft)| draft.attested).map(|(id, _)| id.clone());
        self.ended.note(is_known.then(|| shown.collect()));
        self.attach_by_environ(roots, (others, &outside), drafts, now)
    }

    /// Assigns processes to the jobs in their environments. Any user can name any job there, so a
    /// process joins only a job of its own user, or any job if it belongs to root. A job without a
    /// control group belongs to the user who named it first. A job is over if only processes
    /// `outside` of Slurm's control groups name it, and those groups show that it is not here.
    fn attach_by_environ<'a>(
        &mut self,
        roots: &Roots,
        (training, outside): (Vec<&'a TrainingProcess>, &BTreeMap<u32, String>),
        drafts: &mut BTreeMap<String, Draft>,
        now: Instant,
    ) -> Vec<&'a TrainingProcess> {
        let (mut loose, mut claims) = (Vec::new(), Vec::new());
        for process in training {
            let facts = self.facts(roots, process.pid);
            let started = self.seen.get(&process.pid).map_or(f64::INFINITY, |seen| seen.started);
            let Some((facts, job)) = facts.and_then(|facts| facts.job.clone().map(|job| (facts, job))) else {
                loose.push(process);
                continue;
            };
            let is_shown = |(id, draft): (&String, &Draft)| draft.attested && facts.identity_of(id).is_some();
            let groups = outside.get(&process.pid).filter(|_| job.0 == Scheduler::Slurm);
            let is_over = groups.is_some_and(|groups| self.ended.is_over(&job.1, groups));
            let is_over = is_over && !drafts.iter().any(is_shown);
            claims.push((started, process, job, is_over));
        }
        claims.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, process, (scheduler, id), is_over) in claims {
            let user = processes::user(roots, process.pid);
            let shown = drafts.get(&id).filter(|draft| draft.attested).map(|draft| draft.uid);
            let owner = shown.unwrap_or_else(|| self.claimed.owner(&id, user, now));
            if owner != user && !Principal::from_uid(user).is_trusted() {
                loose.push(process);
                continue;
            }
            let new = || Draft { scheduler, uid: owner, over: true, ..Draft::default() };
            let draft = drafts.entry(id).or_insert_with(new);
            draft.over &= is_over;
            draft.pids.insert(process.pid);
            draft.runs.insert(process.run.clone());
        }
        self.claimed.forget(now);
        loose
    }

    fn prolog(&mut self, config: &Config, known: &Known, drafts: &mut BTreeMap<String, Draft>) {
        let Some(dir) = &config.prolog_dir else { return };
        let read = prolog::read(dir, known);
        self.prolog_read = read.is_ok();
        for (id, devices) in read.unwrap_or_default() {
            let draft = drafts.entry(id).or_default();
            (draft.devices, draft.over) = (devices, false);
        }
    }

    fn facts(&mut self, roots: &Roots, pid: u32) -> Option<Arc<Facts>> {
        let stat = read_stat(roots, pid)?;
        let ticks = stat.start_ticks();
        let seen = self.seen.get(&pid).filter(|s| s.ticks == ticks && s.command == stat.command);
        if let Some(seen) = seen {
            return seen.facts.clone();
        }
        let environ = match processes::environ(roots, pid) {
            // It is read at another time.
            Err(err) if err.kind() == ErrorKind::TimedOut => return None,
            environ => environ.ok(),
        };
        let facts = environ.map(|bytes| Arc::new(Facts::parse(&bytes)));
        let seen = Seen { command: stat.command, ticks, started: stat.started, facts: facts.clone() };
        self.seen.insert(pid, seen);
        facts
    }

    fn job(&mut self, look: Look<'_>, id: String, draft: Draft) -> Job {
        let Look { roots, booted, .. } = look;
        let read = draft.pids.iter().take(MAX_READ);
        let mut facts: Vec<(u32, Arc<Facts>)> =
            read.filter_map(|pid| Some((*pid, self.facts(roots, *pid)?))).collect();
        let looked = || draft.pids.iter().filter_map(|pid| self.seen.get(pid));
        let oldest = looked().map(|s| s.started).min_by(f64::total_cmp);
        self.unreadable += looked().filter(|s| s.facts.is_none()).count();
        // A shell that a user opened in the job may belong to another one by its environment.
        facts.retain(|(_, f)| !f.is_foreign_to(&id));
        let named = facts.iter().filter_map(|(_, f)| f.run.clone()).collect();
        facts.retain(|(_, f)| f.identity_of(&id).is_some());
        let mut identity = Identity::default();
        facts.iter().filter_map(|(_, f)| f.identity_of(&id)).for_each(|given| identity.learn(given));
        let uid = draft.uid.filter(|uid| *uid != 0);
        identity.user = identity.user.or_else(|| uid.map(|uid| uid.to_string()));
        identity.start = identity.start.or_else(|| Some(booted? + oldest?));
        let (devices, gpus) = if draft.devices.is_empty() {
            self.devices(look, &draft, &facts)
        } else {
            let named = draft.devices.len();
            (draft.devices, named)
        };
        self.unresolved += gpus.saturating_sub(devices.len());
        Job {
            id,
            uid: draft.uid,
            attested: draft.attested,
            left: draft.over.then(|| draft.pids.clone()),
            scheduler: draft.scheduler,
            identity,
            gpus: gpus.max(devices.len()),
            devices,
            processes: draft.in_group.then_some(draft.pids.len()),
            runs: draft.runs,
            named,
            lent: BTreeSet::new(),
        }
    }

    /// The devices of a job and the number that it names, from the environments of its processes.
    fn devices(
        &mut self,
        look: Look<'_>,
        draft: &Draft,
        facts: &[(u32, Arc<Facts>)],
    ) -> (BTreeSet<Device>, usize) {
        let known = look.known;
        let environments =
            facts.iter().map(|(pid, f)| (&f.visible[..], given(f, draft.with_all.contains(pid))));
        let (devices, named) = devices_of(known, environments);
        if named > 0 {
            return (devices, named);
        }
        let open = self.open(look, &draft.pids);
        if !open.is_empty() {
            let named = open.len();
            return (open, named);
        }
        let facts = || facts.iter().map(|(_, f)| f);
        let in_order: BTreeSet<&str> =
            facts().filter(|f| f.bus_order).flat_map(|f| &f.visible).map(String::as_str).collect();
        let by_bus: BTreeSet<Device> = in_order.iter().flat_map(|text| known.in_bus_order(text)).collect();
        let others: BTreeSet<&str> =
            facts().filter_map(|f| f.visible_others.as_deref()).flat_map(|v| v.split(',')).collect();
        let named = by_bus.len().max(others.len());
        (by_bus, named)
    }

    /// The GPUs that these processes have open.
    fn open(&mut self, look: Look<'_>, pids: &BTreeSet<u32>) -> BTreeSet<Device> {
        let Look { roots, known, now, .. } = look;
        if known.is_empty() {
            return BTreeSet::new();
        }
        let mut devices = BTreeSet::new();
        for pid in pids.iter().take(MAX_OPEN) {
            let (at, minors) =
                self.open.entry(*pid).or_insert_with(|| (now, processes::open_gpus(roots, *pid)));
            if now.saturating_duration_since(*at) >= OPEN_AGAIN {
                (*at, *minors) = (now, processes::open_gpus(roots, *pid));
            }
            devices.extend(minors.iter().filter_map(|m| Some(Device { gpu: known.by_minor(*m)?, gi: None })));
        }
        devices
    }

    fn pods(&mut self, containers: &[Container], known: &Known) -> Vec<Pod> {
        self.unresolved_pods = 0;
        let mut pods = Vec::new();
        for container in containers {
            let (devices, unknown) = container.resolve(known);
            self.unresolved_pods += unknown;
            pods.extend(devices.into_iter().map(|device| Pod {
                device,
                namespace: container.namespace.clone(),
                pod: container.pod.clone(),
                container: container.container.clone(),
            }));
        }
        pods
    }

    /// Pods with GPUs as jobs, unless they contain a job: a scheduler's node may itself be a pod.
    fn jobs_of_pods(
        &mut self,
        look: Look<'_>,
        pods: &[Pod],
        inner: &[Job],
        loose: &[&TrainingProcess],
    ) -> Vec<Job> {
        let Look { roots, known, .. } = look;
        let taken: BTreeSet<&Device> =
            inner.iter().filter(|j| j.left.is_none()).flat_map(|j| &j.devices).collect();
        let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
        for pod in pods {
            let id = format!("{}/{}", pod.namespace, pod.pod);
            let job = jobs.entry(id).or_insert_with_key(|id| Job::of_pod(id, pod));
            if taken.contains(&pod.device) {
                job.lent.insert(pod.device.clone());
            }
            job.devices.insert(pod.device.clone());
        }
        for process in loose.iter().filter(|_| !pods.is_empty()) {
            let Some(facts) = self.facts(roots, process.pid) else { continue };
            let mut devices: BTreeSet<Device> = facts.visible.iter().flat_map(|v| known.uuids(v)).collect();
            if devices.is_empty() {
                // If the runtime uses CDI, the environment names no devices.
                devices = self.open(look, &[process.pid].into());
            }
            let namespace = || processes::namespace(roots, process.pid);
            if let Some(pod) = pod_of(pods, &devices, facts.host.as_deref(), namespace) {
                let job = jobs.get_mut(&format!("{}/{}", pod.namespace, pod.pod));
                job.into_iter().for_each(|job| _ = job.runs.insert(process.run.clone()));
            }
        }
        jobs.into_values().map(|job| Job { gpus: job.devices.len(), ..job }).collect()
    }

    fn forget(&mut self, roots: &Roots) {
        self.seen.retain(|pid, _| roots.proc(pid.to_string()).exists());
        self.open.retain(|pid, _| self.seen.contains_key(pid));
    }
}

/// The user of a job's processes. It is root only if all are root's, because users' jobs also
/// contain programs of root.
fn user_of(roots: &Roots, pids: &BTreeSet<u32>) -> Option<u32> {
    let mut users = pids.iter().take(MAX_READ).filter_map(|pid| processes::user(roots, *pid)).peekable();
    let first = users.peek().copied();
    users.find(|uid| *uid != 0).or(first)
}

/// The GPUs in Slurm's own variables: those of the job for its script, those of the step for any
/// other step.
fn given(facts: &Facts, has_all: bool) -> Option<&str> {
    if has_all { facts.job_gpus.as_deref() } else { facts.step_gpus.as_deref() }
}

/// The devices that environments name, and their number. Environments name devices that the process
/// may use and devices that it was given: UUIDs identify a device, so they take precedence over
/// numbers.
fn devices_of<'a>(
    known: &Known,
    environments: impl Iterator<Item = (&'a [String], Option<&'a str>)>,
) -> (BTreeSet<Device>, usize) {
    let environments: BTreeSet<_> = environments.collect();
    let (mut devices, mut lists) = (BTreeSet::new(), BTreeSet::new());
    for (visible, given) in environments {
        let by_uuid: BTreeSet<Device> = visible.iter().flat_map(|text| known.uuids(text)).collect();
        lists.extend(given.filter(|_| by_uuid.is_empty()));
        devices.extend(by_uuid);
    }
    let mut named = devices.len();
    if devices.iter().any(|d| d.gi.is_some() || d.gpu.starts_with("MIG-")) {
        // The scheduler numbers instances, so its numbers are not those of GPUs.
        return (devices, named);
    }
    for text in lists {
        let (found, count) = known.list(text);
        devices.extend(found);
        named = named.max(count);
    }
    (devices, named)
}

fn booted(roots: &Roots) -> Option<f64> {
    let stat = roots::read(&roots.proc("stat"))?;
    stat.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
}
