//! Detects wasted GPUs: a job that holds GPUs and computes nothing, also after its run has ended, a
//! GPU that computes for no job, and processes that are left of a job and keep its GPUs idle, or
//! have them while another job holds them.
//!
//! A job is evaluated once, with all of its nodes. While one of its runs is live, the detectors of
//! the run are responsible. GPUs that no job holds are evaluated only if a scheduler allocates GPUs
//! to jobs, and no known run can have them. A run whose jobs are all over there has none.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::detector::{NodeAt, NodeDetector};
use crate::node::{Activity, Claim, JobAt, NodeState, words};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Clause, Fact, Finding, Kind, Observation, PlanCost, Sentence, Severity, clause,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long no GPU of a job must have computed.
    pub after: Span,
    /// The same after its run has ended.
    pub after_end: Span,
    /// How long a GPU that no job holds must have computed, and how long processes of a job that is
    /// over must have kept its GPUs.
    pub without_job_after: Span,
}

impl Default for Config {
    fn default() -> Self {
        let half_an_hour = Span::secs(1800);
        Self {
            enabled: true,
            after: half_an_hour,
            after_end: Span::secs(600),
            without_job_after: half_an_hour,
        }
    }
}

/// How long the nodes of a job must be unchanged before it is evaluated: the nodes of a job that
/// ends notice that one after the other.
const SETTLED: Span = Span::secs(120);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GpuWaste {
    /// Since when each GPU computes without a job.
    without_job: BTreeMap<String, Ts>,
    /// Since when processes are left of each job that is over, on GPUs that are idle, or that
    /// another job holds.
    left: BTreeMap<String, Ts>,
    /// Jobs, their processes and GPUs that were reported and are still wasted.
    raised: BTreeSet<String>,
}

/// What is wasted for one reason: a job, or the GPUs of a node that compute for no job.
struct Wasted {
    names: Vec<String>,
    gpus: usize,
    since: Ts,
    what: Clause,
}

impl GpuWaste {
    fn follow(&mut self, view: NodeAt<'_>) {
        let NodeAt { now, node: f, tenants, .. } = view;
        let is_free = tenants.iter().all(|tenant| f.jobs.outlives(&tenant.run));
        let of_nobody = |uuid: &str| {
            let is_loaded = f.gpus.get(uuid).is_some_and(|gpu| gpu.last.is_loaded());
            let computes = is_loaded && f.gpus.activity(now, uuid) == Activity::Computes;
            computes && f.jobs.are_given_gpus() && !f.jobs.hold(uuid) && is_free
        };
        self.without_job.retain(|uuid, _| of_nobody(uuid));
        for (uuid, _) in f.gpus.iter().filter(|(uuid, _)| of_nobody(uuid)) {
            self.without_job.entry(uuid.to_owned()).or_insert(now);
        }
        let is_idle = |uuid: &String| matches!(f.gpus.activity(now, uuid), Activity::Idle { .. });
        let keeps = |claim: &Claim| {
            let are_idle = !claim.gpus.is_empty() && claim.gpus.iter().all(is_idle);
            are_idle || f.jobs.holder_of(claim).is_some()
        };
        self.left.retain(|id, _| f.jobs.over().any(|(job, claim)| id == job && keeps(claim)));
        for (id, _) in f.jobs.over().filter(|&(_, claim)| keeps(claim)) {
            self.left.entry(id.to_owned()).or_insert(now);
        }
    }

    fn wasted(&self, c: &Config, view: NodeAt<'_>, jobs: &[JobAt]) -> Vec<Wasted> {
        let idle = jobs.iter().filter_map(|job| idle(c, view, job));
        idle.chain(self.computing(c, view)).chain(self.kept(c, view)).collect()
    }

    /// The processes that keep the GPUs of a job that is over.
    fn kept(&self, c: &Config, view: NodeAt<'_>) -> impl Iterator<Item = Wasted> {
        let NodeAt { now, node: f, .. } = view;
        f.jobs.over().filter_map(move |(job, claim)| {
            let since = *self.left.get(job)?;
            let lasts = now - since;
            let left = left((job, claim));
            let what = match f.jobs.holder_of(claim) {
                Some(next) => {
                    clause!("{left}; {job} holds its GPUs now", left, job = Fact::text(next.to_owned()))
                }
                None => clause!("{left}; its GPUs have computed nothing for {lasts}", left, lasts),
            };
            let names = vec![["processes of job ", job].concat()];
            (lasts >= c.without_job_after).then_some(Wasted { names, gpus: claim.gpus.len(), since, what })
        })
    }

