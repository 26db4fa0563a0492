//! A layer: people who take turns.
//!
//! Turns are counted in civil time: a daily shift that begins at 09:00 begins at 09:00 all year,
//! and lasts 23 or 25 hours on the days on which the clock is set. Each shift begins where the one
//! before ends, so that no moment belongs to two people or to none.

use core::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use serde::{Deserialize, Deserializer};

use super::period::Period;
use super::zone::Zone;
use stepwatch_model::Ts;

/// The longest turn, in hours. Nobody is on call for longer than a year.
const MAX_SHIFT_HOURS: i64 = 366 * 24;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    #[serde(default)]
    pub name: String,
    /// The people who take turns, in this order. An entry that is a list is several people at once.
    pub users: Vec<People>,
    /// When the first turn begins, in the schedule's zone. Hand-offs are at the same time of day.
    #[serde(deserialize_with = "civil")]
    pub start: DateTime,
    #[serde(default, deserialize_with = "maybe_civil")]
    pub until: Option<DateTime>,
    #[serde(default)]
    pub rotation: Rotation,
    /// The layer only holds within these periods, if there are any.
    #[serde(default)]
    pub restrictions: Vec<Period>,
}

/// The length of a turn: `daily`, `weekly`, or a number of hours, days or weeks as in `12h`, `3d`,
/// `2w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    hours: i64,
}

/// A user's name, or a list of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People(pub Vec<String>);

fn civil<'de, D: Deserializer<'de>>(d: D) -> Result<DateTime, D::Error> {
    let text = String::deserialize(d)?;
    text.parse().map_err(|_| {
        serde::de::Error::custom(format_args!(
            "{text:?} is not a time on the clock of the schedule, as 2026-01-05T09:00 is"
        ))
    })
}

fn maybe_civil<'de, D: Deserializer<'de>>(d: D) -> Result<Option<DateTime>, D::Error> {
    civil(d).map(Some)
}

/// A layer in a time zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns<'a> {
    pub(super) layer: &'a Layer,
    pub(super) zone: &'a Zone,
}

impl<'a> Turns<'a> {
    /// Who has the turn at `at`, if the layer is in force.
    pub(super) fn at(self, at: Ts) -> Option<&'a [String]> {
        let Layer { users, restrictions, .. } = self.layer;
        let open = restrictions.is_empty() || restrictions.iter().any(|p| p.contains(at, self.zone));
        let turn = self.turn(at).filter(|_| open)?;
        let place = turn.checked_rem(users.len() as i64)?;
        users.get(place as usize).map(|p| p.0.as_slice()).filter(|p| !p.is_empty())
    }

    /// The number of the turn, from 0.
    fn turn(self, at: Ts) -> Option<i64> {
        if self.layer.until.is_some_and(|until| at >= self.zone.first(until)) {
            return None;
        }
        let shown = self.zone.civil(at).duration_since(self.layer.start).as_millis();
        let length = i128::from(self.layer.rotation.hours) * 3_600_000;
        let mut turn = shown.div_euclid(length).max(-1) as i64;
        // In a repeated hour, the clock shows a time that has already passed.
        while self.begins(turn + 1).is_some_and(|next| next <= at) {
            turn += 1;
        }
        (turn >= 0).then_some(turn)
    }

    /// When a turn begins.
    fn begins(self, turn: i64) -> Option<Ts> {
        let hours = turn.checked_mul(self.layer.rotation.hours)?;
        let after = SignedDuration::try_from_hours(hours)?;
        self.layer.start.checked_add(after).ok().map(|civil| self.zone.first(civil))
    }

    /// The times within a range at which the turn may change.
    pub(super) fn edges(self, from: Ts, to: Ts, out: &mut Vec<Ts>) {
        let until = self.layer.until.map(|until| self.zone.first(until));
        if until.is_some_and(|until| until <= from) {
            return;
        }
        let first = self.turn(from).map_or(0, |turn| turn + 1);
        out.extend((first..).map_while(|turn| self.begins(turn)).take_while(|at| *at < to));
        out.extend(until);
        for period in &self.layer.restrictions {
            period.edges(from, to, self.zone, out);
        }
    }
}

impl Rotation {
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is not a rotation: expected daily, weekly, or a number of hours, days or weeks as 12h, 3d, 2w"
            )
        };
        let hours = match text {
            "daily" => 24,
            "weekly" => 168,
            _ => {
                let at = text.len() - text.chars().next_back().map_or(0, char::len_utf8);
                let (number, unit) = text.split_at(at);
                let scale = match unit {
                    "h" => 1,
                    "d" => 24,
                    "w" => 168,
                    _ => return Err(bad()),
                };
                let number: i64 = number.parse().map_err(|_| bad())?;
                number.checked_mul(scale).ok_or_else(bad)?
            }
        };
        if (1..=MAX_SHIFT_HOURS).contains(&hours) { Ok(Self { hours }) } else { Err(bad()) }
    }
}

impl Default for Rotation {
    fn default() -> Self {
        Self { hours: 168 }
    }
}

impl fmt::Display for Rotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hours {
            24 => f.write_str("daily"),
            168 => f.write_str("weekly"),
            h if h % 168 == 0 => write!(f, "{}w", h / 168),
            h if h % 24 == 0 => write!(f, "{}d", h / 24),
            h => write!(f, "{h}h"),
        }
    }
}

impl<'de> Deserialize<'de> for Rotation {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for People {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> serde::de::Visitor<'de> for OneOrMore {
            type Value = People;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a user, or a list of names")
            }

            fn visit_str<E>(self, name: &str) -> Result<People, E> {
                Ok(People(vec![name.to_owned()]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut names: A) -> Result<People, A::Error> {
                let mut people = Vec::new();
                while let Some(name) = names.next_element()? {
                    people.push(name);
                }
                Ok(People(people))
            }
        }

        d.deserialize_any(OneOrMore)
    }
}
