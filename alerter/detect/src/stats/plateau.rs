//! Whether a curve that falls ever slower has stopped falling.
//!
//! A loss that falls as a power of the samples falls by nearly the same amount whenever their
//! number grows by the same factor: by `g^−α` less each time, which for the α below 0.5 of language
//! models (Kaplan et al., "Scaling laws for neural language models", 2020) and g = 1.25 is a tenth.
//! So the series is cut into windows that grow by g, and
//! ```text
//! now    = (W[k−2] − W[k]) / 2                              fall a window, of the last two
//! before = min(W[k−5] − W[k−4], W[k−4] − W[k−3])            of two before them;
//!          the window in which it stopped lies between
//! stopped: (ρ·before − now) / se > z,  ρ = 0.35,  z = 3
//! ```
//! W are means of block medians that count for no more than 2.5 sigmas from where the last ones
//! were, so that a spike is no plateau. `se` comes from the successive differences of block medians
//! (von Neumann 1941), times 1.5 for what those do not show: neighbours resemble each other.
//! Counted from the first sample that was seen: what is older than that falls faster in these
//! windows, never slower.

use serde::{Deserialize, Serialize};

use super::block::Blocks;

/// Means kept.
const KEPT: usize = 6;
/// Samples before the first window, and growth of the windows.
const FIRST: f64 = 256.0;
pub const GROWTH: f64 = 1.25;
/// As in [`super::robust`].
const K: f64 = 2.5;
const B: f64 = 0.787;
/// Weight of a block in the running level and in the noise.
const LEVEL_RATE: f64 = 0.25;
const NOISE_RATE: f64 = 1.0 / 32.0;
/// Factor of the standard error for the resemblance of neighbours, which successive differences do
/// not show: it is √((1 + φ)/(1 − φ)) of a lag-1 correlation φ of 0.38.
const CORRELATION: f64 = 1.5;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Fall {
    blocks: Blocks,
    seen: u32,
    /// Samples at which the window ends.
    edge: f64,
    level: f64,
    last: f64,
    noise: f64,
    sum: f64,
    n: u32,
    /// Newest last.
    means: [f32; KEPT],
    errors: [f32; KEPT],
    filled: u8,
}

/// How it falls, at the end of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Mean of the window.
    pub level: f64,
    /// Falls of a window: of the last two, and of two before.
    pub now: f64,
    pub before: f64,
    /// Standard error of the last two.
    pub error: f64,
}

impl Fall {
    /// Takes a value. Returns the pace at the end of each window, once there are enough of them.
    pub fn add(&mut self, step: i64, value: f64, floor: f64) -> Option<Pace> {
        self.seen = self.seen.saturating_add(1);
        if let Some(block) = self.blocks.add(step, value) {
            self.take(block.median, floor);
        }
        if self.edge == 0.0 {
            self.edge = FIRST;
        }
        if f64::from(self.seen) < self.edge {
            return None;
        }
        let first = self.edge == FIRST;
        self.edge = (self.edge * GROWTH).ceil();
        let (sum, n) = (core::mem::take(&mut self.sum), core::mem::take(&mut self.n));
        if first || n == 0 {
            return None;
        }
        self.means.rotate_left(1);
        self.errors.rotate_left(1);
        self.means[KEPT - 1] = (sum / f64::from(n)) as f32;
        self.errors[KEPT - 1] = (CORRELATION * self.noise / f64::from(n).sqrt()) as f32;
        self.filled = (self.filled + 1).min(KEPT as u8);
        (usize::from(self.filled) == KEPT).then(|| self.pace())
    }

    fn take(&mut self, median: f64, floor: f64) {
        if self.noise == 0.0 {
            (self.level, self.noise) = (median, floor.max(f64::MIN_POSITIVE));
        } else {
            // Noise of a difference is that of two.
            let change = (median - self.last).abs() / core::f64::consts::SQRT_2;
            let bounded = if self.filled == 0 { change } else { change.min(K * self.noise) };
            self.noise = (self.noise + NOISE_RATE * (bounded / B - self.noise)).max(floor);
        }
        self.last = median;
        let cut = if self.filled == 0 { f64::INFINITY } else { K * self.noise };
        let near = (median - self.level).clamp(-cut, cut);
        self.sum += self.level + near;
        self.n += 1;
        self.level += LEVEL_RATE * near;
    }

    fn pace(&self) -> Pace {
        let w = |i: usize| f64::from(self.means[i]);
        let e = |i: usize| f64::from(self.errors[i]);
        Pace {
            level: w(5),
            now: 0.5 * (w(3) - w(5)),
            before: (w(0) - w(1)).min(w(1) - w(2)),
            error: 0.5 * e(3).hypot(e(5)),
        }
    }

    /// Begins anew, windows as long as they were: steps may have gone back.
    pub fn clear(&mut self) {
        self.blocks.clear();
        (self.sum, self.n, self.filled) = (0.0, 0, 0);
    }
}

impl Pace {
    /// How certain it is that less than `share` of the fall is left, in standard errors.
    pub fn stopped(&self, share: f64) -> f64 {
        (share * self.before - self.now) / self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use proptest::prelude::*;

    const N: usize = 6000;

    /// Samples at which it had stopped.
    fn stops(seed: u64, unit: f64, value: impl Fn(f64) -> f64) -> Vec<usize> {
        let (mut noise, mut fall) = (Noise::new(seed), Fall::default());
        (1..=N)
            .filter(|i| {
                let x = unit * (value(*i as f64) + 0.02 * noise.normal());
                fall.add(*i as i64, x, 1e-6 * unit).is_some_and(|p| p.stopped(0.35) > 3.0)
            })
            .collect()
    }

    fn power(n: f64) -> f64 {
        2.0 + 6.0 * n.powf(-0.35)
    }

    #[test]
    fn a_fall_that_stops_is_found_and_spikes_are_none() {
        let found = stops(1, 1.0, |n| power(n.min(1500.0)));
        assert!(matches!(found[..], [1500..=3000, ..]), "{found:?}");
        let spiked = stops(1, 1.0, |n| power(n) + if (2000.0..2060.0).contains(&n) { 3.0 } else { 0.0 });
        assert!(spiked.is_empty(), "{spiked:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_power_law_never_stops(seed: u64, alpha in 0.05f64..0.5, age in 0.0f64..5000.0) {
            let found = stops(seed, 1.0, |n| 2.0 + 6.0 * (n + age).powf(-alpha));
            prop_assert!(found.is_empty(), "{found:?}");
        }

        #[test]
        fn units_change_nothing(seed: u64, exponent in -20i32..20) {
            let run = |unit: f64| stops(seed, unit, |n| power(n.min(1500.0)));
            prop_assert_eq!(run(1.0), run(f64::from(exponent).exp2()));
        }
    }
}
