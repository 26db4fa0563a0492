//! Pauses that return: an evaluation every 250 steps, a checkpoint every 1,540, a restart at every
//! time limit.
//!
//! A pause at step t is expected when the pauses before it hold t − g, t − 2g and t − 3g for some
//! gap g (within 1 % or one logging interval) and were of the same order of size. Where pauses are
//! many, some stand in a progression by chance: with a share p of places that one of the last
//! twelve would fit, k of them fit with chance pᵏ, for each of twelve gaps. So many are asked for
//! that this stays below 1 %: three of a pause every 250 steps, six of one every 4.

use serde::{Deserialize, Serialize};

const KEPT: usize = 12;
/// Earlier pauses that must lie on the progression, at least.
const BEFORE: i64 = 3;
/// Chance of a progression among pauses that have none.
const CHANCE: f64 = 0.01;
/// Gaps of fewer logging intervals than this are exact.
const EXACT: i64 = 16;
/// Pauses of one series differ by less than this factor in size: an engineering limit.
const SAME_SIZE: f32 = 2.0;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Season {
    steps: [i64; KEPT],
    sizes: [f32; KEPT],
    at: u8,
    len: u8,
}

impl Season {
    /// Takes a pause; the gap if it was expected. `interval` is the number of steps between two
    /// samples.
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
        let many = (0..n).filter(|i| like(*i)).count() as f64;
        let since = (0..n).filter(|i| like(*i)).map(|i| self.steps[i]).min()?;
        let span = step.saturating_sub(since).max(1) as f64 / interval as f64;
        (0..n).filter(|i| like(*i)).map(|i| step.saturating_sub(self.steps[i])).find(|gap| {
            let slack = if *gap < interval.saturating_mul(EXACT) { 0 } else { (gap / 100).max(interval) };
            let places = (2 * (slack / interval) + 1) as f64;
            let asked = asked(many / span * places).max(BEFORE);
            *gap / 2 > slack.max(interval)
                && (2..=asked).all(|k| holds(step.saturating_sub(gap.saturating_mul(k)), slack))
        })
    }

    /// Steps may have gone backwards.
    pub fn clear(&mut self) {
        self.len = 0;
        self.at = 0;
    }
}

/// How many must fit, where one fits by chance with this probability.
fn asked(chance: f64) -> i64 {
    if chance >= 1.0 { i64::MAX } else { ((CHANCE / KEPT as f64).ln() / chance.ln()).ceil() as i64 }
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
    fn many_pauses_at_random_have_no_season() {
        let mut s = Season::default();
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        let mut pauses = 0;
        let mut expected = 0;
        for step in 1..=5000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if x >> 33 & 0xff < 100 {
                pauses += 1;
                expected += i32::from(s.add(step, 0.7, 1).is_some());
            }
        }
        assert!(expected * 20 < pauses, "{expected} of {pauses}");
        let mut s = Season::default();
        let expected = (1..=40).filter(|i| s.add(10 * i, 4.0, 1).is_some()).count();
        assert!(expected >= 34, "every tenth step: {expected} of 40");
    }

    #[test]
    fn irregular_stalls_are_never_expected() {
        let mut s = Season::default();
        for step in [371, 759, 1715, 2474, 3240, 3300, 3351, 3386, 3619, 3772, 3910, 3941, 5100, 6733] {
            assert_eq!(s.add(step, 190.0, 1), None, "{step}");
        }
    }
}
