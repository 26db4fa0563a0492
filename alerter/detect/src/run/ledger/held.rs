//! When a job was given its GPUs, and until when it held them: before its first report and after
//! its last one.

use super::{Ledger, Left, Size, TimeState};
use stepwatch_model::time::{Span, Ts};

/// The longest time from the allocation of a job to its first report. Times further back are those
/// of a clock that is not set, or of another job.
pub(super) const LONGEST_LAUNCH: Span = Span::secs(86_400);

impl Ledger {
    /// Whether nothing is known of an attempt before the one that begins or goes on.
    pub(crate) fn is_new(&self) -> bool {
        self.at.is_none() || matches!(self.gap, Some((None, _)))
    }

    /// Whether a job that was given its GPUs then is not that of the last attempt, though it has
    /// its number: the attempt was there before. Ranks of one start may differ in what they say.
    pub(super) fn is_given_anew(&self, given: Ts) -> bool {
        let last = self.left.map(Left::at).or(self.at.filter(|_| !self.starting));
        last.is_some_and(|last| given > last) && !self.is_before(given)
    }

    /// The job was given its GPUs then. If the attempt was taken to begin later, the time between
    /// is of its start.
    pub(super) fn was_given(&mut self, given: Ts, job: Option<&str>, size: Size) {
        let is_its = self.job.is_none() || self.job.as_deref() == job;
        let Some((from, begun)) = self.gap.filter(|_| is_its) else { return };
        if given < begun && from.is_none_or(|from| given >= from) {
            self.gap = Some((from, given));
            self.add(TimeState::Starting, (begun - given).0, size);
            if let Some(accounts) = &mut self.accounts {
                accounts.hours.settle(Some(given), Some(begun));
            }
        }
    }

    /// The job left a node. Each of its nodes says so, so the last one counts.
    pub(crate) fn released(&mut self, at: Ts, job: &str, size: Size) {
        if self.job.as_deref() == Some(job) && !self.is_before(at) {
            self.released = self.released.max(Some(at));
            if self.closed {
                self.hold(at, size);
            }
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
