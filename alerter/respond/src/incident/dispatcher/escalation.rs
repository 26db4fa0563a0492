//! Escalation: who is notified next if nobody answers.
//!
//! A ladder holds the levels of one way through the routes, as they were when the incident was
//! announced, so that a reload does not restart an escalation. The condition of a level is
//! evaluated when the level is due; this file only computes when that is.

use serde::{Deserialize, Serialize};

use crate::config::{Level, ResponderConfig};
use crate::incident::open::Incident;
use crate::message::{Reason, Why};
use crate::route::{Way, WayName};
use stepwatch_model::{Severity, Span, Ts};

/// The ladders of an incident, one a way.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::incident) struct Ladders(Vec<Ladder>);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ladder {
    way: WayName,
    levels: Vec<Level>,
    /// Since when the incident waits for an answer.
    since: Ts,
    /// The index of the next level to notify.
    at: usize,
    /// How often the level before `at` has been repeated.
    repeats: u32,
    next: Option<Ts>,
    reminders: u32,
    /// The last level is notified once more, even for a ticket: a person escalated the incident.
    forced: bool,
}

/// The settings that decide when the next round is due.
#[derive(Debug, Clone, Copy)]
pub(in crate::incident) struct Pace {
    /// The incident is a page: reminders continue until a person answers.
    pub(in crate::incident) page: bool,
    /// After the last level of a page, the last level is notified again this often, or at its own
    /// pace if that is slower.
    pub(in crate::incident) remind_every: Span,
}

impl Pace {
    pub(in crate::incident) fn of(i: &Incident, config: &ResponderConfig) -> Self {
        Self { page: i.record.severity == Severity::Page, remind_every: config.remind_every }
    }
}

/// One round that is due.
#[derive(Debug, PartialEq)]
pub(in crate::incident) struct Due {
    /// The level, from 1.
    pub(in crate::incident) level: u32,
    pub(in crate::incident) repeat: u32,
    pub(in crate::incident) what: Round,
    pub(in crate::incident) way: WayName,
    /// Since when the incident waits for an answer.
    pub(in crate::incident) since: Ts,
}

#[derive(Debug, PartialEq)]
pub(in crate::incident) enum Round {
    Level(Level),
    /// A reminder for the last of these levels that may be notified.
    Reminder(Vec<Level>),
}

impl Ladders {
    pub(in crate::incident) fn new(from: Ts, ways: Vec<Way>) -> Self {
        Self(ways.into_iter().map(|way| Ladder::new(from, way.name, way.levels)).collect())
    }

    /// The same ladders, starting at their first levels again.
    pub(in crate::incident) fn restarted(&self, from: Ts) -> Self {
        Self(self.0.iter().map(|l| Ladder::new(from, l.way.clone(), l.levels.clone())).collect())
    }

    pub(in crate::incident) fn next_at(&self) -> Option<Ts> {
        self.0.iter().filter_map(|l| l.next).min()
    }

    /// Takes the round that has been due longest, if any, and advances its ladder.
    pub(in crate::incident) fn due(&mut self, now: Ts, pace: Pace) -> Option<Due> {
        self.0
            .iter_mut()
            .filter(|l| l.next.is_some_and(|at| at <= now))
            .min_by_key(|l| l.next)?
            .due(now, pace)
    }

    /// Ends the repeats of the current level of a way, because its condition is false now.
    pub(in crate::incident) fn pass_over(&mut self, now: Ts, way: &WayName, pace: Pace) {
        self.0.iter_mut().filter(|l| l.way == *way).for_each(|l| l.pass_over(now, pace));
    }

    /// Whether every level has been due, so that only reminders are left.
    pub(in crate::incident) fn is_exhausted(&self) -> bool {
        self.0.iter().all(|l| l.at >= l.levels.len())
    }

    /// Whether no ladder has a level.
    pub(in crate::incident) fn is_empty(&self) -> bool {
        self.0.iter().all(|l| l.levels.is_empty())
    }

    /// The longest wait of any level.
    pub(in crate::incident) fn longest_pause(&self) -> Span {
        self.0.iter().flat_map(|l| &l.levels).map(|level| level.after).max().unwrap_or_default()
    }

    /// The names of the ways, one a ladder.
    pub(in crate::incident) fn ways(&self) -> Vec<&WayName> {
        self.0.iter().map(|l| &l.way).collect()
    }

    /// The last levels, one a ladder.
    pub(in crate::incident) fn last(&self) -> impl Iterator<Item = &Level> {
        self.0.iter().filter_map(|l| l.levels.last())
    }

    /// All levels of all ladders.
    pub(in crate::incident) fn levels(&self) -> impl Iterator<Item = &Level> {
        self.0.iter().flat_map(|l| &l.levels)
    }

    /// The levels that are due next, one a ladder.
    pub(in crate::incident) fn upcoming(&self) -> impl Iterator<Item = &Level> {
        self.0.iter().filter_map(|l| l.levels.get(l.at))
    }

