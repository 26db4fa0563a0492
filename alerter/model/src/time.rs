//! Time as data. Neither this crate nor the detectors read a clock.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A time in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ts(pub i64);

impl Ts {
    pub fn from_secs_f64(secs: f64) -> Self {
        Self(whole(secs * 1000.0))
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl Ts {
    /// The time `by` earlier, without overflow.
    #[must_use]
    pub fn earlier(self, by: Span) -> Self {
        Self(self.0.saturating_sub(by.0))
    }
}

impl Add<Span> for Ts {
    type Output = Self;
    fn add(self, d: Span) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl Sub for Ts {
    type Output = Span;
    fn sub(self, other: Self) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Ts {
    /// Formats the time as RFC 3339 in UTC, to the second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{}", t.strftime("%Y-%m-%dT%H:%M:%SZ")),
            Err(_) => write!(f, "@{}ms", self.0),
        }
    }
}

/// The nearest integer. `f64::round` is a function call on old target processors, and this runs for
/// every event.
fn whole(ms: f64) -> i64 {
    (ms + 0.5_f64.copysign(ms)) as i64
}

/// A duration in milliseconds. In configuration: `250ms`, `30s`, `5m`, `2h`, `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub i64);

impl Span {
    pub const ZERO: Self = Self(0);

    pub const fn millis(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn secs(s: i64) -> Self {
        Self(s * 1000)
    }

    pub fn from_secs_f64(secs: f64) -> Self {
        Self(whole(secs * 1000.0))
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("a duration is a number and a unit (ms s m h d), as in 30s or 5m; got {text:?}");
        let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let (number, unit) = text.split_at(at);
        let number: f64 = number.trim().parse().map_err(|_| bad())?;
        let scale = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            "d" => 86_400e3,
            _ => return Err(bad()),
        };
        let ms = number * scale;
        // The limit of a century keeps every deadline far from overflow.
        if (0.0..=3.2e12).contains(&ms) { Ok(Self(ms.round() as i64)) } else { Err(bad()) }
    }
}

impl fmt::Display for Span {
    /// Formats the two largest units that matter: `4m 10s`, `3h 5m`, `250ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.max(0);
        let s = ms / 1000;
        match s {
            0 if ms > 0 => write!(f, "{ms}ms"),
            0..60 => write!(f, "{s}s"),
            60..3600 if s % 60 == 0 => write!(f, "{}m", s / 60),
            60..3600 => write!(f, "{}m {}s", s / 60, s % 60),
            3600..86_400 if s % 3600 < 60 => write!(f, "{}h", s / 3600),
            3600..86_400 => write!(f, "{}h {}m", s / 3600, s % 3600 / 60),
            _ => write!(f, "{}d {}h", s / 86_400, s % 86_400 / 3600),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(&format_args!("{}ms", self.0))
        } else {
            s.serialize_i64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            let text = String::deserialize(d)?;
            Self::parse(&text).map_err(serde::de::Error::custom)
        } else {
            i64::deserialize(d).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print() {
        for (text, ms) in [("0s", 0), ("250ms", 250), ("1.5s", 1500), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(Span::parse(text), Ok(Span(ms)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "5 min", "1e99d"] {
            assert!(Span::parse(bad).is_err(), "{bad}");
        }
        for (ms, text) in [(250, "250ms"), (59_000, "59s"), (250_000, "4m 10s"), (11_100_000, "3h 5m")] {
            assert_eq!(Span(ms).to_string(), text);
        }
        assert_eq!(Ts(1_795_227_416_980).to_string(), "2026-11-21T02:16:56Z");
    }
}