    /// The GPUs that compute for no job.
    fn computing(&self, c: &Config, view: NodeAt<'_>) -> Option<Wasted> {
        let NodeAt { now, node: f, .. } = view;
        let long = || self.without_job.iter().filter(|(_, since)| now - **since >= c.without_job_after);
        let gpus = long().count();
        let (uuid, since) = long().min_by_key(|(_, since)| **since)?;
        let node = f.name.clone();
        let lasts = now - *since;
        let seconds = long().map(|(_, since)| (now - *since).as_secs_f64()).sum();
        let cost = cost(view, seconds);
        // An environment may name no GPU that is known here.
        let may_have =
            |(_, claim): &(&str, &Claim)| claim.gpus.is_empty() || long().any(|(uuid, _)| claim.has(uuid));
        let left: Vec<Clause> = f.jobs.over().filter(may_have).map(left).collect();
        let left = (!left.is_empty()).then(|| clause!("; {left}", left = Fact::joined(left, "; ")));
        let what = if gpus == 1 {
            let gpu = Fact::Device(words::gpu_of(f, uuid, ""));
            clause!(
                "{gpu} of {node} has computed for {lasts}, and no job holds it: {cost}{left}",
                gpu,
                node,
                lasts,
                cost,
                left,
            )
        } else {
            clause!(
                "{gpus} GPUs of {node} have computed for {lasts}, and no job holds them: {cost}{left}",
                gpus,
                node,
                lasts,
                cost,
                left,
            )
        };
        let names = long().map(|(uuid, _)| uuid.clone()).collect();
        Some(Wasted { names, gpus, since: *since, what })
    }
}

/// The GPU hours of so many seconds of one GPU, and their price if one is configured.
fn cost(view: NodeAt<'_>, seconds: f64) -> Clause {
    let of_one =
        PlanCost { gpus: Some(1), dollars_per_gpu_hour: view.dollars_per_gpu_hour, ..PlanCost::default() };
    let hours = Fact::decimal(of_one.gpu_hours(seconds).unwrap_or_default(), 1);
    let price =
        of_one.dollars(seconds).map(|dollars| clause!(", ${dollars}", dollars = Fact::decimal(dollars, 2)));
    clause!("{hours} GPU hours{price}", hours, price)
}

/// The processes that are left of a job.
fn left((job, claim): (&str, &Claim)) -> Clause {
    let (job, user, pids) = (job.to_owned(), claim.user.clone(), claim.pids.clone());
    clause!("{left}", left = &Observation::ProcessesLeft { job, user, pids })
}

/// The waste of a job; `None` if there is none.
fn idle(c: &Config, view: NodeAt<'_>, job: &JobAt) -> Option<Wasted> {
    let now = view.now;
    let Activity::Idle { since } = job.activity else { return None };
    let lasts = now - since;
    let of_the_run = |(_, at): &(String, Ts)| now - since.max(*at) >= c.after_end;
    let is_long = lasts >= c.after || job.ended.as_ref().is_some_and(of_the_run);
    if job.is_live || !is_long || now - job.changed_at < SETTLED {
        return None;
    }
    let ended = job.ended.as_ref().map(|(run, at)| {
        clause!("; its run {run} ended {ago} ago", run = Fact::text(run.clone()), ago = now - *at)
    });
    let on = (job.nodes > 1).then(|| clause!(" on {nodes} nodes", nodes = job.nodes));
    let what = clause!(
        "{job} holds {gpus} GPUs{on}, and none has computed for {lasts}: {cost}{ended}",
        job = Fact::text(job.text.clone()),
        gpus = job.gpus,
        on,
        lasts,
        cost = cost(view, job.gpus as f64 * lasts.as_secs_f64()),
        ended,
    );
    Some(Wasted { names: vec![job.text.clone()], gpus: job.gpus, since, what })
}

impl NodeDetector for GpuWaste {
    type Config = Config;

    fn look(&mut self, c: &Config, view: NodeAt<'_>, out: &mut Vec<Finding>) {
        let Some(jobs) = view.jobs.filter(|_| c.enabled) else { return };
        self.follow(view);
        let wasted = self.wasted(c, view, jobs);
        // If the GPUs of a job are not read now, it is unknown whether it computes again.
        let unknown: BTreeSet<&str> =
            jobs.iter().filter(|job| job.activity == Activity::Unknown).map(|job| &*job.text).collect();
        let had = !self.raised.is_empty();
        self.raised.retain(|name| unknown.contains(&**name) || wasted.iter().any(|w| w.names.contains(name)));
        let names = || wasted.iter().flat_map(|w| &w.names);
        if names().any(|name| !self.raised.contains(name)) {
            self.raised.extend(names().cloned());
            let mut v = view.finding(Kind::GpuWaste, "gpu_waste", Change::Raise, Severity::Ticket);
            let largest = wasted.iter().max_by_key(|w| (w.gpus, view.now - w.since));
            v.value = largest.map_or(0.0, |w| (view.now - w.since).as_secs_f64());
            let mut parts = wasted.into_iter().map(|w| w.what);
            let first = parts.next().map(Sentence::from).unwrap_or_default();
            v.why = parts.fold(first, Sentence::and);
            out.push(v);
        } else if had && self.raised.is_empty() {
            let mut v = view.finding(Kind::GpuWaste, "gpu_waste", Change::Clear, Severity::Info);
            v.why = clause!("the GPUs are used again, or were given back").into();
            out.push(v);
        }
    }

    fn deadline(&self, _: &Config, _: &NodeState) -> Option<Ts> {
        None
    }
}
