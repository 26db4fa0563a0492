//! Times as the API, the command line and reports write them.

use jiff::fmt::temporal::Pieces;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stepwatch_model::time::Ts;

/// A time as people and other programs read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct When(pub Ts);

impl Serialize for When {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match jiff::Timestamp::from_millisecond(self.0.0) {
            Ok(t) => s.collect_str(&t.strftime("%Y-%m-%dT%H:%M:%S.%3fZ")),
            Err(_) => s.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let time = instant(&text).map_err(serde::de::Error::custom)?;
        Ok(Self(Ts(time.as_millisecond())))
    }
}

/// An instant in RFC 3339. Many programs write the last day of the year 9999 for "never", part of
/// which is beyond the largest supported time.
pub(crate) fn instant(text: &str) -> Result<jiff::Timestamp, jiff::Error> {
    text.parse().or_else(|err| {
        let parts =
            Pieces::parse(text).ok().filter(|p| p.date().year() == 9999 && p.to_numeric_offset().is_some());
        parts.map(|_| jiff::Timestamp::MAX).ok_or(err)
    })
}
