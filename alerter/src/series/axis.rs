//! The steps of raw values, as ranges of equal interval: a run that logs every ten steps has one
//! range for any number of values.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The most ranges of one axis. A signal with irregular steps keeps fewer raw values, but at least
/// twice as many as it has ranges.
pub(super) const MAX_STRETCHES: usize = 320;
/// The number of ranges by which capacity grows, so that memory follows the content.
const ROOM: usize = 16;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Axis(VecDeque<Stretch>);

/// `count` steps beginning with `first`, `interval` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stretch {
    first: i64,
    interval: u32,
    count: u16,
}

impl Stretch {
    fn end(&self) -> i64 {
        self.first.saturating_add(i64::from(self.interval).saturating_mul(i64::from(self.count)))
    }

    fn last(&self) -> i64 {
        self.end().saturating_sub(i64::from(self.interval))
    }
}

impl Axis {
    /// Adds a step after the last one.
    pub(super) fn push(&mut self, step: i64) {
        if let Some(s) = self.0.back_mut() {
            let ahead = u32::try_from(step.saturating_sub(s.first)).ok();
            if let Some(ahead) = ahead.filter(|_| s.count == 1) {
                (s.interval, s.count) = (ahead, 2);
                return;
            }
            if s.count > 1 && s.end() == step && s.count < u16::MAX {
                s.count += 1;
                return;
            }
        }
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(ROOM);
        }
        self.0.push_back(Stretch { first: step, interval: 0, count: 1 });
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() > MAX_STRETCHES
    }

    pub(super) fn last(&self) -> Option<i64> {
        self.0.back().map(Stretch::last)
    }

    /// Removes the first `n` steps.
    pub(super) fn forget_first(&mut self, mut n: usize) {
        while let Some(s) = self.0.front_mut().filter(|_| n > 0) {
            let taken = n.min(usize::from(s.count));
            n -= taken;
            s.first = s.first.saturating_add(i64::from(s.interval) * taken as i64);
            s.count -= taken as u16;
            match s.count {
                0 => drop(self.0.pop_front()),
                1 => s.interval = 0,
                _ => {}
            }
        }
    }

    /// Removes the last step.
    pub(super) fn pop(&mut self) {
        let Some(s) = self.0.back_mut() else { return };
        s.count -= 1;
        match s.count {
            0 => drop(self.0.pop_back()),
            1 => s.interval = 0,
            _ => {}
        }
    }

    /// All steps, in order.
    pub(super) fn steps(&self) -> impl Iterator<Item = i64> + '_ {
        self.0.iter().flat_map(|s| {
            (0..i64::from(s.count)).map(|i| s.first.saturating_add(i.saturating_mul(i64::from(s.interval))))
        })
    }

    /// The number of steps.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|s| usize::from(s.count)).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Stretch>()
    }

    /// Whether [`Self::push`] could have produced this axis, because stored bytes may be damaged.
    pub(super) fn is_sound(&self) -> bool {
        let rising = self.0.iter().zip(self.0.iter().skip(1)).all(|(a, b)| a.last() < b.first);
        let real = |s: &Stretch| s.count > 0 && (s.count == 1) == (s.interval == 0);
        self.0.len() <= MAX_STRETCHES + 1 && rising && self.0.iter().all(real)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// After any additions and removals, the steps are those of a plain list.
        #[test]
        fn it_is_a_list_of_steps(changes in prop::collection::vec((0u8..8, 1i64..4), 1..200)) {
            let (mut axis, mut list) = (Axis::default(), Vec::new());
            for (what, by) in changes {
                match what {
                    0 => {
                        axis.forget_first(by as usize);
                        list.drain(..(by as usize).min(list.len()));
                    }
                    1 => {
                        axis.pop();
                        list.pop();
                    }
                    _ => {
                        let step = list.last().copied().unwrap_or(-100) + by;
                        axis.push(step);
                        list.push(step);
                    }
                }
                prop_assert_eq!(axis.steps().collect::<Vec<_>>(), list.clone());
                prop_assert_eq!((axis.len(), axis.last()), (list.len(), list.last().copied()));
                prop_assert!(axis.is_sound());
            }
        }
    }

    #[test]
    fn equal_intervals_are_one_stretch() {
        let mut axis = Axis::default();
        (0..4000).for_each(|i| axis.push(i * 10));
        assert_eq!(axis.0.len(), 1);
        axis.push(i64::MAX / 2);
        assert_eq!(axis.0.len(), 2);
        assert_eq!(axis.last(), Some(i64::MAX / 2));
    }
}