    /// The levels that have been due.
    pub(in crate::incident) fn notified(&self) -> impl Iterator<Item = &Level> {
        self.0.iter().flat_map(|l| l.levels.iter().take(l.at))
    }

    /// Stops all rounds, because a person answered.
    pub(in crate::incident) fn stop(&mut self) {
        self.0.iter_mut().for_each(|l| (l.next, l.forced) = (None, false));
    }

    /// Resumes every ladder where it stopped, one wait after `now`.
    pub(in crate::incident) fn resume(&mut self, now: Ts, pace: Pace) {
        for l in &mut self.0 {
            l.since = now;
            l.next = l.after_current(now, pace).or_else(|| Some(now + l.levels.get(l.at)?.after));
        }
    }

    /// The highest level that is still to be notified.
    pub(in crate::incident) fn next_level(&self) -> Option<u32> {
        self.0.iter().filter(|l| l.at < l.levels.len()).map(|l| l.at as u32 + 1).max()
    }

    /// The highest level there is.
    pub(in crate::incident) fn last_level(&self) -> u32 {
        self.0.iter().map(|l| l.levels.len() as u32).max().unwrap_or_default()
    }

    /// Makes the next level due now; false when there is none.
    pub(in crate::incident) fn hurry(&mut self, now: Ts) -> bool {
        let mut any = false;
        for ladder in &mut self.0 {
            any |= ladder.hurry(now);
        }
        any
    }

    /// Makes the last levels due now once more.
    pub(in crate::incident) fn force(&mut self, now: Ts) {
        self.0.iter_mut().for_each(|l| (l.next, l.forced) = (Some(now), true));
    }
}

impl Due {
    /// The reason for this notification: `Escalated` for a new level or a repeat, unless `given` is
    /// more specific.
    pub(in crate::incident) fn reason(&self, now: Ts, i: &Incident, given: &Why) -> Why {
        let says_more =
            [Reason::Escalated, Reason::ReceiverFailed, Reason::SilenceEnded, Reason::InhibitionEnded];
        // An incident that was answered and rings again escalates anew; levels that are due
        // together do not.
        let anew = self.level > 1 && now > self.since;
        let escalated = self.level > i.record.level || anew || self.repeat > 0;
        if !escalated || says_more.contains(&given.because) {
            return given.clone();
        }
        // An incident that was reopened, or whose answer was taken back, waits from then on.
        let (level, waited) = (self.level, now - self.since.max(i.record.opened_at));
        let again = |n| format!("level {level} again ({n}): no answer for {waited}");
        match (&self.what, self.repeat) {
            (_, 0) => {
                Why::new(Reason::Escalated, format!("escalated to level {level}: no answer for {waited}"))
            }
            (Round::Level(_), n) => Why::new(Reason::Repeated, again(n)),
            (Round::Reminder(_), n) => Why::new(Reason::StillFiring, again(n)),
        }
    }
}

impl Ladder {
    fn new(from: Ts, way: WayName, levels: Vec<Level>) -> Self {
        let next = levels.first().map(|l| from + l.after);
        Self { way, levels, since: from, at: 0, repeats: 0, next, reminders: 0, forced: false }
    }

    fn due(&mut self, now: Ts, pace: Pace) -> Option<Due> {
        // Repeats of the level before come first.
        if let Some(current) = self.at.checked_sub(1).and_then(|i| self.levels.get(i))
            && self.repeats < current.repeat
        {
            self.repeats += 1;
            let what = Round::Level(current.clone());
            self.next = self.after_current(now, pace);
            return Some(Due {
                level: self.at as u32,
                repeat: self.repeats,
                what,
                way: self.way.clone(),
                since: self.since,
            });
        }
        let Some(level) = self.levels.get(self.at) else { return self.remind(now, pace) };
        let what = Round::Level(level.clone());
        let (level, way, since) = (self.at as u32 + 1, self.way.clone(), self.since);
        let due = Due { level, repeat: 0, what, way, since };
        self.at += 1;
        self.repeats = 0;
        self.next = self.after_current(now, pace);
        Some(due)
    }

    fn remind(&mut self, now: Ts, pace: Pace) -> Option<Due> {
        let wanted = core::mem::take(&mut self.forced) || pace.page;
        self.next = None;
        let last = self.levels.last().filter(|_| wanted)?;
        self.reminders += 1;
        self.next = pace.page.then(|| now + last.after.max(pace.remind_every));
        Some(Due {
            level: self.levels.len() as u32,
            repeat: last.repeat + self.reminders,
            what: Round::Reminder(self.levels.clone()),
            way: self.way.clone(),
            since: self.since,
        })
    }

    /// When the next round after level `self.at - 1` is due. It is counted from `at`, so that after
    /// an outage of the alerter not all levels are due at once.
    fn after_current(&self, at: Ts, pace: Pace) -> Option<Ts> {
        let current = self.levels.get(self.at.checked_sub(1)?)?;
        if self.repeats < current.repeat {
            return Some(at + current.after.max(Span::secs(1)));
        }
        match self.levels.get(self.at) {
            Some(next) => Some(at + next.after),
            None if pace.page => Some(at + current.after.max(pace.remind_every)),
            None => None,
        }
    }

