//! The jobs that a scheduler runs on a node.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepwatch_wire::{Event, Value};

use super::conditions::is_dropped;
use super::liveness::Liveness;
use stepwatch_model::time::Ts;

/// The most jobs kept for a node.
const MAX_JOBS: usize = 16;
/// The most runs, and the most GPUs, kept for a job.
const MAX_RUNS: usize = 16;
const MAX_GPUS: usize = 64;
/// The most processes kept of a job that is over.
const MAX_PIDS: usize = 64;
/// The scheduler whose jobs are pods: a run of several nodes has several.
const PODS: &str = "kubernetes";

/// The jobs by id. The end of a job while its exporter is away is not reported; it lapses as a
/// condition does.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Jobs {
    all: BTreeMap<String, Job>,
    /// A job has held GPUs, so that a scheduler allocates GPUs here.
    are_given_gpus: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    /// `job 4711 of bob on slurm`.
    text: String,
    last: Ts,
    claim: Claim,
    /// The runs that were last seen in it, and all that ever were.
    last_runs: Vec<String>,
    all_runs: BTreeSet<String>,
    /// When it was given the node, of a pod whose cluster says so.
    given: Option<Ts>,
}

/// A job that holds GPUs, or may: nobody saw its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) id: String,
    pub(crate) is_pod: bool,
    /// Its end is that of its allocation, and not only of its processes.
    pub(crate) is_allocation: bool,
    /// The runs that were last seen in it.
    pub(crate) runs: Vec<String>,
}

/// What a node reports about the owner of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) uid: Option<u32>,
    /// A control group of the scheduler shows the job, not only the environment of a process.
    pub(crate) attested: bool,
    /// It is over on the node: only environments of processes that survived it name it. It holds no
    /// GPU.
    pub(crate) over: bool,
    /// Those processes and their user; empty if unknown.
    pub(crate) pids: Vec<u32>,
    pub(crate) user: String,
    /// When it was first reported.
    pub(crate) since: Ts,
    /// Runs that the exporter saw in the job.
    pub(crate) runs: Vec<String>,
    /// UUIDs of the whole GPUs that the job holds.
    pub(crate) gpus: Vec<String>,
    /// It holds others whose UUIDs its node does not know.
    pub(crate) has_more_gpus: bool,
}

impl Claim {
    fn holds_gpus(&self) -> bool {
        !self.over && !self.gpus.is_empty()
    }

    /// Whether it names a GPU, or a part of it.
    pub(crate) fn has(&self, uuid: &str) -> bool {
        self.gpus.iter().any(|held| held.split('/').next() == Some(uuid))
    }
}

