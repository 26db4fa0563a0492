//! A schedule: who is on call when, by its layers, a calendar and overrides.
//!
//! The last layer that has somebody decides. A calendar takes precedence over all layers, an
//! override of the configuration over both, and one that was made at run time over everything.

use std::collections::BTreeSet;

use jiff::civil::DateTime;
use serde::{Deserialize, Deserializer, Serialize};

use super::layer::{Layer, People, Turns};
use super::overrides::Acting;
use super::roster::Roster;
use super::zone::Zone;
use stepwatch_model::{Span, Ts};

/// The most changes in one plan; a longer plan is cut off there.
pub(super) const MAX_CHANGES: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schedule {
    pub name: String,
    pub zone: Zone,
    pub layers: Vec<Layer>,
    pub overrides: Vec<Override>,
    /// Set if the schedule has a calendar. A copy older than this is stale.
    pub calendar: Option<Span>,
    /// Receivers, or users as `user:NAME`, that are notified when nobody is on call.
    pub fallback: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    pub from: Moment,
    pub to: Moment,
    /// Who is on call instead.
    pub users: People,
    /// The user who is replaced; everybody if absent.
    #[serde(default)]
    pub replaces: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// A time in the schedule's zone (`2026-12-24T09:00`), or in UTC (`2026-12-24T08:00:00Z`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Civil(DateTime),
    At(Ts),
}

/// Who is on call at a given time, and which part of the schedule decided it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Duty {
    /// The users on call; empty if nobody is.
    pub users: Vec<String>,
    /// What decided it: `layer nights`, `calendar`, `override: holiday`, or `override by ann:
    /// dentist` for one that was made at run time; empty if nobody is on call.
    pub by: String,
}

/// A time range in which the same people are on call. A shift of nobody is a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shift {
    pub from: Ts,
    pub to: Ts,
    pub users: Vec<String>,
    pub by: String,
}

impl Schedule {
    /// Who is on call at `at`; `made` are the overrides that were made at run time.
    pub(super) fn duty(&self, at: Ts, calendar: Option<&Roster>, made: &Acting<'_>) -> Duty {
        made.upon(self.configured(at, calendar), at)
    }

    fn configured(&self, at: Ts, calendar: Option<&Roster>) -> Duty {
        let mut duty = self.planned(at, calendar);
        for o in &self.overrides {
            if !o.holds(at, &self.zone) {
                continue;
            }
            let by = o.reason.as_ref().map_or_else(|| "override".into(), |why| format!("override: {why}"));
            match &o.replaces {
                None => return Duty { users: distinct(o.users.0.iter()), by },
                Some(name) if duty.users.contains(name) => {
                    let others = duty.users.iter().filter(|u| *u != name);
                    duty = Duty { users: distinct(o.users.0.iter().chain(others)), by };
                }
                Some(_) => {}
            }
        }
        duty
    }

    fn planned(&self, at: Ts, calendar: Option<&Roster>) -> Duty {
        let called = calendar.map(|c| c.at(at)).filter(|users| !users.is_empty());
        if let Some(users) = called {
            return Duty { users: distinct(users.iter()), by: "calendar".into() };
        }
        let layers = self.layers.iter().enumerate().rev();
        let mut on = layers.filter_map(|(i, l)| self.turns(l).at(at).map(|users| (i, l, users)));
        on.next().map_or_else(Duty::default, |(i, layer, users)| Duty {
            users: distinct(users.iter()),
            by: match layer.name.as_str() {
                "" => format!("layer {}", i + 1),
                name => format!("layer {name}"),
            },
        })
    }

    fn turns<'a>(&'a self, layer: &'a Layer) -> Turns<'a> {
        Turns { layer, zone: &self.zone }
    }

    /// The shifts of a time range, without holes: a gap is a shift of nobody.
    pub(super) fn shifts(
        &self,
        from: Ts,
        to: Ts,
        calendar: Option<&Roster>,
        made: &Acting<'_>,
    ) -> Vec<Shift> {
        let mut edges = vec![from];
        for layer in &self.layers {
            self.turns(layer).edges(from, to, &mut edges);
        }
        edges.extend(self.overrides.iter().flat_map(|o| [o.from.at(&self.zone), o.to.at(&self.zone)]));
        if let Some(calendar) = calendar {
            calendar.edges(from, to, &mut edges);
        }
        made.edges(&mut edges);
        edges.retain(|at| (from..to).contains(at));
        edges.sort_unstable();
        edges.dedup();
        edges.truncate(MAX_CHANGES);
        let mut shifts: Vec<Shift> = Vec::new();
        for at in edges {
            let Duty { users, by } = self.duty(at, calendar, made);
            match shifts.last_mut() {
                Some(last) if last.users == users && last.by == by => {}
                last => {
                    if let Some(last) = last {
                        last.to = at;
                    }
                    shifts.push(Shift { from: at, to, users, by });
                }
            }
        }
        shifts
    }

    /// The names of all users in the schedule.
    pub fn users(&self) -> BTreeSet<&str> {
        let turns = self.layers.iter().flat_map(|l| &l.users);
        let people = turns.chain(self.overrides.iter().map(|o| &o.users)).flat_map(|p| &p.0);
        people.chain(self.overrides.iter().filter_map(|o| o.replaces.as_ref())).map(String::as_str).collect()
    }
}

impl Override {
    pub fn holds(&self, at: Ts, zone: &Zone) -> bool {
        (self.from.at(zone)..self.to.at(zone)).contains(&at)
    }

    /// Whether both replace the same person at the same time.
    pub fn contradicts(&self, other: &Self, zone: &Zone) -> bool {
        let overlap = self.from.at(zone) < other.to.at(zone) && other.from.at(zone) < self.to.at(zone);
        overlap && (self.replaces.is_none() || other.replaces.is_none() || self.replaces == other.replaces)
    }
}

impl Moment {
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<jiff::Timestamp>() {
            return Ok(Self::At(Ts(at.as_millisecond())));
        }
        let bad = || {
            format!(
                "{text:?} is not a time: expected 2026-12-24T09:00 (on the clock at hand), 2026-12-24T09:00[Europe/Berlin] or \
                 2026-12-24T08:00:00Z"
            )
        };
        if let Some((civil, zone)) = text.strip_suffix(']').and_then(|t| t.split_once('[')) {
            let zone = Zone::named(zone)?;
            return civil.parse().map(|civil| Self::At(zone.first(civil))).map_err(|_| bad());
        }
        text.parse().map(Self::Civil).map_err(|_| bad())
    }

    pub fn at(self, zone: &Zone) -> Ts {
        match self {
            Self::Civil(civil) => zone.first(civil),
            Self::At(at) => at,
        }
    }
}

impl core::fmt::Display for Moment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Civil(civil) => civil.fmt(f),
            Self::At(at) => at.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// Each name once, in the order given.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name.clone());
        }
    }
    seen
}
