//! The times of a run's steps: exact for the last ones, approximate for older ones.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_model::time::Ts;

/// The most moments of one level.
const KEPT: usize = 256;
/// One of this many moments that leave a level moves to the next.
const FACTOR: usize = 8;
const LEVELS: usize = 4;

/// The levels of moments, the coarsest and oldest last.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StepClock([VecDeque<Moment>; LEVELS]);

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Moment {
    step: i64,
    at: Ts,
    /// Whether a later attempt begins with this moment, so that the time since the previous one is
    /// no measure of the pace.
    again: bool,
}

impl StepClock {
    /// Adds a step. `again`: a later attempt begins, which repeats this and later steps.
    pub(super) fn push(&mut self, step: i64, at: Ts, again: bool) {
        if again {
            for level in &mut self.0 {
                while level.back().is_some_and(|m| m.step >= step) {
                    level.pop_back();
                }
            }
        }
        if self.last().is_some_and(|m| m.step >= step) {
            return;
        }
        let mut next = Some(Moment { step, at, again });
        for level in &mut self.0 {
            let Some(moment) = next.take() else { return };
            level.push_back(moment);
            if level.len() >= KEPT {
                next = level.drain(..FACTOR).next();
            }
        }
        if let (Some(first), Some(last)) = (next, self.0.last_mut()) {
            last.push_front(first);
            let mut keep = false;
            last.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    fn last(&self) -> Option<&Moment> {
        self.0.iter().find_map(VecDeque::back)
    }

    /// The time of a step: interpolated between two known moments, and clamped to the first and
    /// last.
    pub(super) fn at(&self, step: i64) -> Option<Ts> {
        let (mut before, mut after) = (None::<Moment>, None::<Moment>);
        for level in &self.0 {
            let next = level.partition_point(|m| m.step <= step);
            after = level.get(next).copied().or(after);
            if let Some(found) = next.checked_sub(1).and_then(|i| level.get(i)) {
                before = Some(*found);
                break;
            }
        }
        let (Some(a), Some(b)) = (before, after) else { return before.or(after).map(|m| m.at) };
        if b.again {
            return Some(a.at);
        }
        let (steps, time) = (b.step.abs_diff(a.step) as f64, b.at - a.at);
        let share = step.abs_diff(a.step) as f64 / steps.max(1.0);
        Some(Ts(a.at.0.saturating_add((time.0 as f64 * share) as i64)))
    }

    pub(super) fn is_sound(&self) -> bool {
        let all = || self.0.iter().rev().flatten();
        self.0.iter().all(|l| l.len() <= KEPT) && all().is_sorted_by(|a, b| a.step < b.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_steps_are_exact_and_old_ones_nearly() {
        let mut clock = StepClock::default();
        let at = |step: i64| Ts(1_000_000 + step * 4_000);
        (0..3_000_000).for_each(|step| clock.push(step, at(step), false));
        assert!(clock.is_sound());
        assert_eq!(clock.at(2_999_999), Some(at(2_999_999)));
        for step in [0, 17, 99_999, 2_000_001] {
            let off = (clock.at(step).unwrap() - at(step)).0.abs();
            assert!(off <= 4_000, "step {step} is {off} ms off at an even pace");
        }
        assert_eq!(clock.at(-5), Some(at(0)));
        assert_eq!(clock.at(9_000_000), Some(at(2_999_999)));
    }

    #[test]
    fn a_later_attempt_overwrites() {
        let mut clock = StepClock::default();
        (0..1000).for_each(|step| clock.push(step, Ts(step), false));
        clock.push(500, Ts(9_000), true);
        clock.push(501, Ts(9_001), false);
        assert_eq!((clock.at(500), clock.at(800)), (Some(Ts(9000)), Some(Ts(9001))));
        let before = clock.at(499).unwrap().0;
        assert!((490..500).contains(&before), "of the attempt that was left: {before}");
        assert!(clock.is_sound());
        assert_eq!(StepClock::default().at(3), None);
    }
}
