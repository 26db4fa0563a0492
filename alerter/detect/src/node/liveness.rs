//! How long something was listened to without a gap: silence says that a thing is over only while
//! it could have been told of.

use serde::{Deserialize, Serialize};

use stepwatch_model::time::{Span, Ts};

/// An exporter with nothing else to say repeats every 10 minutes what holds: one that is silent for
/// longer was not listened to.
const GAP: Span = Span::secs(620);
/// A device that is not read for so long while others are is not there any more.
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

    /// For how long it was heard, and not what was last told then.
    pub(crate) fn without(&self, told: Ts) -> Span {
        self.last - told.max(self.since)
    }

    /// Whether a device that was read last then is still there.
    pub(crate) fn has(&self, read: Ts) -> bool {
        self.without(read) <= GONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_told_is_not_missed() {
        let at = |secs| Ts(1_795_227_416_000) + Span::secs(secs);
        let mut heard = Liveness::default();
        (0..10).for_each(|i| heard.hear(at(60 * i)));
        assert_eq!(heard.without(at(0)), Span::secs(540));
        heard.hear(at(3600));
        assert_eq!(heard.without(at(0)), Span::ZERO, "nobody listened");
        heard.hear(at(3660));
        assert_eq!((heard.without(at(0)), heard.without(at(3650))), (Span::secs(60), Span::secs(10)));
    }
}
