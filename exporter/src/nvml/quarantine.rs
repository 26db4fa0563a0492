//! Limits how long one GPU may occupy the NVML thread, and quarantines a slower one.
//!
//! One thread reads all GPUs, one after the other. A GPU whose system processor is dead still
//! answers each query after tens of seconds, and each with another XID: it must not keep the others
//! from being read. So it is quarantined: it is only probed, at growing intervals, and returns
//! after a whole pass over it was quick.

use std::time::{Duration, Instant};

use super::heartbeat::Spent;
use crate::clock::unix_now;

/// The first probe comes after this many times the limit: for 5 seconds, after 30.
const FIRST: u32 = 6;
/// The longest wait in multiples of the limit: 10 minutes.
const LAST: u32 = 120;

/// The reason for the quarantine of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Aside {
    /// The call that took longest.
    pub function: &'static str,
    pub took: Duration,
    /// The time of all calls of that pass.
    pub spent: Duration,
    /// The Unix time in seconds.
    pub since: f64,
}

/// The quarantine of one GPU.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// The longest acceptable time of one call, and of one pass.
    limit: Duration,
    state: State,
    /// The wait of the next quarantine.
    wait: Duration,
    /// When it last returned.
    back: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Asked,
    /// Quarantined until the given moment.
    Aside(Aside, Instant),
    /// The GPU answered a probe, and the current pass decides.
    Trial(Aside),
}

impl Quarantine {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, state: State::Asked, wait: limit.saturating_mul(FIRST), back: None }
    }

    pub(super) fn limit(&mut self, limit: Duration) {
        if self.limit != limit {
            self.limit = limit;
            self.wait = limit.saturating_mul(FIRST);
        }
    }

    /// The longest acceptable time of a pass.
    pub(super) fn most(&self) -> Duration {
        self.limit
    }

    /// The reason why it is quarantined, or was until this pass.
    pub(super) fn aside(&self) -> Option<&Aside> {
        match &self.state {
            State::Asked => None,
            State::Aside(why, _) | State::Trial(why) => Some(why),
        }
    }

    pub(super) fn may_ask(&self) -> bool {
        !matches!(self.state, State::Aside(..))
    }

    /// Evaluates the time of calls. Returns true if it was too long, so that the GPU is
    /// quarantined.
    pub(super) fn judge(&mut self, spent: Spent, now: Instant) -> bool {
        if !self.may_ask() || spent.total <= self.limit {
            return false;
        }
        let slowly =
            Aside { function: spent.function, took: spent.longest, spent: spent.total, since: unix_now() };
        let why = match std::mem::replace(&mut self.state, State::Asked) {
            State::Trial(why) | State::Aside(why, _) => why,
            State::Asked => slowly,
        };
        let most = self.limit.saturating_mul(LAST);
        // After a long good time, the wait starts at the shortest again.
        if self.back.is_some_and(|back| now.saturating_duration_since(back) > most) {
            self.wait = self.limit.saturating_mul(FIRST);
        }
        self.state = State::Aside(why, now + self.wait);
        self.wait = self.wait.saturating_mul(2).min(most);
        true
    }

    /// Whether a probe is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Aside(_, until) if now >= until)
    }

    /// Records the result and the time of a probe.
    pub(super) fn sign(&mut self, alive: bool, spent: Spent, now: Instant) {
        let State::Aside(why, _) = std::mem::replace(&mut self.state, State::Asked) else { return };
        self.state = State::Trial(why);
        if !self.judge(spent, now) && !alive {
            let late = Spent { total: Duration::MAX, ..spent };
            self.judge(late, now);
        }
    }

    /// Ends the quarantine, because the GPU is lost and says so quickly.
    pub(super) fn forget(&mut self) {
        self.state = State::Asked;
    }

    /// Records a complete pass. Returns true if that ends the quarantine.
    pub(super) fn passed(&mut self, now: Instant) -> bool {
        let back = matches!(self.state, State::Trial(_));
        if back {
            (self.state, self.back) = (State::Asked, Some(now));
        }
        back
    }
}

