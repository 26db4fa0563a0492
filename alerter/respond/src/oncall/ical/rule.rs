//! Recurrence rules (RFC 5545, 3.3.10), as far as people make shifts with them.
//!
//! Daily, weekly, monthly and yearly rules with INTERVAL, BYDAY, BYMONTHDAY, BYMONTH, BYSETPOS,
//! COUNT, UNTIL and WKST are read. A rule with anything else is an error: shifts that are left out
//! without an error would belong to nobody.

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Weekday};

use super::value::When;

/// The most days that are searched for the ends of all rules with COUNT; a calendar that needs more
/// is refused. A thousand weekly shifts of ten years each need fewer.
pub(super) const MAX_COUNTED_DAYS: usize = 4_000_000;
/// A COUNT above this is taken as no end.
const MAX_COUNT: usize = 5000;
/// The largest INTERVAL.
const MAX_INTERVAL: i64 = 1000;
/// The most periods that one call searches. Only a rule that hardly ever holds needs more.
const MAX_PERIODS: i64 = 20_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    every: Every,
    interval: i64,
    by_day: Vec<(i64, Weekday)>,
    by_month_day: Vec<i64>,
    by_month: Vec<i64>,
    by_set_pos: Vec<i64>,
    week_start: Weekday,
    /// The last occurrence, on the clock of the event.
    until: Option<DateTime>,
    count: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Day,
    Week,
    Month,
}

