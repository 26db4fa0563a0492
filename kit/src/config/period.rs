//! A duration in a configuration file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration, written as `250ms`, `30s`, `5m`, `2h` or `1d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Period(Duration);

/// The longest duration in seconds, about a century, so that no computed deadline overflows.
const MAX_SECONDS: f64 = 3.2e9;

/// The units with their milliseconds, the largest first, as [`fmt::Display`] tries them.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

impl Period {
    pub const fn millis(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    pub const fn secs(s: u64) -> Self {
        Self(Duration::from_secs(s))
    }

    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        period.0
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("a duration is a number and a unit (ms s m h d), as in 30s or 5m; got {text:?}");
        let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let (number, unit) = text.split_at(unit_at);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let number: f64 = number.trim_end().parse().map_err(|_| bad())?;
        let seconds = number * *scale as f64 / 1000.0;
        if !(0.0..=MAX_SECONDS).contains(&seconds) {
            return Err(bad());
        }
        Ok(Self::millis((seconds * 1000.0).round() as u64))
    }
}

impl fmt::Display for Period {
    /// Writes the largest unit that keeps the value exact, so that it parses back to itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis() as u64;
        let exact = UNITS.iter().find(|(_, scale)| ms >= *scale && ms.is_multiple_of(*scale));
        match exact {
            Some((unit, scale)) => write!(f, "{}{unit}", ms / scale),
            None => f.write_str("0s"),
        }
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in [("0s", 0), ("250ms", 250), ("1.5s", 1500), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(text.parse(), Ok(Period::millis(ms)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "5 min", "1e99d", "NaNs", "infs", "5m3s"] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn prints_what_it_reads(ms in 0u64..10_000_000_000) {
            let period = Period::millis(ms);
            prop_assert_eq!(period.to_string().parse(), Ok(period));
        }

        #[test]
        fn never_panics(text in ".{0,20}") {
            let _ = text.parse::<Period>();
        }
    }
}
