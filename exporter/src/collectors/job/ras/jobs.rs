//! The jobs behind one address.
//!
//! Every process of every job of a user listens at the same port of the node, and the kernel gives
//! a poll to any of them. So successive answers may be about different jobs. A job keeps its last
//! status while other jobs answer, until it is too old.

use std::time::{Duration, Instant};

use super::status::Status;
use super::watch::{Stuck, Watch};
use crate::principal::Principal;

/// The most jobs that share an address; a node has fewer GPUs.
const MAX_JOBS: usize = 16;
/// The limit of the sum of [`Status::weight`] over all jobs: several of the largest.
const MAX_WEIGHT: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Jobs(Vec<Job>);

/// The last answer of one job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) status: Status,
    /// The user of the program that answered.
    pub(super) principal: Principal,
    /// Whether this node polls for the job.
    pub(super) leads: bool,
    seen: Instant,
    watch: Watch,
}

impl Jobs {
    /// Takes in an answer, and removes jobs that have not answered for longer than `keep`.
    pub(super) fn take(
        &mut self,
        (status, principal): (Status, Principal),
        leads: bool,
        now: Instant,
        keep: Duration,
    ) {
        let is_it = |job: &Job| job.principal == principal && job.status.is_of_same_job(&status);
        let at = self.0.iter().position(is_it);
        let mut watch = at.map(|at| self.0.remove(at).watch).unwrap_or_default();
        watch.take(&status, now, keep);
        let at = at.unwrap_or(self.0.len());
        self.0.insert(at, Job { status, principal, leads, seen: now, watch });
        self.0.retain(|job| now.saturating_duration_since(job.seen) <= keep);
        let weight = |jobs: &[Job]| jobs.iter().map(|job| job.status.weight()).sum::<usize>();
        while self.0.len() > MAX_JOBS || self.0.len() > 1 && weight(&self.0) > MAX_WEIGHT {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, job)| job.seen).map(|(at, _)| at);
            oldest.map(|at| self.0.remove(at));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.0.iter()
    }

    /// Whether this node polls for any of them.
    pub(super) fn lead(&self) -> bool {
        self.0.iter().any(|job| job.leads)
    }

    /// The communicators that hang, with their jobs, the most important first.
    pub(super) fn stuck(&self, after: Duration) -> Vec<(&Job, Stuck<'_>)> {
        let of = |job| Job::stuck(job, after).map(move |stuck| (job, stuck));
        let mut all: Vec<_> = self.0.iter().flat_map(of).collect();
        all.sort_by_key(|(_, stuck)| stuck.order());
        all
    }
}

impl Job {
    /// Whether an answer of this moment was about it.
    pub(super) fn answered_at(&self, now: Instant) -> bool {
        self.seen == now
    }

    /// Whether this node reports it, and it is known whose answer it is. If two nodes polled a job,
    /// both would report the same.
    pub(super) fn is_reported(&self) -> bool {
        self.leads && self.principal != Principal::Unknown
    }

    fn stuck(&self, after: Duration) -> impl Iterator<Item = Stuck<'_>> {
        self.watch.stuck(after)
    }
}
