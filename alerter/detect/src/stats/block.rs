//! Medians of consecutive blocks: the cheapest summary that pauses in fewer than half of the steps
//! cannot move.

use serde::{Deserialize, Serialize};

pub const BLOCK: usize = 8;
/// Expected distance of the second from the seventh of eight normal values, in sigmas.
const INNER_SPREAD: f64 = 1.70;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Blocks {
    values: [f32; BLOCK],
    len: u8,
    first: i64,
}

/// A finished block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    pub median: f64,
    /// Standard deviation of a single sample, from the inner six.
    pub sigma: f64,
    /// Step of its first sample.
    pub first: i64,
}

/// Batcher's odd-even merge sort of eight (1968): comparisons without branches, for what is done of
/// every series all the time.
const NETWORK: [(usize, usize); 19] = [
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (0, 2),
    (1, 3),
    (4, 6),
    (5, 7),
    (1, 2),
    (5, 6),
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
    (2, 4),
    (3, 5),
    (1, 2),
    (3, 4),
    (5, 6),
];

/// In the order of [`f32::total_cmp`].
pub(crate) fn sort(values: &mut [f32; BLOCK]) {
    // The bits of a negative number fall as it rises; its own inverse.
    let flip = |bits: i32| bits ^ ((bits >> 31) as u32 >> 1) as i32;
    let mut keys = values.map(|v| flip(v.to_bits() as i32));
    for (a, b) in NETWORK {
        (keys[a], keys[b]) = (keys[a].min(keys[b]), keys[a].max(keys[b]));
    }
    *values = keys.map(|key| f32::from_bits(flip(key) as u32));
}

impl Blocks {
    /// Takes a value; every [`BLOCK`]th gives the median of its block.
    pub fn add(&mut self, step: i64, value: f64) -> Option<Block> {
        if self.len == 0 {
            self.first = step;
        }
        self.values[usize::from(self.len)] = value as f32;
        self.len += 1;
        if usize::from(self.len) < BLOCK {
            return None;
        }
        self.len = 0;
        sort(&mut self.values);
        let median = 0.5 * (f64::from(self.values[BLOCK / 2 - 1]) + f64::from(self.values[BLOCK / 2]));
        let spread = f64::from(self.values[BLOCK - 2]) - f64::from(self.values[1]);
        Some(Block { median, sigma: spread / INNER_SPREAD, first: self.first })
    }

    /// Forgets an unfinished block.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn three_pauses_in_eight_move_no_median() {
        let mut b = Blocks::default();
        let got: Vec<_> =
            (0..16).filter_map(|i| b.add(i, if i % 3 == 0 && i < 9 { 75.0 } else { 1.0 })).collect();
        let medians: Vec<_> = got.iter().map(|b| (b.first, b.median)).collect();
        assert_eq!(medians, [(0, 1.0), (8, 1.0)]);
        assert_eq!(got[1].sigma, 0.0);
    }

    proptest! {
        #[test]
        fn sorts_as_total_order_does(bits: [u32; BLOCK]) {
            let mut values = bits.map(f32::from_bits);
            let mut want = values;
            want.sort_by(f32::total_cmp);
            sort(&mut values);
            prop_assert_eq!(values.map(f32::to_bits), want.map(f32::to_bits));
        }
    }
}
