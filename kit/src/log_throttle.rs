//! Limits the log to one line per minute for events that others can cause without limit.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const EVERY: Duration = Duration::from_mins(1);

/// Counts events, and returns when a log line is due.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    /// Events since the last line.
    count: u64,
}

impl LogThrottle {
    /// Counts `more` events. Returns the number of events since the last line if a line is due,
    /// which it then counts as written.
    pub fn count(&self, more: u64) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += more;
        if state.count == 0 || state.logged.is_some_and(|at| at.elapsed() < EVERY) {
            return None;
        }
        state.logged = Some(Instant::now());
        Some(std::mem::take(&mut state.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_at_once_and_then_all_together() {
        let throttle = LogThrottle::default();
        assert_eq!((throttle.count(0), throttle.count(2), throttle.count(3)), (None, Some(2), None));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(throttle.count(4), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((throttle.count(1), throttle.count(1)), (Some(8), None));
    }
}
