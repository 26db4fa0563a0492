//! The clock of the engine: the wall clock without its jumps.
//!
//! Every deadline of the engine is a difference of readings of this clock, so a wall clock that is
//! set forward by an hour must not make every run look hung, and one that is set back must not stop
//! an escalation. Readings advance with the monotonic clock and approach the wall clock by at most
//! `SLEW`: NTP drift is followed at once, a step of ten minutes over three hours. They never go
//! backwards, not even across a restart, so that remaining times are kept.
//!
//! Other programs use the wall clock. Their times are converted to readings on input, and readings
//! to wall time for display ([`Clock::skew`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use stepwatch_model::time::{Span, Ts};

/// The share by which the clock may run fast or slow to approach the wall.
const SLEW: f64 = 0.05;
/// If the wall clock is further behind the last reading than this, the last reading was wrong,
/// because on-call schedules depend on the calendar. The auditor finds deadlines that are then out
/// of reach.
const BACK_MAX: Span = Span::secs(86_400);
/// Smaller differences between the reading and the wall clock are ignored, in milliseconds.
const SKEW_MIN_MS: f64 = 1000.0;

/// The present time of the wall clock.
pub fn wall() -> Ts {
    // A time before 1970 counts as 1970.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ts(since.as_millis() as i64)
}

/// The engine's clock. Clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<Reading>>);

#[derive(Debug)]
struct Reading {
    at: Instant,
    /// Unix milliseconds, with fractions so that many short steps add up exactly.
    reading: f64,
    behind: f64,
}

impl Clock {
    /// Starts the clock. `last` is a reading of an earlier process; readings continue from it if
    /// the wall clock is behind.
    pub fn start(last: Option<Ts>) -> Self {
        Self::start_at(wall(), last)
    }

    fn start_at(wall: Ts, last: Option<Ts>) -> Self {
        let last = last.filter(|last| *last - wall <= BACK_MAX);
        let reading = last.map_or(wall, |last| last.max(wall));
        let behind = (wall - reading).0 as f64;
        Self(Arc::new(Mutex::new(Reading { at: Instant::now(), reading: reading.0 as f64, behind })))
    }

    pub fn now(&self) -> Ts {
        self.with(|r| r.advance(Instant::now(), wall()))
    }

    /// The seconds by which the wall clock was ahead at the last reading.
    pub fn behind(&self) -> f64 {
        self.with(|r| r.behind) / 1000.0
    }

    /// The offset to add to a reading to get wall time; zero if the difference is negligible.
    pub fn skew(&self) -> Span {
        let behind = self.with(|r| r.behind);
        Span(if behind.abs() < SKEW_MIN_MS { 0 } else { behind as i64 })
    }

    /// The time until the clock reads `at`, as of the last reading.
    pub fn until(&self, at: Ts) -> Duration {
        let ms = self.with(|r| at.0 as f64 - r.reading).max(0.0);
        Duration::from_secs_f64(ms / 1000.0)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Reading) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::start(None)
    }
}

impl Reading {
    fn advance(&mut self, instant: Instant, wall: Ts) -> Ts {
        let elapsed = instant.saturating_duration_since(self.at).as_secs_f64() * 1000.0;
        // Several threads read the clock, so instants may arrive out of order.
        self.at = self.at.max(instant);
        let error = wall.0 as f64 - (self.reading + elapsed);
        self.reading += elapsed + error.clamp(-SLEW * elapsed, SLEW * elapsed);
        self.behind = wall.0 as f64 - self.reading;
        Ts(self.reading as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clock(reading: i64) -> Reading {
        Reading { at: Instant::now(), reading: reading as f64, behind: 0.0 }
    }

    #[test]
    fn a_restart_does_not_take_time_back() {
        let hour = 3_600_000;
        let now = wall();
        let started = |last: i64| {
            Clock::start_at(now, Some(Ts(now.0 + last))).with(|r| (r.reading as i64 - now.0, r.behind))
        };
        assert_eq!(started(-hour), (0, 0.0), "we were away for an hour");
        assert_eq!(started(hour), (hour, -(hour as f64)), "the wall was set back");
        assert_eq!(started(48 * hour), (0, 0.0), "it had been wrong by days");
        let clock = Clock::start_at(now, Some(Ts(now.0 + hour)));
        assert!(clock.now() >= Ts(now.0 + hour));
        assert!((clock.skew().0 + hour).abs() < 60_000, "{}", clock.skew());
        assert_eq!(Clock::start_at(now, None).skew(), Span::ZERO);
    }

    #[test]
    fn a_step_of_the_wall_is_approached() {
        let mut c = clock(1_000_000);
        let start = c.at;
        let after = |s| start + Duration::from_secs(s);
        // Small drift: one millisecond is followed at once.
        assert_eq!(c.advance(after(1), Ts(1_001_001)), Ts(1_001_001));
        // An hour forward: ten seconds later the reading is half a second nearer.
        assert_eq!(c.advance(after(11), Ts(1_011_001 + 3_600_000)), Ts(1_011_501));
        assert!((c.behind - 3_599_500.0).abs() < 1e-3);
        // An hour back: time still advances, but more slowly.
        assert_eq!(c.advance(after(21), Ts(0)), Ts(1_021_001));
    }

    proptest! {
        #[test]
        fn never_backwards(steps in proptest::collection::vec((0u64..100_000, -10_000_000i64..10_000_000), 1..50)) {
            let mut c = clock(1_700_000_000_000);
            let (mut at, mut last) = (c.at, Ts(0));
            for (ms, wall) in steps {
                at += Duration::from_millis(ms);
                let now = c.advance(at, Ts(1_700_000_000_000 + wall));
                prop_assert!(now >= last);
                last = now;
            }
        }
    }
}
