//! How fast the run usually moves: quantiles of the seconds between two reports of progress.

use serde::{Deserialize, Serialize};

/// Ratio between neighbouring buckets: a quantile is right to 12 %.
const RATIO: f64 = 1.25;
const SMALLEST: f64 = 1e-3;
const BUCKETS: usize = 96; // up to 1e-3 * 1.25^96 = 2e6 s
/// Weight left of a sample after 1,000 more: a run that slows down moves its own deadline within that many steps.
const DECAY: f32 = 0.998;

/// A histogram with logarithmic buckets and forgetting; 400 bytes, O(1) a sample.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pace {
    counts: Vec<f32>,
    /// The lowest bucket that was ever used: quantiles are asked for at every step, and most runs use a few neighbours.
    lowest: u8,
    /// Weight of the next sample; grows instead of decaying every bucket.
    weight: f32,
    total: f32,
    n: u64,
}

impl Pace {
    pub fn add(&mut self, secs: f64) {
        if !(secs.is_finite() && secs >= 0.0) {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0.0; BUCKETS];
            self.lowest = BUCKETS as u8 - 1;
            self.weight = 1.0;
        }
        let at = (((secs.max(SMALLEST) / SMALLEST).ln() / RATIO.ln()) as usize).min(BUCKETS - 1);
        self.lowest = self.lowest.min(at as u8);
        self.counts[at] += self.weight;
        self.total += self.weight;
        self.weight /= DECAY;
        self.n += 1;
        if self.weight > 1e12 {
            self.counts.iter_mut().for_each(|c| *c /= self.weight);
            self.total /= self.weight;
            self.weight = 1.0;
        }
    }

    /// Samples ever added.
    pub fn samples(&self) -> u64 {
        self.n
    }

    /// Upper edge of the bucket that holds quantile `q`; `None` before the first sample.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        if self.n == 0 {
            return None;
        }
        let want = q as f32 * self.total;
        let mut sum = 0.0;
        for (i, c) in self.counts.iter().enumerate().skip(usize::from(self.lowest)) {
            sum += c;
            if sum >= want && *c > 0.0 {
                return Some(SMALLEST * RATIO.powi(i as i32 + 1));
            }
        }
        let last = self.counts.iter().rposition(|c| *c > 0.0)?;
        Some(SMALLEST * RATIO.powi(last as i32 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forgets_an_old_pace() {
        let mut p = Pace::default();
        (0..2000).for_each(|_| p.add(1.0));
        (0..4000).for_each(|_| p.add(10.0));
        assert!(p.quantile(0.5).unwrap() > 9.0, "{p:?}");
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_bucket(mut xs in proptest::collection::vec(0.01f64..1000.0, 20..200), q in 0.05f64..0.99) {
            let mut p = Pace::default();
            xs.iter().for_each(|x| p.add(*x));
            xs.sort_by(f64::total_cmp);
            // Forgetting within 200 samples moves a quantile by a rank or two only.
            let at = |q: f64| xs[((q * xs.len() as f64) as usize).min(xs.len() - 1)];
            let got = p.quantile(q).unwrap();
            prop_assert!(got >= at((q - 0.15).max(0.0)) * 0.99 && got <= at((q + 0.15).min(1.0)) * RATIO * 1.01, "{got}");
        }
    }
}