impl Rule {
    /// Parses the rule of an event that begins at `start`. Adds the number of days that were
    /// searched to `days`, and stops searching at the limit.
    pub(super) fn parse(text: &str, start: &When, days: &mut usize) -> Result<Self, String> {
        let mut rule = Self {
            every: Every::Day,
            interval: 1,
            by_day: Vec::new(),
            by_month_day: Vec::new(),
            by_month: Vec::new(),
            by_set_pos: Vec::new(),
            week_start: Weekday::Monday,
            until: None,
            count: None,
        };
        let mut freq = None;
        for part in text.trim().split(';').filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            let value = value.trim().to_ascii_uppercase();
            match key.trim().to_ascii_uppercase().as_str() {
                "FREQ" => freq = Some(value),
                "INTERVAL" => rule.interval = one(&value, 1, MAX_INTERVAL)?,
                "COUNT" => rule.count = Some(one(&value, 1, i64::from(u32::MAX))? as usize),
                "UNTIL" => rule.until = Some(last(&value, start)?),
                "BYDAY" => rule.by_day = list(&value, day)?,
                "BYMONTHDAY" => rule.by_month_day = list(&value, |v| one(v, -31, 31))?,
                "BYMONTH" => rule.by_month = list(&value, |v| one(v, 1, 12))?,
                "BYSETPOS" => rule.by_set_pos = list(&value, |v| one(v, -366, 366))?,
                "WKST" => rule.week_start = weekday(&value)?,
                other => return Err(format!("{other} is not understood in a recurrence")),
            }
        }
        rule.set_frequency(freq.as_deref(), start)?;
        rule.end_count(start.civil, days);
        Ok(rule)
    }

    fn set_frequency(&mut self, freq: Option<&str>, start: &When) -> Result<(), String> {
        self.every = match freq {
            Some("DAILY") => Every::Day,
            Some("WEEKLY") => Every::Week,
            Some("MONTHLY") => Every::Month,
            Some("YEARLY") => {
                self.interval *= self.months_between(i64::from(start.civil.month()))?;
                Every::Month
            }
            Some(other) => {
                return Err(format!(
                    "FREQ={other} is not understood, expected DAILY, WEEKLY, MONTHLY or YEARLY"
                ));
            }
            None => return Err("a recurrence without FREQ".into()),
        };
        if self.every != Every::Month && self.by_day.iter().any(|(nth, _)| *nth != 0) {
            return Err("a numbered day of the week is not understood outside of a month".into());
        }
        Ok(())
    }

    /// The months between two periods of a yearly rule: twelve for a rule of one month of the year,
    /// one for a rule of several. Days without a month are days of every month (the table of RFC
    /// 5545, 3.3.10).
    fn months_between(&self, first: i64) -> Result<i64, String> {
        let (any_month, any_day) = (self.by_month.is_empty(), self.by_month_day.is_empty());
        if self.by_month.iter().all(|m| *m == first) && (!any_month || (any_day && self.by_day.is_empty())) {
            return Ok(12);
        }
        // Without a month, the third Monday is that of the year, and BYSETPOS counts within the
        // year.
        let numbered = any_month && (any_day || self.by_day.iter().any(|(nth, _)| *nth != 0));
        if numbered || self.interval > 1 || !self.by_set_pos.is_empty() {
            return Err("a yearly recurrence in several months is understood only if it comes every year, \
                        on days of these months"
                .into());
        }
        Ok(1)
    }

    /// Turns a COUNT into the UNTIL of its last occurrence.
    fn end_count(&mut self, start: DateTime, looked_at: &mut usize) {
        let Some(count) = self.count.take().filter(|n| *n <= MAX_COUNT) else { return };
        let (mut left, mut ended) = (count, start);
        let last = self.until.unwrap_or(DateTime::MAX);
        for begin in self.periods(start.date(), start.date(), last.date()) {
            *looked_at += self.length(begin) as usize;
            if left == 0 || *looked_at > MAX_COUNTED_DAYS {
                break;
            }
            let dates = self.days(start.date(), begin).into_iter().map(|day| day.to_datetime(start.time()));
            for civil in dates.filter(|civil| (start..=last).contains(civil)).take(left) {
                (ended, left) = (civil, left - 1);
            }
        }
        self.until = Some(self.until.map_or(ended, |until| until.min(ended)));
    }

    /// The occurrences between two civil times, for an event that begins at `start`.
    pub(super) fn dates(
        &self,
        start: DateTime,
        from: DateTime,
        to: DateTime,
    ) -> impl Iterator<Item = DateTime> {
        let time = start.time();
        let to = self.until.map_or(to, |until| until.min(to));
        self.periods(start.date(), from.date(), to.date())
            .flat_map(move |begin| self.days(start.date(), begin))
            .map(move |date| DateTime::from_parts(date, time))
            .filter(move |civil| *civil >= start && *civil >= from)
            .take_while(move |civil| *civil <= to)
    }

    /// The first days of the periods between two days, for an event that begins on `start`.
    fn periods(&self, start: Date, from: Date, last: Date) -> impl Iterator<Item = Date> {
        let first = self.period_of(start, from).max(0);
        (first..first.saturating_add(MAX_PERIODS))
            .map_while(move |n| self.period(start, n).filter(|day| *day <= last))
    }

    /// The number of days of the period that begins on `begin`.
    fn length(&self, begin: Date) -> i64 {
        match self.every {
            Every::Day => 1,
            Every::Week => 7,
            Every::Month => i64::from(begin.days_in_month()),
        }
    }

    /// The first day of the `n`th period since the one of `start`.
    fn period(&self, start: Date, n: i64) -> Option<Date> {
        let n = n.checked_mul(self.interval)?;
        match self.every {
            Every::Day => start.checked_add(n.checked_mul(24).and_then(SignedDuration::try_from_hours)?).ok(),
            Every::Week => self
                .week_of(start)?
                .checked_add(n.checked_mul(168).and_then(SignedDuration::try_from_hours)?)
                .ok(),
            Every::Month => start.first_of_month().checked_add(jiff::Span::new().try_months(n).ok()?).ok(),
        }
    }

    /// The number of a period that begins no later than `day`.
    fn period_of(&self, start: Date, day: Date) -> i64 {
        let days = day.duration_since(start).as_hours() / 24;
        let periods = match self.every {
            Every::Day => days,
            Every::Week => days / 7 - 1,
            Every::Month => {
                let months = |d: Date| i64::from(d.year()) * 12 + i64::from(d.month());
                months(day) - months(start)
            }
        };
        periods.div_euclid(self.interval) - 1
    }

    fn week_of(&self, day: Date) -> Option<Date> {
        let back = i64::from(day.weekday().since(self.week_start));
        day.checked_sub(SignedDuration::from_hours(24 * back)).ok()
    }

    /// The days of the period that begins on `begin`, in order.
    fn days(&self, start: Date, begin: Date) -> Vec<Date> {
        let all = (0..self.length(begin))
            .filter_map(|n| begin.checked_add(SignedDuration::from_hours(24 * n)).ok());
        let mut days: Vec<Date> = all.filter(|day| self.holds(start, *day)).collect();
        if !self.by_set_pos.is_empty() {
            let n = days.len() as i64;
            let place = |p: &i64| if *p < 0 { n + p } else { p - 1 };
            let kept: Vec<i64> = self.by_set_pos.iter().map(place).collect();
            let mut at = -1;
            days.retain(|_| {
                at += 1;
                kept.contains(&at)
            });
        }
        days
    }

    fn holds(&self, start: Date, day: Date) -> bool {
        let length = i64::from(day.days_in_month());
        let number = i64::from(day.day());
        let in_month = self.by_month.is_empty() || self.by_month.contains(&i64::from(day.month()));
        let of_month = |n: &i64| *n == number || *n == number - length - 1;
        let of_week = |(nth, weekday): &(i64, Weekday)| {
            let (forth, back) = ((number - 1) / 7 + 1, -((length - number) / 7 + 1));
            *weekday == day.weekday() && (*nth == 0 || *nth == forth || *nth == back)
        };
        let by_month_day = self.by_month_day.is_empty() || self.by_month_day.iter().any(of_month);
        let by_day = self.by_day.is_empty() || self.by_day.iter().any(of_week);
        let as_first = match self.every {
            _ if !self.by_day.is_empty() || !self.by_month_day.is_empty() => true,
            Every::Day => true,
            Every::Week => day.weekday() == start.weekday(),
            Every::Month => day.day() == start.day(),
        };
        in_month && by_month_day && by_day && as_first
    }
}

