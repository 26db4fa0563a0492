//! Whether something has been out of line for a while, and since when: a one-sided CUSUM (Page,
//! "Continuous inspection schemes", Biometrika 1954) of how far it is from its peers, in sigmas.
//!
//! ```text
//! S = clip(S + min(z, CAP) − K, 0, 2·H)
//! ```
//! Peers differ for good by a sigma or two, and the worst of ten thousand by four: K lets that
//! pass, CAP lets no single reading count for more than a few, and H is reached by six readings
//! that are far out, or by many that are out a little. The last time that S was zero is the
//! maximum-likelihood estimate of the onset.

use serde::{Deserialize, Serialize};

/// Sigmas that count for nothing: 1 of 31,600 values of a normal distribution lies above 4.
const K: f32 = 4.0;
/// Sigmas that one reading counts for at most: it adds 4 to S.
const CAP: f32 = 8.0;
/// S from which something is out of line: six readings at the cap. An engineering limit and no
/// quantile: by Siegmund's formula independent normal readings reach it once in 10⁸⁶ readings. With
/// a reading every ten seconds six of them are a minute.
const H: f32 = 24.0;
/// Bound of S, so that it is back at zero after twelve readings at the median.
const LIMIT: f32 = 2.0 * H;
/// Weight of a reading in the means.
const WEIGHT: f32 = 0.1;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    s: f32,
    /// Mean excess over the peers since S was last zero, in the unit of the readings.
    excess: f32,
    n: u32,
    /// When S was last zero: a step, or a time.
    since: i64,
}

impl Drift {
    /// Takes a reading: its excess over the median of its peers and their standard deviation.
    pub fn add(&mut self, at: i64, excess: f64, sigma: f64) {
        let z = (excess / sigma) as f32;
        if !z.is_finite() {
            return;
        }
        // Readings from before it went out of line do not count for how far it is out.
        self.n = if self.s == 0.0 { 1 } else { self.n.saturating_add(1) };
        self.excess += WEIGHT.max(1.0 / self.n as f32) * (excess as f32 - self.excess);
        self.s = (self.s + z.min(CAP) - K).clamp(0.0, LIMIT);
        if self.s == 0.0 {
            self.since = at;
        }
    }

    /// S over its bound: 1 and more is out of line.
    pub fn level(&self) -> f64 {
        f64::from(self.s / H)
    }

    /// S itself.
    pub fn sum(&self) -> f64 {
        f64::from(self.s)
    }

    pub fn is_out(&self) -> bool {
        self.s >= H
    }

    pub fn onset(&self) -> i64 {
        self.since
    }

    pub fn excess(&self) -> f64 {
        f64::from(self.excess)
    }

    pub fn readings(&self) -> u32 {
        self.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dates_the_onset() {
        let mut d = Drift::default();
        (0..100).for_each(|t| d.add(t, 2.0, 1.0));
        assert!(d.level() == 0.0, "two sigmas are nothing");
        (100..106).for_each(|t| d.add(t, 9.0, 1.0));
        assert!(d.is_out() && d.onset() == 99, "{d:?}");
        (106..130).for_each(|t| d.add(t, 0.0, 1.0));
        assert!(!d.is_out() && d.level() == 0.0);
    }

    proptest! {
        #[test]
        fn one_wild_reading_is_nothing(z in 0f64..1e12) {
            let mut d = Drift::default();
            (0..20).for_each(|t| d.add(t, 0.0, 1.0));
            d.add(20, z, 1.0);
            d.add(21, f64::NAN, 1.0);
            d.add(22, 1.0, 0.0);
            prop_assert!(!d.is_out());
        }
    }
}
