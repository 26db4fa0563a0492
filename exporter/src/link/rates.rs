//! Detects counters of errors that rise faster than on good links.
//!
//! A counter of errors above zero means nothing: cables make errors, and links correct them. Only
//! the rate matters, and the acceptable one differs by three orders of magnitude between counters.
//! The limits are those below which good links of fleets stay. Where a good link exceeds one, the
//! configuration can set another.
//!
//! A counter that falls was cleared or restarted: its growth since then is its value, never
//! negative.

use std::collections::{BTreeMap, VecDeque};

use stepwatch_kit::config::Period;

use super::Level;

/// The number of parts of a window; each part is dropped as a whole.
const PARTS: f64 = 30.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub counter: String,
    pub window: f64,
    /// The most errors within the window that are acceptable.
    pub most: u64,
    pub level: Level,
    /// The meaning, for people.
    pub meaning: &'static str,
}

impl Limit {
    pub fn new(counter: &str, window: f64, most: u64, level: Level, meaning: &'static str) -> Self {
        Self { counter: counter.into(), window, most, level, meaning }
    }
}

/// An entry of `thresholds:` in the configuration, by counter.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// The most errors within the window that are acceptable.
    pub most: u64,
    #[serde(default = "minute")]
    pub window: Period,
    #[serde(default = "warn")]
    pub level: Level,
}

fn minute() -> Period {
    Period::secs(60)
}

fn warn() -> Level {
    Level::Warn
}

/// The limits: the defaults, except for the counters that the configuration sets.
pub fn limits(defaults: impl IntoIterator<Item = Limit>, own: &BTreeMap<String, Threshold>) -> Vec<Limit> {
    let set = |(counter, t): (&String, &Threshold)| {
        let window = t.window.as_duration().as_secs_f64();
        Limit::new(counter, window, t.most, t.level, "the limit is set in the configuration")
    };
    let kept = defaults.into_iter().filter(|limit| !own.contains_key(&limit.counter));
    kept.chain(own.iter().map(set)).collect()
}

/// The recent counters of one link.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rates {
    last: BTreeMap<String, u64>,
    /// The key is the index of the limit.
    windows: BTreeMap<usize, Window>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Window {
    /// The start of each part, and its count.
    parts: VecDeque<(f64, u64)>,
    over: bool,
}

/// A limit that is exceeded.
#[derive(Debug, Clone, PartialEq)]
pub struct Excess<'a> {
    pub limit: &'a Limit,
    pub count: u64,
}

impl Rates {
    /// Records the counters that have limits; others are ignored.
    pub fn take(&mut self, now: f64, limits: &[Limit], counters: &[(&str, u64)]) {
        let mut rise = BTreeMap::new();
        for (name, value) in counters {
            if !limits.iter().any(|l| l.counter == *name) {
                continue;
            }
            let before = self.last.insert((*name).to_owned(), *value);
            rise.insert(*name, before.map_or(0, |before| delta(before, *value)));
        }
        for (i, limit) in limits.iter().enumerate() {
            let Some(rise) = rise.get(limit.counter.as_str()) else { continue };
            self.windows.entry(i).or_default().add(now, limit.window, *rise);
        }
    }

    /// The limits that are exceeded now, the worst first. One stays exceeded until the count is
    /// half of it.
    pub fn excesses<'a>(&mut self, now: f64, limits: &'a [Limit]) -> Vec<Excess<'a>> {
        let mut excesses = Vec::new();
        for (i, limit) in limits.iter().enumerate() {
            let Some(window) = self.windows.get_mut(&i) else { continue };
            let count = window.count(now, limit.window);
            window.over = count > if window.over { limit.most / 2 } else { limit.most };
            if window.over {
                excesses.push(Excess { limit, count });
            }
        }
        excesses.sort_by_key(|e| std::cmp::Reverse(e.limit.level));
        excesses
    }
}

impl Window {
    fn add(&mut self, now: f64, length: f64, n: u64) {
        match self.parts.back_mut() {
            Some((start, sum)) if (0.0..length / PARTS).contains(&(now - *start)) => {
                *sum = sum.saturating_add(n)
            }
            _ => self.parts.push_back((now, n)),
        }
        self.count(now, length);
    }

