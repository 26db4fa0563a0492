//! Converts the microseconds since boot in a record to Unix time.

use crate::clock::unix_now;
use crate::roots::{self, Roots};

/// The kernel's clock drifts from the wall clock by seconds in a month. Two certain times limit
/// when a record was written: when the log was last empty, and now.
#[derive(Debug)]
pub(super) struct Clock {
    /// The Unix time when the kernel started.
    boot: Option<f64>,
    /// The Unix time when the log was last empty: later records were written after it.
    empty: Option<f64>,
}

impl Clock {
    pub(super) fn new(roots: &Roots) -> Self {
        let uptime = roots::read(&roots.proc("uptime"));
        let uptime: Option<f64> = uptime.and_then(|text| text.split(' ').next()?.parse().ok());
        Self { boot: uptime.map(|uptime| unix_now() - uptime), empty: None }
    }

    /// Records that the log was empty at `now`.
    pub(super) fn empty(&mut self, now: f64) {
        self.empty = Some(now);
    }

    pub(super) fn was_empty(&self) -> bool {
        self.empty.is_some()
    }

    /// The Unix time when a record that is read at `now` was written.
    pub(super) fn time(&self, micros: u64, now: f64) -> f64 {
        let computed = self.boot.map_or(now, |boot| boot + micros as f64 / 1e6);
        computed.max(self.empty.unwrap_or(0.0)).min(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_from_after_the_log_was_empty_and_not_from_the_future() {
        let mut clock = Clock { boot: Some(1000.0), empty: None };
        assert_eq!(clock.time(5_500_000, 2000.0), 1005.5);
        assert_eq!(clock.time(5_000_000_000, 2000.0), 2000.0);
        clock.empty(1990.0);
        assert_eq!((clock.time(5_500_000, 2000.0), clock.time(995_000_000, 2000.0)), (1990.0, 1995.0));
        assert_eq!(Clock { boot: None, empty: None }.time(5, 2000.0), 2000.0);
    }
}
