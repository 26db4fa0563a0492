//! Medians of consecutive blocks: the cheapest summary that pauses in fewer than half of the steps cannot move.

use serde::{Deserialize, Serialize};

use super::median;

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
        let median = median::median(&mut self.values);
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
}
