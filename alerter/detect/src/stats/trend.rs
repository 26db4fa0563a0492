//! Trend of a few values: is it one, and was it a step or a slope.

use serde::{Deserialize, Serialize};

use super::median::Window;

/// Kendall's S against time: pairs that rise minus pairs that fall (Mann 1945, Kendall 1975).
/// `n(n−1)/2` when every value is above all before it.
pub fn kendall(values: &[f64]) -> i32 {
    let mut s = 0;
    for (i, a) in values.iter().enumerate() {
        for b in &values[i + 1..] {
            s += i32::from(b > a) - i32::from(b < a);
        }
    }
    s
}

/// Kendall's S of the last `N` values against time, kept up at O(N) a value: pairs that rise less
/// pairs that fall (Kendall, "A new measure of rank correlation", 1938).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(bound(serialize = "[f32; N]: Serialize", deserialize = "[f32; N]: Deserialize<'de>"))]
pub struct Rising<const N: usize> {
    window: Window<N>,
    s: i32,
}

impl<const N: usize> Rising<N> {
    pub fn push(&mut self, value: f64) {
        if let Some(oldest) = self.window.oldest() {
            // All others came after it.
            self.s -= self.window.above(oldest);
        }
        self.window.push(value);
        self.s -= self.window.above(value as f32);
    }

    pub fn clear(&mut self) {
        self.window.clear();
        self.s = 0;
    }

    /// `n(n−1)/2` when every value is above all before it.
    pub fn kendall(&self) -> i32 {
        self.s
    }

    pub fn window(&self) -> &Window<N> {
        &self.window
    }
}

/// Whether the last values rose at once: at most one of them lies between the old level, `0`, and
/// the new one, the highest.
pub fn is_step(rises: &[f64]) -> bool {
    let top = rises.iter().copied().fold(0.0, f64::max);
    let before = rises.iter().rev().skip_while(|r| **r > 0.85 * top);
    before.take_while(|r| **r > 0.15 * top).count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_step_is_distinguished_from_a_slope() {
        let step = [0.0, 0.1, -0.2, 0.4, 0.0, 2.6, 5.0, 5.1, 4.9];
        let slope = [0.0, 0.1, 1.1, 2.0, 2.9, 4.1, 5.0, 6.1, 7.0];
        assert!(is_step(&step) && !is_step(&slope));
        assert_eq!(kendall(&slope), 36);
        assert_eq!(kendall(&[3.0, 2.0, 1.0]), -3);
    }

    proptest! {
        #[test]
        fn kept_up_is_as_counted_anew(xs in proptest::collection::vec(-4i8..4, 0..60), cleared in 0usize..60) {
            let mut rising = Rising::<8>::default();
            for (i, x) in xs.iter().enumerate() {
                if i == cleared {
                    rising.clear();
                }
                rising.push(f64::from(*x));
                let values: Vec<f64> = rising.window().iter().collect();
                prop_assert_eq!(rising.kendall(), kendall(&values));
                prop_assert_eq!(rising.window().last(), Some(f64::from(*x)));
                prop_assert_eq!(rising.window().least(), values.iter().copied().fold(f64::INFINITY, f64::min));
            }
        }
    }
}
