//! Civil time in a time zone, by the time zone rules that are compiled into this program.
//!
//! The rules are those of the compiled IANA database, never those of the machine: a container
//! without them works, and a replay gives the same shifts everywhere. New rules come with a new
//! release.

use core::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Deserializer};

use stepwatch_model::Ts;

/// A time zone of the IANA database, as in `Europe/Berlin`.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    pub fn named(name: &str) -> Result<Self, String> {
        TimeZoneDatabase::bundled().get(name).map(Self).map_err(|_| {
            format!(
                "{name:?} is not a time zone of the IANA database, as Europe/Berlin or America/New_York are"
            )
        })
    }

    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// What the clock shows at `at`.
    pub fn civil(&self, at: Ts) -> DateTime {
        self.0.to_datetime(timestamp(at))
    }

    /// `2026-11-23 09:00 CET`.
    pub fn show(&self, at: Ts) -> String {
        timestamp(at).to_zoned(self.0.clone()).strftime("%Y-%m-%d %H:%M %Z").to_string()
    }

    /// The first moment at which the clock shows `civil` or later. If the clock is set back, this
    /// is the first of two moments; if it is set forward over `civil`, the moment of the jump. A
    /// later `civil` never gives an earlier moment.
    pub fn first(&self, civil: DateTime) -> Ts {
        match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => moment(offset, civil),
            AmbiguousOffset::Fold { before, .. } => moment(before, civil),
            AmbiguousOffset::Gap { before, after } => {
                let earlier = timestamp(moment(after, civil));
                let shown = |at: &Timestamp| self.0.to_datetime(*at) >= civil;
                let jump = self.0.following(earlier).map(|t| t.timestamp()).find(shown);
                jump.map_or_else(|| moment(before, civil), |at| Ts(at.as_millisecond()))
            }
        }
    }

    /// All moments at which the clock shows `civil`; if there is none, the moment of the jump over
    /// it.
    pub fn moments(&self, civil: DateTime) -> impl Iterator<Item = Ts> {
        let second = match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Fold { after, .. } => Some(moment(after, civil)),
            _ => None,
        };
        [Some(self.first(civil)), second].into_iter().flatten()
    }

    /// The moment that a calendar means by `civil` (RFC 5545, 3.3.5): the first of two; if there is
    /// none, the one with the offset before the jump.
    pub fn meant(&self, civil: DateTime) -> Ts {
        match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => moment(offset, civil),
            AmbiguousOffset::Fold { before, .. } | AmbiguousOffset::Gap { before, .. } => {
                moment(before, civil)
            }
        }
    }

    /// The times at which the clock is set, after `from` and before `to`.
    pub fn jumps(&self, from: Ts, to: Ts) -> impl Iterator<Item = Ts> {
        let until = timestamp(to);
        let all = self.0.following(timestamp(from)).map(|t| t.timestamp());
        all.take_while(move |at| *at < until).map(|at| Ts(at.as_millisecond()))
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::named(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// Times beyond the range of `Timestamp` become its first or last time.
fn timestamp(at: Ts) -> Timestamp {
    let end = if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(at.0).unwrap_or(end)
}

fn moment(offset: Offset, civil: DateTime) -> Ts {
    let end = if civil.year() < 1970 { Timestamp::MIN } else { Timestamp::MAX };
    Ts(offset.to_timestamp(civil).unwrap_or(end).as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const PLACES: &[&str] = &[
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "Pacific/Apia",
        "Africa/Casablanca",
        "America/Santiago",
        "Europe/Dublin",
        "UTC",
    ];

    fn utc(text: &str) -> Ts {
        Ts(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn clocks_that_are_set() {
        // The zone, what the clock shows, the first moment, and what a calendar means.
        for (zone, civil, first, meant) in [
            ("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"),
            ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T00:30:00Z", "2026-10-25T00:30:00Z"),
            ("America/New_York", "2026-03-08T02:30", "2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"),
            ("America/New_York", "2026-11-01T01:30", "2026-11-01T05:30:00Z", "2026-11-01T05:30:00Z"),
            // Half an hour: 02:00 +10:30 becomes 02:30 +11:00, and back.
            ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-03T15:30:00Z", "2026-10-03T15:45:00Z"),
            ("Australia/Lord_Howe", "2026-04-05T01:45", "2026-04-04T14:45:00Z", "2026-04-04T14:45:00Z"),
            // A day that did not exist.
            ("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"),
            ("Asia/Kolkata", "2026-03-29T02:30", "2026-03-28T21:00:00Z", "2026-03-28T21:00:00Z"),
        ] {
            let (z, civil) = (Zone::named(zone).unwrap(), civil.parse().unwrap());
            assert_eq!((z.first(civil), z.meant(civil)), (utc(first), utc(meant)), "{zone} {civil}");
        }
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let twice: Vec<Ts> = berlin.moments("2026-10-25T02:30".parse().unwrap()).collect();
        assert_eq!(twice, [utc("2026-10-25T00:30:00Z"), utc("2026-10-25T01:30:00Z")]);
        assert_eq!(berlin.show(utc("2026-11-23T08:00:00Z")), "2026-11-23 09:00 CET");
        assert!(Zone::named("Mars/Olympus").is_err());
    }

    proptest! {
        /// Shifts cover the time without gaps or overlaps because of this.
        #[test]
        fn a_later_clock_is_never_an_earlier_moment(place in 0..PLACES.len(), at in 0i64..4_102_444_800, later in 0i64..200_000) {
            let zone = Zone::named(PLACES[place]).unwrap();
            let civil = Zone::default().civil(Ts(at * 1000));
            let next = Zone::default().civil(Ts((at + later) * 1000));
            prop_assert!(zone.first(civil) <= zone.first(next));
            // The clock shows it from then on, and did not before.
            let first = zone.first(civil);
            prop_assert!(zone.civil(first) >= civil);
            prop_assert!(zone.civil(Ts(first.0 - 1)) < civil);
        }
    }
}
