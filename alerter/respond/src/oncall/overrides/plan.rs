//! Decides which overrides are allowed.

use std::sync::Arc;

use super::{Cover, OverridePhase, OverrideRecord};
use crate::oncall::OnCall;
use crate::oncall::ical::MAX_PLAN;
use crate::oncall::schedule::{Moment, Schedule};
use stepwatch_model::{Span, Ts};

/// Seconds.
const DAY: i64 = 86_400;
/// The longest cover. Who is on call differently for longer changes the configuration.
const MAX_DAYS: i64 = 31;
const MAX_LENGTH: Span = Span::secs(MAX_DAYS * DAY);
/// The most overrides that are not over, of one schedule and of all.
const MAX_OF_SCHEDULE: usize = 100;
const MAX_UNENDED: usize = 1000;
/// The most characters of a note, and of an author.
const MAX_NOTE: usize = 200;
const MAX_AUTHOR: usize = 200;

/// A requested override.
#[derive(Debug, Clone, PartialEq)]
pub struct OverrideWanted {
    pub schedule: String,
    /// One, or the two of a swap.
    pub covers: Vec<WantedCover>,
    pub created_by: String,
    pub note: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WantedCover {
    /// Who takes over.
    pub user: String,
    /// The user who is replaced; everybody if absent.
    pub replaces: Option<String>,
    /// From now on if absent.
    pub from: Option<Moment>,
    pub until: Moment,
}

/// The time in which a person of a swap is on call without it.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub user: String,
    pub from: Option<Moment>,
    pub until: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideRefusal {
    Invalid(String),
    /// There are too many overrides.
    Full(String),
}

impl OverrideWanted {
    /// Each of the two takes the turn of the other.
    pub fn swap(schedule: String, first: Turn, second: Turn, created_by: String, note: String) -> Self {
        let cover = |user: &Turn, turn: &Turn| WantedCover {
            user: user.user.clone(),
            replaces: Some(turn.user.clone()),
            from: turn.from,
            until: turn.until,
        };
        Self { covers: vec![cover(&second, &first), cover(&first, &second)], schedule, created_by, note }
    }
}

impl OnCall {
    /// The override that a request makes at `now`, or the reason why it is refused. `fresh` is an
    /// id that no override has. A request that is made again, because its answer was lost, gets the
    /// override that the first one made.
    pub fn plan_override(
        &self,
        wanted: OverrideWanted,
        fresh: &str,
        now: Ts,
    ) -> Result<OverrideRecord, OverrideRefusal> {
        let OverrideWanted { schedule, covers, created_by, note } = wanted;
        let named = self.schedule(&schedule).ok_or_else(|| {
            let names = self.config().schedules.iter().map(|s| s.name.as_str());
            invalid(format!("there is no schedule {schedule:?}; those that exist: {}", listed(names)))
        })?;
        if covers.is_empty() {
            return Err(invalid("nobody takes over".into()));
        }
        let covers = covers.into_iter().map(|cover| self.cover(named, cover, now));
        let covers = covers.collect::<Result<Vec<_>, _>>()?;
        if created_by.trim().is_empty() || created_by.chars().count() > MAX_AUTHOR {
            return Err(invalid(format!("author: must be a name of 1 to {MAX_AUTHOR} characters")));
        }
        if note.chars().count() > MAX_NOTE {
            return Err(invalid(format!("note: at most {MAX_NOTE} characters")));
        }
        let seq = self.overrides().all().map(|record| record.seq).max().unwrap_or(0) + 1;
        let record = OverrideRecord {
            id: fresh.to_owned(),
            seq,
            schedule,
            covers,
            created_by,
            note,
            created_at: now,
            removed: None,
        };
        if let Some(same) = self.made_before(&record) {
            return Ok((**same).clone());
        }
        for cover in &record.covers {
            self.must_change(named, cover)?;
        }
        self.room(&record.schedule, now)?;
        Ok(record)
    }

