//! One-sided CUSUM with the onset for free.
//!
//! Page (Biometrika 41, 1954): `S = max(0, S + z − k)`, alarm at `S > h`. The last time S was zero
//! is the maximum-likelihood estimate of the onset. Scores are capped, so that no single value can
//! alarm, and S is bounded, so that it comes down soon after the condition ends. Siegmund's
//! approximation relates `h` to the mean time between false alarms: `ARL₀ ≈ (exp(2kb) − 2kb − 1) /
//! 2k²` with `b = h + 1.166`, for independent normal scores.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cusum {
    s: f64,
    /// Step of the first sample after the last zero.
    onset: i64,
}

impl Cusum {
    /// Adds a score at `step`; `drift` is Page's k, `bound` what S saturates at.
    pub fn add(&mut self, step: i64, score: f64, drift: f64, bound: f64) {
        if !score.is_finite() {
            return;
        }
        if self.s <= 0.0 {
            self.onset = step;
        }
        self.s = (self.s + score - drift).clamp(0.0, bound);
    }

    pub fn value(&self) -> f64 {
        self.s
    }

    pub fn onset(&self) -> i64 {
        self.onset
    }

    pub fn reset(&mut self) {
        self.s = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn finds_the_onset_of_a_shift() {
        let mut c = Cusum::default();
        for step in 0..100 {
            c.add(step, 0.0, 0.5, 50.0);
        }
        for step in 100..110 {
            c.add(step, 2.0, 0.5, 50.0);
        }
        assert_eq!((c.onset(), c.value()), (100, 15.0));
    }

    proptest! {
        #[test]
        fn stays_within_its_bounds(scores in proptest::collection::vec(-1e9f64..1e9, 0..200)) {
            let mut c = Cusum::default();
            for (step, z) in scores.iter().enumerate() {
                c.add(step as i64, *z, 0.5, 20.0);
                c.add(step as i64, f64::NAN, 0.5, 20.0);
                prop_assert!((0.0..=20.0).contains(&c.value()));
            }
        }
    }
}
