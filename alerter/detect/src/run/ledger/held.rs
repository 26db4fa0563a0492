//! When a job was given its GPUs, and until when it held them: before its first report and after
//! its last one.

use super::{Ledger, Left, Size, TimeState};
use stepwatch_model::time::{Span, Ts};

/// The longest time from the allocation of a job to its first report. Times further back are those
/// of a clock that is not set, or of another job.
pub(super) const LONGEST_LAUNCH: Span = Span::secs(86_400);
/// Between two attempts without a job, GPUs may have been held for no longer than this: nobody says
/// so, and each hour would be priced. An engineering limit.
const HELD_WITHOUT_JOB: Span = Span::secs(3600);

impl Ledger {
    /// Whether nothing is known of an attempt before the one that begins or goes on.
    pub(crate) fn is_new(&self) -> bool {
        self.at.is_none() || matches!(self.gap, Some((None, _)))
    }

    /// Whether no report of the run was accounted, nor is to be.
    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_none() && self.accounts.is_none()
    }

    /// Whether a job that was given its GPUs then is not that of the last attempt, though it has
    /// its number: the attempt was there before. Ranks of one start may differ in what they say.
    pub(super) fn is_given_anew(&self, given: Ts) -> bool {
        let last = self.left.map(Left::at).or(self.at.filter(|_| !self.starting));
        last.is_some_and(|last| given > last) && !self.is_before(given)
    }

    /// The attempt was not seen from its beginning: it may have trained since it got its GPUs.
    pub(crate) fn began_unseen(&mut self) {
        self.gap = None;
    }

    /// Whether the last attempt is of this job.
    pub(crate) fn is_in(&self, job: &str) -> bool {
        self.at.is_some() && [&self.job, &self.next_job].into_iter().any(|of| of.as_deref() == Some(job))
    }

    /// Whether the last attempt named its job.
    pub(crate) fn names_job(&self) -> bool {
        self.job.is_some()
    }

    /// The job was given its GPUs then.
    pub(super) fn was_given(&mut self, given: Ts, job: Option<&str>, size: Size) {
        if self.job.is_none() || self.job.as_deref() == job {
            self.given(given, size);
        }
    }

    /// The attempt was given all of its GPUs then. If it was taken to begin later, the time between
    /// is of its start.
    pub(crate) fn given(&mut self, given: Ts, size: Size) {
        let Some((from, begun)) = self.gap else { return };
        let is_launch = given < begun && begun - given <= LONGEST_LAUNCH;
        if is_launch && from.is_none_or(|from| given >= from) {
            self.gap = Some((from, given));
            self.add(TimeState::Starting, (begun - given).0, size);
            if let Some(accounts) = &mut self.accounts {
                accounts.hours.settle(Some(given), Some(begun));
            }
        }
    }

    /// The job left a node. Each of its nodes says so, so the last one counts: with it the job is
    /// `freed`.
    pub(crate) fn released(&mut self, at: Ts, freed: bool, size: Size) {
        let is_before = self.is_before(at);
        if self.passed || is_before && !self.closed {
            return;
        }
        self.freed |= freed;
        if is_before {
            return;
        }
        self.released = self.released.max(Some(at));
        if self.closed {
            self.hold(at, size);
        }
    }

    /// Another run began in the same job then. What the job holds from there on counts for the
    /// other, until it says that it ended.
    pub(crate) fn pass_on(&mut self, at: Ts, size: Size) {
        if self.closed {
            self.released(at, false, size);
        }
        (self.released, self.passed) = (None, true);
    }

    /// What the time between two attempts was, if the run may have held GPUs.
    pub(super) fn held_between(&self, between: Span) -> Option<TimeState> {
        match (&self.job, &self.next_job) {
            _ if self.freed || self.passed => None,
            (Some(job), Some(next)) if job != next => None,
            (Some(_), Some(_)) => Some(TimeState::Down),
            (None, _) if between > HELD_WITHOUT_JOB => None,
            _ => Some(TimeState::Unknown),
        }
    }

    /// Accounts the time from the end of the attempt until its job was seen to leave its nodes, but
    /// none after `most`.
    pub(super) fn hold(&mut self, most: Ts, size: Size) {
        let (Some(from), Some(released)) = (self.at, self.released.take()) else { return };
        let until = released.min(most).max(from);
        let is_over = matches!(self.left, Some(Left::Over(_) | Left::Silent(_)));
        let state = if is_over { TimeState::Idle } else { TimeState::Down };
        self.add(state, (until - from).0, Size { gpus: self.gpus.or(size.gpus), ..size });
        self.settle_hours(until);
        self.at = Some(until);
    }
}
