//! Pauses that return: an evaluation every 250 steps, a checkpoint every 1,540, a restart at every time limit.
//!
//! A pause at step t is expected when the pauses before it hold t − g, t − 2g and t − 3g for some gap g (within 1 % or one logging
//! interval) and were of the same order of size. Four in arithmetic progression among the last twelve hardly happen by chance.

use serde::{Deserialize, Serialize};

const KEPT: usize = 12;
/// Earlier pauses that must lie on the progression.
const BEFORE: i64 = 3;
/// Pauses of one series differ by less than this factor in size.
const SAME_SIZE: f32 = 2.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Season {
    steps: [i64; KEPT],
    sizes: [f32; KEPT],
    at: u8,
    len: u8,
}

impl Season {
    /// Takes a pause; the gap if it was expected. `interval` is the number of steps between two samples.
    pub fn add(&mut self, step: i64, size: f64, interval: i64) -> Option<i64> {
        let expected = self.expects(step, size as f32, interval);
        let at = usize::from(self.at);
        (self.steps[at], self.sizes[at]) = (step, size as f32);
        self.at = ((at + 1) % KEPT) as u8;
        self.len = (self.len + 1).min(KEPT as u8);
        expected
    }

    fn expects(&self, step: i64, size: f32, interval: i64) -> Option<i64> {
        let n = usize::from(self.len);
        let like = |i: usize| self.sizes[i] < size * SAME_SIZE && size < self.sizes[i] * SAME_SIZE;
        let holds =
            |t: i64, slack: i64| (0..n).any(|i| like(i) && self.steps[i].abs_diff(t) <= slack.unsigned_abs());
        (0..n).filter(|i| like(*i)).map(|i| step.saturating_sub(self.steps[i])).find(|gap| {
            let slack = (gap / 100).max(interval);
            *gap / 2 > slack && (2..=BEFORE).all(|k| holds(step.saturating_sub(gap.saturating_mul(k)), slack))
        })
    }

    /// Steps may have gone backwards.
    pub fn clear(&mut self) {
        self.len = 0;
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_two_interleaved_seasons() {
        let mut s = Season::default();
        let mut expected = Vec::new();
        for step in 1..=2000 {
            let size = match step {
                _ if step % 500 == 0 => 60.0,
                _ if step % 250 == 100 => 5.0,
                _ => continue,
            };
            if s.add(step, size, 1).is_some() {
                expected.push(step);
            }
        }
        assert_eq!(expected, [850, 1100, 1350, 1600, 1850, 2000]);
    }

    #[test]
    fn irregular_stalls_are_never_expected() {
        let mut s = Season::default();
        for step in [371, 759, 1715, 2474, 3240, 3300, 3351, 3386, 3619, 3772, 3910, 3941, 5100, 6733] {
            assert_eq!(s.add(step, 190.0, 1), None, "{step}");
        }
    }
}
