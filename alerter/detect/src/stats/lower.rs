//! The scale of a series' lower half.
//!
//! Noise is symmetric; an excursion only raises the value. The scale of all values grows with the
//! very excursions that are to be judged by it, so the scale is estimated from the values below the
//! location:
//! ```text
//! d = m − x > 0:  l += 2a·(min(d, K·l)/B − l),  l ≥ floor
//! ```
//! with the K and B of [`super::robust`]: half of a normal has the mean of the whole one's absolute
//! values, so both scales agree for a symmetric series. Twice the rate, for half of the values.

use serde::{Deserialize, Serialize};

/// As in [`super::robust`].
const K: f64 = 2.5;
const B: f64 = 0.787;

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LowerScale(f64);

impl LowerScale {
    /// Takes a value that is `d` above its location; `whole`, the scale of all values, starts it.
    pub fn update(&mut self, d: f64, whole: f64, rate: f64, floor: f64) {
        if self.0 == 0.0 {
            self.0 = whole.max(floor);
        } else if d < 0.0 {
            let c = (-d).min(K * self.0);
            self.0 = (self.0 + 2.0 * rate * (c / B - self.0)).max(floor);
        }
    }

    /// A value in scales of the lower half; zero before the first.
    pub fn sigmas(self, d: f64) -> f64 {
        if self.0 > 0.0 { d / self.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;

    fn scale(excursion: impl Fn(usize) -> f64) -> f64 {
        let (mut noise, mut lower) = (Noise::new(5), LowerScale::default());
        (0..4000).for_each(|i| lower.update(0.3 * noise.normal() + excursion(i), 0.3, 0.005, 1e-6));
        1.0 / lower.sigmas(1.0)
    }

    #[test]
    fn agrees_with_the_whole_for_a_normal_and_ignores_what_only_goes_up() {
        assert!((scale(|_| 0.0) / 0.3 - 1.0).abs() < 0.15, "{}", scale(|_| 0.0));
        let skewed = scale(|i| if i % 5 == 0 { 30.0 } else { 0.0 });
        assert!((skewed / 0.3 - 1.0).abs() < 0.15, "{skewed}");
        assert_eq!(LowerScale::default().sigmas(3.0), 0.0);
    }
}
