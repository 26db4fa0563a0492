//! Finds data that makes runs spike: the same batch in another run, or in another attempt of this
//! one.
//!
//! A spike is kept by the position of the run in its data: in samples if the run reports a constant
//! batch size, else in steps. Runs that read the same data in the same order spike at the same
//! position: seven GPT-2 runs of different people spike at steps 3370, 3696, 5317 because of the
//! data. Coincidence is unlikely, with two spikes in ten thousand steps. Only positions that are
//! known to within a few batches count.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
pub(crate) use stepwatch_model::Elsewhere;

use stepwatch_model::time::Ts;
use stepwatch_model::{Change, Finding, Mark};

/// The most spikes kept of all runs; the oldest are dropped and counted.
const MAX_SIGHTINGS: usize = 2048;
/// Batches within which a place must be known.
const WIDEST: i64 = 8;
/// Steps by which the onset of a loss spike may be off.
const LOSS_SLACK: i64 = 1;
/// First steps, in which runs fail because of their setup and not of their data.
const BEGINNING: i64 = 50;

/// A range of data: after `from`, up to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stretch {
    unit: Unit,
    from: i64,
    to: i64,
}

/// The unit of a position in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Unit {
    Steps,
    Samples,
}

/// The number of samples in a step of the run, while it is constant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSize {
    size: Option<i64>,
    varies: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Sighting {
    run: String,
    attempt: u32,
    at: Ts,
    stretch: Stretch,
}

/// The spikes of all runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Batches {
    seen: VecDeque<Sighting>,
    forgotten: u64,
}

impl BatchSize {
    pub(crate) fn observe(&mut self, samples: f64) {
        let size = (samples.fract() == 0.0 && (1.0..1e12).contains(&samples)).then_some(samples as i64);
        self.varies |= size.is_none() || self.size.is_some_and(|had| Some(had) != size);
        self.size = self.size.or(size);
    }

    /// The data of the last `steps` steps up to `step`.
    fn stretch(self, step: i64, steps: i64) -> Stretch {
        let (unit, each) = match self.size {
            Some(size) if !self.varies => (Unit::Samples, size),
            _ => (Unit::Steps, 1),
        };
        let to = step.saturating_mul(each);
        Stretch { unit, from: to.saturating_sub(steps.saturating_mul(each)), to }
    }

    /// The data of `step`.
    pub(crate) fn at(self, step: i64) -> Stretch {
        self.stretch(step, 1)
    }

    /// The data that a finding is about, if it is a spike and its place is known well enough.
    /// `interval`: steps between two samples.
    pub(crate) fn stretch_of(self, v: &Finding, interval: i64) -> Option<Stretch> {
        let slack = match v.kind {
            kind if kind.has(Mark::Batch) => 0,
            kind if kind.has(Mark::NearBatch) => LOSS_SLACK,
            _ => return None,
        };
        let width = interval.max(1).saturating_add(2 * slack);
        let spike = v.change != Change::Clear && width <= WIDEST && v.start_step >= BEGINNING;
        spike.then(|| self.stretch(v.start_step.saturating_add(slack), width))
    }
}

impl Stretch {
    fn meets(&self, other: &Self) -> bool {
        self.unit == other.unit && self.from < other.to && other.from < self.to
    }
}

impl Batches {
    /// Other runs and attempts with a spike at this position in the data.
    pub(crate) fn elsewhere(&self, stretch: &Stretch, run: &str, attempt: u32) -> Elsewhere {
        let mut found = Elsewhere::default();
        for s in self.seen.iter().filter(|s| s.stretch.meets(stretch)) {
            if s.run != run {
                found.runs.insert(s.run.clone());
            } else if s.attempt != attempt {
                found.attempts.insert(s.attempt);
            }
        }
        found
    }

    /// Remembers a spike; false if it was known.
    pub(crate) fn remember(&mut self, now: Ts, stretch: Stretch, run: &str, attempt: u32) -> bool {
        let known = |s: &Sighting| s.run == run && s.attempt == attempt && s.stretch.meets(&stretch);
        if self.seen.iter().any(known) {
            return false;
        }
        if self.seen.len() >= MAX_SIGHTINGS {
            self.seen.pop_front();
            self.forgotten += 1;
        }
        self.seen.push_back(Sighting { run: run.to_owned(), attempt, at: now, stretch });
        true
    }

    /// The number of spikes that were dropped to make room.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(size: BatchSize, step: i64) -> Stretch {
        size.at(step)
    }

    fn samples(n: i64) -> BatchSize {
        let mut size = BatchSize::default();
        (0..3).for_each(|_| size.observe(n as f64));
        size
    }

    #[test]
    fn the_same_samples_are_the_same_batch_whatever_the_batch_size() {
        let mut b = Batches::default();
        assert!(b.remember(Ts(1), at(samples(512), 1000), "a", 0));
        assert!(!b.remember(Ts(2), at(samples(512), 1000), "a", 0), "once an attempt");
        assert!(b.remember(Ts(3), at(samples(256), 2000), "b", 0));
        let other = b.elsewhere(&at(samples(1024), 500), "c", 0);
        assert_eq!(other.words(), "2 other runs (a, b)");
        assert!(b.elsewhere(&at(samples(512), 1001), "c", 0).is_empty());
        assert!(b.elsewhere(&at(BatchSize::default(), 1000), "c", 0).is_empty(), "steps are no samples");
        let again = b.elsewhere(&at(samples(512), 1000), "a", 1);
        assert_eq!(again.words(), "1 other run (b) and attempt 0 of this run");
    }

    #[test]
    fn a_batch_size_that_varies_is_none() {
        let mut size = samples(64);
        assert_eq!(at(size, 10).unit, Unit::Samples);
        size.observe(128.0);
        size.observe(64.0);
        assert_eq!(at(size, 10), Stretch { unit: Unit::Steps, from: 9, to: 10 });
    }

    #[test]
    fn the_memory_is_bounded_and_counts_what_it_forgets() {
        let mut b = Batches::default();
        for step in 0..MAX_SIGHTINGS as i64 + 5 {
            b.remember(Ts(step), at(BatchSize::default(), step * 9), "a", 0);
        }
        assert_eq!((b.seen.len(), b.forgotten()), (MAX_SIGHTINGS, 5));
    }

    proptest! {
        #[test]
        fn meeting_is_mutual(a in -100i64..100, b in -100i64..100, wide in 1i64..5, size in 1i64..9) {
            let (x, y) = (samples(size).stretch(a, wide), samples(size).stretch(b, 1));
            prop_assert_eq!(x.meets(&y), y.meets(&x));
            prop_assert_eq!(x.meets(&y), (a - wide + 1..=a).contains(&b));
        }
    }
}
