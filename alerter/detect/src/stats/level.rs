//! Detects that a series has left its level: level, trend and noise follow the series, with a CUSUM
//! each way.
//!
//! Holt's linear trend (1957) with Huber's bounded influence, so that no wild value moves it, and a
//! scale of its residuals:
//! ```text
//! d = x − (m + b),  c = clip(d, ±2.5·s)
//! m += b + a·c,  b += a·β·c,  s += a·(min(|d|, 2.5·s)/0.787 − s)
//! ```
//! Residuals of real series hang together: a CUSUM for independent ones would alarm all the time.
//! They are divided by `√((1 + φ)/(1 − φ))`, φ their own lag-1 correlation: the standard deviation
//! of a mean of many such values against that of independent ones (Bartlett 1946). A random walk
//! has φ near 1 and hardly ever alarms.

use serde::{Deserialize, Serialize};

use super::cusum::Cusum;
use super::median::Window;

/// Values that start it.
pub const WARM: usize = 16;
/// Weight of a value in level and noise, and of a change of level in the trend.
const RATE: f64 = 1.0 / 16.0;
const TREND_RATE: f64 = 1.0 / 8.0;
/// Weight in the correlation: it takes many values to know one.
const SLOW: f64 = 1.0 / 64.0;
/// As in [`super::robust`].
const K: f64 = 2.5;
const B: f64 = 0.787;
/// Highest correlation believed: it divides the residuals by √(1.95/0.05) = 6.2.
const MAX_PHI: f64 = 0.95;
/// The one assumed at first: it divides the residuals by √(1.8/0.2) = 3.
const FIRST_PHI: f64 = 0.8;
/// Page's k: half of a shift of one sigma.
const DRIFT: f64 = 0.5;
/// No value counts for more sigmas, so that none alone can alarm: with k = 0.5 a bound of 12 takes
/// three.
const CAP: f64 = 5.0;
/// Weight of a value, times that of others, while a shift is suspected: an engineering limit.
const DOUBTED: f64 = 0.1;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Level {
    m: f64,
    b: f64,
    s: f64,
    n: u32,
    recent: Window<WARM>,
    last: f64,
    square: f64,
    product: f64,
    up: Cusum,
    down: Cusum,
}

/// A value against its level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    pub expected: f64,
    /// Above it.
    pub d: f64,
    /// In sigmas, correlation counted.
    pub z: f64,
    /// The CUSUMs, in units of their bound.
    pub up: f64,
    pub down: f64,
    /// Where the larger one began.
    pub onset: i64,
}

impl Level {
    /// Takes a value at `at`, whatever that counts. `floor` is the smallest scale, `h` the bound of
    /// the CUSUMs. `None` until it is warm.
    pub fn add(&mut self, at: i64, x: f64, floor: f64, h: f64) -> Option<Reading> {
        if !x.is_finite() {
            return None;
        }
        self.n = self.n.saturating_add(1);
        if self.n as usize <= WARM {
            self.recent.push(x);
            if self.n as usize == WARM {
                self.start(floor);
            }
            return None;
        }
        let floor = floor.max(f64::MIN_POSITIVE);
        let expected = self.m + self.b;
        let (d, inflation) = (x - expected, self.inflation());
        let scale = self.s.max(floor) * inflation;
        let z = d / scale;
        self.up.add(at, z.min(CAP), DRIFT, 2.0 * h);
        self.down.add(at, (-z).min(CAP), DRIFT, 2.0 * h);
        let suspected = self.up.value().max(self.down.value()) > 0.5 * h;
        self.learn(x, d, floor, if suspected { DOUBTED } else { 1.0 });
        let onset = if self.up.value() >= self.down.value() { self.up.onset() } else { self.down.onset() };
        Some(Reading { expected, d, z, up: self.up.value() / h, down: self.down.value() / h, onset })
    }

    fn start(&mut self, floor: f64) {
        let values: Vec<f64> = self.recent.iter().collect();
        // The noise of a series that moves is the scale of its changes, and its trend their median.
        let mut changes = Window::<WARM>::default();
        values.windows(2).for_each(|w| changes.push(w[1] - w[0]));
        let (slope, change) = changes.location_scale();
        let mut rest = Window::<WARM>::default();
        values.iter().enumerate().for_each(|(i, x)| rest.push(x - slope * i as f64));
        let (m, s) = rest.location_scale();
        self.m = m + slope * (WARM - 1) as f64;
        (self.b, self.s) = (slope, s.max(change).max(spread(&rest, m)).max(floor));
        // How they hang together is not known yet: strongly, until they show that they do not.
        (self.square, self.product) = (self.s * self.s, FIRST_PHI * self.s * self.s);
        self.recent.clear();
    }

