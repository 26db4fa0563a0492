//! The processes of a run that ended since its last step. They show the attempts that make no step,
//! which leave no other trace.
//!
//! The ranks of an attempt end one after another, and their ends may arrive after the first rank of
//! the next attempt has begun. So attempts are not counted by their first or last end, but by the
//! rank of which most processes ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_model::Course;
use stepwatch_model::time::Ts;

use crate::run::Death;

/// The most ranks whose processes are counted: those that end first.
const MAX_RANKS: usize = 64;
/// The most characters of the last words of a process.
const MAX_WORDS: usize = 200;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    ranks: BTreeMap<u32, Processes>,
    /// When a process ended last, by our clock.
    at: Ts,
    first: Option<LastWords>,
}

/// The processes of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Processes {
    ended: u32,
    /// Another has begun since.
    runs: bool,
}

/// How a process failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    pub rank: u32,
    /// By the clock of the program that saw it.
    pub at: Ts,
    pub text: String,
    pub course: Course,
}

impl Ends {
    /// How many attempts have ended since the last step.
    pub fn count(&self) -> u32 {
        self.ranks.values().map(|rank| rank.ended).max().unwrap_or(0)
    }

    /// When a process ended last, by our clock.
    pub fn at(&self) -> Ts {
        self.at
    }

    /// The first failure of the last attempt that ended; `None` if all its processes ended well.
    pub fn first_failure(&self) -> Option<&LastWords> {
        self.first.as_ref()
    }

    /// Whether another attempt has begun after the last that ended.
    pub fn began_again(&self) -> bool {
        let count = self.count();
        self.ranks.values().any(|rank| rank.runs && rank.ended == count)
    }

    /// A process of a rank begins.
    pub(crate) fn greeted(&mut self, rank: u32) {
        if let Some(known) = self.ranks.get_mut(&rank) {
            known.runs = true;
        }
    }

    /// A process of a rank ended, with `death` if it failed. The client, its launcher and its
    /// exporter may each report the same end.
    pub(crate) fn ended(&mut self, now: Ts, rank: u32, death: Option<&Death>) {
        let before = self.count();
        let has_room = self.ranks.len() < MAX_RANKS;
        match self.ranks.get_mut(&rank) {
            Some(known) if known.runs => (known.ended, known.runs) = (known.ended.saturating_add(1), false),
            None if has_room => {
                self.ranks.insert(rank, Processes { ended: 1, runs: false });
            }
            Some(_) | None => {}
        }
        self.at = self.at.max(now);
        if self.count() > before {
            self.first = None;
        }
        let Some(death) = death else { return };
        let is_first =
            self.first.as_ref().is_none_or(|had| (death.course, death.when) < (had.course, had.at));
        if is_first {
            let text = death.text.chars().take(MAX_WORDS).collect();
            self.first = Some(LastWords { rank, at: death.when, text, course: death.course });
        }
    }

    /// The run makes steps.
    pub(crate) fn clear(&mut self) {
        if !self.ranks.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(at: i64, text: &str, course: Course) -> Death {
        Death { at: Ts(at), when: Ts(at), text: text.into(), course }
    }

    #[test]
    fn ends_that_arrive_after_the_next_attempt_began_are_of_the_last_one() {
        let mut ends = Ends::default();
        ends.ended(Ts(1), 0, Some(&death(1, "reset by peer", Course::Followed)));
        ends.greeted(0);
        assert!(ends.began_again());
        ends.ended(Ts(2), 1, Some(&death(2, "out of memory", Course::Broke)));
        ends.ended(Ts(3), 1, Some(&death(3, "gone", Course::Silent)));
        ends.greeted(1);
        assert_eq!((ends.count(), ends.at()), (1, Ts(3)));
        assert_eq!(ends.first_failure().map(|first| (first.rank, &*first.text)), Some((1, "out of memory")));
        ends.ended(Ts(4), 1, None);
        assert_eq!((ends.count(), ends.began_again(), ends.first_failure()), (2, false, None));
        ends.clear();
        assert_eq!(ends, Ends::default());
    }

    #[test]
    fn only_so_many_ranks_are_counted() {
        let mut ends = Ends::default();
        (0..1000).for_each(|rank| ends.ended(Ts(1), rank, None));
        assert_eq!((ends.ranks.len(), ends.count()), (MAX_RANKS, 1));
    }
}
