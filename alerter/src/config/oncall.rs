//! Checks users, schedules, calendars and time intervals, and finds times in which nobody is on
//! call.

use core::time::Duration;
use std::collections::BTreeSet;

use stepwatch_kit::config::Secret;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::oncall::{OnCall, SCHEDULE, USER};

use super::file::File;
use super::incidents;
use super::names::{known, unique};
use super::schedule::{Ical, Schedule};
use crate::calendars::{Place, Source};
use crate::notify::slack::is_user_id;

/// The shortest refresh interval, because servers refuse more frequent requests.
const MIN_REFRESH: Span = Span::secs(30);
/// The time for which gaps are searched.
const LOOK_AHEAD: Span = Span::secs(28 * 86_400);
/// The description of the receivers if nobody is on call and there is no fallback, because a level
/// always notifies somebody.
pub(crate) const NO_FALLBACK: &str = "the others of the level, or whoever is nearest if it names no others";
/// The most gaps that are listed individually.
const GAPS_LISTED: usize = 10;

/// The names that a level may use in addition to receivers.
pub(super) fn items(file: &File) -> Vec<String> {
    let users = file.users.iter().map(|u| format!("{USER}{}", u.name));
    users.chain(file.schedules.iter().map(|s| format!("{SCHEDULE}{}", s.name))).collect()
}

/// Checks for mistakes that involve several values.
pub(super) fn check(file: &File, errors: &mut Vec<String>) {
    let receivers: BTreeSet<&str> = file.receivers.iter().map(|r| r.name.as_str()).collect();
    let intervals = unique("time_intervals", file.time_intervals.iter().map(|i| i.name.as_str()), errors);
    let users = unique("users", file.users.iter().map(|u| u.name.as_str()), errors);
    unique("schedules", file.schedules.iter().map(|s| s.name.as_str()), errors);
    for (i, interval) in file.time_intervals.iter().enumerate() {
        if interval.time_intervals.is_empty() {
            errors.push(format!("time_intervals[{i}].time_intervals: is empty, so that it never holds"));
        }
    }
    for (i, policy) in file.policies.iter().enumerate() {
        for (j, level) in policy.levels.iter().enumerate() {
            let at = format!("policies[{i}].levels[{j}].if");
            for (key, name) in [("during", &level.condition.during), ("outside", &level.condition.outside)] {
                known(&format!("{at}.{key}"), "time interval", name.as_deref(), &intervals, errors);
            }
        }
    }
    for (i, user) in file.users.iter().enumerate() {
        let at = format!("users[{i}].notify[]");
        known(&at, "receiver", user.notify.iter().map(String::as_str), &receivers, errors);
        if let Some(id) = user.slack_id.as_ref().filter(|id| !is_user_id(id)) {
            errors.push(format!("users[{i}].slack_id: {id:?} is not a user's id in Slack, as in U012AB3CD"));
        }
    }
    each_notified(file, &mut |at, item| {
        let user = item.strip_prefix(USER).and_then(|name| file.users.iter().find(|u| u.name == name));
        if let Some(user) = user.filter(|user| user.notify.is_empty()) {
            errors.push(unreached(at, &user.name));
        }
    });
    let items = items(file);
    let reach: BTreeSet<&str> = receivers
        .iter()
        .copied()
        .chain(items.iter().map(String::as_str).filter(|i| i.starts_with(USER)))
        .collect();
    for (i, schedule) in file.schedules.iter().enumerate() {
        check_schedule(&format!("schedules[{i}]"), schedule, file, &users, errors);
        let at = format!("schedules[{i}].fallback[]");
        known(&at, "receiver or user", schedule.fallback.iter().map(String::as_str), &reach, errors);
    }
}

fn unreached(at: &str, user: &str) -> String {
    format!("{at}: no receiver reaches {user:?}, expected `notify` of this user")
}

