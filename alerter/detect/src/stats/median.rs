//! Order statistics of small fixed buffers.

use serde::{Deserialize, Serialize};

/// 1 / Φ⁻¹(3/4): makes the median absolute deviation an estimate of a normal standard deviation.
pub const MAD_TO_SIGMA: f64 = 1.4826;

/// The median; reorders `values`. NaN for an empty slice.
pub fn median(values: &mut [f32]) -> f64 {
    let n = values.len();
    if n == 0 {
        return f64::NAN;
    }
    values.sort_unstable_by(f32::total_cmp);
    let upper = f64::from(values[n / 2]);
    if n % 2 == 1 { upper } else { 0.5 * (upper + f64::from(values[n / 2 - 1])) }
}

/// The last `N` values, oldest overwritten. `N` at most 32, the largest array serde writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "[f32; N]: Serialize", deserialize = "[f32; N]: Deserialize<'de>"))]
pub struct Window<const N: usize> {
    values: [f32; N],
    at: u8,
    full: bool,
}

impl<const N: usize> Default for Window<N> {
    fn default() -> Self {
        Self { values: [0.0; N], at: 0, full: false }
    }
}

impl<const N: usize> Window<N> {
    pub fn push(&mut self, value: f64) {
        self.values[usize::from(self.at)] = value as f32;
        self.at += 1;
        if usize::from(self.at) == N {
            self.at = 0;
            self.full = true;
        }
    }

    pub fn clear(&mut self) {
        self.at = 0;
        self.full = false;
    }

    pub fn is_full(&self) -> bool {
        self.full
    }

    pub fn len(&self) -> usize {
        if self.full { N } else { usize::from(self.at) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, in no order.
    fn values(&self) -> &[f32] {
        &self.values[..self.len()]
    }

    /// The value that the next one replaces; `None` until the window is full.
    pub(super) fn oldest(&self) -> Option<f32> {
        self.full.then(|| self.values[usize::from(self.at)])
    }

    /// The newest value.
    pub fn last(&self) -> Option<f64> {
        let at = usize::from(self.at).checked_sub(1).or(self.full.then_some(N - 1))?;
        Some(f64::from(self.values[at]))
    }

    /// The smallest value; infinite without values.
    pub fn least(&self) -> f64 {
        f64::from(self.values().iter().copied().fold(f32::INFINITY, f32::min))
    }

    /// The number of values above `value` minus the number below it.
    pub(super) fn above(&self, value: f32) -> i32 {
        self.values().iter().map(|v| i32::from(*v > value) - i32::from(*v < value)).sum()
    }

    /// The values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = f64> {
        let split = if self.full { usize::from(self.at) } else { 0 };
        let end = self.len();
        self.values[split..end].iter().chain(&self.values[..split]).map(|v| f64::from(*v))
    }

    pub fn median(&self) -> f64 {
        let mut copy = self.values;
        median(&mut copy[..self.len()])
    }

    /// Median and robust standard deviation.
    pub fn location_scale(&self) -> (f64, f64) {
        let m = self.median();
        let mut copy = self.values;
        let n = self.len();
        copy[..n].iter_mut().for_each(|v| *v = (f64::from(*v) - m).abs() as f32);
        (m, MAD_TO_SIGMA * median(&mut copy[..n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    proptest! {
        #[test]
        fn window_keeps_the_last_n_in_order(xs in proptest::collection::vec(-1e3f32..1e3, 0..40)) {
            let mut w = Window::<8>::default();
            xs.iter().for_each(|x| w.push(f64::from(*x)));
            let want: Vec<f64> = xs.iter().skip(xs.len().saturating_sub(8)).map(|x| f64::from(*x)).collect();
            prop_assert_eq!(w.iter().collect::<Vec<_>>(), want.clone());
            prop_assert_eq!(w.len(), want.len());
        }
    }
}