    fn pass_over(&mut self, now: Ts, pace: Pace) {
        self.repeats = u32::MAX;
        self.next = self.after_current(now, pace);
    }

    fn hurry(&mut self, now: Ts) -> bool {
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

    const PAGE: Pace = Pace { page: true, remind_every: Span::secs(1800) };
    const TICKET: Pace = Pace { page: false, ..PAGE };

    fn level(after: i64, notify: &str, repeat: u32) -> Level {
        Level { after: Span::secs(after), notify: vec![notify.into()], repeat, ..Level::default() }
    }

    fn ladder(levels: Vec<Level>) -> Ladder {
        Ladder::new(Ts(0), WayName::Route("routes[0]".into()), levels)
    }

    fn who(due: Due) -> String {
        match due.what {
            Round::Level(level) => level.notify.join(","),
            Round::Reminder(levels) => levels.last().map(|l| l.notify.join(",")).unwrap_or_default(),
        }
    }

    /// Every round up to `until`, as (second, level, repeat, who).
    fn rounds(levels: Vec<Level>, pace: Pace, until: i64) -> Vec<(i64, u32, u32, String)> {
        let mut l = ladder(levels);
        let mut seen = Vec::new();
        while let Some(at) = l.next.filter(|at| at.0 <= until * 1000) {
            let due = l.due(at, pace).expect("a round is due at its own time");
            seen.push((at.0 / 1000, due.level, due.repeat, who(due)));
        }
        seen
    }

    #[test]
    fn the_sample_policy() {
        let got = rounds(vec![level(0, "chat", 0), level(300, "primary", 3)], PAGE, 7000);
        let want =
            [(0, 1, 0, "chat"), (300, 2, 0, "primary"), (600, 2, 1, "primary"), (900, 2, 2, "primary")];
        assert_eq!(got[..4], want.map(|(t, l, r, w)| (t, l, r, w.to_string())));
        assert_eq!(got[4], (1200, 2, 3, "primary".into()));
        // Reminders every half hour after the last repeat.
        assert_eq!(got[5..].iter().map(|r| r.0).collect::<Vec<_>>(), [3000, 4800, 6600]);
    }

    #[test]
    fn a_ticket_is_not_repeated_for_ever() {
        assert_eq!(rounds(vec![level(0, "chat", 1)], TICKET, 100_000).len(), 2);
    }

    #[test]
    fn every_level_is_repeated_as_often_as_it_says() {
        let got = rounds(vec![level(0, "a", 2), level(60, "b", 2)], TICKET, 100_000);
        let notified: Vec<_> = got.iter().map(|(_, level, repeat, _)| (*level, *repeat)).collect();
        assert_eq!(notified, [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]);
    }

    #[test]
    fn hurry_skips_the_wait_once() {
        let mut l = ladder(vec![level(0, "a", 5), level(300, "b", 0)]);
        assert_eq!(l.due(Ts(0), PAGE).map(|d| d.level), Some(1));
        assert!(l.hurry(Ts(1000)));
        assert_eq!(l.due(Ts(1000), PAGE).map(who), Some("b".into()));
        assert!(!l.hurry(Ts(1000)));
    }

    #[test]
    fn a_level_that_is_passed_over_costs_its_wait_and_not_its_repeats() {
        let mut l = ladder(vec![level(0, "a", 3), level(300, "b", 0)]);
        l.due(Ts(0), PAGE);
        l.pass_over(Ts(0), PAGE);
        assert_eq!(l.next, Some(Ts(300_000)));
        assert_eq!(l.due(Ts(300_000), PAGE).map(who), Some("b".into()));
    }

    #[test]
    fn what_stopped_goes_on_one_wait_later_and_what_is_forced_now() {
        let way = |route: &str, levels| Way {
            name: WayName::Route(route.into()),
            because: String::new(),
            policy: None,
            levels,
        };
        let ways =
            vec![way("x", vec![level(0, "a", 0), level(60, "b", 0)]), way("y", vec![level(30, "c", 0)])];
        let mut all = Ladders::new(Ts(0), ways);
        let notified = |all: &mut Ladders, at: i64| {
            core::iter::from_fn(|| all.due(Ts(at * 1000), TICKET)).map(who).collect::<Vec<_>>()
        };
        assert_eq!((notified(&mut all, 0), notified(&mut all, 30)), (vec!["a".into()], vec!["c".into()]));
        all.stop();
        assert_eq!(notified(&mut all, 1000), [""; 0]);
        all.resume(Ts(2_000_000), TICKET);
        assert_eq!((notified(&mut all, 2059), notified(&mut all, 2060)), (vec![], vec!["b".to_string()]));
        assert!(all.is_exhausted() && !all.hurry(Ts(3_000_000)));
        all.force(Ts(3_000_000));
        assert_eq!(notified(&mut all, 3000), ["b", "c"]);
        assert_eq!(all.next_at(), None, "a ticket is not repeated for ever");
    }
}
