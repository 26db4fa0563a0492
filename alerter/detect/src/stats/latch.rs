//! Whether a condition has been reported, and how severely: each change is reported once.

use serde::{Deserialize, Serialize};

use stepwatch_model::Severity;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latch(Option<Severity>);

impl Latch {
    /// True if this is news: not raised before, or less severely.
    pub fn raise(&mut self, severity: Severity) -> bool {
        let news = self.0 < Some(severity);
        if news {
            self.0 = Some(severity);
        }
        news
    }

    /// True if it was raised.
    pub fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }

    pub fn severity(self) -> Option<Severity> {
        self.0
    }

    pub fn is_raised(self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_each_change_once() {
        let mut l = Latch::default();
        assert!(!l.clear());
        assert!(l.raise(Severity::Ticket) && !l.raise(Severity::Ticket) && !l.raise(Severity::Info));
        assert!(l.raise(Severity::Page) && !l.raise(Severity::Ticket));
        assert!(l.clear() && !l.clear());
    }
}
