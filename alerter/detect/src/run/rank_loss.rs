//! Compares the loss of each rank with those of the other ranks at the same step.
//!
//! Ranks that train on different batches differ by the noise of a batch. A GPU that computes wrong
//! results shows first in the loss of its own rank. One step later, the gradients have spread the
//! error to all ranks, which cannot be distinguished any more. So a rank that deviates before the
//! others is kept for a while: its loss is NaN while the others are finite, or far from theirs.
//!
//! A single deviation of a rank is most often caused by its batch. Repeated deviations, with
//! another batch each time, are not. Ranks that all report the same loss (the mean of all) never
//! deviate, and cost one comparison.
//!
//! A step is judged when every rank that usually reports its loss has done so, or when a later step
//! is complete or two have begun. O(ranks) a step, eight bytes a rank; strays beyond the limit
//! replace the oldest.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::stats::median::MAD_TO_SIGMA;

/// The most steps that wait for their ranks.
const OPEN: usize = 2;
/// With fewer ranks, the one that deviates cannot be identified.
pub(crate) const FEWEST: usize = 4;
/// The most strays kept.
const STRAYS: usize = 32;
/// A stray is this many robust standard deviations (1.4826 MAD) from the median of its step, and
/// this share of it. A normal distribution has a chance of 1.5·10⁻²³ beyond 10 on both sides; a
/// tenth of a rank's loss is what a batch of another kind makes.
const FAR: f64 = 10.0;
const MATTERS: f64 = 0.1;
/// Ranks without a number deviate only if they are at most this share: an engineering limit.
const FEW: f64 = 0.25;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankLosses {
    open: VecDeque<Open>,
    /// The number of ranks that reported their loss at the last steps; `late` counts reports of the
    /// last evaluated step that came after its evaluation.
    usual: usize,
    late: usize,
    last: Option<i64>,
    strays: VecDeque<Stray>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Open {
    step: i64,
    losses: Vec<(u32, f32)>,
}

/// A rank whose loss deviated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stray {
    pub rank: u32,
    pub step: i64,
    pub loss: f64,
    /// The median of the other ranks; `ranks` is their number.
    pub others: f64,
    pub ranks: u32,
}

impl RankLosses {
    /// Records the loss of a rank at a step. True if a rank deviates.
    pub(crate) fn take(&mut self, rank: u32, step: i64, loss: f64) -> bool {
        if self.last.is_some_and(|last| step <= last) {
            self.late += usize::from(self.last == Some(step));
            return false;
        }
        let at = self.open.partition_point(|o| o.step < step);
        if self.open.get(at).is_none_or(|o| o.step != step) {
            self.open.insert(at, Open { step, losses: Vec::with_capacity(self.usual) });
        }
        let losses = &mut self.open[at].losses;
        if losses.last().is_some_and(|(last, _)| *last >= rank) && losses.iter().any(|(had, _)| *had == rank)
        {
            return false; // another source of the same rank
        }
        losses.push((rank, loss as f32));
        let before = self.last_stray();
        // At first it is not known how many ranks report.
        let full = |l: &Self, o: &Open| l.last.is_some() && o.losses.len() >= l.usual.max(FEWEST);
        while self.open.front().is_some_and(|o| self.open.len() > OPEN || full(self, o)) {
            if let Some(done) = self.open.pop_front() {
                self.judge(done);
            }
        }
        self.last_stray() != before
    }

    /// Resets the state, because the run restarted and repeats steps.
    pub(crate) fn restarted(&mut self) {
        (self.last, self.usual, self.late) = (None, 0, 0);
        self.open.clear();
        self.strays.clear();
    }

