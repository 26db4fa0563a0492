//! At which steps the run is evaluated, for each evaluation set.
//!
//! Another process may evaluate the checkpoints of the run. Its evaluations come later than the
//! steps that they are of: by how much is learned as well.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The most evaluation sets that are followed, and the most intervals of each.
const SETS_KEPT: usize = 16;
const INTERVALS_KEPT: usize = 8;
/// The number of intervals from which the usual one is known.
const KNOWN: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Evals {
    sets: Vec<EvalSet>,
}

/// One evaluation set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EvalSet {
    pub(crate) name: String,
    /// The attempt and the step of its last evaluation.
    pub(crate) attempt: u32,
    pub(crate) step: i64,
    /// Steps between the last evaluations, and how many steps the run was ahead of each.
    intervals: VecDeque<i64>,
    ahead: VecDeque<i64>,
}

impl EvalSet {
    /// The longest of the last intervals, once they are known. So evaluations that come less often
    /// from some step on are not missed before their intervals have more than tripled.
    pub(crate) fn interval(&self) -> Option<i64> {
        self.intervals.iter().copied().max().filter(|_| self.intervals.len() >= KNOWN)
    }

    /// By how many steps the run was ahead at most when one of the last evaluations arrived, except
    /// for one: of those that waited for the process that evaluates, one says nothing of the next.
    pub(crate) fn ahead(&self) -> i64 {
        let mut ahead: Vec<i64> = self.ahead.iter().copied().collect();
        ahead.sort_unstable();
        ahead.iter().rev().nth(1).or(ahead.first()).copied().unwrap_or(0)
    }

    fn take(&mut self, attempt: u32, step: i64, run_step: i64) {
        if attempt == self.attempt {
            if step <= self.step {
                return; // another rank's report of the same, or an earlier one that comes late
            }
            keep(&mut self.intervals, step.saturating_sub(self.step));
        }
        (self.attempt, self.step) = (attempt, step);
        keep(&mut self.ahead, run_step.saturating_sub(step).max(0));
    }
}

impl Evals {
    pub(crate) fn sets(&self) -> impl Iterator<Item = &EvalSet> {
        self.sets.iter()
    }

    /// Takes an evaluation of a step. `run_step`: where the run is.
    pub(crate) fn take(&mut self, name: &str, attempt: u32, step: i64, run_step: Option<i64>) {
        let run_step = run_step.unwrap_or(step);
        if let Some(set) = self.sets.iter_mut().find(|set| set.name == name) {
            set.take(attempt, step, run_step);
            return;
        }
        if self.sets.len() == SETS_KEPT {
            // Names with a number in them come once each.
            let once = self.sets.iter().enumerate().filter(|(_, set)| set.interval().is_none());
            if let Some((at, _)) = once.min_by_key(|(_, set)| (set.attempt, set.step)) {
                self.sets.remove(at);
            }
        }
        if self.sets.len() < SETS_KEPT {
            let ahead = VecDeque::from([run_step.saturating_sub(step).max(0)]);
            self.sets.push(EvalSet { name: name.to_owned(), attempt, step, ahead, ..EvalSet::default() });
        }
    }
}

fn keep(ring: &mut VecDeque<i64>, steps: i64) {
    if ring.len() == INTERVALS_KEPT {
        ring.pop_front();
    }
    ring.push_back(steps);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_longest_of_the_last_ones() {
        let mut evals = Evals::default();
        let mut at = |attempt: u32, step: i64, run_step: i64| {
            evals.take("val", attempt, step, Some(run_step));
            evals.sets().next().map(|set| (set.interval(), set.ahead()))
        };
        assert_eq!(
            [at(0, 100, 100), at(0, 200, 200), at(0, 300, 330)].map(|known| known.unwrap().0),
            [None; 3]
        );
        assert_eq!(at(0, 300, 390), Some((None, 0)), "another rank");
        assert_eq!(at(0, 400, 420), Some((Some(100), 20)), "the longest but one");
        assert_eq!(at(0, 600, 600), Some((Some(200), 20)));
        assert_eq!(at(1, 300, 300), Some((Some(200), 20)), "a restart is no interval");
        for n in 4..=10 {
            at(1, 100 * n, 100 * n);
        }
        assert_eq!(at(1, 1100, 1100), Some((Some(100), 0)), "the long one is forgotten");
    }

    #[test]
    fn only_so_many_sets_are_followed() {
        let mut evals = Evals::default();
        for step in 0..100 {
            evals.take(&format!("eval_{step}"), 0, step, None);
            if step % 10 == 0 {
                evals.take("val", 0, step, None);
            }
        }
        assert_eq!(evals.sets().count(), 16);
        let rhythm = |name: &str| evals.sets().find(|set| set.name == name).map(EvalSet::interval);
        assert_eq!(rhythm("val"), Some(Some(10)), "it has a rhythm");
        assert_eq!((rhythm("eval_99"), rhythm("eval_0")), (Some(None), None));
    }
}
