//! Time intervals in Alertmanager's format: times of day, weekdays, days of the month, months and
//! years.
//!
//! A time is inside if every list that is given has an entry that contains it. Alertmanager's
//! ranges of hours end on the day on which they begin. Here they may pass midnight, and then belong
//! to the day on which they begin: the night that begins on Friday is Friday's until it ends.

use core::fmt;
use core::ops::RangeInclusive;

use jiff::civil::{Date, DateTime, Time};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::zone::Zone;
use stepwatch_model::Ts;

/// A named interval of the configuration. It contains a time if one of its periods does.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeInterval {
    pub name: String,
    #[serde(default)]
    pub time_intervals: Vec<Period>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Period {
    pub times: Vec<TimeRange>,
    /// `monday`, `monday:friday`.
    pub weekdays: Vec<Weekdays>,
    /// `1`, `1:5`, `-3:-1` (the last three).
    pub days_of_month: Vec<Days>,
    /// `january:march`, `1:3`, `december`.
    pub months: Vec<Months>,
    /// `2026`, `2026:2028`.
    pub years: Vec<Years>,
    /// The time zone: UTC, or that of the schedule, unless set.
    pub location: Option<Zone>,
}

/// From `start_time` until just before `end_time`, which is on the next day if it is not later.
/// `22:00-06:00` is the short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    start_time: Minute,
    end_time: Minute,
}

/// Minutes since midnight; `24:00` is the end of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minute(u16);

/// A range of weekdays; Monday is 1. It may pass the end of the week: `sunday:thursday`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weekdays {
    begin: i64,
    end: i64,
}

/// Days below 0 count from the end of the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Days {
    begin: i64,
    end: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Months(RangeInclusive<i64>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Years(RangeInclusive<i64>);

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAY_MINUTES: u16 = 24 * 60;
const LONGEST_MONTH: i64 = 31;

impl TimeInterval {
    pub fn contains(&self, at: Ts) -> bool {
        self.time_intervals.iter().any(|p| p.contains(at, &Zone::default()))
    }

    /// The last year in which it holds, if that is before the year of `now`: it never holds again.
    pub fn over_since(&self, now: Ts) -> Option<i64> {
        let last_year = |period: &Period| period.years.iter().map(|years| *years.0.end()).max();
        let last =
            self.time_intervals.iter().map(last_year).collect::<Option<Vec<_>>>()?.into_iter().max()?;
        (last < i64::from(Zone::default().civil(now).year())).then_some(last)
    }
}

impl Period {
    /// Whether the period contains `at`, in its own location, or else in `zone`.
    pub fn contains(&self, at: Ts, zone: &Zone) -> bool {
        let local = self.location.as_ref().unwrap_or(zone).civil(at);
        let (minute, today) = (minute_of(local.time()), local.date());
        if self.times.is_empty() {
            return self.holds_day(today);
        }
        let begun_today = self.times.iter().any(|t| t.holds_on_first_day(minute));
        let begun_yesterday = self.times.iter().any(|t| t.holds_on_next_day(minute));
        (begun_today && self.holds_day(today))
            || (begun_yesterday && today.yesterday().is_ok_and(|yesterday| self.holds_day(yesterday)))
    }

    fn holds_day(&self, date: Date) -> bool {
        let weekday = i64::from(date.weekday().to_monday_one_offset());
        (self.weekdays.is_empty() || self.weekdays.iter().any(|w| w.contains(weekday)))
            && (self.days_of_month.is_empty() || self.days_of_month.iter().any(|d| d.contains(date)))
            && (self.months.is_empty() || self.months.iter().any(|m| m.0.contains(&i64::from(date.month()))))
            && (self.years.is_empty() || self.years.iter().any(|y| y.0.contains(&i64::from(date.year()))))
    }

    /// The times within a range at which it may begin or end.
    pub(super) fn edges(&self, from: Ts, to: Ts, zone: &Zone, out: &mut Vec<Ts>) {
        let zone = self.location.as_ref().unwrap_or(zone);
        out.extend(zone.jumps(from, to));
        let (mut date, last) = (zone.civil(from).date(), zone.civil(to).date());
        while date <= last {
            let times = self.times.iter().flat_map(|t| [t.start_time, t.end_time]);
            for Minute(minute) in times.chain([Minute(0)]).filter(|m| m.0 < DAY_MINUTES) {
                out.extend(zone.moments(DateTime::from_parts(date, time_of(minute))));
            }
            match date.tomorrow() {
                Ok(next) => date = next,
                Err(_) => return,
            }
        }
    }
}

impl Days {
    /// Whether the range contains the date. Days after the end of the month do not exist.
    fn contains(self, date: Date) -> bool {
        let length = i64::from(date.days_in_month());
        let place = |n: i64| if n < 0 { length + n + 1 } else { n };
        (place(self.begin)..=place(self.end)).contains(&i64::from(date.day()))
    }
}

fn minute_of(time: Time) -> u16 {
    time.hour() as u16 * 60 + time.minute() as u16
}

fn time_of(minute: u16) -> Time {
    Time::new((minute / 60) as i8, (minute % 60) as i8, 0, 0).unwrap_or(Time::midnight())
}

/// `text`, or `begin:end`, each end read by `read`.
fn ends(text: &str, read: impl Fn(&str) -> Result<i64, String>) -> Result<(i64, i64), String> {
    let (begin, end) = text.split_once(':').unwrap_or((text, text));
    Ok((read(begin.trim())?, read(end.trim())?))
}

fn range(text: &str, read: impl Fn(&str) -> Result<i64, String>) -> Result<RangeInclusive<i64>, String> {
    let (begin, end) = ends(text, read)?;
    if begin > end {
        return Err(format!("{text:?} ends before it begins: write two ranges"));
    }
    Ok(begin..=end)
}

fn word(text: &str, words: &[&str], what: &str) -> Result<i64, String> {
    let at = words.iter().position(|w| w.eq_ignore_ascii_case(text));
    at.map(|i| i as i64 + 1)
        .ok_or_else(|| format!("{text:?} is not {what}, expected one of {}", words.join(" ")))
}

fn number(text: &str, within: RangeInclusive<i64>, what: &str) -> Result<i64, String> {
    text.parse().ok().filter(|n| within.contains(n)).ok_or_else(|| {
        format!("{text:?} is not {what}, expected a number from {} to {}", within.start(), within.end())
    })
}

impl Weekdays {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (begin, end) = ends(text, |t| word(t, &WEEKDAYS, "a day of the week"))?;
        Ok(Self { begin, end })
    }

    fn contains(self, day: i64) -> bool {
        let (after, before) = (day >= self.begin, day <= self.end);
        if self.begin <= self.end { after && before } else { after || before }
    }
}

