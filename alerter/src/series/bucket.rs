//! The summary of a range of steps: lowest, highest, last and mean value, and the expectation.

use serde::{Deserialize, Serialize};
use stepwatch_detect::Expectation;

/// The values of the steps from `first` until the next bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Bucket {
    pub(super) first: i64,
    /// The lowest and highest finite value; NaN if there is none.
    pub(super) min: f32,
    pub(super) max: f32,
    pub(super) last: f32,
    pub(super) mean: f32,
    /// The number of finite values, and of others.
    pub(super) count: u32,
    pub(super) nonfinite: u32,
    pub(super) band: Band,
}

/// An expectation in eight bytes, with the width of the band to a relative precision of 0.4 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Band {
    /// The expected value; NaN if there is none.
    expected: f32,
    below: u16,
    above: u16,
}

impl Band {
    pub(super) const NONE: Self = Self { expected: f32::NAN, below: 0, above: 0 };

    pub(super) fn is_known(self) -> bool {
        !self.expected.is_nan()
    }

    pub(super) fn or(self, other: Self) -> Self {
        if self.is_known() { self } else { other }
    }

    pub(super) fn expectation(self) -> Option<Expectation> {
        let expected = f64::from(self.expected);
        self.is_known().then(|| Expectation {
            expected,
            low: expected - long(self.below),
            high: expected + long(self.above),
        })
    }
}

impl From<Expectation> for Band {
    fn from(e: Expectation) -> Self {
        let known = e.expected.is_finite() && e.low.is_finite() && e.high.is_finite();
        let band = || Self {
            expected: single(e.expected),
            below: short(e.expected - e.low),
            above: short(e.high - e.expected),
        };
        if known { band() } else { Self::NONE }
    }
}

/// The upper half of a single-precision number: its sign, exponent and 7 bits.
fn short(width: f64) -> u16 {
    (single(width.max(0.0)).to_bits() >> 16) as u16
}

fn long(width: u16) -> f64 {
    f64::from(f32::from_bits(u32::from(width) << 16))
}

/// Converts to single precision. A finite number stays finite.
pub(super) fn single(value: f64) -> f32 {
    if value.is_finite() { value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32 } else { f32::NAN }
}

impl Bucket {
    pub(super) fn of_value(first: i64, value: f32, band: Band) -> Self {
        let finite = u32::from(value.is_finite());
        let (min, max, last, mean) = (value, value, value, value);
        Self { first, min, max, last, mean, count: finite, nonfinite: 1 - finite, band }
    }

    /// Adds the values of the next bucket.
    pub(super) fn append(&mut self, next: &Self) {
        if next.count > 0 {
            let (a, b) = (f64::from(self.count), f64::from(next.count));
            // The values of an empty bucket are NaN, which `min` and `max` ignore.
            let mean = if self.count == 0 { 0.0 } else { f64::from(self.mean) };
            self.mean = single((mean * a + f64::from(next.mean) * b) / (a + b));
            (self.min, self.max, self.last) = (self.min.min(next.min), self.max.max(next.max), next.last);
        }
        self.count = self.count.saturating_add(next.count);
        self.nonfinite = self.nonfinite.saturating_add(next.nonfinite);
        self.band = next.band.or(self.band);
    }

    /// Joins several buckets in order.
    pub(super) fn join(buckets: impl IntoIterator<Item = Self>) -> Option<Self> {
        buckets.into_iter().reduce(|mut all, next| {
            all.append(&next);
            all
        })
    }

    pub(super) fn is_sound(&self) -> bool {
        let numbers = [self.min, self.max, self.last, self.mean].iter().all(|v| v.is_finite());
        self.count.saturating_add(self.nonfinite) > 0 && (self.count == 0 || numbers)
    }
}
