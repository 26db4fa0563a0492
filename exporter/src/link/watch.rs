//! Decides whether a link is up, down, dropped or flapping: one state machine for every kind of
//! link, whose input is readings with their times.
//!
//! At most one condition of a link is open at a time, and it is closed when the link comes up:
//!
//! * `down`, at once. A ticket: a short outage hurts a run only if the link does not come back.
//! * `drop`, when it has been down for longer than the transport above it waits
//!   ([`Rule::drop_after`]): from here on the run is lost.
//! * `flap`, when it is up again for the third time in twelve hours. Any outage counts, also one
//!   that lay between two readings and is known only from the counter of outages that the driver
//!   keeps. It is over when the link has stayed up for an hour; the outages stay in the window, so
//!   the next one opens it again.
//!
//! The outages survive a restart: a link that flaps every three hours must not start from zero
//! because the exporter was updated.

use std::collections::VecDeque;

use super::{AGAIN_SECONDS, Change, Level, State, span};

/// The most outages kept of one link.
const MAX_OUTAGES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Seconds that a link may be down before it counts as dropped.
    pub drop_after: f64,
    /// The number of outages within [`Rule::window`] that are a flap.
    pub flaps: usize,
    pub window: f64,
    /// Seconds without an outage that end a flap.
    pub quiet: f64,
}

impl Rule {
    pub const fn drop_after(drop_after: f64) -> Self {
        Self { drop_after, flaps: 3, window: 43_200.0, quiet: 3600.0 }
    }
}

/// A reading of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub up: bool,
    /// The driver's count of outages, if it was read together with `up`.
    pub downs: Option<u64>,
}

/// The open condition.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
struct Open {
    state: State,
    /// The Unix time when it was last published.
    published: f64,
}

#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Watch {
    open: Option<Open>,
    down_since: Option<f64>,
    /// The Unix times when the latest outages ended, or were noticed.
    outages: VecDeque<f64>,
    #[serde(skip)]
    counter: Counter,
    #[serde(skip)]
    looked: bool,
}

/// Compares the driver's count of outages with the observed ones.
#[derive(Debug, Clone, Default, PartialEq)]
struct Counter {
    base: Option<u64>,
    seen: u64,
    /// How many more the counter had than were observed, at the last reading.
    excess: u64,
    was_up: bool,
}

impl Watch {
    /// The changes to publish after this reading. `now` is Unix time.
    pub fn observe(&mut self, now: f64, rule: &Rule, seen: Seen) -> Vec<Change> {
        let mut changes = Vec::new();
        self.looked = true;
        let blinks = self.counter.blinks(seen);
        self.forget(now, rule);
        match (self.down_since, seen.up) {
            (None, false) => self.went_down(now, &mut changes),
            (Some(since), false) => self.still_down(now, since, rule, &mut changes),
            (Some(since), true) => self.came_up(now, since, rule, &mut changes),
            (None, true) if blinks > 0 => self.blinked(now, blinks, rule, &mut changes),
            (None, true) => self.still_up(now, &mut changes, rule),
        }
        changes
    }

    /// Ends the judgement of a link that was taken down on purpose, or excluded by the
    /// configuration. Its outages are kept in case it returns.
    pub fn retire(&mut self) -> Option<Change> {
        let state = self.open()?;
        *self = Self { outages: std::mem::take(&mut self.outages), ..Self::default() };
        let state = if state == State::Flap { State::Flap } else { State::Up };
        Some(over(state, "is not watched any more: it was taken down on purpose, or left out".into()))
    }

    /// The open condition.
    pub fn open(&self) -> Option<State> {
        self.open.map(|open| open.state)
    }

    /// Whether the link was never read since this exporter started.
    pub fn is_fresh(&self) -> bool {
        !self.looked && self.open.is_none()
    }

