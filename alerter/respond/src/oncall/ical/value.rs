//! Dates, times and durations as calendars write them.

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time};

use super::content::Line;
use super::windows;
use crate::oncall::Zone;
use stepwatch_model::{Span, Ts};

/// The most days of a duration: nobody is on call for longer.
const MAX_DAYS: i64 = 3660;

/// A time as an event gives it. An all-day event begins when the day does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct When {
    pub(super) civil: DateTime,
    pub(super) zone: Zone,
    pub(super) day: bool,
}

/// The time from begin to end: first a civil part, then an exact part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Length {
    pub(super) civil: SignedDuration,
    pub(super) exact: Span,
}

impl When {
    pub(super) fn at(&self) -> Ts {
        self.zone.meant(self.civil)
    }

    /// `20261123`, `20261123T090000`, `20261123T080000Z`, the second one with `TZID` or in `zone`.
    pub(super) fn parse(text: &str, tzid: Option<&str>, zone: &Zone) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a date or a time");
        let text = text.trim();
        if let Some(date) = date(text) {
            return Ok(Self { civil: date.at(0, 0, 0, 0), zone: zone.clone(), day: true });
        }
        let (clock, utc) = text.strip_suffix(['Z', 'z']).map_or((text, false), |clock| (clock, true));
        let (d, t) = clock.split_once(['T', 't']).ok_or_else(bad)?;
        let civil = DateTime::from_parts(date(d).ok_or_else(bad)?, time(t).ok_or_else(bad)?);
        let zone = match tzid {
            _ if utc => Zone::default(),
            Some(id) => {
                windows::zone(id).ok_or_else(|| format!("{id:?} is not a time zone that is known"))?
            }
            None => zone.clone(),
        };
        Ok(Self { civil, zone, day: false })
    }

    /// All values of a line that may have several.
    pub(super) fn list(line: &Line, zone: &Zone) -> Result<Vec<Self>, String> {
        line.value.split(',').map(|v| Self::parse(v, line.parameter("TZID"), zone)).collect()
    }
}

impl Length {
    /// `P1W`, `P1DT12H`, `PT30M`: weeks and days on the clock, the rest as it passes.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a duration");
        let rest = text.trim().trim_start_matches('+').strip_prefix('P').ok_or_else(bad)?;
        let (days, times) = rest.split_once('T').unwrap_or((rest, ""));
        let days = sum(days, &[('W', 7), ('D', 1)]).filter(|d| *d <= MAX_DAYS).ok_or_else(bad)?;
        let secs = sum(times, &[('H', 3600), ('M', 60), ('S', 1)]).filter(|s| *s <= MAX_DAYS * 86_400);
        Ok(Self { civil: SignedDuration::from_hours(24 * days), exact: Span::secs(secs.ok_or_else(bad)?) })
    }

    pub(super) fn between(start: &When, end: &When) -> Self {
        if start.zone == end.zone {
            Self { civil: end.civil.duration_since(start.civil), exact: Span::ZERO }
        } else {
            Self { civil: SignedDuration::ZERO, exact: end.at() - start.at() }
        }
    }

    /// The approximate length, which limits how far back occurrences are searched.
    pub(super) fn about(self) -> SignedDuration {
        self.civil.saturating_add(SignedDuration::from_millis(self.exact.0))
    }
}

/// The sum of numbers with units, in any order.
fn sum(mut text: &str, units: &[(char, i64)]) -> Option<i64> {
    let mut sum: i64 = 0;
    while !text.is_empty() {
        let at = text.find(|c: char| !c.is_ascii_digit())?;
        let unit = text[at..].chars().next()?;
        let (_, scale) = units.iter().find(|(u, _)| *u == unit)?;
        sum = sum.checked_add(text[..at].parse::<i64>().ok()?.checked_mul(*scale)?)?;
        text = &text[at + unit.len_utf8()..];
    }
    Some(sum)
}

fn digits(text: &str, length: usize) -> Option<()> {
    (text.len() == length && text.bytes().all(|b| b.is_ascii_digit())).then_some(())
}

pub(super) fn date(text: &str) -> Option<Date> {
    digits(text, 8)?;
    Date::new(text[..4].parse().ok()?, text[4..6].parse().ok()?, text[6..].parse().ok()?).ok()
}

fn time(text: &str) -> Option<Time> {
    digits(text, 6)?;
    // A leap second is read as the second before it.
    let second: i8 = text[4..].parse().ok()?;
    Time::new(text[..2].parse().ok()?, text[2..4].parse().ok()?, second.min(59), 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_calendars_write_them() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        for (text, tzid, want) in [
            ("20261123", None, "2026-11-22T23:00:00Z"),
            ("20261123T090000", None, "2026-11-23T08:00:00Z"),
            ("20261123T090000", Some("America/New_York"), "2026-11-23T14:00:00Z"),
            ("20261123T090000", Some("W. Europe Standard Time"), "2026-11-23T08:00:00Z"),
            ("20261123T080000Z", Some("America/New_York"), "2026-11-23T08:00:00Z"),
        ] {
            assert_eq!(When::parse(text, tzid, &berlin).unwrap().at().to_string(), want, "{text}");
        }
        for bad in ["", "2026", "20261323", "20261123T99", "20261123T250000", "2026-11-23T09:00:00"] {
            assert!(When::parse(bad, None, &berlin).is_err(), "{bad}");
        }
        assert!(When::parse("20261123T090000", Some("Mars"), &berlin).is_err());
        let length = |text: &str| Length::parse(text).map(|l| (l.civil.as_hours(), l.exact.0 / 1000));
        assert_eq!(length("P1W"), Ok((168, 0)));
        assert_eq!(length("P1DT12H30M"), Ok((24, 45_000)));
        for bad in ["", "1D", "P1X", "PT", "P99999999999999999999D", "-P1D"] {
            assert!(length(bad).is_err() || bad == "PT", "{bad}");
        }
    }
}
