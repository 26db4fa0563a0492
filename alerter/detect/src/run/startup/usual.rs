//! How long starts usually take.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{StartPhase, StartUp};
use stepwatch_model::time::Span;

/// A start that takes so many times its 95th percentile is too long: an engineering limit.
const TIMES: i64 = 2;
/// Multiples of the median above which the one longest start does not raise the percentile,
/// because it hung: an engineering limit. Two long starts are usual.
const OUTLIER: i64 = 3;

/// The usual start of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartUsual {
    /// The median milliseconds of each phase, over the starts that had it.
    pub phases: Vec<(StartPhase, i64)>,
    /// The 95th percentile of the milliseconds from the first `hello` to the first step, without
    /// one start that is much longer than all others.
    pub greeted_ms: i64,
    /// The median of them, and the longest.
    pub median_ms: i64,
    pub longest_ms: i64,
    /// The most ranks that said hello, and the number of starts that this is learned from.
    pub ranks: u32,
    pub starts: u32,
}

impl StartUsual {
    /// `None` without a start.
    pub(crate) fn of(starts: &[&StartUp]) -> Option<Self> {
        let ranks = starts.iter().map(|one| one.ranks).max()?;
        let names: BTreeSet<StartPhase> =
            starts.iter().flat_map(|one| one.parts.iter().map(|part| part.phase)).collect();
        let of_phase = |phase| (phase, median(starts.iter().filter_map(|one| one.ms_of(phase)).collect()));
        let mut greeted: Vec<i64> = starts.iter().map(|one| one.greeted_ms).collect();
        greeted.sort_unstable();
        let (median_ms, longest_ms) = (median(greeted.clone()), greeted.last().copied().unwrap_or(0));
        let second = greeted.iter().rev().nth(1).copied().unwrap_or(0);
        if let Some(longest) = greeted.last_mut() {
            *longest = longest_ms.min(OUTLIER.saturating_mul(median_ms).max(second));
        }
        Some(Self {
            phases: names.into_iter().map(of_phase).collect(),
            greeted_ms: percentile(&greeted),
            median_ms,
            longest_ms,
            ranks,
            starts: u32::try_from(starts.len()).unwrap_or(u32::MAX),
        })
    }

    pub fn ms_of(&self, phase: StartPhase) -> Option<i64> {
        self.phases.iter().find(|(of, _)| *of == phase).map(|(_, ms)| *ms)
    }

    /// The time from the first `hello` to the first step that is too long.
    pub(crate) fn limit(&self, floor: Span) -> Span {
        Span::millis(TIMES.saturating_mul(self.greeted_ms)).max(floor)
    }
}

/// The upper median; 0 of nothing.
fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The 95th percentile of sorted values, between the two beside it.
fn percentile(sorted: &[i64]) -> i64 {
    let at = 0.95 * sorted.len().saturating_sub(1) as f64;
    let value = |i: f64| sorted.get(i as usize).copied().unwrap_or(0) as f64;
    let (below, above) = (value(at.floor()), value(at.ceil()));
    (below + (above - below) * at.fract()).round() as i64
}
