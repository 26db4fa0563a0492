//! Who is on call: users, schedules and named time intervals. It resolves an item of a level's
//! `notify` to receivers at a given time.
//!
//! This is pure: time is an argument, and calendars are passed in as text. It decides who is
//! notified and by which receiver, not how. A result depends only on the time asked for, not on
//! earlier calls.

pub mod ical;
mod layer;
mod overrides;
mod period;
mod roster;
mod schedule;
mod zone;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use ical::MAX_PLAN;
pub use layer::{Layer, People, Rotation};
pub use overrides::{
    Cover, MAX_ENDED, OverridePhase, OverrideRecord, OverrideRefusal, OverrideWanted, Overrides, REMEMBER,
    Removal, Turn, WantedCover,
};
pub use period::{Period, TimeInterval};
pub use roster::User;
pub use schedule::{Duty, Moment, Override, Schedule, Shift};
pub use zone::Zone;

use ical::Calendar;
use overrides::Acting;
use roster::Roster;
use stepwatch_model::Ts;

/// The prefixes of a user's or a schedule's name in a level's `notify`; anything else is a
/// receiver.
pub const USER: &str = "user:";
pub const SCHEDULE: &str = "schedule:";

/// The on-call part of the configuration. The caller has checked the names: an unknown name
/// resolves to nobody.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnCallConfig {
    pub time_intervals: Vec<TimeInterval>,
    pub users: Vec<User>,
    pub schedules: Vec<Schedule>,
}

/// A receiver to notify, and the user whom it reaches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    pub receiver: String,
    /// The user that it is for; `None` for everybody who reads the receiver.
    pub user: Option<String>,
}

/// The targets of an item of a level's `notify` at a given time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// If empty, the item resolves to nobody, and the caller must notify somebody else.
    pub targets: Vec<Target>,
    /// `schedule primary: alice (layer weekly)`; `None` for a plain receiver, which needs no
    /// explanation.
    pub why: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct OnCall {
    config: OnCallConfig,
    /// The calendars of schedules, as they were last read.
    calendars: BTreeMap<String, Copy>,
    /// Those that people made at run time. Shared with clones.
    overrides: Arc<Overrides>,
}

/// A calendar as it was last read. Clones share its large parts, because each view of the engine
/// has one.
#[derive(Debug, Clone)]
struct Copy {
    roster: Roster,
    text: Arc<str>,
}

/// The state of a schedule's calendar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalendarState<'a> {
    pub read_at: Ts,
    pub events: usize,
    /// The number of events that were left out because they were not understood.
    pub skipped: usize,
    pub warnings: &'a [String],
    /// Names in coming events that belong to no user.
    pub strangers: Vec<&'a str>,
}

/// A calendar as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredCalendar {
    read_at: Ts,
    text: String,
}

impl OnCallConfig {
    /// The receivers that an item of `notify` may ever lead to. Anybody can take over a schedule at
    /// run time.
    pub fn reachable<'a>(&'a self, item: &'a str) -> Vec<&'a str> {
        self.receivers_of(item, true)
    }

    /// The receivers that an item of `notify` leads to as long as nobody takes over.
    pub fn planned<'a>(&'a self, item: &'a str) -> Vec<&'a str> {
        self.receivers_of(item, false)
    }

    fn receivers_of<'a>(&'a self, item: &'a str, overridden: bool) -> Vec<&'a str> {
        let of_user = |name: &str| {
            let user = self.users.iter().find(|user| user.name == name);
            user.into_iter().flat_map(|user| user.notify.iter().map(String::as_str))
        };
        if let Some(name) = item.strip_prefix(USER) {
            return of_user(name).collect();
        }
        let Some(name) = item.strip_prefix(SCHEDULE) else { return vec![item] };
        let Some(schedule) = self.schedules.iter().find(|schedule| schedule.name == name) else {
            return Vec::new();
        };
        let turns = schedule.layers.iter().flat_map(|layer| &layer.users);
        let named = turns.chain(schedule.overrides.iter().map(|o| &o.users)).flat_map(|people| &people.0);
        // A calendar may name anybody.
        let anybody = overridden || schedule.calendar.is_some();
        let anybody = self.users.iter().map(|user| &user.name).filter(|_| anybody);
        let people = named.chain(anybody).flat_map(|name| of_user(name));
        let fallback = schedule.fallback.iter().filter(|item| !item.starts_with(SCHEDULE));
        people.chain(fallback.flat_map(|item| self.receivers_of(item, overridden))).collect()
    }
}

