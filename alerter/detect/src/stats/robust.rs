//! Location and scale of a stream that a single wild value cannot move.
//!
//! Exponentially weighted M-estimator with Huber's bounded influence (Huber, "Robust Statistics",
//! 1981, ch. 4):
//! ```text
//! d = x − m,  c = clip(d, ±K·s),  a = max(rate, 1/n)
//! m += a·c,   s += a·(min(|d|, K·s)/B − s),   s ≥ floor
//! ```
//! K = 2.5: 1.2 % of a normal distribution lie beyond it on both sides. B = 0.787 makes `s` nearly
//! consistent: E min(|z|, K) of a standard normal is 0.794, so `s` settles at 1.009 of its standard
//! deviation. A value a million sigmas away moves `m` by `a·K·s` only, where a plain EWMA would
//! follow it. The first values start it from their median and MAD.

use serde::{Deserialize, Serialize};

use super::median::Window;

/// Sigmas at which the influence of a value is bounded, and the assumed mean of min(|z|, K).
const K: f64 = 2.5;
const B: f64 = 0.787;

/// `WARM` values start an estimate.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(bound(serialize = "[f32; WARM]: Serialize", deserialize = "[f32; WARM]: Deserialize<'de>"))]
pub struct Robust<const WARM: usize> {
    m: f64,
    s: f64,
    n: u32,
    recent: Window<WARM>,
}

/// How far a value is out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviation {
    pub d: f64,
    /// In sigmas.
    pub z: f64,
}

impl<const WARM: usize> Robust<WARM> {
    /// `None` until enough values have been seen.
    pub fn deviation(&self, x: f64) -> Option<Deviation> {
        let d = x - self.m;
        self.is_warm().then(|| Deviation { d, z: d / self.s })
    }

    pub fn is_warm(&self) -> bool {
        self.n as usize >= WARM
    }

    /// Values taken since the start or the last [`Robust::anchor`].
    pub fn count(&self) -> u32 {
        self.n
    }

    pub fn location(&self) -> f64 {
        self.m
    }

    pub fn scale(&self) -> f64 {
        self.s
    }

    /// Takes a value. `rate` is the weight of a value in the long run, `floor` the smallest scale.
    /// NaN and infinities are ignored.
    pub fn update(&mut self, x: f64, rate: f64, floor: f64) {
        self.update_weighted(x, rate, floor, 1.0);
    }

    /// The same for a value that is trusted by `weight` only.
    pub fn update_weighted(&mut self, x: f64, rate: f64, floor: f64, weight: f64) {
        if !x.is_finite() {
            return;
        }
        self.recent.push(x);
        self.n = self.n.saturating_add(1);
        if (self.n as usize) < WARM {
            return;
        }
        if self.n as usize == WARM {
            let (m, s) = self.recent.location_scale();
            (self.m, self.s) = (m, s.max(floor));
            return;
        }
        let a = weight * rate.max(1.0 / f64::from(self.n));
        let d = x - self.m;
        let cut = K * self.s;
        self.m += a * d.clamp(-cut, cut);
        self.s = (self.s + a * (d.abs().min(cut) / B - self.s)).max(floor);
    }

    /// Starts again from the last values: the level has moved for good.
    pub fn anchor(&mut self, floor: f64) {
        let (m, s) = self.recent.location_scale();
        if self.is_warm() {
            // The scale of a few values is too uncertain to tighten the bound with.
            (self.m, self.s) = (m, s.max(self.s).max(floor));
            self.n = WARM as u32;
        }
    }

    /// Moves the location towards a value, and leaves the scale.
    pub fn pull(&mut self, x: f64, rate: f64) {
        self.m += rate * (x - self.m).clamp(-K * self.s, K * self.s);
    }

    /// Replaces the estimate by a better one.
    pub fn set(&mut self, location: f64, scale: f64) {
        (self.m, self.s) = (location, scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A crude normal: the sum of twelve uniforms from a small generator.
    fn normals(seed: u64, n: usize) -> Vec<f64> {
        let mut x = seed | 1;
        let mut uniform = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect()
    }

    proptest! {
        #[test]
        fn consistent_for_a_normal(seed: u64, mean in -5.0f64..5.0, sigma in 0.1f64..10.0) {
            let mut r = Robust::<16>::default();
            for x in normals(seed, 3000) {
                r.update(mean + sigma * x, 0.005, 1e-6);
            }
            prop_assert!((r.scale() / sigma - 1.0).abs() < 0.2, "{r:?}");
            prop_assert!((r.location() - mean).abs() < 0.4 * sigma, "{r:?}");
        }

        #[test]
        fn one_wild_value_moves_nothing(seed: u64, wild in 10.0f64..1e12) {
            let mut r = Robust::<16>::default();
            normals(seed, 400).iter().for_each(|x| r.update(*x, 0.005, 1e-6));
            let before = r.clone();
            r.update(wild, 0.005, 1e-6);
            r.update(f64::NAN, 0.005, 1e-6);
            r.update(f64::INFINITY, 0.005, 1e-6);
            prop_assert!((r.location() - before.location()).abs() < 0.02 * before.scale());
            prop_assert!((r.scale() / before.scale() - 1.0).abs() < 0.02);
        }
    }
}