    fn judge(&mut self, done: Open) {
        self.last = Some(done.step);
        let n = done.losses.len();
        // Ranks that were late are waited for from now on. Those that stay away are waited for at
        // fewer and fewer steps.
        let seen = n + core::mem::take(&mut self.late);
        self.usual = if seen < self.usual { self.usual - (self.usual - seen).div_ceil(4) } else { seen };
        let mut finite: Vec<f64> =
            done.losses.iter().map(|t| f64::from(t.1)).filter(|v| v.is_finite()).collect();
        let lost = n - finite.len();
        if n < FEWEST || lost as f64 > FEW * n as f64 {
            return;
        }
        let others = median(&mut finite);
        finite.iter_mut().for_each(|v| *v = (*v - others).abs());
        let sigma = MAD_TO_SIGMA * median(&mut finite);
        let bound = (FAR * sigma).max(MATTERS * others.abs());
        let out = |loss: f64| !loss.is_finite() || (loss - others).abs() > bound;
        for (rank, loss) in
            done.losses.iter().map(|(rank, loss)| (*rank, f64::from(*loss))).filter(|t| out(t.1))
        {
            if self.strays.len() == STRAYS {
                self.strays.pop_front();
            }
            self.strays.push_back(Stray { rank, step: done.step, loss, others, ranks: n as u32 });
        }
    }

    /// Step and rank of the last stray.
    pub fn last_stray(&self) -> Option<(i64, u32)> {
        self.strays.back().map(|s| (s.step, s.rank))
    }

    /// Ranks that were out of line from step `since` on, oldest first.
    pub fn strays(&self, since: i64) -> impl Iterator<Item = &Stray> {
        self.strays.iter().filter(move |s| s.step >= since)
    }
}

/// The median, the lower one of two in the middle.
fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let at = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranks that stray, by step, where `loss` is the loss of each step and rank.
    fn strays(ranks: u32, steps: i64, loss: impl Fn(i64, u32) -> f64) -> Vec<(i64, u32)> {
        let mut losses = RankLosses::default();
        for step in 1..=steps + 4 {
            for rank in 0..ranks {
                losses.take(rank, step, loss(step, rank));
            }
        }
        losses.strays(0).filter(|s| s.step <= steps).map(|s| (s.step, s.rank)).collect()
    }

    fn noise(step: i64, rank: u32) -> f64 {
        2.0 + 0.04 * (f64::from(rank) * 7.3 + step as f64 * 1.7).sin()
    }

    #[test]
    fn the_rank_that_lost_its_number_first_is_known_when_all_have_lost_it() {
        let loss = |step, rank| match step {
            1..=9 => noise(step, rank),
            10 if rank != 5 => noise(step, rank),
            _ => f64::NAN,
        };
        assert_eq!(strays(16, 20, loss), [(10, 5)]);
    }

    #[test]
    fn a_rank_that_is_far_from_the_others_is_and_one_that_is_a_little_is_not() {
        let off =
            |by: f64| move |step, rank| noise(step, rank) + if (step, rank) == (10, 3) { by } else { 0.0 };
        assert_eq!(strays(16, 20, off(0.8)), [(10, 3)]);
        assert_eq!(strays(16, 20, off(-0.8)), [(10, 3)]);
        assert_eq!(strays(16, 20, off(0.2)), []);
        assert_eq!(strays(3, 20, off(0.8)), [], "three ranks are too few to compare");
        let mean = |step: i64, _| if step == 10 { f64::NAN } else { 2.0 };
        assert_eq!(strays(16, 20, mean), [], "all say the same");
    }

    #[test]
    fn what_comes_late_or_never_stops_nobody() {
        let mut losses = RankLosses::default();
        for step in 1..=200_i64 {
            for rank in (0..8_u32).filter(|rank| *rank != 7 || step < 50) {
                losses.take(rank, step, if (step, rank) == (150, 2) { 9.0 } else { noise(step, rank) });
            }
            losses.take(1, step - 30, f64::NAN);
        }
        assert_eq!(losses.strays(0).map(|s| (s.step, s.rank)).collect::<Vec<_>>(), [(150, 2)]);
        assert!(losses.open.len() <= OPEN);
    }

    proptest! {
        #[test]
        fn the_order_of_reports_and_the_names_of_ranks_say_nothing(shift in 0u32..16, turn in 0usize..16) {
            let loss = |step: i64, rank: u32| noise(step, rank) + if (step, rank) == (5, 3) { 1.0 } else { 0.0 };
            let mut losses = RankLosses::default();
            for step in 1..=9 {
                let mut order: Vec<u32> = (0..16).collect();
                order.rotate_left(turn);
                for rank in order {
                    losses.take(rank + shift, step, loss(step, rank));
                }
            }
            let got: Vec<(i64, u32)> = losses.strays(0).map(|s| (s.step, s.rank)).collect();
            prop_assert_eq!(got, [(5, 3 + shift)]);
        }
    }
}
