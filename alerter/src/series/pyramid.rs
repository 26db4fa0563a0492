//! One signal of one run, from its first to its last step, in at most 64 KiB.
//!
//! The last 4,096 values are kept exactly. Older ones are in buckets with the lowest, highest, last
//! and mean value, so that a spike of one step is never lost: three levels of 352 buckets, of 64,
//! 512 and 4,096 values each. Eight buckets that leave a level become one of the next; when the
//! last level is full, its buckets are joined in pairs. After a month of one step per second, the
//! oldest buckets have 8,192 steps each, and there are about 300 of them.
//!
//! A run that restarts at an earlier step repeats steps, and the later attempt replaces the earlier
//! one: values from that step on are dropped. The bucket that contains the step is kept whole,
//! because it cannot be split, so up to one bucket before the restart shows both attempts.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_detect::Expectation;

use super::axis::Axis;
use super::bucket::{Band, Bucket, single};

/// The number of values that are kept exactly.
const RAW: usize = 4096;
/// The number of raw values in a bucket of the first level.
const GROUP: usize = 64;
/// The number of buckets of one level that become one of the next.
const FACTOR: usize = 8;
const LEVELS: usize = 3;
/// The most buckets of one level.
const BUCKETS: usize = 352;
/// The numbers of raw values and buckets by which capacity grows, so that memory follows the
/// content.
const ROOM_RAW: usize = 256;
const ROOM: usize = 32;
/// The most bytes of one signal, including its containers.
pub const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Pyramid {
    /// The levels of buckets, the coarsest and oldest last.
    levels: [VecDeque<Bucket>; LEVELS],
    axis: Axis,
    raw: VecDeque<f32>,
    /// One band for each `GROUP` of raw values, from the first on.
    bands: VecDeque<Band>,
    attempt: u32,
    expected: Option<Band>,
}

impl Pyramid {
    /// Adds the value of a step. `expectation` is the latest one of the detectors, if it was
    /// computed again.
    ///
    /// Steps rise within an attempt. A second value of a step is not added; it only marks the step
    /// if it is not finite, because several ranks may report a step.
    pub(super) fn push(&mut self, attempt: u32, step: i64, value: f64, expectation: Option<Expectation>) {
        if let Some(e) = expectation {
            self.expected = Some(Band::from(e)).filter(|band| band.is_known());
        }
        let value = single(value);
        if attempt != self.attempt {
            self.attempt = attempt;
            self.forget_from(step);
        }
        if self.last_step().is_some_and(|last| step <= last) {
            if !value.is_finite() {
                self.mark(step);
            }
            return;
        }
        if self.raw.len() == RAW || self.axis.is_full() {
            self.fold();
        }
        if self.raw.len() == self.raw.capacity() {
            self.raw.reserve_exact(ROOM_RAW);
        }
        self.axis.push(step);
        self.raw.push_back(value);
        if self.raw.len() > self.bands.len() * GROUP {
            self.bands.push_back(Band::NONE);
        }
        if let (Some(band), Some(expected)) = (self.bands.back_mut(), self.expected) {
            *band = expected;
        }
    }

    pub(super) fn last_step(&self) -> Option<i64> {
        let coarse = || self.levels.iter().find_map(|level| level.back()).map(|b| b.first);
        self.axis.last().or_else(coarse)
    }

    /// The last finite value.
    pub(super) fn last_value(&self) -> Option<f64> {
        let raw = self.raw.iter().rev().find(|v| v.is_finite()).copied();
        raw.or_else(|| self.levels.iter().find_map(|level| level.back()).map(|b| b.last)).map(f64::from)
    }

    pub(super) fn expectation(&self) -> Option<Expectation> {
        self.expected.and_then(Band::expectation)
    }

    /// Marks a step because another rank's value is not finite.
    fn mark(&mut self, step: i64) {
        if let Some(at) = self.axis.steps().position(|s| s == step) {
            self.raw[at] = f32::NAN;
            return;
        }
        let holds = |level: &mut VecDeque<Bucket>| level.iter().rposition(|b| b.first <= step);
        for level in &mut self.levels {
            if let Some(at) = holds(level) {
                level[at].nonfinite = level[at].nonfinite.saturating_add(1);
                return;
            }
        }
    }

    /// Drops the values of `step` and of all later steps.
    fn forget_from(&mut self, step: i64) {
        while self.axis.last().is_some_and(|last| last >= step) {
            self.axis.pop();
            self.raw.pop_back();
        }
        self.bands.truncate(self.raw.len().div_ceil(GROUP));
        if !self.raw.is_empty() {
            return;
        }
        for level in &mut self.levels {
            while level.back().is_some_and(|b| b.first >= step) {
                level.pop_back();
            }
        }
    }

