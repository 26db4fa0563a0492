//! Computes when a report is sent and which period it covers, as a pure function in the schedule's
//! time zone.

use jiff::ToSpan as _;
use jiff::civil::{self, Date, Time, time};
use serde::{Deserialize, Deserializer};
use stepwatch_detect::run::HOUR;
use stepwatch_model::time::{Span, Ts};
use stepwatch_respond::oncall::Zone;

use super::Period;

/// The age from which a missed report is not sent any more.
const MISSED_MAX: Span = Span::secs(86_400);
/// The time until the last hour of a period is accounted: trainers report late, and the hour must
/// then be stored.
const SETTLED: Span = Span::secs(300);
/// The number of days that are searched for a time of a schedule: more than a month, and the
/// adjacent days to which a clock change may move the time.
const DAYS_LOOKED_AT: usize = 34;

/// A scheduled report, an entry of `reports`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    pub name: String,
    /// The receivers.
    pub notify: Vec<String>,
    #[serde(default)]
    pub every: Every,
    /// The day of `every: week`; the default is Monday.
    #[serde(default)]
    pub on: Option<Weekday>,
    #[serde(default)]
    pub at: TimeOfDay,
    #[serde(default)]
    pub time_zone: Zone,
    /// Limits the report to this run.
    #[serde(default)]
    pub run: Option<String>,
}

/// The interval, which is also the length of the period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    Day,
    #[default]
    Week,
    /// On the first day of the month.
    Month,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weekday {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// A time of day, such as `09:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeOfDay(Time);

/// One report of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    /// The time of sending.
    pub(crate) at: Ts,
    /// The day of the schedule, in its time zone.
    pub(crate) day: Date,
    /// The first and the last day of the period.
    pub(crate) first: Date,
    pub(crate) last: Date,
    pub(crate) period: Period,
}

