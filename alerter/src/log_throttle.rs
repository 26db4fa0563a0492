//! What is worth a line of the log once in a while, and not each time it happens.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Counts what happens, and says when it is time to tell of it.
#[derive(Debug)]
pub struct LogThrottle {
    every: Duration,
    untold: Mutex<Untold>,
}

#[derive(Debug, Default)]
struct Untold {
    told: Option<Instant>,
    count: u64,
}

impl LogThrottle {
    pub fn new(every: Duration) -> Self {
        Self { every, untold: Mutex::default() }
    }

    /// So many more; all that were not told of, if it is time for that.
    pub fn count(&self, more: u64) -> Option<u64> {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.count += more;
        if untold.count == 0 || untold.told.is_some_and(|at| at.elapsed() < self.every) {
            return None;
        }
        untold.told = Some(Instant::now());
        Some(std::mem::take(&mut untold.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_at_once_and_then_all_together() {
        let throttle = LogThrottle::new(Duration::from_mins(1));
        assert_eq!((throttle.count(0), throttle.count(2), throttle.count(3)), (None, Some(2), None));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(throttle.count(4), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((throttle.count(1), throttle.count(1)), (Some(8), None));
    }
}