/// Parses UNTIL: a day, or a time on the clock of the event.
fn last(value: &str, start: &When) -> Result<DateTime, String> {
    let until = When::parse(value, None, &start.zone)?;
    if until.day {
        return Ok(until.civil.date().at(23, 59, 59, 0));
    }
    Ok(if until.zone == start.zone { until.civil } else { start.zone.civil(until.at()) })
}

fn one(text: &str, from: i64, to: i64) -> Result<i64, String> {
    let n = text.trim().parse().ok().filter(|n| (from..=to).contains(n));
    n.ok_or_else(|| format!("{text:?} is not a number from {from} to {to}"))
}

/// Parses a list, with each value once, because every value is compared with every day.
fn list<T: PartialEq>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut list = Vec::new();
    for value in text.split(',') {
        let value = read(value.trim())?;
        if !list.contains(&value) {
            list.push(value);
        }
    }
    Ok(list)
}

fn weekday(text: &str) -> Result<Weekday, String> {
    Ok(match text {
        "MO" => Weekday::Monday,
        "TU" => Weekday::Tuesday,
        "WE" => Weekday::Wednesday,
        "TH" => Weekday::Thursday,
        "FR" => Weekday::Friday,
        "SA" => Weekday::Saturday,
        "SU" => Weekday::Sunday,
        _ => return Err(format!("{text:?} is not a day of the week")),
    })
}

/// `MO`, `1MO` (the first of the month), `-1FR` (the last).
fn day(text: &str) -> Result<(i64, Weekday), String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(|| format!("{text:?} is not a day"))?;
    let nth = if at == 0 { 0 } else { one(&text[..at], -53, 53)? };
    Ok((nth, weekday(&text[at..])?))
}

#[cfg(test)]
mod tests;
