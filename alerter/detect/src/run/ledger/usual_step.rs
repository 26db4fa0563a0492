//! How long the steps of a run usually take.
//!
//! Lines that are written through a buffer come at once: all of them together took the time before
//! the first, so they are one measure.

use serde::{Deserialize, Serialize};

use super::{Steps, stall_limit};
use crate::stats::block::{BLOCK, sort};

/// Lines came at once if they came within this share of the time before the first of them, or
/// within these milliseconds. Engineering limits.
const AT_ONCE: f64 = 0.01;
const AT_ONCE_MS: i64 = 100;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct UsualStep {
    by_step: Shortest,
    /// A change of the batch is no change of the speed.
    by_token: Shortest,
    /// Milliseconds of the longest step that was no standstill.
    longest: Option<f32>,
    gpus: Option<u32>,
    together: Option<Together>,
}

/// The shortest time that two blocks in a row held.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Shortest {
    /// The first `filled` of them are measures whose median is the next block.
    block: [f32; BLOCK],
    filled: u8,
    before: Option<f32>,
    shortest: Option<f32>,
}

/// The last line, and those that came at once with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Together {
    /// Milliseconds before the first of them, and since.
    before: i64,
    since: i64,
    steps: i64,
    /// Of all of them, where each line reports them.
    tokens: Option<f64>,
    /// Milliseconds of the longest step that a line reports.
    reported: f64,
    /// Nothing but steps took the time, and all of it was watched.
    plain: bool,
}

impl UsualStep {
    /// Milliseconds that so many steps usually take. None before it is known.
    pub(super) fn expected(&self, count: i64, tokens: Option<f64>) -> Option<f64> {
        let by_token = self.by_token.shortest.zip(tokens).map(|(each, tokens)| f64::from(each) * tokens);
        let each = by_token.or(self.by_step.shortest.map(f64::from));
        each.map(|each| each * count.max(1) as f64)
    }

    /// Milliseconds of so many steps of the longest so far: the measure until the usual is known.
    pub(super) fn longest(&self, count: i64) -> Option<f64> {
        self.longest.map(|each| f64::from(each) * count.max(1) as f64)
    }

    /// A line comes so many milliseconds after the one before it.
    pub(super) fn comes(&mut self, ms: i64) {
        if self.together.as_ref().is_some_and(|t| !t.has_room(ms)) {
            self.settle();
        }
    }

    /// No line comes at once with the last one any more.
    pub(super) fn settle(&mut self) {
        let Some(t) = self.together.take() else { return };
        let each = ((t.before + t.since) as f64 / t.steps as f64).max(t.reported);
        if !(t.plain && each.is_finite() && each > 0.0) {
            return;
        }
        let all = each * t.steps as f64;
        if self.longest(t.steps).is_none_or(|longest| all < stall_limit(longest) as f64) {
            self.longest = Some(self.longest.map_or(each as f32, |longest| longest.max(each as f32)));
        }
        self.by_step.learn(each);
        if let Some(tokens) = t.tokens {
            self.by_token.learn(all / tokens);
        }
    }

    /// Takes a line that came so many milliseconds after the one before it.
    pub(super) fn take(&mut self, ms: i64, s: &Steps, plain: bool, gpus: Option<u32>) {
        if self.gpus.zip(gpus).is_some_and(|(had, has)| had != has) {
            *self = Self::default();
        }
        self.gpus = gpus.or(self.gpus);
        let steps = s.count.max(1);
        let tokens = s.tokens.map(|each| each * steps as f64);
        let reported = s.reported.unwrap_or(0.0);
        match &mut self.together {
            Some(t) => {
                t.since = t.since.saturating_add(ms);
                t.steps = t.steps.saturating_add(steps);
                t.tokens = t.tokens.zip(tokens).map(|(had, more)| had + more);
                t.reported = t.reported.max(reported);
                t.plain &= plain;
            }
            None => {
                self.together = Some(Together { before: ms, since: 0, steps, tokens, reported, plain });
            }
        }
    }
}

impl Together {
    fn has_room(&self, ms: i64) -> bool {
        let room = AT_ONCE_MS.max((self.before as f64 * AT_ONCE) as i64);
        self.since.saturating_add(ms) < room
    }
}

impl Shortest {
    fn learn(&mut self, each: f64) {
        self.block[usize::from(self.filled)] = each as f32;
        self.filled += 1;
        if usize::from(self.filled) < BLOCK {
            return;
        }
        self.filled = 0;
        sort(&mut self.block);
        let median = self.block[BLOCK / 2];
        let Some(before) = self.before.replace(median) else { return };
        let held = before.max(median);
        self.shortest = Some(self.shortest.map_or(held, |shortest| shortest.min(held)));
    }
}
