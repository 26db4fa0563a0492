//! The clock that judges: the wall's time, without its jumps.
//!
//! Every deadline of the engine is a difference of readings of this clock, so a wall clock that is set forward by an hour must
//! not make every run look hung, and one that is set back must not stop an escalation. Readings advance with the monotonic
//! clock and approach the wall by at most `SLEW`: the drift that NTP corrects is followed at once, a step of ten minutes over
//! three hours. They never go backwards.

use std::time::{Duration, Instant, SystemTime};

use stepwatch_engine::time::Ts;

/// The share by which the clock may run fast or slow to approach the wall.
const SLEW: f64 = 0.05;

/// What the wall says.
pub fn wall() -> Ts {
    // Before 1970 counts as 1970.
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ts(since.as_millis() as i64)
}

#[derive(Debug)]
pub struct Clock {
    at: Instant,
    /// Unix milliseconds; fractions, so that many short steps lose nothing.
    reading: f64,
    behind: f64,
}

impl Clock {
    pub fn start() -> Self {
        Self { at: Instant::now(), reading: wall().0 as f64, behind: 0.0 }
    }

    pub fn now(&mut self) -> Ts {
        self.advance(Instant::now(), wall())
    }

    /// How far the wall is ahead, at the last reading, in seconds.
    pub fn behind(&self) -> f64 {
        self.behind / 1000.0
    }

    /// How long until the clock reads `at`, as of the last reading.
    pub fn until(&self, at: Ts) -> Duration {
        let ms = (at.0 as f64 - self.reading).max(0.0);
        Duration::from_secs_f64(ms / 1000.0)
    }

    fn advance(&mut self, instant: Instant, wall: Ts) -> Ts {
        let elapsed = instant.saturating_duration_since(self.at).as_secs_f64() * 1000.0;
        self.at = instant;
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

    fn clock(reading: i64) -> Clock {
        Clock { at: Instant::now(), reading: reading as f64, behind: 0.0 }
    }

    #[test]
    fn a_step_of_the_wall_is_approached() {
        let mut c = clock(1_000_000);
        let start = c.at;
        let after = |s| start + Duration::from_secs(s);
        // In step: the drift of a millisecond is taken at once.
        assert_eq!(c.advance(after(1), Ts(1_001_001)), Ts(1_001_001));
        // An hour forward: ten seconds later we are half a second nearer.
        assert_eq!(c.advance(after(11), Ts(1_011_001 + 3_600_000)), Ts(1_011_501));
        assert!((c.behind() - 3599.5).abs() < 1e-6);
        // An hour back: time still passes, a little slower.
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
