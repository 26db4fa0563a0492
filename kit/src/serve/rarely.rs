//! A line of the log at most once a minute, for what a stranger can cause as often as he likes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(super) struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    /// Whether the line is due; if so, the next one is a minute later.
    pub(super) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|at| at.elapsed() >= EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_due_in_a_minute() {
        let rarely = Rarely::default();
        assert!(rarely.is_due() && !rarely.is_due() && !rarely.is_due());
    }
}
