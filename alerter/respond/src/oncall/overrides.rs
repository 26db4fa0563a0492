//! Overrides that people make at run time: somebody takes over for a while, or two people swap.
//!
//! They act on what the configuration says: the layers, the calendar and the overrides in it. Each
//! acts on the result of those that were made before it, so that where two overlap, the one made
//! last decides. One whose person no receiver reaches, because the configuration changed, has no
//! effect: whoever is on call without it is notified.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::schedule::{Duty, distinct};
pub use plan::{OverrideRefusal, OverrideWanted, Turn, WantedCover};
use stepwatch_model::{Span, Ts};

/// How long an override is kept after its end, so that people can see who was on call and why.
pub const REMEMBER: Span = Span::secs(30 * 86_400);
/// The most ended overrides that are kept. Those that ended first are forgotten early and counted.
pub const MAX_ENDED: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRecord {
    pub id: String,
    /// Greater than those of the overrides that were made before it.
    pub seq: u64,
    pub schedule: String,
    /// One, or the two of a swap.
    pub covers: Vec<Cover>,
    pub created_by: String,
    /// Why; may be empty.
    pub note: String,
    pub created_at: Ts,
    /// Set if somebody ended it before its time.
    #[serde(default)]
    pub removed: Option<Removal>,
}

/// Who is on call instead of whom, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cover {
    pub user: String,
    /// The user who is replaced; everybody if absent.
    #[serde(default)]
    pub replaces: Option<String>,
    pub from: Ts,
    pub until: Ts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    pub at: Ts,
    pub by: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverridePhase {
    Coming,
    /// It has begun. Between the two shifts of a swap it changes nothing.
    Active,
    Over,
}

/// All overrides that were made at run time.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    by_id: BTreeMap<String, Arc<OverrideRecord>>,
    /// Ended overrides that were forgotten early.
    crowded_out: u64,
}

/// The overrides of one schedule that have an effect, in the order in which they were made, each
/// with its covers.
#[derive(Debug)]
pub(super) struct Acting<'a>(Vec<(&'a OverrideRecord, Vec<&'a Cover>)>);

impl OverrideRecord {
    /// The begin of its first cover.
    pub fn begins_at(&self) -> Ts {
        self.covers.iter().map(|cover| cover.from).min().unwrap_or_default()
    }

    /// The planned end of its last cover.
    pub fn until(&self) -> Ts {
        self.covers.iter().map(|cover| cover.until).max().unwrap_or_default()
    }

    /// When it ends, or was removed.
    pub fn ends_at(&self) -> Ts {
        self.removed.as_ref().map_or(self.until(), |removed| removed.at.min(self.until()))
    }

    /// When it was made or changed last.
    pub fn changed_at(&self) -> Ts {
        self.removed.as_ref().map_or(self.created_at, |removed| removed.at)
    }

    pub fn is_swap(&self) -> bool {
        self.covers.len() > 1
    }

    pub fn phase(&self, at: Ts) -> OverridePhase {
        if self.ends_at() <= at {
            OverridePhase::Over
        } else if self.begins_at() <= at {
            OverridePhase::Active
        } else {
            OverridePhase::Coming
        }
    }

    pub fn is_forgotten(&self, at: Ts) -> bool {
        self.ends_at() + REMEMBER <= at
    }

    /// The override after `by` removed it at `now`. What it decided before stays as it was.
    #[must_use]
    pub fn removed_by(&self, by: &str, now: Ts) -> Self {
        Self { removed: Some(Removal { at: now, by: by.to_owned() }), ..self.clone() }
    }

    /// `override by ann: dentist`, `swap by ann`.
    fn words(&self) -> String {
        let what = if self.is_swap() { "swap" } else { "override" };
        let note = if self.note.is_empty() { String::new() } else { format!(": {}", self.note) };
        format!("{what} by {}{note}", self.created_by)
    }

    fn holds(&self, cover: &Cover, at: Ts) -> bool {
        (cover.from..cover.until).contains(&at) && at < self.ends_at()
    }

    /// Changes who is on call at `at`. The two covers of a swap act at once, so that neither undoes
    /// the other where they overlap.
    fn act(&self, covers: &[&Cover], duty: Duty, at: Ts) -> Duty {
        let held = || covers.iter().filter(move |cover| self.holds(cover, at));
        if let Some(cover) = held().find(|cover| cover.replaces.is_none()) {
            return Duty { users: vec![cover.user.clone()], by: self.words() };
        }
        let instead = |user: &String| held().find(|cover| cover.replaces.as_ref() == Some(user));
        if !duty.users.iter().any(|user| instead(user).is_some()) {
            return duty;
        }
        let users = duty.users.iter().map(|user| instead(user).map_or(user, |cover| &cover.user));
        Duty { users: distinct(users), by: self.words() }
    }