/// Calls `act` for every item of a `notify` or `fallback`, with its position.
fn each_notified(file: &File, act: &mut dyn FnMut(&str, &str)) {
    let mut each = |at: &str, list: &[String]| {
        list.iter().enumerate().for_each(|(i, item)| act(&format!("{at}[{i}]"), item));
    };
    for (i, policy) in file.policies.iter().enumerate() {
        for (j, level) in policy.levels.iter().enumerate() {
            each(&format!("policies[{i}].levels[{j}].notify"), &level.notify);
        }
    }
    incidents::each_route("routes", &file.routes, &mut |at, route| {
        each(&format!("{at}.notify"), &route.notify);
    });
    for (i, team) in file.teams.iter().enumerate() {
        each(&format!("teams[{i}].notify"), &team.notify);
        each(&format!("teams[{i}].fallback"), &team.fallback);
    }
    each("fallback", &file.fallback);
}

fn check_schedule(at: &str, s: &Schedule, file: &File, users: &BTreeSet<&str>, errors: &mut Vec<String>) {
    let mut person = |at: String, name: &String| {
        if !users.contains(name.as_str()) {
            let all = users.iter().copied().collect::<Vec<_>>().join(", ");
            let all = if all.is_empty() { "none".into() } else { all };
            errors.push(format!("{at}: there is no user {name:?}; those that exist: {all}"));
        } else if file.users.iter().any(|u| u.name == *name && u.notify.is_empty()) {
            errors.push(unreached(&at, name));
        }
    };
    for (i, layer) in s.layers.iter().enumerate() {
        for (j, turn) in layer.users.iter().enumerate() {
            turn.0.iter().for_each(|name| person(format!("{at}.layers[{i}].users[{j}]"), name));
        }
    }
    for (i, o) in s.overrides.iter().enumerate() {
        o.users.0.iter().for_each(|name| person(format!("{at}.overrides[{i}].users"), name));
        o.replaces.iter().for_each(|name| person(format!("{at}.overrides[{i}].replaces"), name));
    }
    if s.layers.is_empty() && s.ical.is_none() {
        errors.push(format!("{at}: has neither layers nor ical, so that nobody is ever on call"));
    }
    for (i, layer) in s.layers.iter().enumerate() {
        if layer.users.is_empty() {
            errors.push(format!("{at}.layers[{i}].users: is empty, expected at least one user"));
        }
        if layer.until.is_some_and(|until| until <= layer.start) {
            errors.push(format!("{at}.layers[{i}].until: is not after `start`"));
        }
    }
    check_overrides(at, s, errors);
    if let Some(ical) = &s.ical {
        check_ical(&format!("{at}.ical"), ical, errors);
    }
}

/// Refuses overrides that contradict each other, because their order would decide who is woken.
fn check_overrides(at: &str, s: &Schedule, errors: &mut Vec<String>) {
    for (i, o) in s.overrides.iter().enumerate() {
        let (from, to) = (o.from.at(&s.time_zone), o.to.at(&s.time_zone));
        if to <= from {
            errors.push(format!("{at}.overrides[{i}].to: is not after `from`"));
        }
        if o.users.0.is_empty() {
            errors.push(format!("{at}.overrides[{i}].users: is empty, expected who is on call instead"));
        }
        if let Some(j) = s.overrides[..i].iter().position(|before| before.contradicts(o, &s.time_zone)) {
            errors.push(format!(
                "{at}.overrides[{i}]: overlaps with overrides[{j}], and both say who is on call"
            ));
        }
    }
}

fn check_ical(at: &str, ical: &Ical, errors: &mut Vec<String>) {
    let places = [ical.file.is_some(), ical.url.is_some(), ical.url_file.is_some()];
    if places.iter().filter(|given| **given).count() != 1 {
        errors.push(format!("{at}: expected exactly one of file, url and url_file"));
    }
    if let Some(url) = &ical.url
        && let Err(e) = crate::calendars::check_url(url)
    {
        errors.push(format!("{at}.url: {e}"));
    }
    if ical.refresh < MIN_REFRESH {
        errors.push(format!("{at}.refresh: must be at least {MIN_REFRESH}"));
    }
    if ical.stale_after < ical.refresh {
        errors.push(format!("{at}.stale_after: is shorter than `refresh`, so that it would always be stale"));
    }
}

