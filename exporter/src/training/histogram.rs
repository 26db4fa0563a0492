//! Step durations of one rank, in fixed buckets from 20 ms (a toy) to ten minutes (a stalled
//! giant), finest in the usual range.

use crate::samples::Distribution;

pub(super) const BOUNDS: [f64; 18] = [
    0.02,
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.75,
    1.0,
    1.5,
    2.5,
    4.0,
    6.0,
    10.0,
    15.0,
    30.0,
    60.0,
    180.0,
    f64::INFINITY,
];

#[derive(Debug, Clone, Default)]
pub(super) struct Durations {
    sum: f64,
    counts: [u64; BOUNDS.len()],
}

impl Durations {
    pub(super) fn record(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            self.sum += seconds;
            let at = BOUNDS.partition_point(|bound| *bound < seconds);
            self.counts[at] += 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|c| *c == 0)
    }

    pub(super) fn distribution(&self) -> Distribution {
        Distribution {
            sum: self.sum,
            count: self.counts.iter().sum(),
            buckets: BOUNDS.iter().copied().zip(self.counts).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut d = Durations::default();
        for v in [0.02, 0.021, 1e9, f64::NAN, -1.0] {
            d.record(v);
        }
        let got = d.distribution();
        assert_eq!((got.count, got.sum), (3, 1e9 + 0.041));
        assert_eq!(got.buckets[0], (0.02, 1));
        assert_eq!(got.buckets[1], (0.05, 1));
        assert_eq!(got.buckets[17], (f64::INFINITY, 1));
    }
}