    /// The count of the window. A clock that was set back empties it: a late report is better than
    /// a count of the wrong hour.
    fn count(&mut self, now: f64, length: f64) -> u64 {
        self.parts.retain(|(start, _)| (0.0..length).contains(&(now - start)));
        self.parts.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}

/// The growth of a counter from `before` to `now`.
pub fn delta(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

impl Excess<'_> {
    /// A text such as "symbol_error rose by 340 within 1 h (a good link stays under 120): ...".
    pub fn text(&self) -> String {
        let Limit { counter, window, most, meaning, .. } = self.limit;
        let usual = match most {
            0 => "on a good link it never does".to_owned(),
            n => format!("a good link stays under {n}"),
        };
        format!(
            "has errors: {counter} rose by {} within {} ({usual}); {meaning}",
            self.count,
            super::span(*window)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Vec<Limit> {
        vec![
            Limit::new("symbol_error", 3600.0, 120, Level::Warn, "look at the cable"),
            Limit::new("symbol_error", 60.0, 600, Level::Error, "look at the cable"),
            Limit::new("local_link_integrity_errors", 600.0, 0, Level::Error, "look at the cable"),
        ]
    }

    #[test]
    fn only_too_many_in_too_short_a_time() {
        let (limits, mut rates) = (some(), Rates::default());
        let mut look = |now: f64, errors: u64| {
            rates.take(now, &limits, &[("symbol_error", errors), ("unknown", 9)]);
            rates.excesses(now, &limits).iter().map(|e| (e.limit.level, e.count)).collect::<Vec<_>>()
        };
        assert_eq!(look(0.0, 1_000_000), [], "what was counted before is nobody's news");
        assert_eq!(look(1800.0, 1_000_120), []);
        assert_eq!(look(1810.0, 1_000_121), [(Level::Warn, 121)]);
        assert_eq!(look(5400.0, 1_000_182), [(Level::Warn, 61)], "it holds until half is left");
        assert_eq!(look(9001.0, 1_000_182), []);
        assert_eq!(look(9010.0, 1_000_800), [(Level::Error, 618), (Level::Warn, 618)]);
    }

    #[test]
    fn a_counter_that_was_cleared_counts_from_nothing() {
        let (limits, mut rates) = (some(), Rates::default());
        for (now, value, holds) in [(0.0, 50, false), (10.0, 0, false), (20.0, 1, true), (630.0, 1, false)] {
            rates.take(now, &limits, &[("local_link_integrity_errors", value)]);
            let excesses = rates.excesses(now, &limits);
            assert_eq!(!excesses.is_empty(), holds, "at {now}");
            if let Some(excess) = excesses.first() {
                assert_eq!(
                    excess.text(),
                    "has errors: local_link_integrity_errors rose by 1 within 10 min (on a good link it never does); look at the cable"
                );
            }
        }
    }

    #[test]
    fn a_threshold_of_the_configuration_replaces_all_of_that_counter() {
        let own = Threshold { most: 9, window: minute(), level: Level::Error };
        let limits = limits(some(), &[("symbol_error".to_owned(), own)].into());
        let short: Vec<_> = limits.iter().map(|l| (l.counter.as_str(), l.most, l.window)).collect();
        assert_eq!(short, [("local_link_integrity_errors", 0, 600.0), ("symbol_error", 9, 60.0)]);
    }

    proptest! {
        /// For any order of values and times, a rate never exceeds the count, nothing panics, and
        /// memory is bounded.
        #[test]
        fn never_more_than_was_counted(steps in prop::collection::vec((-100.0..4000.0f64, 0u64..1000, any::<bool>()), 0..200)) {
            let (limits, mut rates) = (some(), Rates::default());
            let (mut now, mut value, mut counted) = (0.0, 0u64, 0u64);
            for (i, (pause, rise, cleared)) in steps.into_iter().enumerate() {
                now += pause;
                value = if cleared { rise } else { value + rise };
                counted += if i == 0 { 0 } else if cleared { rise.max(value) } else { rise };
                rates.take(now, &limits, &[("symbol_error", value)]);
                prop_assert!(rates.excesses(now, &limits).iter().all(|e| e.count <= counted));
                prop_assert!(rates.windows.values().all(|w| w.parts.len() <= PARTS as usize + 2));
            }
        }

        #[test]
        fn a_delta_is_at_most_the_value(before: u64, now: u64) {
            prop_assert!(delta(before, now) <= now);
        }
    }
}
