//! Decides when the passes of a collector begin: the first at once, later ones at a phase of its
//! own, so that collectors with the same interval do not all begin at the same moment.

use std::time::{Duration, Instant};

/// Its multiples without the whole part spread the phases as evenly as possible.
const GOLDEN_RATIO: f64 = 0.618_034;

#[derive(Debug)]
pub(super) struct Ticks {
    interval: Duration,
    next: Instant,
}

impl Ticks {
    /// The ticks of the nth collector, whose first pass begins now.
    pub(super) fn new(interval: Duration, nth: usize, now: Instant) -> Self {
        Self { interval, next: now + interval.mul_f64((nth as f64 * GOLDEN_RATIO).fract()) }
    }

    /// How long to wait at `now`. A late collector continues at once, without repeating missed
    /// passes.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        let wait = self.next.saturating_duration_since(now);
        let late = now.saturating_duration_since(self.next);
        let passed = late.as_nanos() / self.interval.as_nanos().max(1);
        self.next += self.interval.saturating_mul(u32::try_from(passed + 1).unwrap_or(u32::MAX));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn everyone_has_a_moment_of_its_own() {
        let now = Instant::now();
        let mut first: Vec<Duration> = (0..16).map(|nth| Ticks::new(SECOND, nth, now).wait(now)).collect();
        first.sort();
        assert!(first.iter().all(|wait| *wait < SECOND), "{first:?}");
        let least = first.windows(2).map(|pair| pair[1].abs_diff(pair[0])).min().unwrap();
        assert!(least > Duration::from_millis(30), "{least:?} of 62 ms at best");
    }

    #[test]
    fn a_rhythm_is_kept_and_what_is_missed_is_left_out() {
        let start = Instant::now();
        let mut ticks = Ticks::new(SECOND, 0, start);
        assert_eq!(ticks.wait(start), Duration::ZERO);
        // A late and long pass does not move the next one.
        assert_eq!(ticks.wait(start + SECOND * 3 / 10), SECOND * 7 / 10);
        // A pass that listens for its whole interval is followed by the next one at once.
        assert_eq!(ticks.wait(start + SECOND * 201 / 100), Duration::ZERO);
        assert_eq!(ticks.wait(start + SECOND * 302 / 100), Duration::ZERO);
        // A pass over several intervals is followed by one pass, not by all missed ones.
        assert_eq!(ticks.wait(start + SECOND * 85 / 10), Duration::ZERO);
        assert_eq!(ticks.wait(start + SECOND * 86 / 10), SECOND * 4 / 10);
    }
}