impl OnCall {
    pub fn new(config: OnCallConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Replaces the configuration. Calendars that are still configured keep their last text.
    pub fn configure(&mut self, config: OnCallConfig) {
        self.config = config;
        for (schedule, copy) in core::mem::take(&mut self.calendars) {
            // The text was a calendar before, and still is one in another zone.
            let _ = self.read_calendar(&schedule, &copy.text, copy.roster.read_at);
        }
    }

    /// Reads the text of a schedule's calendar. If the text is not a calendar, nothing changes.
    pub fn read_calendar(&mut self, schedule: &str, text: &str, read_at: Ts) -> Result<(), String> {
        let Some(s) = self.schedule(schedule).filter(|s| s.calendar.is_some()) else {
            return Err(format!("there is no schedule {schedule} with a calendar"));
        };
        let same = self.calendars.get(schedule).filter(|copy| *copy.text == *text);
        let kept = same.map(|copy| Arc::clone(&copy.text));
        let calendar = Calendar::parse(text, &s.zone)?;
        let roster = Roster::new(calendar, read_at, &self.config.users);
        let text = kept.unwrap_or_else(|| text.into());
        self.calendars.insert(schedule.to_owned(), Copy { roster, text });
        Ok(())
    }

    /// Records that the calendar had not changed at `read_at`; false if it was never read.
    pub fn calendar_stands(&mut self, schedule: &str, read_at: Ts) -> bool {
        self.calendars.get_mut(schedule).map(|copy| copy.roster.read_at = read_at).is_some()
    }

    pub fn calendar(&self, schedule: &str) -> Option<CalendarState<'_>> {
        let roster = &self.calendars.get(schedule)?.roster;
        Some(CalendarState {
            read_at: roster.read_at,
            events: roster.calendar.events().len(),
            skipped: roster.calendar.skipped,
            warnings: &roster.calendar.warnings,
            strangers: roster.strangers(roster.read_at),
        })
    }

    pub(crate) fn stored_calendar(&self, schedule: &str) -> Option<StoredCalendar> {
        let copy = self.calendars.get(schedule)?;
        Some(StoredCalendar { read_at: copy.roster.read_at, text: copy.text.to_string() })
    }

    /// Restores a stored calendar; false if the schedule no longer has one.
    pub(crate) fn restore_calendar(&mut self, schedule: &str, stored: StoredCalendar) -> bool {
        self.read_calendar(schedule, &stored.text, stored.read_at).is_ok()
    }

    /// The schedules whose calendar has been read.
    pub(crate) fn known_calendars(&self) -> Vec<String> {
        self.calendars.keys().cloned().collect()
    }

    pub fn config(&self) -> &OnCallConfig {
        &self.config
    }

    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// Inserts or replaces an override that [`Self::plan_override`] allowed, or that was stored.
    pub(crate) fn put_override(&mut self, record: Arc<OverrideRecord>, now: Ts) {
        Arc::make_mut(&mut self.overrides).put(record, now);
    }

    /// The same with other overrides.
    #[must_use]
    pub fn with_overrides(&self, overrides: Arc<Overrides>) -> Self {
        Self { overrides, ..self.clone() }
    }

    /// Whether the schedule of an override exists, all who take over can be notified, and whoever
    /// is replaced still exists.
    pub fn is_effective(&self, record: &OverrideRecord) -> bool {
        let replaced = |cover: &Cover| cover.replaces.as_ref().is_none_or(|name| self.user(name).is_some());
        self.schedule(&record.schedule).is_some()
            && record.covers.iter().all(|cover| self.reaches(&cover.user) && replaced(cover))
    }

    /// The overrides that are not over at `now`, and have no effect, or only half of a swap: a new
    /// configuration lacks their schedule, or a person or the receivers of one.
    pub fn void_overrides(&self, now: Ts) -> impl Iterator<Item = &Arc<OverrideRecord>> {
        let unended = self.overrides.all().filter(move |r| r.phase(now) != OverridePhase::Over);
        unended.filter(move |record| !self.is_effective(record))
    }

    /// Whether a user exists and has a receiver.
    fn reaches(&self, user: &str) -> bool {
        self.user(user).is_some_and(|user| !user.notify.is_empty())
    }

