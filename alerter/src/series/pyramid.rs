//! One signal of one run, from its first step to its last, in at most 64 KiB.
//!
//! The last 4,096 values are kept as they came. Older ones are in buckets with the lowest, highest,
//! last and mean value, so that a spike of one step is never lost: three levels of 352 buckets, of
//! 64, 512 and 4,096 values each. What leaves a level is eight buckets that become one of the next;
//! the last level, when it is full, joins its buckets in pairs. Of a month of one step a second the
//! oldest buckets hold 8,192 steps each, and there are some 300 of them.
//!
//! A run that restarts at an earlier step does those steps again, and the later attempt overwrites
//! the earlier: values from that step on are forgotten. A bucket in which the step lies is kept
//! whole, since what it holds cannot be taken apart, so up to one bucket before the restart shows
//! both attempts.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use stepwatch_detect::Expectation;

use super::axis::Axis;
use super::bucket::{Band, Bucket, single};

/// Values kept as they came.
const RAW: usize = 4096;
/// Raw values of one bucket of the first level.
const GROUP: usize = 64;
/// Buckets of one level that become one of the next.
const FACTOR: usize = 8;
const LEVELS: usize = 3;
/// Buckets of one level.
const BUCKETS: usize = 352;
/// Raw values and buckets for which room is made at once: memory follows what is kept.
const ROOM_RAW: usize = 256;
const ROOM: usize = 32;
/// Of one signal, with what holds it.
pub const MAX_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Pyramid {
    /// Buckets, the coarsest and oldest last.
    levels: [VecDeque<Bucket>; LEVELS],
    axis: Axis,
    raw: VecDeque<f32>,
    /// One for each `GROUP` of raw values, from the first on.
    bands: VecDeque<Band>,
    attempt: u32,
    expected: Option<Band>,
}

impl Pyramid {
    /// Takes the value of a step. `expectation`: what the detectors expected lately, if that was
    /// read anew.
    ///
    /// Steps rise within an attempt. A value of a step that is already there is not a new one; it
    /// only marks the step if it is not finite, because several ranks may report a step.
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

    /// The last value that is finite.
    pub(super) fn last_value(&self) -> Option<f64> {
        let raw = self.raw.iter().rev().find(|v| v.is_finite()).copied();
        raw.or_else(|| self.levels.iter().find_map(|level| level.back()).map(|b| b.last)).map(f64::from)
    }

    pub(super) fn expectation(&self) -> Option<Expectation> {
        self.expected.and_then(Band::expectation)
    }

    /// A value of this step, of another rank, is not finite.
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

    /// Forgets the values of `step` and of all later steps.
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

    /// Makes buckets of the oldest raw values, and of buckets of which there are too many.
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
        // The coarsest level gives its first buckets to nobody: all of it becomes coarser.
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

    /// All that is kept, in the order of steps.
    fn all(&self) -> impl Iterator<Item = Bucket> + '_ {
        let raw = self.axis.steps().zip(&self.raw).enumerate();
        let raw = raw.map(|(i, (step, value))| {
            Bucket::of_value(step, *value, self.bands.get(i / GROUP).copied().unwrap_or(Band::NONE))
        });
        self.levels.iter().rev().flatten().copied().chain(raw)
    }

    /// The buckets of the steps from `from` to `to`, at most `points` of them and one at least. The
    /// first may begin before `from`.
    pub(super) fn window(&self, from: i64, to: i64, points: usize) -> Vec<Bucket> {
        let points = points.max(1);
        let mut wanted: Vec<Bucket> = Vec::new();
        for bucket in self.all().take_while(|b| b.first <= to) {
            if bucket.first <= from {
                // The one before ended before `from`.
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
        // Columns begin at multiples of their width, so that a picture that goes on does not
        // flicker; that may take one more.
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

    /// What it takes of the heap, and itself.
    pub(super) fn bytes(&self) -> usize {
        let levels: usize = self.levels.iter().map(|l| l.capacity() * size_of::<Bucket>()).sum();
        let bands = self.bands.capacity() * size_of::<Band>();
        levels + bands + self.axis.bytes() + self.raw.capacity() * size_of::<f32>() + size_of::<Self>()
    }

    /// Whether stored bytes are one: otherwise they are of another program, or damaged.
    pub(super) fn is_sound(&self) -> bool {
        self.levels.iter().all(|l| l.len() <= BUCKETS && l.iter().all(Bucket::is_sound))
            && self.raw.len() <= RAW
            && self.axis.is_sound()
            && self.axis.len() == self.raw.len()
            && self.bands.len() == self.raw.len().div_ceil(GROUP)
            && self.all().map(|b| b.first).is_sorted_by(|a, b| a < b)
    }

    /// Gives back the room that decoding took too much of.
    pub(super) fn shrink(&mut self) {
        self.levels.iter_mut().for_each(VecDeque::shrink_to_fit);
        self.raw.shrink_to_fit();
    }
}

#[cfg(test)]
#[path = "pyramid/tests.rs"]
mod tests;
