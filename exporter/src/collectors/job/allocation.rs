//! The jobs on this node and their GPUs: identity as a few info metrics, joined on (node, gpu),
//! never as labels on every series.
//!
//! Jobs of Slurm are found by their control groups and the environment of the processes in them, by
//! files of a prolog, and by the environment of training processes; those of PBS and LSF by the
//! last. Jobs of Kubernetes come from the kubelet's socket. No source is required: each adds what
//! it has. The series of an ended job disappear at the next pass.
//!
//! This is no accounting: time limits and usage are left to the scheduler.

mod claimed;
mod config;
mod devices;
mod ended;
mod environ;
mod events;
mod families;
mod found;
mod groups;
mod grpc;
mod instances;
mod kubelet;
mod prolog;
mod proto;
mod survey;

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use stepwatch_kit::log_throttle::LogThrottle;

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::fair_share;
use crate::samples::Samples;
pub use config::{Config, KubeletConfig};
use events::JobEvents;
use families::{DROPPED, RUNNING, SOURCE_FAILURES, UNREADABLE};
pub use families::{FAMILIES, GPU_POD, INFO, SOURCE_UP, UNRESOLVED};
use found::Job;
use kubelet::{Kubelet, REASONS};
use survey::Survey;

pub const ABOUT: &str = "jobs of Slurm, Kubernetes, PBS and LSF, and the GPUs that they hold";
pub const NEEDS: &str = "/proc and /sys/fs/cgroup; CAP_SYS_PTRACE for the environment, open files and root of other users' processes; the kubelet's pod-resources socket, which is root's";
pub const COST: &str = "small files a training process; one call to the kubelet, off the scrape path";

pub fn rhythm(config: &Config) -> Rhythm {
    let deadline = config.kubelet.timeout.as_duration() + Duration::from_secs(10);
    Rhythm { interval: config.interval.into(), deadline }
}

#[derive(Debug)]
pub struct AllocationReader {
    config: Config,
    survey: Survey,
    kubelet: Option<Kubelet>,
    events: JobEvents,
    prolog_failures: u64,
    /// Jobs that the last pass left out, and the total of those ever left out.
    left_out: Vec<String>,
    dropped: u64,
    log: LogThrottle,
}

impl AllocationReader {
    pub fn new(config: &Config) -> Self {
        let k = &config.kubelet;
        let kubelet = k.enabled.then(|| Kubelet::new(k, config.interval.into()));
        Self {
            config: config.clone(),
            survey: Survey::default(),
            kubelet,
            events: JobEvents::default(),
            prolog_failures: 0,
            left_out: Vec::new(),
            dropped: 0,
            log: LogThrottle::default(),
        }
    }

    /// Removes jobs over the limit, of the user with the most. Jobs without a run, and then those
    /// without a GPU, are removed first.
    fn limit(&mut self, jobs: Vec<Job>) -> Vec<Job> {
        let worth = |j: &Job| (!j.runs.is_empty(), !j.devices.is_empty(), Reverse(j.id.clone()));
        let (jobs, over) = fair_share::fair(jobs, self.config.max_jobs, |j| j.uid, worth);
        let new = over.iter().filter(|j| !self.left_out.contains(&j.id)).count() as u64;
        self.dropped += new;
        if let Some(count) = self.log.count(new) {
            let whose = fair_share::by_user(over.iter().filter_map(|j| j.uid));
            tracing::warn!(count, whose, "more jobs than are reported (collectors.job.max_jobs)");
        }
        self.left_out = over.into_iter().map(|j| j.id).collect();
        jobs
    }

    fn write_sources(&self, cx: &Context<'_>, out: &mut Samples) {
        if groups::is_here(cx.roots, &self.config.cgroups) {
            out.set(&SOURCE_UP, &["slurm"], true);
        }
        if self.config.prolog_dir.is_some() {
            out.set(&SOURCE_UP, &["prolog"], self.survey.prolog_read);
            out.set(&SOURCE_FAILURES, &["prolog", "read"], self.prolog_failures);
        }
        let containers = self.kubelet.as_ref().map_or(0, |k| k.calls.dropped);
        if let Some(kubelet) = self.kubelet.as_ref().filter(|k| k.is_here()) {
            out.set(&SOURCE_UP, &["kubelet"], kubelet.is_up());
            for (reason, failed) in REASONS.iter().zip(kubelet.calls.failed) {
                out.set(&SOURCE_FAILURES, &["kubelet", reason], failed);
            }
        }
        out.set(&UNREADABLE, &[], self.survey.unreadable);
        for (source, unresolved) in
            [("environ", self.survey.unresolved), ("kubelet", self.survey.unresolved_pods)]
        {
            out.set(&UNRESOLVED, &[source], unresolved);
        }
        out.set(&DROPPED, &["jobs"], self.dropped);
        out.set(&DROPPED, &["containers"], containers);
        out.set(&DROPPED, &["claims"], self.survey.claims_dropped());
    }
}

impl Collector for AllocationReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let mut found = Vec::new();
        if groups::is_here(cx.roots, &self.config.cgroups) {
            found.push("Slurm".to_owned());
        }
        if self.kubelet.as_ref().is_some_and(Kubelet::is_here) {
            found.push(format!("the kubelet at {}", self.config.kubelet.socket.display()));
        }
        if let Some(dir) = &self.config.prolog_dir {
            found.push(format!("files of a prolog in {}", dir.display()));
        }
        if found.is_empty() && !cx.hub.processes(cx.roots).is_empty() {
            found.push("the environment of training processes".into());
        }
        if found.is_empty() {
            let why = "neither Slurm's control groups nor a kubelet, and no training process whose environment names its job";
            return Ok(Support::Unsupported(why.into()));
        }
        Ok(Support::Supported(found.join(", ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let now = Instant::now();
        if let Some(kubelet) = &mut self.kubelet {
            kubelet.refresh(now);
        }
        let containers = self.kubelet.as_ref().map_or(&[][..], |k| k.containers_at(now));
        let found = self.survey.look(cx, &self.config, containers, now);
        self.prolog_failures += u64::from(self.config.prolog_dir.is_some() && !self.survey.prolog_read);
        for pod in &found.pods {
            let gi = pod.device.gi.map(|gi| gi.to_string()).unwrap_or_default();
            let labels = [&pod.device.gpu, &gi, &pod.namespace, &pod.pod, &pod.container].map(String::as_str);
            out.set(&GPU_POD, &labels, true);
        }
        let jobs = self.limit(found.jobs);
        let here = || jobs.iter().filter(|job| job.left.is_none());
        here().for_each(|job| job.write(out));
        for scheduler in found::schedulers(&jobs) {
            let count = here().filter(|j| j.scheduler == scheduler).count();
            out.set(&RUNNING, &[scheduler.as_str()], count);
        }
        self.write_sources(cx, out);
        self.events.report(cx, &jobs, now);
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    kubelet::fuzz(bytes);
    let _ = environ::Facts::parse(bytes);
    let text = String::from_utf8_lossy(bytes);
    let _ = groups::job_of_process(&text);
    devices::Known::default().list(&text);
}

#[cfg(test)]
mod tests;
