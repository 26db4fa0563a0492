//! The expected speed of a link, which is the fastest so far. After two weeks at a lower speed,
//! that one is expected.

use serde::{Deserialize, Serialize};

const ADOPT_SECONDS: f64 = 14.0 * 86_400.0;
/// The share of the expected rate below which a link is slower; rates are printed in whole units.
const SLOWER: f64 = 0.99;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// The expected rate in bytes per second; 0 before anything was learned.
    best: f64,
    slower_since: Option<f64>,
}

impl Pace {
    /// Learns the rate of a link that is up.
    pub fn learn(&mut self, now: f64, rate: f64) {
        if !is_slower(rate, self.best) {
            self.best = self.best.max(rate);
            self.slower_since = None;
        } else if now - *self.slower_since.get_or_insert(now) > ADOPT_SECONDS {
            self.best = rate;
            self.slower_since = None;
        }
    }

    pub fn best(&self) -> f64 {
        self.best
    }
}

/// Whether a link with the negotiated `rate` is slower than expected.
pub fn is_slower(rate: f64, expected: f64) -> bool {
    rate < expected * SLOWER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_expected_until_it_has_been_slower_for_long() {
        let mut pace = Pace::default();
        pace.learn(0.0, 50e9);
        pace.learn(10.0, 25e9);
        assert!(is_slower(25e9, pace.best()) && !is_slower(49.9e9, pace.best()));
        pace.learn(10.0 + ADOPT_SECONDS, 25e9);
        assert_eq!(pace.best(), 50e9);
        pace.learn(11.0 + ADOPT_SECONDS, 25e9);
        assert_eq!(pace.best(), 25e9);
        pace.learn(12.0 + ADOPT_SECONDS, 100e9);
        assert_eq!(pace.best(), 100e9);
    }

    proptest::proptest! {
        #[test]
        fn never_below_what_the_link_runs_at(rates in proptest::collection::vec((0.0..1e6f64, 1e6..1e12f64), 1..50)) {
            let (mut pace, mut now) = (Pace::default(), 0.0);
            for (pause, rate) in rates {
                now += pause;
                pace.learn(now, rate);
                proptest::prop_assert!(!is_slower(rate, rate) && pace.best() >= rate * SLOWER);
            }
        }
    }
}
