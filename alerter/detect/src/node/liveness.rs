//! Measures for how long something has reported without a gap. If a condition is no longer
//! reported, that means its end only while reports arrive.

use serde::{Deserialize, Serialize};

use stepwatch_model::time::{Span, Ts};

/// An exporter publishes every 10 minutes the conditions that hold. A longer gap means that it was
/// not received.
const GAP: Span = Span::secs(620);
/// A device that is not read for this long, while others of the node are, has been removed.
const GONE: Span = Span::secs(660);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Liveness {
    since: Ts,
    last: Ts,
}

impl Liveness {
    pub(crate) fn hear(&mut self, now: Ts) {
        if now - self.last > GAP {
            self.since = now;
        }
        self.last = now;
    }

    /// For how long reports have arrived, without a gap, since something was last reported at
    /// `last`.
    pub(crate) fn without(&self, last: Ts) -> Span {
        self.last - last.max(self.since)
    }

    /// Whether a device whose last reading was at `read` is still there.
    pub(crate) fn has(&self, read: Ts) -> bool {
        self.without(read) <= GONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_reports_is_not_counted() {
        let at = |secs| Ts(1_795_227_416_000) + Span::secs(secs);
        let mut heard = Liveness::default();
        (0..10).for_each(|i| heard.hear(at(60 * i)));
        assert_eq!(heard.without(at(0)), Span::secs(540));
        heard.hear(at(3600));
        assert_eq!(heard.without(at(0)), Span::ZERO, "nothing was received");
        heard.hear(at(3660));
        assert_eq!((heard.without(at(0)), heard.without(at(3650))), (Span::secs(60), Span::secs(10)));
    }
}