impl Every {
    /// The name of the report.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Day => "Daily report",
            Self::Week => "Weekly report",
            Self::Month => "Monthly report",
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

impl Weekday {
    fn of_the_calendar(self) -> civil::Weekday {
        match self {
            Self::Monday => civil::Weekday::Monday,
            Self::Tuesday => civil::Weekday::Tuesday,
            Self::Wednesday => civil::Weekday::Wednesday,
            Self::Thursday => civil::Weekday::Thursday,
            Self::Friday => civil::Weekday::Friday,
            Self::Saturday => civil::Weekday::Saturday,
            Self::Sunday => civil::Weekday::Sunday,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }
}

impl TimeOfDay {
    pub fn parse(text: &str) -> Result<Self, String> {
        let whole = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit() || b == b':');
        let read = Time::strptime("%H:%M", text).ok().filter(|_| whole);
        read.map(Self).ok_or_else(|| format!("{text:?} is not a time of day from 00:00 to 23:59"))
    }
}

impl Default for TimeOfDay {
    fn default() -> Self {
        Self(time(9, 0, 0, 0))
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

impl Schedule {
    /// The first report that is sent after `after`.
    pub(crate) fn next(&self, after: Ts) -> Option<Slot> {
        let day = self.time_zone.civil(after).date();
        self.slots(day.checked_sub(2.days()).ok()?, Date::tomorrow).find(|slot| slot.at > after)
    }

    /// The last report that is sent at or before `now`.
    pub(crate) fn latest(&self, now: Ts) -> Option<Slot> {
        let day = self.time_zone.civil(now).date();
        self.slots(day.checked_add(1.day()).ok()?, Date::yesterday).find(|slot| slot.at <= now)
    }

    /// The report that is due now, if everything up to `settled` is done. If several were missed,
    /// it is the last one; one that is a day late is dropped.
    pub(crate) fn due(&self, settled: Ts, now: Ts) -> Option<Slot> {
        self.latest(now).filter(|slot| slot.at > settled && now - slot.at < MISSED_MAX)
    }

    /// The schedule in words: `every week on monday at 09:00 Europe/Berlin`.
    pub(crate) fn words(&self) -> String {
        let on = match self.every {
            Every::Day => String::new(),
            Every::Week => format!(" on {}", self.on.unwrap_or_default().as_str()),
            Every::Month => " on its first day".to_owned(),
        };
        let at = self.at.0.strftime("%H:%M");
        format!("every {}{on} at {at} {}", self.every.as_str(), self.time_zone)
    }

    fn slots(&self, from: Date, step: fn(Date) -> Result<Date, jiff::Error>) -> impl Iterator<Item = Slot> {
        let days = core::iter::successors(Some(from), move |day| step(*day).ok());
        days.take(DAYS_LOOKED_AT).filter_map(|day| self.slot(day))
    }

    fn slot(&self, day: Date) -> Option<Slot> {
        let is_day = match self.every {
            Every::Day => true,
            Every::Week => day.weekday() == self.on.unwrap_or_default().of_the_calendar(),
            Every::Month => day.day() == 1,
        };
        if !is_day {
            return None;
        }
        let zone = &self.time_zone;
        let begin = |day: Date| zone.first(day.to_datetime(Time::midnight()));
        let until = begin(day);
        let last = zone.civil(Ts(until.0 - 1)).date();
        let first = match self.every {
            // A day that the time zone skipped has no report; the next day's report covers the day
            // before it.
            Every::Day if zone.civil(until).date() != day => return None,
            Every::Day => last,
            Every::Week => day.checked_sub(7.days()).ok()?,
            Every::Month => day.checked_sub(1.month()).ok()?,
        };
        let period = Period { since: hour_of(begin(first)), until: hour_of(until) };
        let at = zone.first(day.to_datetime(self.at.0)).max(period.until + SETTLED);
        Some(Slot { at, day, first, last, period })
    }
}

/// The beginning of the hour. Both ends of a period are moved in the same way, so that periods are
/// adjacent even if days begin at half past.
fn hour_of(at: Ts) -> Ts {
    Ts(at.0.div_euclid(HOUR.0) * HOUR.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACES: &[&str] = &[
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "Pacific/Apia",
        "Africa/Casablanca",
        "America/Santiago",
        "America/Scoresbysund",
        "Atlantic/Azores",
        "UTC",
    ];

    fn schedule(every: Every, place: &str, at: &str) -> Schedule {
        Schedule {
            name: "weekly".into(),
            notify: vec!["chat".into()],
            every,
            on: None,
            at: TimeOfDay::parse(at).unwrap(),
            time_zone: Zone::named(place).unwrap(),
            run: None,
        }
    }

    fn utc(text: &str) -> Ts {
        Ts(text.parse::<jiff::Timestamp>().unwrap().as_millisecond())
    }

    fn shown(slot: Slot) -> [String; 3] {
        [slot.at, slot.period.since, slot.period.until].map(|at| at.to_string())
    }

    #[test]
    fn of_the_day_the_week_or_the_month_before() {
        let at = |every, after| shown(schedule(every, "Europe/Berlin", "09:00").next(utc(after)).unwrap());
        // The clock is set back on 25 October and forward on 29 March.
        assert_eq!(
            at(Every::Day, "2026-10-26T00:00:00Z"),
            ["2026-10-26T08:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"]
        );
        assert_eq!(
            at(Every::Week, "2026-03-24T00:00:00Z"),
            ["2026-03-30T07:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"]
        );
        assert_eq!(
            at(Every::Month, "2026-10-01T07:00:00Z"),
            ["2026-11-01T08:00:00Z", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"]
        );
        let friday = Schedule { on: Some(Weekday::Friday), ..schedule(Every::Week, "UTC", "09:00") };
        assert_eq!(friday.next(utc("2026-11-23T00:00:00Z")).unwrap().day.to_string(), "2026-11-27");
        assert_eq!(friday.words(), "every week on friday at 09:00 UTC");
    }

    #[test]
    fn a_time_that_does_not_exist_is_the_next_one_and_one_that_exists_twice_is_once() {
        let berlin = schedule(Every::Day, "Europe/Berlin", "02:30");
        assert_eq!(berlin.next(utc("2026-03-28T12:00:00Z")).unwrap().at, utc("2026-03-29T01:00:00Z"));
        let twice = berlin.next(utc("2026-10-24T12:00:00Z")).unwrap();
        assert_eq!(twice.at, utc("2026-10-25T00:30:00Z"));
        assert_eq!(berlin.next(twice.at).unwrap().at, utc("2026-10-26T01:30:00Z"));
        // The hour that ends at midnight is accounted first.
        let midnight = schedule(Every::Day, "UTC", "00:00");
        assert_eq!(midnight.next(utc("2026-10-24T12:00:00Z")).unwrap().at, utc("2026-10-25T00:05:00Z"));
        // The zone skipped 30 December 2011.
        let apia = schedule(Every::Day, "Pacific/Apia", "09:00");
        let slot = apia.next(utc("2011-12-30T00:00:00Z")).unwrap();
        assert_eq!(
            (slot.day.to_string(), slot.first.to_string()),
            ("2011-12-31".into(), "2011-12-29".into())
        );
    }

    #[test]
    fn of_those_that_were_missed_the_last_is_sent_within_a_day() {
        let s = schedule(Every::Week, "UTC", "09:00");
        let (begin, monday) = (utc("2026-11-01T00:00:00Z"), utc("2026-11-23T09:00:00Z"));
        assert_eq!(s.due(begin, monday).unwrap().at, monday);
        assert_eq!(s.due(begin, monday + Span::secs(86_399)).unwrap().at, monday);
        assert_eq!(s.due(begin, monday + MISSED_MAX), None);
        assert_eq!(s.due(monday, monday), None, "it is sent");
        assert_eq!(
            s.due(monday + Span::secs(1), monday + Span::secs(60)),
            None,
            "before the schedule existed"
        );
    }

    #[test]
    fn times_of_day() {
        assert!(["00:00", "09:30", "23:59"].map(TimeOfDay::parse).iter().all(Result::is_ok));
        for wrong in ["24:00", "9:00", "09:00:00", "0900", "09:60", "morning", " 9:00", ""] {
            assert!(TimeOfDay::parse(wrong).unwrap_err().contains("from 00:00 to 23:59"), "{wrong}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_day_of_a_place_has_one_report_and_each_hour_is_in_one(
            place in 0..PLACES.len(),
            from in 1_262_304_000i64..2_000_000_000,
            hour in 0u8..24,
            minute in 0u8..60,
            every in prop_oneof![Just(Every::Day), Just(Every::Week), Just(Every::Month)],
        ) {
            let s = schedule(every, PLACES[place], &format!("{hour:02}:{minute:02}"));
            let mut before = s.next(Ts(from * 1000)).unwrap();
            for _ in 0..if every == Every::Day { 400 } else { 30 } {
                let slot = s.next(before.at).unwrap();
                prop_assert!(slot.at > before.at);
                prop_assert_eq!(slot.period.since, before.period.until);
                prop_assert!(slot.at >= slot.period.until && slot.period.since < slot.period.until);
                prop_assert_eq!(s.latest(slot.at), Some(slot));
                prop_assert_eq!(s.latest(Ts(slot.at.0 - 1)), Some(before));
                let days = if every == Every::Day {
                    let noon = |day: Date| s.time_zone.first(day.to_datetime(time(12, 0, 0, 0)));
                    let exists = |day: &Date| s.time_zone.civil(noon(*day)).date() == *day;
                    before.day.series(1.day()).skip(1).find(exists)
                } else {
                    Some(slot.day)
                };
                prop_assert_eq!(days, Some(slot.day), "no day of the place is left out");
                // At the time of the schedule, or when a clock change skips it.
                let civil = s.time_zone.civil(slot.at);
                prop_assert!(civil >= slot.day.to_datetime(s.at.0));
                before = slot;
            }
        }
    }
}