impl TimeRange {
    pub fn new(start_time: Minute, end_time: Minute) -> Result<Self, String> {
        if start_time.0 % DAY_MINUTES == end_time.0 % DAY_MINUTES && start_time >= end_time {
            return Err(format!(
                "{start_time} to {end_time} is nothing or a whole day: write 00:00 to 24:00 for a whole day"
            ));
        }
        // A range cannot begin at the end of the day: 24:00 to 06:00 belongs to the next day.
        if start_time.0 == DAY_MINUTES {
            return Err(format!(
                "{start_time} is the end of a day: write 00:00 to {end_time} for the next day"
            ));
        }
        Ok(Self { start_time, end_time })
    }

    /// `22:00-06:00`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shape = || format!("{text:?} is not a range of hours, expected one as in 22:00-06:00");
        let (start, end) = text.split_once('-').ok_or_else(shape)?;
        Self::new(Minute::parse(start.trim())?, Minute::parse(end.trim())?)
    }

    fn is_over_midnight(self) -> bool {
        self.end_time < self.start_time
    }

    fn holds_on_first_day(self, minute: u16) -> bool {
        self.start_time.0 <= minute && (minute < self.end_time.0 || self.is_over_midnight())
    }

    fn holds_on_next_day(self, minute: u16) -> bool {
        self.is_over_midnight() && minute < self.end_time.0
    }
}

impl<'de> Deserialize<'de> for TimeRange {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename = "TimeRange")]
        struct Bounds {
            start_time: Minute,
            end_time: Minute,
        }

        struct Range;

        impl<'de> Visitor<'de> for Range {
            type Value = TimeRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a range of hours, as 22:00-06:00 or {start_time: '22:00', end_time: '06:00'}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TimeRange, E> {
                TimeRange::parse(text).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TimeRange, A::Error> {
                let bounds = Bounds::deserialize(MapAccessDeserializer::new(map))?;
                TimeRange::new(bounds.start_time, bounds.end_time).map_err(serde::de::Error::custom)
            }
        }

        d.deserialize_any(Range)
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl Days {
    pub fn parse(text: &str) -> Result<Self, String> {
        let day = |t: &str| {
            number(t, -31..=31, "a day of the month").and_then(|n| {
                if n == 0 {
                    Err("a month has no day 0: the first is 1, the last is -1".into())
                } else {
                    Ok(n)
                }
            })
        };
        let (begin, end) = ends(text, day)?;
        // From the 25th to the last day is a range; from the last to the 5th is not.
        let backwards = match (begin < 0, end < 0) {
            (false, true) => begin > LONGEST_MONTH + end + 1,
            (true, false) => true,
            _ => begin > end,
        };
        if backwards {
            return Err(format!("{text:?} ends before it begins: write two ranges"));
        }
        Ok(Self { begin, end })
    }
}

impl Months {
    pub fn parse(text: &str) -> Result<Self, String> {
        let month = |t: &str| {
            let digits = t.bytes().all(|b| b.is_ascii_digit());
            if digits { number(t, 1..=12, "a month") } else { word(t, &MONTHS, "a month") }
        };
        range(text, month).map(Self)
    }
}

impl Years {
    pub fn parse(text: &str) -> Result<Self, String> {
        range(text, |t| number(t, 1970..=9999, "a year")).map(Self)
    }
}

impl Minute {
    pub fn parse(text: &str) -> Result<Self, String> {
        let digits = |t: &str| t.len() == 2 && t.bytes().all(|b| b.is_ascii_digit());
        let parts = text.split_once(':').filter(|(h, m)| digits(h) && digits(m));
        let minutes = parts.and_then(|(h, m)| {
            let (h, m) = (h.parse::<u16>().ok()?, m.parse::<u16>().ok()?);
            (m < 60 && h * 60 + m <= DAY_MINUTES).then_some(h * 60 + m)
        });
        minutes.map(Self).ok_or_else(|| format!("{text:?} is not a time of day from 00:00 to 24:00"))
    }
}

macro_rules! from_text {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

from_text!(Weekdays, Days, Months, Years, Minute);

#[cfg(test)]
mod tests;