impl Aside {
    /// The slow calls, for people.
    pub fn why(&self) -> String {
        let seconds = |d: Duration| d.as_secs_f64();
        if self.took.saturating_mul(2) > self.spent {
            format!("{} took {:.1} s", self.function, seconds(self.took))
        } else {
            format!(
                "its questions took {:.1} s, {} alone {:.1} s",
                seconds(self.spent),
                self.function,
                seconds(self.took)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn took(seconds: f64) -> Spent {
        let total = Duration::from_secs_f64(seconds);
        Spent { total, longest: total, function: "nvmlDeviceGetTemperature" }
    }

    /// Seconds until it is probed.
    fn left_alone(quarantine: &Quarantine, now: Instant) -> u64 {
        (0..100_000).find(|s| quarantine.is_due(now + Duration::from_secs(*s))).unwrap()
    }

    #[test]
    fn one_that_is_slow_is_left_alone_for_longer_and_longer() {
        let mut now = Instant::now();
        let mut quarantine = Quarantine::new(LIMIT);
        assert!(!quarantine.judge(took(4.9), now) && quarantine.aside().is_none());
        assert!(quarantine.judge(took(8.0), now) && !quarantine.may_ask());
        assert_eq!(quarantine.aside().unwrap().why(), "nvmlDeviceGetTemperature took 8.0 s");
        assert!(!quarantine.judge(took(16.0), now), "once");
        let mut waits = Vec::new();
        for _ in 0..7 {
            waits.push(left_alone(&quarantine, now));
            now += Duration::from_secs(waits[waits.len() - 1]);
            quarantine.sign(true, took(8.0), now);
            assert!(!quarantine.may_ask() && !quarantine.passed(now));
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
        quarantine.sign(false, took(0.1), now);
        assert!(!quarantine.may_ask(), "an error is no life");
        assert_eq!(quarantine.aside().unwrap().took, Duration::from_secs(8), "why it began");
    }

    #[test]
    fn it_is_back_after_a_whole_pass_and_begins_anew_when_it_was_good_for_long() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(LIMIT);
        quarantine.judge(took(8.0), now);
        quarantine.sign(true, took(0.1), now);
        assert!(quarantine.may_ask() && quarantine.aside().is_some(), "not before the pass is over");
        assert!(quarantine.judge(took(6.0), now), "it was slow again");
        assert_eq!(left_alone(&quarantine, now), 60);
        quarantine.sign(true, took(0.1), now);
        assert!(quarantine.passed(now) && quarantine.aside().is_none() && !quarantine.passed(now));
        let soon = now + Duration::from_mins(1);
        quarantine.judge(took(8.0), soon);
        assert_eq!(left_alone(&quarantine, soon), 120, "it was back for a minute only");
        quarantine.sign(true, took(0.1), soon);
        quarantine.passed(soon);
        let later = soon + Duration::from_secs(601);
        quarantine.judge(took(8.0), later);
        assert_eq!(left_alone(&quarantine, later), 30);
    }

    #[test]
    fn one_that_is_lost_on_trial_is_not_slow_as_well() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(LIMIT);
        quarantine.judge(took(8.0), now);
        quarantine.sign(true, took(0.1), now);
        quarantine.forget();
        assert!(quarantine.aside().is_none() && quarantine.may_ask() && !quarantine.passed(now));
        assert!(quarantine.judge(took(8.0), now), "until it is slow again");
        assert_eq!(left_alone(&quarantine, now), 60);
    }

    #[test]
    fn many_calls_that_are_each_slow() {
        let spent = Spent {
            total: Duration::from_secs_f64(5.4),
            longest: Duration::from_secs_f64(0.6),
            function: "nvmlDeviceGetName",
        };
        let mut quarantine = Quarantine::new(LIMIT);
        assert!(quarantine.judge(spent, Instant::now()));
        let why = quarantine.aside().unwrap().why();
        assert_eq!(why, "its questions took 5.4 s, nvmlDeviceGetName alone 0.6 s");
    }
}