    fn acting(&self, schedule: &str, from: Ts, to: Ts) -> Acting<'_> {
        self.overrides.acting(schedule, (from, to), |user| self.reaches(user))
    }

    /// The targets of an item of `notify` at `at`; empty if it resolves to nobody.
    pub fn targets(&self, item: &str, at: Ts) -> Vec<Target> {
        self.resolve(item, at).targets
    }

    /// As `targets`, with the reason for the timeline of an incident.
    pub fn resolve(&self, item: &str, at: Ts) -> Resolution {
        if let Some(name) = item.strip_prefix(SCHEDULE) {
            return self.of_schedule(name, at);
        }
        if let Some(name) = item.strip_prefix(USER) {
            let targets = self.of_user(name);
            let none = if targets.is_empty() { " has no receiver" } else { "" };
            return Resolution { targets, why: Some(format!("user {name}{none}")) };
        }
        Resolution { targets: vec![Target { receiver: item.to_owned(), user: None }], why: None }
    }

    fn of_schedule(&self, name: &str, at: Ts) -> Resolution {
        let Some(schedule) = self.schedule(name) else {
            return Resolution { targets: Vec::new(), why: Some(format!("there is no schedule {name}")) };
        };
        let Duty { users, by } = schedule.duty(at, self.roster(name), &self.acting(name, at, at));
        let targets = distinct(users.iter().flat_map(|user| self.of_user(user)));
        let mut said = if users.is_empty() {
            format!("schedule {name}: nobody is on call")
        } else {
            format!("schedule {name}: {} ({by})", users.join(", "))
        };
        if let Some(doubt) = self.doubt(schedule, at) {
            said = format!("{said}; {doubt}");
        }
        if !targets.is_empty() {
            return Resolution { targets, why: Some(said) };
        }
        let unreachable = if users.is_empty() { "" } else { ", whom no receiver reaches" };
        // A fallback that names a schedule could recurse for ever.
        let items = schedule.fallback.iter().filter(|item| !item.starts_with(SCHEDULE));
        let targets = distinct(items.flat_map(|item| self.resolve(item, at).targets));
        let instead = if targets.is_empty() { String::new() } else { ", so its fallback is notified".into() };
        Resolution { targets, why: Some(format!("{said}{unreachable}{instead}")) }
    }

    fn of_user(&self, name: &str) -> Vec<Target> {
        let user = self.user(name);
        let receivers = user.into_iter().flat_map(|u| &u.notify);
        receivers.map(|r| Target { receiver: r.clone(), user: Some(name.to_owned()) }).collect()
    }

    pub fn user(&self, name: &str) -> Option<&User> {
        self.config.users.iter().find(|u| u.name == name)
    }

    pub fn schedule(&self, name: &str) -> Option<&Schedule> {
        self.config.schedules.iter().find(|s| s.name == name)
    }

    /// Who is on call at `at` by a schedule; `None` if there is no such schedule.
    pub fn duty(&self, schedule: &str, at: Ts) -> Option<Duty> {
        let made = self.acting(schedule, at, at);
        self.schedule(schedule).map(|s| s.duty(at, self.roster(schedule), &made))
    }

    fn roster(&self, schedule: &str) -> Option<&Roster> {
        self.calendars.get(schedule).map(|copy| &copy.roster)
    }

    /// The doubt about a schedule's calendar, if there is one: it was never read, or not for too
    /// long.
    fn doubt(&self, schedule: &Schedule, at: Ts) -> Option<String> {
        let stale_after = schedule.calendar?;
        match self.roster(&schedule.name).map(|roster| at - roster.read_at) {
            None => Some("its calendar was never read".into()),
            Some(age) if age > stale_after => Some(format!("its calendar was last read {age} ago")),
            Some(_) => None,
        }
    }

    /// The shifts from `from` until `to`, without holes: a gap is a shift of nobody.
    pub fn shifts(&self, schedule: &str, from: Ts, to: Ts) -> Vec<Shift> {
        let to = to.min(from + MAX_PLAN);
        let made = self.acting(schedule, from, to);
        self.schedule(schedule).map(|s| s.shifts(from, to, self.roster(schedule), &made)).unwrap_or_default()
    }

    /// Whether the interval of that name holds `at`; `None` if there is no such interval.
    pub fn within(&self, interval: &str, at: Ts) -> Option<bool> {
        self.config.time_intervals.iter().find(|i| i.name == interval).map(|i| i.contains(at))
    }
}

fn distinct(targets: impl Iterator<Item = Target>) -> Vec<Target> {
    let mut seen = BTreeMap::new();
    for (place, target) in targets.enumerate() {
        seen.entry(target).or_insert(place);
    }
    let mut targets: Vec<(usize, Target)> = seen.into_iter().map(|(target, place)| (place, target)).collect();
    targets.sort_unstable();
    targets.into_iter().map(|(_, target)| target).collect()
}

#[cfg(test)]
mod tests;
