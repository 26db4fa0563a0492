//! Detects that a signal comes from another attempt of the run than before.
//!
//! The signals of a step may come apart, so every detector sees a restart by the first sample that
//! has its own signal.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Attempts(Option<u32>);

impl Attempts {
    /// True of the first sample of a further attempt.
    pub fn restarted(&mut self, attempt: u32) -> bool {
        self.0.replace(attempt).is_some_and(|before| before != attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_each_restart_once() {
        let mut a = Attempts::default();
        let seen = [3, 3, 4, 4, 6].map(|n| a.restarted(n));
        assert_eq!(seen, [false, false, true, false, true]);
    }
}
