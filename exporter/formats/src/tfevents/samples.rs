//! DeepSpeed's monitor, whose steps are samples: `Train/Samples/train_loss` at 0, 32, 64, …
//!
//! The batch of a run is constant, so it follows from the first two places, and with it the step.
//! Until then values are held back. The loss is at the place where its step began and everything
//! else where it ended.

use std::collections::VecDeque;

/// Values held back; more than one step of DeepSpeed has.
const MAX_WAITING: usize = 256;

/// The name under the monitor's prefix, if the tag is one of its own.
pub(super) fn name(tag: &str) -> Option<&str> {
    tag.strip_prefix("Train/Samples/")
}

#[derive(Debug, Default)]
pub(super) struct Samples {
    batch: Option<i64>,
    waiting: VecDeque<Value>,
}

/// A value and its place.
#[derive(Debug, PartialEq)]
pub(super) struct Value<Name = Box<str>> {
    pub(super) name: Name,
    /// Samples at first, the step when it is published.
    pub(super) step: i64,
    pub(super) ts: Option<f64>,
    pub(super) value: f64,
}

impl Samples {
    /// Takes a value in. Returns how many were dropped for it.
    pub(super) fn push(&mut self, v: Value) -> u64 {
        if self.batch.is_none() {
            let apart = self.waiting.back().map(|before| v.step.saturating_sub(before.step));
            match apart {
                Some(batch) if batch > 0 => self.batch = Some(batch),
                // The training went back before it came anywhere.
                Some(apart) if apart < 0 => self.waiting.clear(),
                _ => {}
            }
        }
        let full = self.waiting.len() >= MAX_WAITING;
        if full {
            self.waiting.pop_front();
        }
        self.waiting.push_back(v);
        u64::from(full)
    }

    /// The next value whose step is known.
    pub(super) fn pop(&mut self) -> Option<Value> {
        let batch = self.batch?;
        let v = self.waiting.pop_front()?;
        let began = i64::from(&*v.name == "train_loss");
        Some(Value { step: v.step.div_euclid(batch) + began, ..v })
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(values: &[(&str, i64)]) -> Vec<(String, i64)> {
        let mut s = Samples::default();
        let mut out = Vec::new();
        for (name, samples) in values {
            s.push(Value { name: (*name).into(), step: *samples, ts: None, value: 1.0 });
            while let Some(v) = s.pop() {
                out.push((v.name.into_string(), v.step));
            }
        }
        out
    }

    #[test]
    fn the_batch_follows_from_the_first_two_places() {
        let seen = steps(&[("train_loss", 0), ("lr", 32), ("train_loss", 32), ("lr", 64)]);
        let want = [("train_loss", 1), ("lr", 1), ("train_loss", 2), ("lr", 2)];
        assert_eq!(seen, want.map(|(n, s)| (n.to_owned(), s)));
        let later = steps(&[("lr", 640), ("train_loss", 640), ("lr", 672)]);
        assert_eq!(later.iter().map(|(_, s)| *s).collect::<Vec<_>>(), [20, 21, 21]);
    }

    #[test]
    fn what_cannot_be_placed_is_held_and_bounded() {
        let mut s = Samples::default();
        let v = |samples| Value { name: "lr".into(), step: samples, ts: None, value: 1.0 };
        let dropped: u64 = (0..300).map(|_| s.push(v(5))).sum();
        assert_eq!((dropped, s.waiting.len(), s.pop()), (44, MAX_WAITING, None));
        s.push(v(3));
        assert_eq!(s.waiting.len(), 1, "it went back");
    }
}