    /// The override that the same request made before, if it is not over. One that a later override
    /// overlaps no longer decides everything, so that the request means a new one.
    fn made_before(&self, wanted: &OverrideRecord) -> Option<&Arc<OverrideRecord>> {
        let now = wanted.created_at;
        let unended = || self.overrides().all().filter(move |r| r.phase(now) != OverridePhase::Over);
        let same = unended().filter(|made| made.is_asked_again(wanted)).max_by_key(|made| made.seq)?;
        let later = |r: &&Arc<OverrideRecord>| r.schedule == same.schedule && r.seq > same.seq;
        (!unended().filter(later).any(|r| r.overlaps(same))).then_some(same)
    }

    fn cover(&self, schedule: &Schedule, wanted: WantedCover, now: Ts) -> Result<Cover, OverrideRefusal> {
        let WantedCover { user, replaces, from, until } = wanted;
        for name in [Some(&user), replaces.as_ref()].into_iter().flatten() {
            if self.user(name).is_none() {
                let names = self.config().users.iter().map(|u| u.name.as_str());
                return Err(invalid(format!(
                    "there is no user {name:?}; those that exist: {}",
                    listed(names)
                )));
            }
        }
        if !self.reaches(&user) {
            let able = self.config().users.iter().filter(|u| !u.notify.is_empty());
            let able = listed(able.map(|u| u.name.as_str()));
            return Err(invalid(format!(
                "no receiver reaches {user:?}, who would not be notified; those whom one reaches: {able}"
            )));
        }
        if replaces.as_ref() == Some(&user) {
            return Err(invalid(format!("{user} cannot take over from {user}")));
        }
        let zone = &schedule.zone;
        let (from, until) = (from.map_or(now, |from| from.at(zone)), until.at(zone));
        if until <= from {
            let from = zone.show(from);
            return Err(invalid(format!("the end must be after the start, which is {from}")));
        }
        if until <= now {
            let now = zone.show(now);
            return Err(invalid(format!("the end time can't be in the past: it is {now}")));
        }
        if until - now > MAX_PLAN {
            let days = MAX_PLAN.0 / 1000 / DAY;
            return Err(invalid(format!("an override ends at most {days} days ahead")));
        }
        // What was is not rewritten.
        let from = from.max(now);
        if until - from > MAX_LENGTH {
            return Err(invalid(format!(
                "an override lasts at most {MAX_DAYS} days: for longer, change the schedule"
            )));
        }
        Ok(Cover { user, replaces, from, until })
    }

    /// Refuses a cover that changes nothing in its time.
    fn must_change(&self, schedule: &Schedule, cover: &Cover) -> Result<(), OverrideRefusal> {
        let shifts = self.shifts(&schedule.name, cover.from, cover.until);
        let (from, until) = (schedule.zone.show(cover.from), schedule.zone.show(cover.until));
        let when = format!("by schedule {} between {from} and {until}", schedule.name);
        match &cover.replaces {
            Some(name) if !shifts.iter().any(|shift| shift.users.contains(name)) => {
                Err(invalid(format!("{name} is not on call {when}")))
            }
            None if shifts.iter().all(|shift| shift.users == [cover.user.as_str()]) => {
                Err(invalid(format!("{} is on call already {when}", cover.user)))
            }
            _ => Ok(()),
        }
    }

    fn room(&self, schedule: &str, now: Ts) -> Result<(), OverrideRefusal> {
        let unended = || self.overrides().all().filter(move |r| r.phase(now) != OverridePhase::Over);
        let (of_schedule, all) = (unended().filter(|r| r.schedule == schedule).count(), unended().count());
        if of_schedule >= MAX_OF_SCHEDULE {
            return Err(OverrideRefusal::Full(format!(
                "schedule {schedule} has {of_schedule} overrides that are not over, and may have no more: remove some"
            )));
        }
        if all >= MAX_UNENDED {
            return Err(OverrideRefusal::Full(format!(
                "there are {all} overrides that are not over, and there may be no more: remove some"
            )));
        }
        Ok(())
    }
}

fn invalid(why: String) -> OverrideRefusal {
    OverrideRefusal::Invalid(why)
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names = names.collect::<Vec<_>>().join(", ");
    if names.is_empty() { "none".to_owned() } else { names }
}