    /// Moves the oldest raw values, and excess buckets, to the next level.
    fn fold(&mut self) {
        let n = GROUP.min(self.raw.len());
        let band = self.bands.pop_front().unwrap_or(Band::NONE);
        let values = self.axis.steps().zip(self.raw.drain(..n));
        let bucket = Bucket::join(values.map(|(step, v)| Bucket::of_value(step, v, band)));
        self.axis.forget_first(n);
        let mut next = bucket;
        for level in &mut self.levels {
            let Some(bucket) = next.take() else { return };
            if level.len() == level.capacity() {
                level.reserve_exact(ROOM);
            }
            level.push_back(bucket);
            if level.len() >= BUCKETS {
                next = Bucket::join(level.drain(..FACTOR));
            }
        }
        // The last level has no next one, so the whole level becomes coarser.
        if let (Some(first), Some(last)) = (next, self.levels.last_mut()) {
            last.push_front(first);
            let mut pairs = VecDeque::with_capacity(BUCKETS);
            while let Some(mut bucket) = last.pop_front() {
                if let Some(second) = last.pop_front() {
                    bucket.append(&second);
                }
                pairs.push_back(bucket);
            }
            *last = pairs;
        }
    }

    /// All buckets and raw values, in the order of steps.
    fn all(&self) -> impl Iterator<Item = Bucket> + '_ {
        let raw = self.axis.steps().zip(&self.raw).enumerate();
        let raw = raw.map(|(i, (step, value))| {
            Bucket::of_value(step, *value, self.bands.get(i / GROUP).copied().unwrap_or(Band::NONE))
        });
        self.levels.iter().rev().flatten().copied().chain(raw)
    }

    /// The buckets of the steps from `from` to `to`: at least one and at most `points`. The first
    /// may begin before `from`.
    pub(super) fn window(&self, from: i64, to: i64, points: usize) -> Vec<Bucket> {
        let points = points.max(1);
        let mut wanted: Vec<Bucket> = Vec::new();
        for bucket in self.all().take_while(|b| b.first <= to) {
            if bucket.first <= from {
                // The previous bucket ended before `from`.
                wanted.clear();
            }
            wanted.push(bucket);
        }
        let before = wanted.len() == 1 && wanted[0].first < from && self.last_step() < Some(from);
        if before {
            wanted.clear();
        }
        if wanted.len() <= points {
            return wanted;
        }
        let (first, last) = (wanted[0].first, wanted[wanted.len() - 1].first);
        // Columns begin at multiples of their width, so that a live chart does not flicker; this
        // may need one more column.
        let width = (last.abs_diff(first) / (points.max(2) as u64 - 1)).saturating_add(1);
        let width = i64::try_from(width).unwrap_or(i64::MAX);
        let mut columns: Vec<Bucket> = Vec::with_capacity(points);
        for bucket in wanted {
            match columns.last_mut() {
                Some(c) if points == 1 || c.first.div_euclid(width) == bucket.first.div_euclid(width) => {
                    c.append(&bucket);
                }
                _ => columns.push(bucket),
            }
        }
        columns
    }

    /// The size in bytes, including the heap.
    pub(super) fn bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(|l| l.capacity() * size_of::<Bucket>()).sum();
        let bands = self.bands.capacity() * size_of::<Band>();
        levels + bands + self.axis.bytes() + self.raw.capacity() * size_of::<f32>() + size_of::<Self>()
    }

    /// Whether decoded bytes are a valid pyramid, and not damaged or of another program.
    pub(super) fn is_sound(&self) -> bool {
        self.levels.iter().all(|l| l.len() <= BUCKETS && l.iter().all(Bucket::is_sound))
            && self.raw.len() <= RAW
            && self.axis.is_sound()
            && self.axis.len() == self.raw.len()
            && self.bands.len() == self.raw.len().div_ceil(GROUP)
            && self.all().map(|b| b.first).is_sorted_by(|a, b| a < b)
    }

    /// Releases the excess capacity after decoding.
    pub(super) fn shrink(&mut self) {
        self.levels.iter_mut().for_each(VecDeque::shrink_to_fit);
        self.raw.shrink_to_fit();
    }
}

#[cfg(test)]
#[path = "pyramid/tests.rs"]
mod tests;
