//! How fast the run usually moves: quantiles of the seconds between two reports of progress.

use serde::{Deserialize, Serialize};

/// Ratio between neighbouring buckets: a quantile is right to 12 %.
const RATIO: f64 = 1.25;
const SMALLEST: f64 = 1e-3;
const BUCKETS: usize = 96; // up to 1e-3 * 1.25^96 = 2e6 s
/// The decay of a sample's weight with each further sample. After 1,000 more, 0.14 is left, so that
/// a run that slows down moves its own deadline within that many steps.
const DECAY: f32 = 0.998;

/// The upper edge of each bucket, precomputed because every step computes quantiles.
const EDGES: [f64; BUCKETS] = {
    let mut edges = [0.0; BUCKETS];
    let mut i = 0;
    while i < BUCKETS {
        edges[i] = SMALLEST * power(RATIO, i + 1);
        i += 1;
    }
    edges
};

/// Computes a power by squaring.
const fn power(base: f64, exponent: usize) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

/// A histogram with logarithmic buckets and forgetting: O(1) a sample, four bytes a bucket from the
/// lowest to the highest that was ever used, which are a few neighbours in most runs and 400 bytes
/// in all at most.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pace {
    counts: Vec<f32>,
    /// The bucket of the first count.
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
        let at = self.place(self.bucket(secs));
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

    /// The bucket of a time: nearly always one of the few that are used, so that they are searched.
    fn bucket(&self, secs: f64) -> usize {
        let lowest = usize::from(self.lowest);
        let is_below = lowest > 0 && secs < EDGES[lowest - 1];
        let above = if is_below { 0 } else { lowest };
        let at = EDGES.iter().skip(above).position(|edge| secs < *edge);
        at.map_or(BUCKETS - 1, |at| above + at)
    }

    /// The index of a bucket in `counts`, which grows if needed.
    fn place(&mut self, bucket: usize) -> usize {
        if self.counts.is_empty() {
            (self.lowest, self.weight) = (bucket as u8, 1.0);
        }
        let lowest = usize::from(self.lowest);
        if bucket < lowest {
            self.counts.splice(..0, core::iter::repeat_n(0.0, lowest - bucket));
            self.lowest = bucket as u8;
        }
        let at = bucket - usize::from(self.lowest);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0.0);
        }
        at
    }

    /// The number of samples ever added.
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
        for (i, c) in (usize::from(self.lowest)..).zip(&self.counts) {
            sum += c;
            if sum >= want && *c > 0.0 {
                return Some(EDGES[i]);
            }
        }
        let last = self.counts.iter().rposition(|c| *c > 0.0)?;
        Some(EDGES[usize::from(self.lowest) + last])
    }
}

/// The resolution of a log's timestamps. If they are coarse, many lines have the same one.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct TimeResolution {
    /// The gaps between two lines; `ties` counts those of zero.
    gaps: u32,
    ties: u32,
    /// The smallest of the others, in seconds.
    smallest: f32,
}

/// The gaps that are needed to find the resolution.
const RESOLUTION_GAPS: u32 = 20;

impl TimeResolution {
    pub(crate) fn add(&mut self, secs: f64) {
        self.gaps = self.gaps.saturating_add(1);
        if secs == 0.0 {
            self.ties = self.ties.saturating_add(1);
        } else if self.smallest == 0.0 || secs < f64::from(self.smallest) {
            self.smallest = secs as f32;
        }
    }

    /// The resolution in seconds; 0 if the timestamps distinguish lines.
    pub(crate) fn secs(self) -> f64 {
        if self.gaps >= RESOLUTION_GAPS && self.ties > self.gaps / 2 { f64::from(self.smallest) } else { 0.0 }
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

    #[test]
    fn edges_are_powers() {
        for (i, edge) in EDGES.iter().enumerate() {
            assert_eq!(*edge, SMALLEST * RATIO.powi(i as i32 + 1), "{i}");
        }
    }

    #[test]
    fn timestamps_that_many_lines_share_are_coarse() {
        let resolution = |gaps: &[f64]| {
            let mut r = TimeResolution::default();
            (0..30).for_each(|n| r.add(gaps[n % gaps.len()]));
            r.secs()
        };
        assert_eq!(resolution(&[0.0, 0.0, 0.0, 1000.0]), 1000.0);
        assert_eq!(resolution(&[0.0, 0.0, 2000.0, 0.0, 0.0, 1000.0]), 1000.0);
        assert_eq!(resolution(&[4.0]), 0.0);
        assert_eq!(resolution(&[0.0, 5.0]), 0.0, "as many lines differ");
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