    fn learn(&mut self, x: f64, d: f64, floor: f64, weight: f64) {
        self.recent.push(x);
        let cut = K * self.s.max(floor);
        let c = d.clamp(-cut, cut);
        let a = weight * RATE.max(1.0 / f64::from(self.n));
        self.m += self.b + a * c;
        self.b += a * TREND_RATE * c;
        self.s = (self.s + a * (d.abs().min(cut) / B - self.s)).max(floor);
        self.square += weight * SLOW * (c * c - self.square);
        self.product += weight * SLOW * (c * self.last - self.product);
        self.last = c;
    }

    fn inflation(&self) -> f64 {
        let phi = if self.square > 0.0 { (self.product / self.square).clamp(0.0, MAX_PHI) } else { 0.0 };
        ((1.0 + phi) / (1.0 - phi)).sqrt()
    }

    pub fn is_warm(&self) -> bool {
        self.n as usize > WARM
    }

    pub fn scale(&self) -> f64 {
        self.s
    }

    /// Records a value during a shift. Only the level that the shift would have is learned.
    pub fn hold(&mut self, x: f64) {
        self.recent.push(x);
    }

    /// Accepts the shift as the level, from its last values.
    pub fn accept(&mut self) {
        let level = self.recent.median();
        self.go_on(level);
    }

    /// Ends the shift at `level`.
    pub fn go_on(&mut self, level: f64) {
        (self.m, self.b) = (level, 0.0);
        self.up.reset();
        self.down.reset();
    }

    /// Resets all state for another attempt of the run, or another process.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Mean distance from the middle, without the two values that are farthest: of values that were
/// rounded the median distance is often zero.
fn spread(values: &Window<WARM>, middle: f64) -> f64 {
    let mut apart: Vec<f64> = values.iter().map(|x| (x - middle).abs()).collect();
    apart.sort_by(f64::total_cmp);
    apart.truncate(WARM - 2);
    1.25 * apart.iter().sum::<f64>() / apart.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detectors::testing::Noise;
    use proptest::prelude::*;

    const H: f64 = 12.0;

    /// The first alarm, if any.
    fn alarm(values: impl Iterator<Item = f64>) -> Option<(i64, i64)> {
        let mut level = Level::default();
        values.zip(0..).find_map(|(x, at)| {
            let r = level.add(at, x, 1e-9, H)?;
            (r.up.max(r.down) > 1.0 && r.z.abs() > 3.0).then_some((at, r.onset))
        })
    }

    #[test]
    fn finds_a_shift_and_its_onset() {
        let mut noise = Noise::new(1);
        let (at, onset) = alarm((0..600).map(|i| noise.normal() + if i >= 400 { 6.0 } else { 0.0 })).unwrap();
        assert!((402..408).contains(&at) && (396..=400).contains(&onset), "{at} {onset}");
    }

    #[test]
    fn follows_a_trend() {
        let mut noise = Noise::new(2);
        assert_eq!(alarm((0..3000).map(|i| 5.0 * f64::from(i) + noise.normal())), None);
        assert_eq!(
            alarm((0..3000).map(|i| 8.0 * f64::from(i + 10).powf(-0.3) + 0.01 * noise.normal())),
            None
        );
    }

    /// Chance alarms once in a while: of so many values, whatever the seeds, that is a rate and no
    /// accident.
    #[test]
    fn correlated_noise_is_silent() {
        for phi in [0.0, 0.3, 0.6, 0.9, 0.99, 1.0] {
            let alarms = (0..100).filter(|seed| {
                let (mut noise, mut x) = (Noise::new(7919 * seed + 1), 0.0);
                let values = (0..4000).map(|_| {
                    x = phi * x + noise.normal();
                    x
                });
                alarm(values).is_some_and(|(at, _)| at >= 64)
            });
            assert!(alarms.count() <= 2, "{phi}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn units_change_nothing(seed: u64, exponent in -20i32..20) {
            let run = |unit: f64| {
                let mut noise = Noise::new(seed);
                let mut level = Level::default();
                (0..300).filter_map(|i| {
                    let x = unit * (noise.normal() + if i > 200 { 4.0 } else { 0.0 });
                    level.add(i, x, 1e-6 * unit, H).map(|r| (r.z, r.up, r.down, r.onset))
                }).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(1.0), run(f64::from(exponent).exp2()));
        }
    }
}