impl Jobs {
    /// The descriptions of all jobs.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.all.values().map(|job| job.text.as_str())
    }

    /// The description of the first job.
    pub(crate) fn first(&self) -> Option<&str> {
        self.all.values().next().map(|job| job.text.as_str())
    }

    pub(crate) fn claim(&self, id: &str) -> Option<&Claim> {
        self.all.get(id).map(|job| &job.claim)
    }

    pub(crate) fn are_given_gpus(&self) -> bool {
        self.are_given_gpus
    }

    /// Whether a job holds a GPU, or a part of it.
    pub(crate) fn hold(&self, uuid: &str) -> bool {
        self.with_gpus().any(|claim| claim.has(uuid))
    }

    /// The description of a job that holds a GPU of this one, or the same part of it.
    pub(crate) fn holder_of(&self, claim: &Claim) -> Option<&str> {
        let is_same = |(_, other): &(&str, &Claim)| other.gpus.iter().any(|gpu| claim.gpus.contains(gpu));
        self.described().find(is_same).map(|(text, _)| text)
    }

    /// The jobs that are over and have processes left.
    pub(crate) fn over(&self) -> impl Iterator<Item = (&str, &Claim)> {
        self.all.iter().map(|(id, job)| (id.as_str(), &job.claim)).filter(|(_, claim)| claim.over)
    }

    /// Whether a run has processes here of jobs that are over, and of no other job.
    pub(crate) fn outlives(&self, run: &str) -> bool {
        let mut of_run = self.all.values().filter(|job| job.claim.runs.iter().any(|of| of == run)).peekable();
        of_run.peek().is_some() && of_run.all(|job| job.claim.over)
    }

    /// The descriptions and claims of jobs that hold GPUs.
    pub(crate) fn described(&self) -> impl Iterator<Item = (&str, &Claim)> {
        let all = self.all.values().map(|job| (job.text.as_str(), &job.claim));
        all.filter(|(_, claim)| claim.holds_gpus())
    }

    /// The claims of jobs that hold GPUs.
    pub(crate) fn with_gpus(&self) -> impl Iterator<Item = &Claim> {
        self.all.values().map(|job| &job.claim).filter(|claim| claim.holds_gpus())
    }

    /// The job that an event is about, if it was there and not over.
    pub(crate) fn held(&self, e: &Event) -> Option<Held> {
        let word = |key: &str| e.extra.get(key).and_then(Value::as_str);
        let id = word("job")?;
        let job = self.all.get(id).filter(|job| !job.claim.over)?;
        let is_pod = word("scheduler") == Some(PODS);
        Some(Held {
            id: id.to_owned(),
            is_pod,
            is_allocation: is_pod || job.claim.attested,
            runs: job.last_runs.clone(),
        })
    }

    /// Whether the job is here and not over, or another one in which the run was last seen.
    pub(crate) fn holds_for(&self, id: &str, run: &str) -> bool {
        let mut all = self.all.iter().filter(|(_, job)| !job.claim.over);
        all.any(|(of, job)| of == id || job.last_runs.iter().any(|of| of == run))
    }

    /// All runs that were ever seen in a job.
    pub(crate) fn runs_ever(&self, id: &str) -> impl Iterator<Item = &String> {
        self.all.get(id).into_iter().flat_map(|job| &job.all_runs)
    }

    /// Notes when a pod was given the node; true if that is news.
    pub(crate) fn was_given(&mut self, id: &str, at: Ts) -> bool {
        self.all.get_mut(id).is_some_and(|job| job.given.replace(at) != Some(at))
    }

    /// When the last of the pods of a run here was given the node, and the number of their GPUs.
    /// `None` unless that is known of all of them, and no other run has `used` one.
    pub(crate) fn given_to(&self, run: &str, used: impl Fn(&str) -> bool) -> Option<(Ts, usize)> {
        let is_its = |job: &&Job| job.claim.holds_gpus() && job.claim.runs.iter().any(|of| of == run);
        let one = |job: &Job| {
            let is_alone = job.all_runs.iter().all(|of| of == run || !used(of));
            Some((job.given.filter(|_| is_alone)?, job.claim.gpus.len()))
        };
        let mut all = self.all.values().filter(is_its).map(one);
        let first = all.next()??;
        all.try_fold(first, |(last, gpus), next| next.map(|(at, more)| (last.max(at), gpus + more)))
    }

    /// Handles a job that began, ended, or still runs; true if that is news.
    pub(crate) fn take(&mut self, now: Ts, e: &Event) -> bool {
        let word = |key: &str| e.extra.get(key).and_then(Value::as_str).filter(|v| !v.is_empty());
        let Some(id) = word("job") else { return false };
        if e.code == Some(0) {
            return self.all.remove(id).is_some();
        }
        let mut text = format!("job {id}");
        for (before, key) in [(" of ", "user"), (" on ", "scheduler")] {
            if let Some(value) = word(key) {
                text.push_str(before);
                text.push_str(value);
            }
        }
        let list = |key: &str, most: usize| -> Vec<String> {
            let named = if let Some(Value::List(names)) = e.extra.get(key) { names.as_slice() } else { &[] };
            named.iter().filter_map(Value::as_str).take(most).map(str::to_owned).collect()
        };
        let (runs, gpus) = (list("runs", MAX_RUNS), list("gpus", MAX_GPUS));
        let pids = if let Some(Value::List(pids)) = e.extra.get("pids") { pids.as_slice() } else { &[] };
        let pid = |v: &Value| v.as_f64().filter(|v| *v > 0.0).map(|v| v as u32);
        let mut pids: Vec<u32> = pids.iter().filter_map(pid).take(MAX_PIDS).collect();
        let user = word("user").unwrap_or_default().to_owned();
        self.are_given_gpus |= !gpus.is_empty();
        let attested = matches!(e.extra.get("attested"), Some(Value::Bool(true)));
        let had = self.all.get(id);
        // An exporter that was started again does not know that the job is over.
        let was_over = had.is_some_and(|had| had.claim.over && had.claim.uid == e.uid) && !attested;
        let over = was_over || matches!(e.extra.get("over"), Some(Value::Bool(true)));
        if let Some(had) = had.filter(|_| was_over && pids.is_empty()) {
            pids.clone_from(&had.claim.pids);
        }
        let since = had.filter(|had| had.claim.uid == e.uid).map_or(now, |had| had.claim.since);
        let has_more_gpus = e.extra.get("unnamed_gpus").and_then(Value::as_f64).is_some_and(|n| n > 0.0);
        let claim = Claim { uid: e.uid, attested, over, pids, user, since, runs, gpus, has_more_gpus };
        let same_user = had.filter(|had| had.claim.uid == claim.uid);
        let before = same_user.map(|had| (had.last_runs.clone(), had.all_runs.clone(), had.given));
        let (last_runs, mut all_runs, given) = before.unwrap_or_default();
        let room = MAX_RUNS.saturating_sub(all_runs.len());
        let new: Vec<String> = claim.runs.iter().filter(|run| !all_runs.contains(*run)).cloned().collect();
        all_runs.extend(new.into_iter().take(room));
        let last_runs = if claim.runs.is_empty() { last_runs } else { claim.runs.clone() };
        let job = Job { text, last: now, claim, last_runs, all_runs, given };
        let same = had.is_some_and(|had| had.text == job.text && had.claim == job.claim);
        self.all.insert(id.to_owned(), job);
        let left_out = (self.all.len() > MAX_JOBS).then(|| self.least(id)).flatten();
        let is_left_out = left_out.as_deref() == Some(id);
        left_out.map(|id| self.all.remove(&id));
        !same && !is_left_out
    }

    /// The job that is dropped for another: one of the user with the most jobs, so that no user can
    /// take the room of all. Of several, one that no control group shows, one without a run or a
    /// GPU, or the `newest`.
    fn least(&self, newest: &str) -> Option<String> {
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        self.all.values().for_each(|job| *counts.entry(job.claim.uid).or_default() += 1);
        let worth = |(id, Job { claim, .. }): &(&String, &Job)| {
            let (has_run, has_gpus) = (!claim.runs.is_empty(), !claim.gpus.is_empty());
            let of_user = Reverse(counts.get(&claim.uid).copied());
            (of_user, claim.attested, has_run, has_gpus, id.as_str() != newest)
        };
        self.all.iter().min_by_key(worth).map(|(id, _)| id.clone())
    }

    /// Forgets jobs that the node stopped publishing.
    pub(crate) fn age(&mut self, born: Option<Ts>, heard: &Liveness) {
        self.all.retain(|_, job| !is_dropped(born, job.last, heard));
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::Kind;

    use super::*;

    fn take(jobs: &mut Jobs, id: &str, uid: u32, attested: bool) -> bool {
        let mut e = Event { uid: Some(uid), ..Event::new(Kind::Health) };
        e.extra.insert("job".into(), Value::Text(id.into()));
        e.extra.insert("attested".into(), Value::Bool(attested));
        jobs.take(Ts(0), &e)
    }

    #[test]
    fn a_job_that_was_over_is_not_over_for_another_user() {
        let mut jobs = Jobs::default();
        take(&mut jobs, "7", 1001, false);
        jobs.all.values_mut().for_each(|job| job.claim.over = true);
        take(&mut jobs, "7", 1001, false);
        assert!(jobs.claim("7").is_some_and(|claim| claim.over), "an exporter that was started again");
        take(&mut jobs, "7", 1002, false);
        assert!(jobs.claim("7").is_some_and(|claim| !claim.over));
    }

    #[test]
    fn the_user_with_the_most_jobs_gives_way() {
        let mut jobs = Jobs::default();
        for i in 0..2 * MAX_JOBS {
            assert_eq!(take(&mut jobs, &format!("1{i:02}"), 1001, false), i < MAX_JOBS);
        }
        assert!(take(&mut jobs, "1207", 1002, false), "another user has room");
        assert_eq!((jobs.all.len(), jobs.claim("1207").and_then(|c| c.uid)), (MAX_JOBS, Some(1002)));
        assert!(!take(&mut jobs, "131", 1001, false), "the first has no more");
        assert!(take(&mut jobs, "1208", 1001, true), "of one user, what a control group shows stays");
        assert!(jobs.claim("1207").is_some() && jobs.all.len() == MAX_JOBS);
    }
}
