//! Who it was the last times, and whether the part goes round.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// Times that are remembered.
const KEPT: usize = 32;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation(VecDeque<u32>);

impl Rotation {
    pub fn took(&mut self, who: u32) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(who);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How evenly the part goes round among so many: 0 if it is always the same one, 1 if it is
    /// never the same (entropy of who it was, over its maximum); and how often it stayed with
    /// one from one time to the next.
    pub fn rotation(&self, among: u32) -> (f64, f64) {
        let n = self.0.len();
        if n < 2 || among < 2 {
            return (0.0, 1.0);
        }
        let mut counts: BTreeMap<u32, f64> = BTreeMap::new();
        self.0.iter().for_each(|who| *counts.entry(*who).or_default() += 1.0);
        let total = n as f64;
        let mut shares: Vec<f64> = counts.values().map(|c| c / total).collect();
        shares.sort_by(f64::total_cmp);
        let entropy: f64 = shares.iter().map(|p| -p * p.ln()).sum();
        let most = f64::from(among).min(total).ln();
        let repeats = self.0.iter().zip(self.0.iter().skip(1)).filter(|(a, b)| a == b).count();
        (entropy / most, repeats as f64 / (n - 1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation(who: impl Iterator<Item = u32>, among: u32) -> (f64, f64) {
        let mut t = Rotation::default();
        who.for_each(|who| t.took(who));
        t.rotation(among)
    }

    #[test]
    fn one_that_always_has_it_and_all_in_turn() {
        assert_eq!(rotation((0..100).map(|_| 3), 8), (0.0, 1.0));
        let (evenness, repeats) = rotation(0..320, 4096);
        assert!(evenness > 0.99 && repeats == 0.0);
        let (evenness, repeats) = rotation((0..64).map(|i| i % 8), 8);
        assert!(evenness > 0.99 && repeats == 0.0);
        assert_eq!(rotation([1].into_iter(), 8), (0.0, 1.0), "once is no picture");
    }
}