    /// Whether there is no state that must survive a restart.
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.outages.is_empty()
    }

    fn forget(&mut self, now: f64, rule: &Rule) {
        // After a clock was set back, outages in the future must not stay for ever.
        self.outages.retain(|at| (now - at).abs() < rule.window);
        while self.outages.len() > MAX_OUTAGES {
            self.outages.pop_front();
        }
    }

    fn report(&mut self, now: f64, state: State, again: bool, text: String) -> Change {
        self.open = Some(Open { state, published: now });
        let level = if state == State::Drop { Level::Error } else { Level::Warn };
        Change { state, over: false, again, level, text }
    }

    fn went_down(&mut self, now: f64, changes: &mut Vec<Change>) {
        self.down_since = Some(now);
        changes.push(self.report(now, State::Down, false, "went down".into()));
    }

    fn still_down(&mut self, now: f64, since: f64, rule: &Rule, changes: &mut Vec<Change>) {
        let Some(open) = self.open else { return };
        let lasted = now - since;
        let dropped = open.state == State::Drop;
        if lasted >= rule.drop_after && !dropped {
            let text = format!("has been down for {}, longer than what runs over it waits", span(lasted));
            changes.push(self.report(now, State::Drop, false, text));
        } else if now - open.published >= AGAIN_SECONDS {
            let text = format!("has been down for {}", span(lasted));
            changes.push(self.report(now, open.state, true, text));
        }
    }

    fn came_up(&mut self, now: f64, since: f64, rule: &Rule, changes: &mut Vec<Change>) {
        self.down_since = None;
        self.open = None;
        changes.push(over(State::Up, format!("is up again after {}", span(now - since))));
        self.outages.push_back(now);
        self.judge_flap(now, rule, changes);
    }

    fn blinked(&mut self, now: f64, times: u64, rule: &Rule, changes: &mut Vec<Change>) {
        let times = times.min(MAX_OUTAGES as u64);
        let text = match times {
            1 => "went down and came up again between two looks at it".to_owned(),
            n => format!("went down and came up again {n} times between two looks at it"),
        };
        changes.push(self.report(now, State::Down, false, text));
        self.open = None;
        changes.push(over(State::Up, "is up again at once".into()));
        self.outages.extend((0..times).map(|_| now));
        self.judge_flap(now, rule, changes);
    }

    fn judge_flap(&mut self, now: f64, rule: &Rule, changes: &mut Vec<Change>) {
        let n = self.outages.len();
        if n >= rule.flaps {
            let text = format!("flaps: it went down {n} times within {}", span(rule.window));
            changes.push(self.report(now, State::Flap, false, text));
        }
    }

    fn still_up(&mut self, now: f64, changes: &mut Vec<Change>, rule: &Rule) {
        let Some(open) = self.open else { return };
        let last = self.outages.back().copied().unwrap_or(f64::NEG_INFINITY);
        if now - last >= rule.quiet {
            self.open = None;
            changes.push(over(open.state, format!("has stayed up for {}", span(rule.quiet))));
        } else if now - open.published >= AGAIN_SECONDS {
            let n = self.outages.len();
            let text = format!("flaps: it went down {n} times within {}", span(rule.window));
            changes.push(self.report(now, open.state, true, text));
        }
    }
}

fn over(state: State, text: String) -> Change {
    Change { state, over: true, again: false, level: Level::Info, text }
}

