//! Climbing: who is told next if nobody answers.

use serde::{Deserialize, Serialize};

use crate::config::Level;
use crate::time::{Span, Ts};

/// After the last level of a page, the last level is told again this often, or at its own pace if that is slower: a page is
/// never given up while nobody answers.
const REMIND_EVERY: Span = Span::secs(1800);

/// The levels as they were when the incident was announced: a reload does not move anyone's place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ladder {
    levels: Vec<Level>,
    /// The next to notify.
    at: usize,
    /// How often the level before has been repeated.
    repeats: u32,
    next: Option<Ts>,
    reminders: u32,
}

/// One notification round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// From 1.
    pub(super) level: u32,
    pub(super) repeat: u32,
    pub(super) notify: Vec<String>,
}

impl Due {
    pub(super) fn reason(&self, opened: Ts, now: Ts) -> String {
        let waited = now - opened;
        match self.repeat {
            0 => format!("escalated to level {}: no answer for {waited}", self.level),
            n => format!("level {} again ({n}): no answer for {waited}", self.level),
        }
    }
}

impl Ladder {
    pub(super) fn new(now: Ts, levels: Vec<Level>) -> Self {
        let next = levels.first().map(|l| now + l.after);
        Self { levels, at: 0, repeats: 0, next, reminders: 0 }
    }

    /// Goes on above level `told`, as if that had been told just now.
    pub(super) fn above(now: Ts, levels: Vec<Level>, told: u32, page: bool) -> Self {
        let mut ladder = Self::new(now, levels);
        ladder.at = (told as usize).min(ladder.levels.len());
        if ladder.at > 0 {
            ladder.repeats = 0;
            ladder.next = ladder.after_current(now, page);
        }
        ladder
    }

    /// The last level once more, whenever it was told before.
    pub(super) fn last_again(&mut self, now: Ts, page: bool) -> Option<Due> {
        let last = self.levels.last()?;
        self.reminders += 1;
        let due =
            Due { level: self.levels.len() as u32, repeat: self.reminders, notify: last.notify.clone() };
        self.next = page.then(|| now + last.after.max(REMIND_EVERY));
        Some(due)
    }

    pub(super) fn next_at(&self) -> Option<Ts> {
        self.next
    }

    /// The round that is due at `now`, if any, and moves on.
    pub(super) fn due(&mut self, now: Ts, page: bool) -> Option<Due> {
        self.next.filter(|at| *at <= now)?;
        // Repeats of the level before come first.
        if let Some(current) = self.at.checked_sub(1).and_then(|i| self.levels.get(i)) {
            if self.repeats < current.repeat {
                self.repeats += 1;
                let due = Due { level: self.at as u32, repeat: self.repeats, notify: current.notify.clone() };
                self.next = self.after_current(now, page);
                return Some(due);
            }
        }
        let Some(level) = self.levels.get(self.at) else { return self.remind(now, page) };
        let due = Due { level: self.at as u32 + 1, repeat: 0, notify: level.notify.clone() };
        self.at += 1;
        self.repeats = 0;
        self.next = self.after_current(now, page);
        Some(due)
    }

    fn remind(&mut self, now: Ts, page: bool) -> Option<Due> {
        let last = self.levels.last().filter(|_| page)?;
        self.reminders += 1;
        self.next = Some(now + last.after.max(REMIND_EVERY));
        Some(Due {
            level: self.levels.len() as u32,
            repeat: self.repeats + self.reminders,
            notify: last.notify.clone(),
        })
    }

    /// When the next round after level `self.at - 1` is due. Counted from now: after an outage of ours nobody gets all levels at once.
    fn after_current(&self, at: Ts, page: bool) -> Option<Ts> {
        let current = self.levels.get(self.at.checked_sub(1)?)?;
        if self.repeats < current.repeat {
            return Some(at + current.after.max(Span::secs(1)));
        }
        match self.levels.get(self.at) {
            Some(next) => Some(at + next.after),
            None if page => Some(at + current.after.max(REMIND_EVERY)),
            None => None,
        }
    }

    /// Makes the next level due now; false when there is none.
    pub(super) fn hurry(&mut self, now: Ts) -> bool {
        if self.at >= self.levels.len() {
            return false;
        }
        self.repeats = u32::MAX;
        self.next = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(after: i64, notify: &str, repeat: u32) -> Level {
        Level { after: Span::secs(after), notify: vec![notify.into()], repeat }
    }

    /// Every round up to `until`, as (second, level, repeat, who).
    fn rounds(levels: Vec<Level>, page: bool, until: i64) -> Vec<(i64, u32, u32, String)> {
        let mut l = Ladder::new(Ts(0), levels);
        let mut seen = Vec::new();
        while let Some(at) = l.next_at().filter(|at| at.0 <= until * 1000) {
            let due = l.due(at, page).expect("a round is due at its own time");
            seen.push((at.0 / 1000, due.level, due.repeat, due.notify.join(",")));
        }
        seen
    }

    #[test]
    fn the_sample_policy() {
        let got = rounds(vec![level(0, "chat", 0), level(300, "primary", 3)], true, 7000);
        let want =
            [(0, 1, 0, "chat"), (300, 2, 0, "primary"), (600, 2, 1, "primary"), (900, 2, 2, "primary")];
        assert_eq!(got[..4], want.map(|(t, l, r, w)| (t, l, r, w.to_string())));
        assert_eq!(got[4], (1200, 2, 3, "primary".into()));
        // Reminders every half hour after the last repeat.
        assert_eq!(got[5..].iter().map(|r| r.0).collect::<Vec<_>>(), [3000, 4800, 6600]);
    }

    #[test]
    fn a_ticket_is_not_repeated_for_ever() {
        assert_eq!(rounds(vec![level(0, "chat", 1)], false, 100_000).len(), 2);
    }

    #[test]
    fn hurry_skips_the_wait_once() {
        let mut l = Ladder::new(Ts(0), vec![level(0, "a", 5), level(300, "b", 0)]);
        assert_eq!(l.due(Ts(0), true).map(|d| d.level), Some(1));
        assert!(l.hurry(Ts(1000)));
        assert_eq!(l.due(Ts(1000), true).map(|d| d.notify), Some(vec!["b".to_string()]));
        assert!(!l.hurry(Ts(1000)));
    }
}