    /// Whether `wanted` is what this override was made for. The part of a cover that had passed
    /// when `wanted` was asked for is not compared.
    fn is_asked_again(&self, wanted: &Self) -> bool {
        let same = |(made, asked): (&Cover, &Cover)| {
            made.user == asked.user
                && made.replaces == asked.replaces
                && made.from.max(wanted.created_at) == asked.from
                && made.until == asked.until
        };
        self.removed.is_none()
            && self.schedule == wanted.schedule
            && self.created_by == wanted.created_by
            && self.note == wanted.note
            && self.covers.len() == wanted.covers.len()
            && self.covers.iter().zip(&wanted.covers).all(same)
    }

    /// Whether a cover of each holds at the same time.
    fn overlaps(&self, other: &Self) -> bool {
        let end = |record: &Self, cover: &Cover| cover.until.min(record.ends_at());
        self.covers
            .iter()
            .any(|a| other.covers.iter().any(|b| a.from < end(other, b) && b.from < end(self, a)))
    }
}

impl Overrides {
    /// In the order of their ids.
    pub fn all(&self) -> impl Iterator<Item = &Arc<OverrideRecord>> {
        self.by_id.values()
    }

    pub fn get(&self, id: &str) -> Option<&Arc<OverrideRecord>> {
        self.by_id.get(id)
    }

    /// Inserts or replaces an override that [`super::OnCall::plan_override`] allowed, or that was
    /// stored, and forgets those that ended long ago.
    pub fn put(&mut self, record: Arc<OverrideRecord>, now: Ts) {
        self.by_id.insert(record.id.clone(), record);
        self.by_id.retain(|_, record| !record.is_forgotten(now));
        let over = self.all().filter(|record| record.phase(now) == OverridePhase::Over);
        let mut over: Vec<(Ts, String)> = over.map(|r| (r.ends_at(), r.id.clone())).collect();
        let above = over.len().saturating_sub(MAX_ENDED);
        over.sort_unstable();
        for (_, id) in over.into_iter().take(above) {
            self.by_id.remove(&id);
            self.crowded_out += 1;
        }
    }

    /// Ended overrides that were forgotten early, because there were too many.
    pub fn forgotten_early(&self) -> u64 {
        self.crowded_out
    }

    /// The overrides of the same schedule that were made before `record`, are not over at `now`,
    /// and overlap it.
    pub fn beneath<'a>(
        &'a self,
        record: &'a OverrideRecord,
        now: Ts,
    ) -> impl Iterator<Item = &'a Arc<OverrideRecord>> {
        let earlier = self.all().filter(move |r| r.schedule == record.schedule && r.seq < record.seq);
        earlier.filter(move |r| r.phase(now) != OverridePhase::Over && r.overlaps(record))
    }

    /// The overrides of a schedule that may have an effect from `from` to `to`. `reaches` says
    /// whether a user can be notified.
    pub(super) fn acting(
        &self,
        schedule: &str,
        (from, to): (Ts, Ts),
        reaches: impl Fn(&str) -> bool,
    ) -> Acting<'_> {
        let near = self.all().filter(|r| r.begins_at() <= to && from < r.ends_at() && r.schedule == schedule);
        let mut acting = Vec::new();
        for record in near {
            let covers: Vec<&Cover> = record.covers.iter().filter(|cover| reaches(&cover.user)).collect();
            acting.push((&**record, covers));
        }
        acting.sort_unstable_by_key(|(record, _)| record.seq);
        Acting(acting)
    }
}

impl Acting<'_> {
    /// Who is on call at `at`, if the configuration says `duty`.
    pub(super) fn upon(&self, duty: Duty, at: Ts) -> Duty {
        self.0.iter().fold(duty, |duty, (record, covers)| record.act(covers, duty, at))
    }

    /// The times at which it may change who is on call.
    pub(super) fn edges(&self, out: &mut Vec<Ts>) {
        for (record, covers) in &self.0 {
            out.extend(covers.iter().flat_map(|cover| [cover.from, cover.until]));
            out.extend(record.removed.as_ref().map(|removed| removed.at));
        }
    }
}
