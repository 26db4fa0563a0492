//! The silence that a run asks for before it is restarted on purpose:
//! `{"k":"event","name":"maintenance","seconds":1800}`.
//!
//! It covers only that run, and only what a restart looks like from outside: it never suppresses a
//! NaN or a broken GPU. It is over when the run makes steps in a new attempt. A run that asks again
//! before it has made a step only extends its silence, up to the limit counted from the first time,
//! so that a script that asks in a loop cannot suppress a hang for longer. A run has one silence at
//! a time, which is changed in place.

use std::collections::BTreeSet;

use super::{Phase, Silence, Silences};
use crate::matcher::{Matcher, Op};
use stepwatch_model::{Kind, Mark, Span, Ts};

/// The most runs whose silence is kept; the one that ended first is replaced.
pub(super) const MAX_PLANNED: usize = 4096;
/// The least time between two changes of a run's silence, and the least change of its end. Each
/// change is written and checks every open incident, so a run that asks all the time must not delay
/// others.
const CHANGES_EVERY: Span = Span::secs(60);
/// The reason if the run gave none.
const NO_REASON: &str = "planned restart";

impl Silences {
    /// The silence after a run asked for one of this length. `None` if there is none and none to be
    /// made, or if it was changed just now, which is counted.
    pub fn planned(
        &mut self,
        run: &str,
        length: Span,
        reason: &str,
        progress: Ts,
        now: Ts,
    ) -> Option<Silence> {
        let max = self.config().max_planned_restart;
        let last = self.planned_of(run);
        let is_new = last.is_none();
        let had = last.filter(|had| had.phase(now) == Phase::Active || had.starts_at >= progress);
        let starts_at = had.map_or(now, |had| had.starts_at);
        let ends_at = (now + length).min(starts_at + max).max(now);
        if ends_at <= now && had.is_none_or(|had| had.phase(now) == Phase::Expired) {
            return None;
        }
        let active = had.filter(|had| had.phase(now) == Phase::Active);
        let moves = active.map(|had| (had.ends_at - ends_at).0.abs());
        let ends = active.is_some() && ends_at <= now;
        if moves.is_some_and(|by| by < CHANGES_EVERY.0) && !ends {
            return None;
        }
        let changed_at = had.map(|had| had.updated_at).or(last.map(|last| last.starts_at));
        let id = had.map_or_else(|| id(run), |had| had.id.clone());
        let often = changed_at.is_some_and(|at| now - at < CHANGES_EVERY) && !ends;
        if often || is_new && !self.has_room_for_planned(now) {
            self.planned_dropped += 1;
            return None;
        }
        let reason = reason.trim();
        Some(Silence {
            id,
            matchers: matchers(run),
            starts_at,
            ends_at,
            created_by: format!("run {run}"),
            comment: if reason.is_empty() { NO_REASON } else { reason }.to_owned(),
            updated_at: now,
            expire_on_resolve: false,
            planned_by: Some(run.to_owned()),
            reminded: false,
        })
    }

    /// Makes room for the silence of one more run, if possible. Returns whether there is room.
    fn has_room_for_planned(&mut self, now: Ts) -> bool {
        if self.planned.len() < MAX_PLANNED {
            return true;
        }
        let ids = self.planned.values().flatten().filter_map(|id| self.get(id));
        let over = ids.filter(|s| s.phase(now) == Phase::Expired).min_by_key(|s| s.ends_at);
        let Some(id) = over.map(|s| s.id.clone()) else { return false };
        self.forget(&id);
        self.planned.len() < MAX_PLANNED
    }

    /// Requests of runs that were dropped, because a run asks too often or too many runs do.
    pub fn planned_dropped(&self) -> u64 {
        self.planned_dropped
    }

    /// The latest silence that a run asked for.
    pub fn planned_of(&self, run: &str) -> Option<&Silence> {
        let ids = self.planned.get(run)?;
        ids.iter().filter_map(|id| self.get(id)).max_by_key(|s| s.starts_at)
    }
}

fn matchers(run: &str) -> Vec<Matcher> {
    let kinds = Kind::ALL.iter().filter(|kind| kind.has(Mark::Restart)).map(|kind| kind.as_str());
    // Sorted, so that a silence reads the same whatever the order of the table.
    let kinds = kinds.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("|");
    let matchers = [Matcher::new("run", Op::Equal, run), Matcher::new("kind", Op::Regex, kinds)];
    // A run whose name is too long for a matcher is notified of, not suppressed.
    let all: Result<Vec<_>, _> = matchers.into_iter().collect();
    all.unwrap_or_default()
}

/// The id in the form of a UUID (version 8), as clients of Alertmanager expect; always the same for
/// one run.
fn id(run: &str) -> String {
    let hash = |seed: u64| {
        // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
        run.bytes()
            .fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    };
    let bits = u128::from(hash(0)) << 64 | u128::from(hash(0x9e37_79b9_7f4a_7c15));
    let bits = bits & !(0xf << 76 | 0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
