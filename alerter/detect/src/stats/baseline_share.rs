//! Keeps the usual value of a share of the time, and detects a rise.
//!
//! ```text
//! level += max(1/n, 1/2048)·clip(x − level, ±1 %)
//!          the first 16: their mean;  not while S > H/2
//! S = clip(S + clip((x − level − δ/2)/(δ/2), ±2), 0, 2H),   δ = 2 %
//! ```
//! A bounded-influence level, so that a wild reading moves it by a fiftieth of a per cent, and a
//! one-sided CUSUM (Page, Biometrika 1954) for a rise of δ, in units of half of it. No reading
//! counts for more than two: a rise of 3 % and more takes 12 readings to be one. The last time that
//! S was zero is the onset.

use serde::{Deserialize, Serialize};

/// Readings whose plain mean is the first level, and after which it is known.
const FIRST: u32 = 16;
const KNOWN: u32 = 48;
/// Weight of a reading in the level in the long run, and the deviation that counts at most, as a
/// share.
const SLOWLY: f32 = 1.0 / 2048.0;
const BOUND: f32 = 0.01;
/// Half of the smallest rise worth noticing.
const HALF: f32 = 0.01;
/// What a reading counts for at most, and the bound of S, in halves of that rise: 12 readings at
/// the cap reach it. The mean time to a false alarm is `e^{θH}` or more, where `E e^{θ·score} = 1`
/// (Lorden, "Procedures for reacting to a change in distribution", 1971). For independent normal
/// readings with a standard deviation of 2 % that is 9·10⁶ readings, and 8·10²¹ with one of 1 %.
const CAP: f32 = 2.0;
const H: f32 = 24.0;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BaselineShare {
    n: u32,
    level: f32,
    s: f32,
    since: i64,
}

impl BaselineShare {
    pub fn add(&mut self, at: i64, x: f64) {
        if !x.is_finite() {
            return;
        }
        self.n = self.n.saturating_add(1);
        let d = x as f32 - self.level;
        if self.n <= FIRST {
            self.level += d / self.n as f32;
        } else if !self.holds() {
            self.level += SLOWLY.max(1.0 / self.n as f32) * d.clamp(-BOUND, BOUND);
        }
        if self.is_known() {
            self.s = (self.s + ((d - HALF) / HALF).clamp(-CAP, CAP)).clamp(0.0, 2.0 * H);
        }
        if self.s == 0.0 {
            self.since = at;
        }
    }

    pub fn is_known(&self) -> bool {
        self.n >= KNOWN
    }

    pub fn level(&self) -> f64 {
        f64::from(self.level)
    }

    /// Whether the share has been above its usual value for a while.
    pub fn has_risen(&self) -> bool {
        self.s >= H
    }

    /// Whether a rise still holds, or one may be about to begin.
    pub fn holds(&self) -> bool {
        self.s > 0.5 * H
    }

    /// When the share was last as usual.
    pub fn since(&self) -> i64 {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use proptest::prelude::*;

    /// A reading a step about a level, with noise of this standard deviation; higher from step 200
    /// on, until 400.
    fn after(steps: i64, noise: f64, rise: f64) -> BaselineShare {
        let (mut u, mut random) = (BaselineShare::default(), Noise::new(3));
        for step in 0..steps {
            let higher = if (200..400).contains(&step) { rise } else { 0.0 };
            u.add(step, 0.01 + higher + noise * random.normal());
        }
        u
    }

    #[test]
    fn a_rise_of_three_per_cent_is_noticed_dated_and_over_again() {
        assert!(!after(200, 0.01, 0.03).holds());
        let up = after(232, 0.01, 0.03);
        assert!(up.has_risen() && up.since().abs_diff(200) <= 3, "{up:?}");
        assert!((up.level() - 0.01).abs() < 0.004, "what has risen is not the usual: {up:?}");
        assert!(after(399, 0.01, 0.03).has_risen() && !after(440, 0.01, 0.03).holds());
    }

    #[test]
    fn noise_of_three_per_cent_is_no_rise() {
        for steps in (100..4000).step_by(100) {
            assert!(!after(steps, 0.03, 0.0).has_risen());
        }
    }

    proptest! {
        #[test]
        fn one_wild_reading_is_nothing(x in -1e9f64..1e9) {
            let mut u = after(150, 0.005, 0.0);
            let before = u.level();
            u.add(150, x);
            u.add(151, f64::NAN);
            prop_assert!(!u.holds() && (u.level() - before).abs() < 1e-3);
        }
    }
}
