//! The work of a run and the failures that ended it, from which its rate of failures follows, and
//! that of the fleet.
//!
//! A failure counts unless the one before it was at the same step: one that comes back there is one
//! failure, however often the run is restarted. An end that nobody reported counts if work was lost
//! with it and a process began since. One that was announced, or by hand, does not.
//!
//! Of the fleet, only the time of an attempt after its first hour counts, and the failures in it:
//! runs that die of their own bugs do so early, and would set the interval of all others. The hour
//! has to pass by our clock too, and the time is no longer than that clock has gone since, whatever
//! an exporter reports. It is that of the nodes of a run that was heard on all of them.

use serde::{Deserialize, Serialize};
use stepwatch_model::FailuresSeen;
use stepwatch_model::time::{Span, Ts};

/// Seconds of work after which an attempt counts for the fleet: an engineering limit.
const SETTLED: Span = Span::secs(3600);
/// Seconds of work that are told at once, so that the state of the fleet is seldom stored.
const TOLD_EVERY: f64 = 600.0;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Exposure {
    seen: FailuresSeen,
    /// Seconds of work of the attempt.
    attempt: f64,
    /// The last step of the attempt that failed last, and how many failures came back there.
    failed_at: Option<i64>,
    came_back: u64,
    /// Seconds of work for the fleet whose nodes are not counted.
    uncounted: f64,
    /// Until when they are.
    counted_until: Option<Ts>,
    /// What the fleet was not told: failures, and seconds of nodes.
    untold: FailuresSeen,
}

/// The number of nodes at a moment, if the run was heard on all of them, and since when the run and
/// its attempt are known.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExposedAt {
    pub(super) nodes: Option<u32>,
    pub(super) now: Ts,
    pub(super) first_seen: Ts,
    pub(super) attempt_at: Ts,
}

impl Exposure {
    /// What the fleet was not told yet.
    pub(super) fn take_untold(&mut self) -> FailuresSeen {
        core::mem::take(&mut self.untold)
    }

    /// The failures of the run, and the seconds of its work.
    pub(crate) fn seen(&self) -> FailuresSeen {
        self.seen
    }

    /// The same, with the failures that came back at the same step.
    pub(super) fn all(&self) -> FailuresSeen {
        FailuresSeen { failures: self.seen.failures.saturating_add(self.came_back), ..self.seen }
    }

    pub(super) fn worked(&mut self, secs: f64) {
        self.seen.seconds += secs;
        self.attempt += secs;
        if self.attempt > SETTLED.as_secs_f64() {
            self.uncounted += secs;
        }
    }

    pub(super) fn wants_to_tell(&self) -> bool {
        self.uncounted >= TOLD_EVERY || self.untold.failures > 0
    }

    /// The work until now was done on these nodes.
    pub(super) fn count(&mut self, place: ExposedAt) {
        let since = self.counted_until.replace(place.now).unwrap_or(place.first_seen);
        let since = since.max(place.attempt_at + SETTLED);
        let elapsed = (place.now - since).as_secs_f64().max(0.0);
        let secs = core::mem::take(&mut self.uncounted).min(elapsed);
        self.untold.seconds += secs * f64::from(place.nodes.unwrap_or(0));
    }

    /// An attempt ended after the step `last`.
    pub(super) fn ended(&mut self, failed: bool, last: Option<i64>, place: ExposedAt) {
        self.count(place);
        if failed && last.is_some() && last == self.failed_at {
            self.came_back = self.came_back.saturating_add(1);
        } else if failed && last.is_some() {
            self.failed_at = last;
            self.seen.failures += 1;
            let settled = self.attempt > SETTLED.as_secs_f64() && place.now > place.attempt_at + SETTLED;
            self.untold.failures += u64::from(settled && place.nodes.is_some());
        }
        self.attempt = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: ExposedAt =
        ExposedAt { nodes: Some(4), now: Ts(36_000_000), first_seen: Ts(0), attempt_at: Ts(0) };

    fn hours(e: &mut Exposure, hours: u32) {
        (0..360 * hours).for_each(|_| e.worked(10.0));
    }

    #[test]
    fn a_failure_that_comes_back_at_the_same_step_is_one() {
        let mut e = Exposure::default();
        hours(&mut e, 2);
        e.ended(true, Some(720), NODES);
        for _ in 0..5 {
            e.worked(10.0);
            e.ended(true, Some(720), NODES);
        }
        assert_eq!(e.seen(), FailuresSeen { failures: 1, seconds: 7250.0 });
        assert_eq!(e.all(), FailuresSeen { failures: 6, seconds: 7250.0 });
        e.worked(20.0);
        e.ended(true, Some(730), NODES);
        e.ended(false, Some(900), NODES);
        assert_eq!(e.seen().failures, 2);
    }

    #[test]
    fn failures_at_other_steps_count_also_if_none_gets_further() {
        let mut e = Exposure::default();
        for step in [1900, 1800, 1700, 1850] {
            e.worked(10.0);
            e.ended(true, Some(step), NODES);
        }
        assert_eq!((e.seen().failures, e.all().failures), (4, 4));
    }

    #[test]
    fn an_hour_that_only_an_exporter_knows_is_none() {
        let mut e = Exposure::default();
        e.worked(1e9);
        e.ended(true, Some(10), ExposedAt { now: Ts(3_600_000), ..NODES });
        assert_eq!((e.untold, e.seen().failures), (FailuresSeen::default(), 1));
    }

    #[test]
    fn the_fleet_hears_of_what_came_after_the_first_hour() {
        let mut e = Exposure::default();
        hours(&mut e, 1);
        e.ended(true, Some(360), NODES);
        assert_eq!((e.untold, e.wants_to_tell()), (FailuresSeen::default(), false));
        hours(&mut e, 3);
        e.ended(true, Some(1440), ExposedAt { now: Ts(72_000_000), ..NODES });
        assert_eq!(e.untold, FailuresSeen { failures: 1, seconds: 4.0 * 7200.0 });
    }

    #[test]
    fn time_that_the_clock_does_not_know_and_nodes_that_nobody_knows_count_for_nothing() {
        let mut e = Exposure::default();
        hours(&mut e, 9);
        e.count(ExposedAt { now: Ts(3_660_000), ..NODES });
        assert_eq!(e.untold.seconds, 240.0);
        let mut e = Exposure::default();
        hours(&mut e, 9);
        e.ended(true, Some(3240), ExposedAt { nodes: None, ..NODES });
        assert_eq!((e.untold, e.seen().failures), (FailuresSeen::default(), 1));
    }
}
