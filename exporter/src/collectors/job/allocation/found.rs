//! The result of one survey of the node: jobs, and the pods that hold devices.

use std::collections::{BTreeMap, BTreeSet};

use super::devices::Device;
use super::environ::{Identity, Scheduler};
use super::families::{GPU_JOB, GPUS, INFO, LIMIT, PROCESSES, RUN_JOB, START};
use crate::samples::Samples;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: String,
    /// The uid of its owner.
    pub(super) uid: Option<u32>,
    /// Whether a control group shows it, rather than only an environment.
    pub(super) attested: bool,
    /// The training processes that are left of a job that is over on this node. It holds nothing.
    pub(super) left: Option<BTreeSet<u32>>,
    pub(super) scheduler: Scheduler,
    pub(super) identity: Identity,
    pub(super) devices: BTreeSet<Device>,
    /// The number of GPUs: at least that of `devices`, because some names may be unknown here.
    pub(super) gpus: usize,
    /// The number of processes; `None` if no control group lists them.
    pub(super) processes: Option<usize>,
    pub(super) runs: BTreeSet<String>,
    /// The names that its run would have if it were found only through its files.
    pub(super) named: BTreeSet<String>,
    /// Devices that a job within this one holds, and which are exported for that one.
    pub(super) lent: BTreeSet<Device>,
}

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) device: Device,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) jobs: Vec<Job>,
    pub(super) pods: Vec<Pod>,
}

impl Job {
    pub(super) fn of_pod(id: &str, pod: &Pod) -> Self {
        let identity = Identity {
            name: Some(pod.pod.clone()),
            partition: Some(pod.namespace.clone()),
            ..Identity::default()
        };
        Self {
            id: id.to_owned(),
            uid: None,
            attested: false,
            left: None,
            scheduler: Scheduler::Kubernetes,
            identity,
            devices: BTreeSet::new(),
            gpus: 0,
            processes: None,
            runs: BTreeSet::new(),
            named: BTreeSet::new(),
            lent: BTreeSet::new(),
        }
    }

    pub(super) fn write(&self, out: &mut Samples) {
        let id = self.id.as_str();
        let i = &self.identity;
        let [name, user, account, partition, qos, nodes, array] =
            [&i.name, &i.user, &i.account, &i.partition, &i.qos, &i.nodes, &i.array]
                .map(|text| text.as_deref().unwrap_or_default());
        let scheduler = self.scheduler.as_str();
        out.set(&INFO, &[id, name, user, account, partition, qos, nodes, array, scheduler], true);
        out.maybe(&START, &[id], i.start);
        out.maybe(&LIMIT, &[id], i.end);
        out.maybe(&PROCESSES, &[id], self.processes);
        out.set(&GPUS, &[id], self.gpus);
        for device in self.devices.difference(&self.lent) {
            let gi = device.gi.map(|gi| gi.to_string()).unwrap_or_default();
            out.set(&GPU_JOB, &[&device.gpu, &gi, id], true);
        }
        for run in &self.runs {
            out.set(&RUN_JOB, &[run, id], true);
        }
    }
}

/// Assigns a run whose processes do not report to the job with its name, if there is only one such
/// job.
pub(super) fn name_runs(jobs: &mut [Job]) {
    let mut owners: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, job) in jobs.iter().enumerate() {
        job.named.iter().for_each(|run| owners.entry(run.clone()).or_default().push(i));
    }
    for (run, owners) in owners {
        let has_job = jobs.iter().any(|j| j.runs.contains(&run));
        if let ([owner], false) = (&owners[..], has_job) {
            jobs[*owner].runs.insert(run);
        }
    }
}

/// The pod of a process: among those that hold its `devices`, or else those with its host's name.
/// If several match, that name and then the namespace decide. `None` if several still match.
pub(super) fn pod_of<'a>(
    pods: &'a [Pod],
    devices: &BTreeSet<Device>,
    host: Option<&str>,
    namespace: impl FnOnce() -> Option<String>,
) -> Option<&'a Pod> {
    let named = |p: &&Pod| Some(p.pod.as_str()) == host;
    let mut left: Vec<&Pod> =
        pods.iter().filter(|p| devices.iter().any(|device| device.may_be(&p.device))).collect();
    if left.is_empty() {
        // A pod on the host's network has the host's name, and is known only by its devices.
        left = pods.iter().filter(named).collect();
    }
    if only(&left).is_none() && left.iter().any(named) {
        left.retain(named);
    }
    if left.len() > 1 && only(&left).is_none() {
        let namespace = namespace()?;
        left.retain(|p| p.namespace == namespace);
    }
    only(&left)
}

/// The pod, if all of these are the same one.
fn only<'a>(pods: &[&'a Pod]) -> Option<&'a Pod> {
    let (first, others) = pods.split_first()?;
    others.iter().all(|p| (&p.namespace, &p.pod) == (&first.namespace, &first.pod)).then_some(*first)
}

/// The schedulers of these jobs, each once.
pub(super) fn schedulers(jobs: &[Job]) -> BTreeSet<Scheduler> {
    jobs.iter().map(|j| j.scheduler).collect()
}