impl Counter {
    /// Outages in the counter that no reading showed. They are accepted at the second reading with
    /// the link up: at the first, the state may have been read before the link went down and the
    /// counter after it.
    fn blinks(&mut self, now: Seen) -> u64 {
        if self.was_up && !now.up {
            self.seen += 1;
        }
        let steady = self.was_up && now.up;
        self.was_up = now.up;
        let Some(count) = now.downs else { return 0 };
        let base = *self.base.get_or_insert(count);
        let Some(counted) = count.checked_sub(base) else {
            // The driver was reloaded, or the counter was cleared.
            *self = Self { base: Some(count), was_up: now.up, ..Self::default() };
            return 0;
        };
        let excess = counted.saturating_sub(self.seen);
        if !steady {
            self.excess = 0;
            return 0;
        }
        let believed = excess.min(self.excess);
        self.excess = excess - believed;
        self.seen += believed;
        if excess == 0 {
            // Outages that the driver does not count, such as intended ones, must not hide the next
            // one.
            self.seen = counted;
        }
        believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: Rule = Rule::drop_after(30.0);

    fn published(changes: &[Change]) -> Vec<(State, bool)> {
        changes.iter().map(|c| (c.state, c.over)).collect()
    }

    /// Feeds `(now, up)` readings to a watch.
    fn run(watch: &mut Watch, readings: &[(f64, bool)]) -> Vec<(State, bool)> {
        let seen = |up| Seen { up, downs: None };
        readings.iter().flat_map(|(now, up)| published(&watch.observe(*now, &RULE, seen(*up)))).collect()
    }

    #[test]
    fn down_at_once_dropped_when_nobody_waits_any_more_and_up_closes_it() {
        let mut watch = Watch::default();
        assert_eq!(run(&mut watch, &[(0.0, true), (1.0, true)]), []);
        assert_eq!(run(&mut watch, &[(2.0, false), (3.0, false), (31.0, false)]), [(State::Down, false)]);
        assert_eq!(run(&mut watch, &[(32.0, false), (33.0, false)]), [(State::Drop, false)]);
        assert_eq!(run(&mut watch, &[(632.0, false)]), [(State::Drop, false)], "published again");
        assert_eq!(run(&mut watch, &[(640.0, true)]), [(State::Up, true)]);
        assert_eq!(watch.open(), None);
    }

    #[test]
    fn the_third_outage_is_a_flap_until_it_stays_up() {
        let mut watch = Watch::default();
        run(&mut watch, &[(0.0, true), (10.0, false), (12.0, true), (7200.0, false), (7230.0, true)]);
        assert_eq!(run(&mut watch, &[(14_400.0, false)]), [(State::Down, false)]);
        assert_eq!(run(&mut watch, &[(14_405.0, true)]), [(State::Up, true), (State::Flap, false)]);
        // The exporter is restarted in between.
        let mut watch: Watch = serde_json::from_str(&serde_json::to_string(&watch).unwrap()).unwrap();
        assert_eq!(run(&mut watch, &[(14_406.0, true), (18_004.0, true)]), [(State::Flap, false)], "again");
        assert_eq!(run(&mut watch, &[(18_005.0, true), (18_006.0, true)]), [(State::Flap, true)]);
        assert_eq!(
            run(&mut watch, &[(20_000.0, false), (20_001.0, true)]),
            [(State::Down, false), (State::Up, true), (State::Flap, false)],
            "the window still holds the earlier ones"
        );
        assert_eq!(run(&mut watch, &[(90_000.0, true), (90_001.0, false), (90_002.0, true)]).len(), 3);
        assert_eq!(watch.open(), None, "the window moved on");
    }

    #[test]
    fn an_outage_between_two_readings_is_known_by_the_counter_and_counted_once() {
        let mut watch = Watch::default();
        let mut look =
            |now: f64, up, downs| published(&watch.observe(now, &RULE, Seen { up, downs: Some(downs) }));
        assert_eq!(look(0.0, true, 7), []);
        assert_eq!(look(1.0, true, 8), [], "it may just be going down");
        assert_eq!(look(2.0, true, 8), [(State::Down, false), (State::Up, true)]);
        assert_eq!(look(3.0, true, 9), []);
        assert_eq!(look(4.0, false, 9), [(State::Down, false)], "it was");
        assert_eq!(look(5.0, true, 9), [(State::Up, true)]);
        assert_eq!(look(6.0, true, 9), []);
        // The link is taken down on purpose, which the driver does not count.
        assert_eq!(look(7.0, false, 9).len() + look(8.0, true, 9).len(), 3, "down, up, flap");
        assert_eq!(look(9.0, true, 9), []);
        assert_eq!(look(10.0, true, 10), []);
        assert_eq!(look(11.0, true, 10), [(State::Down, false), (State::Up, true), (State::Flap, false)]);
        // The driver is reloaded.
        assert_eq!(look(12.0, true, 0), []);
        assert_eq!(look(13.0, true, 0), []);
    }

    #[test]
    fn who_retires_a_link_closes_what_is_open() {
        let mut watch = Watch::default();
        run(&mut watch, &[(0.0, true), (1.0, false)]);
        assert_eq!(watch.retire().map(|c| (c.state, c.over)), Some((State::Up, true)));
        assert_eq!((watch.retire(), watch.is_idle()), (None, true));
    }

    proptest! {
        /// For any readings, times and restarts, at most one condition is open, no condition is
        /// closed that was not open, and a link that is up is neither down nor dropped.
        #[test]
        fn at_most_one_condition_is_open_and_up_closes_it(
            readings in prop::collection::vec((-5.0..20_000.0f64, any::<bool>(), any::<Option<u64>>(), 0u8..10), 0..80)
        ) {
            let (mut watch, mut now, mut open) = (Watch::default(), 1e9, None);
            for (pause, up, downs, event) in readings {
                now += pause;
                if event == 0 {
                    watch = serde_json::from_str(&serde_json::to_string(&watch).unwrap()).unwrap();
                }
                for change in watch.observe(now, &RULE, Seen { up, downs }) {
                    if change.over {
                        let closes: State = open.take().expect("something was open");
                        prop_assert_eq!(change.state == State::Flap, closes == State::Flap);
                    } else {
                        // A condition may be replaced by the next one of the same outage, or be
                        // published again.
                        prop_assert!(change.again || !matches!((open, change.state), (Some(State::Drop), _) | (Some(State::Down), State::Flap)));
                        open = Some(change.state);
                    }
                }
                prop_assert_eq!(watch.open(), open);
                prop_assert!(!up || matches!(open, None | Some(State::Flap)), "{:?}", open);
                prop_assert!(up || matches!(open, Some(State::Down | State::Drop)));
                prop_assert!(watch.outages.len() <= 3 * MAX_OUTAGES);
            }
            if watch.open().is_some() {
                prop_assert!(watch.retire().is_some_and(|c| c.over));
            }
        }
    }
}