/// The calendars to read. A URL in a file is read from the file here.
pub(super) fn calendars(file: &File, errors: &mut Vec<String>) -> Vec<Source> {
    let mut sources = Vec::new();
    for (i, s) in file.schedules.iter().enumerate() {
        let Some(ical) = &s.ical else { continue };
        let place = match (&ical.file, &ical.url, &ical.url_file) {
            (Some(path), _, _) => Ok(Place::File(path.clone())),
            (_, Some(url), _) => Ok(Place::Url(Secret::new(url.clone()))),
            (_, _, Some(path)) => Secret::read(path)
                .and_then(|url| crate::calendars::check_url(url.expose()).map(|()| Place::Url(url))),
            // This mistake is already reported.
            (None, None, None) => continue,
        };
        match place {
            Ok(place) => sources.push(Source {
                schedule: s.name.clone(),
                zone: s.time_zone.clone(),
                place,
                refresh: Duration::from_millis(ical.refresh.0.unsigned_abs()),
                stale_after: ical.stale_after,
            }),
            Err(e) => errors.push(format!("schedules[{i}].ical.url_file: {e}")),
        }
    }
    sources
}

impl File {
    /// The schedules of this file, with their file calendars, and errors about unreadable ones.
    pub fn oncall(&self, now: Ts) -> (OnCall, Vec<String>) {
        let (oncall, unread) = self.read_calendars(now);
        (oncall, unread.into_iter().map(|(_, error)| error).collect())
    }

    /// Like [`Self::oncall`], with the schedule's name in each error.
    fn read_calendars(&self, now: Ts) -> (OnCall, Vec<(&str, String)>) {
        let mut oncall = OnCall::new(self.oncall_config());
        let mut unread = Vec::new();
        for s in &self.schedules {
            let Some(text) = s.calendar_text() else { continue };
            let wrong = |e| format!("schedule {}: its calendar {e}", s.name);
            let read = text.and_then(|text| oncall.read_calendar(&s.name, &text, now).map_err(wrong));
            unread.extend(read.err().map(|error| (s.name.as_str(), error)));
        }
        (oncall, unread)
    }

    /// The times of the next four weeks in which nobody is on call, and warnings about calendars
    /// and time intervals, one line each.
    pub fn gaps(&self, now: Ts) -> Vec<String> {
        let (oncall, unread) = self.read_calendars(now);
        let mut lines: Vec<String> = unread.iter().map(|(_, error)| error.clone()).collect();
        let is_read = |s: &&Schedule| unread.iter().all(|(name, _)| *name != s.name);
        for interval in &self.time_intervals {
            if let Some(year) = interval.over_since(now) {
                let name = &interval.name;
                lines.push(format!("time interval {name}: ended with {year}, so that it never holds again"));
            }
        }
        for s in self.schedules.iter().filter(is_read) {
            let name = &s.name;
            if let Some(calendar) = oncall.calendar(name) {
                lines.extend(calendar.warnings.iter().map(|w| format!("schedule {name}: {w}")));
                let strangers = calendar.strangers.iter();
                lines.extend(strangers.map(|w| format!("schedule {name}: event {w:?} names no user")));
            }
            let mut gaps = oncall.shifts(name, now, now + LOOK_AHEAD);
            gaps.retain(|shift| shift.users.is_empty());
            let hours = gaps.iter().map(|g| (g.to - g.from).as_secs_f64()).sum::<f64>() / 3600.0;
            let instead = if s.fallback.is_empty() { NO_FALLBACK } else { &s.fallback.join(", ") };
            for gap in gaps.iter().take(GAPS_LISTED) {
                let (from, to, long) =
                    (s.time_zone.show(gap.from), s.time_zone.show(gap.to), gap.to - gap.from);
                lines.push(format!(
                    "schedule {name}: nobody is on call from {from} to {to} ({long}); notified instead: {instead}"
                ));
            }
            if gaps.len() > GAPS_LISTED {
                let more = gaps.len() - GAPS_LISTED;
                lines.push(format!("schedule {name}: and {more} gaps more, {hours:.0} hours in four weeks"));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests;
