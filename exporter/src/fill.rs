//! Measures how fast something fills, such as a file system or memory, and predicts when it is
//! full.
//!
//! The rate is the change over a window that is long compared with a checkpoint, not the slope of
//! the last minute. While a checkpoint is written every disk seems to fill within the hour, and
//! when the oldest one is deleted nothing has changed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most points that are kept of the window.
const POINTS: u32 = 60;
/// No rate is given over less than one part in so many of the window.
const SHORTEST: u32 = 12;

/// The used space over the window.
#[derive(Debug, Default)]
pub(crate) struct Fill(VecDeque<(Instant, u64)>);

/// The rate at which it fills.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    /// Negative while it empties.
    pub(crate) bytes_per_second: f64,
    /// Whether the measurement covers at least half of the window.
    pub(crate) trusted: bool,
}

impl Fill {
    /// Records the used space. Returns its rate.
    pub(crate) fn note(&mut self, now: Instant, used: u64, window: Duration) -> Option<Rate> {
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= window) {
            self.0.pop_front();
        }
        let (since, before) = *self.0.front().unwrap_or(&(now, used));
        if self.0.back().is_none_or(|(last, _)| now.saturating_duration_since(*last) >= window / POINTS) {
            self.0.push_back((now, used));
        }
        let span = now.saturating_duration_since(since);
        if span.is_zero() || span < window / SHORTEST {
            return None;
        }
        let bytes_per_second = (used as f64 - before as f64) / span.as_secs_f64();
        Some(Rate { bytes_per_second, trusted: span >= window / 2 })
    }
}

impl Rate {
    /// Seconds until this much is used up.
    pub(crate) fn lasts(self, free: u64) -> Option<f64> {
        (self.bytes_per_second > 0.0).then(|| free as f64 / self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn a_steady_writer_and_one_checkpoint_that_replaces_another() {
        let start = Instant::now();
        let (mut steady, mut bursts) = (Fill::default(), Fill::default());
        let mut last = None;
        for minute in 0..240u64 {
            let now = start + Duration::from_secs(minute * 60);
            last = steady.note(now, minute * 6000, HOUR);
            assert_eq!(last.is_some(), minute >= 5, "{minute}");
            assert_eq!(last.is_some_and(|r| r.trusted), minute >= 30);
            // Each half hour it is written to for five minutes, and then the previous one is
            // deleted.
            let written = 1000 * (minute % 30).min(5);
            let rate = bursts.note(now, if minute % 30 < 6 { written } else { 0 }, HOUR);
            if let Some(rate) = rate.filter(|r| r.trusted) {
                assert!(rate.bytes_per_second.abs() <= 5000.0 / 1800.0, "{rate:?} at {minute}");
            }
        }
        let rate = last.unwrap();
        assert!((rate.bytes_per_second - 100.0).abs() < 1e-9);
        assert_eq!(rate.lasts(360_000), Some(3600.0));
        assert!(steady.0.len() <= POINTS as usize + 2);
        let emptied = Rate { bytes_per_second: -5.0, trusted: true };
        assert_eq!(emptied.lasts(1), None);
    }
}
