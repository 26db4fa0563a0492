//! How many of the last n samples were hits.

use serde::{Deserialize, Serialize};

/// The last 64 samples, newest in bit 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitWindow(u64);

impl HitWindow {
    pub fn push(&mut self, hit: bool) {
        self.0 = self.0 << 1 | u64::from(hit);
    }

    /// Hits among the last `n` samples, at most 64.
    pub fn count_last(self, n: u32) -> u32 {
        let mask = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        (self.0 & mask).count_ones()
    }

    pub fn clear(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_like_a_list(hits: Vec<bool>, n in 0u32..80) {
            let mut v = HitWindow::default();
            hits.iter().for_each(|h| v.push(*h));
            let want = hits.iter().rev().take(n.min(64) as usize).filter(|h| **h).count();
            prop_assert_eq!(v.count_last(n) as usize, want);
        }
    }
}
