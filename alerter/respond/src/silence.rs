//! Silences: requests of people, runs and the configuration not to be notified, with an end and a
//! reason.
//!
//! A silence removes nothing. An incident that it matches is still opened, kept, shown and counted,
//! but nobody is notified. If it is still open when the silence ends, people are notified then.
//! This file keeps the silences and their begins and ends; [`crate::incident`] decides who is
//! notified of what.
//!
//! Three things make one: a person (by command line, API, chat or `amtool`), a run that announces
//! that it is about to be restarted ([`planned`]), and maintenance windows that recur ([`window`]).

pub mod planned;
mod rules;
#[cfg(test)]
mod tests;
pub mod window;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::matcher::{Labels, Matcher, all_hold};
use crate::oncall::TimeInterval;
pub use rules::{Plan, Refusal, SilenceConfig, Wanted};
use stepwatch_model::{Span, Ts};
pub use window::Maintenance;
use window::Window;

/// How long an ended silence is kept: as long as in Alertmanager.
const REMEMBER: Span = Span::secs(5 * 86_400);
/// The most ended silences that are kept, and the most bytes of them. Those that ended first are
/// forgotten early and counted.
pub const MAX_ENDED: usize = 10_000;
const MAX_ENDED_BYTES: usize = 4 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Silence {
    pub id: String,
    pub matchers: Vec<Matcher>,
    pub starts_at: Ts,
    pub ends_at: Ts,
    pub created_by: String,
    /// The reason. A silence needs one.
    pub comment: String,
    pub updated_at: Ts,
    /// It ends by itself when the last open incident that it suppresses resolves.
    #[serde(default)]
    pub expire_on_resolve: bool,
    /// The run that asked for it, for a planned restart.
    #[serde(default)]
    pub planned_by: Option<String>,
    /// People were reminded that it is about to end.
    #[serde(default)]
    pub reminded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Pending,
    Active,
    Expired,
}

/// The silence that suppresses a notification: by whom, until when and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SilencedBy {
    /// The id of the silence; `maintenance:NAME` for a window.
    pub id: String,
    pub by: String,
    pub comment: String,
    pub until: Ts,
}

/// All silences and maintenance windows.
#[derive(Debug, Default)]
pub struct Silences {
    config: SilenceConfig,
    windows: Vec<Window>,
    by_id: BTreeMap<String, Silence>,
    /// The ids of the silences that each run asked for, so that a look-up at each step does not
    /// scan all silences.
    planned: BTreeMap<String, BTreeSet<String>>,
    planned_dropped: u64,
    /// Ended silences that were forgotten early.
    crowded_out: u64,
}

/// What is due about a silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Begins,
    Remind,
    Ends,
    Forget,
}

impl Silence {
    pub fn phase(&self, at: Ts) -> Phase {
        if self.ends_at <= at {
            Phase::Expired
        } else if self.starts_at <= at {
            Phase::Active
        } else {
            Phase::Pending
        }
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        !self.matchers.is_empty() && all_hold(&self.matchers, labels)
    }

    /// Bytes of its compiled matchers.
    pub(crate) fn cost(&self) -> usize {
        self.matchers.iter().map(Matcher::cost).sum()
    }

    /// Its bytes in memory, without compiled matchers.
    pub(crate) fn size(&self) -> usize {
        let text = self.id.len() + self.created_by.len() + self.comment.len();
        size_of::<Self>() + text + self.matchers.iter().map(Matcher::size).sum::<usize>()
    }

    /// Drops the compiled matchers of a silence that is over and only shown.
    pub fn unload(&mut self) {
        self.matchers.iter_mut().for_each(Matcher::unload);
    }

    /// Whether it is over and has not been unloaded.
    pub fn is_spent(&self, at: Ts) -> bool {
        self.phase(at) == Phase::Expired && self.cost() > 0
    }

    /// Moves its times ahead by `ahead`.
    #[must_use]
    pub fn moved(mut self, ahead: Span) -> Self {
        for at in [&mut self.starts_at, &mut self.ends_at, &mut self.updated_at] {
            *at = *at + ahead;
        }
        self
    }

    fn silenced_by(&self) -> SilencedBy {
        SilencedBy {
            id: self.id.clone(),
            by: self.created_by.clone(),
            comment: self.comment.clone(),
            until: self.ends_at,
        }
    }

    /// `run="a", kind="hang"`.
    pub fn selector(&self) -> String {
        self.matchers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// The ended silences among these that are above the limits at `now`.
pub fn crowded_out<'a>(all: impl Iterator<Item = &'a Silence>, now: Ts) -> Vec<String> {
    let mut ended: Vec<&Silence> = all.filter(|s| s.phase(now) == Phase::Expired).collect();
    ended.sort_unstable_by_key(|s| (core::cmp::Reverse(s.ends_at), &s.id));
    let mut bytes = 0;
    let kept = ended.iter().take(MAX_ENDED).take_while(|s| {
        bytes += s.size();
        bytes <= MAX_ENDED_BYTES
    });
    let kept = kept.count();
    ended.split_off(kept).into_iter().map(|s| s.id.clone()).collect()
}

impl SilencedBy {
    /// `silenced by alice until 2026-11-21T02:16:56Z: new switch`.
    pub fn words(&self) -> String {
        format!("silenced by {} until {}: {}", self.by, self.until, self.comment)
    }
}

impl Silences {
    pub fn configure(&mut self, config: SilenceConfig, maintenance: &[Maintenance], known: &[TimeInterval]) {
        self.config = config;
        self.windows = maintenance.iter().map(|m| Window::new(m.clone(), known)).collect();
    }

    pub fn config(&self) -> &SilenceConfig {
        &self.config
    }

    pub fn all(&self) -> impl Iterator<Item = &Silence> {
        self.by_id.values()
    }

    /// Whether nothing is silenced at `at`.
    pub fn is_idle(&self, at: Ts) -> bool {
        self.windows.is_empty() && !self.by_id.values().any(|s| s.phase(at) == Phase::Active)
    }

    pub fn get(&self, id: &str) -> Option<&Silence> {
        self.by_id.get(id)
    }

    /// The silence that matches these labels at `at`; of several, the one that lasts longest.
    pub fn silenced(&self, labels: &Labels, at: Ts) -> Option<SilencedBy> {
        let matching = self.by_id.values().filter(|s| s.phase(at) == Phase::Active && s.matches(labels));
        let silence =
            matching.max_by_key(|s| (s.ends_at, core::cmp::Reverse(&s.id))).map(Silence::silenced_by);
        let window = self.windows.iter().filter_map(|w| w.silenced_by(labels, at)).max_by_key(|h| h.until);
        [window, silence].into_iter().flatten().max_by_key(|h| h.until)
    }

    /// Inserts or replaces a silence that [`Self::plan`] allowed, or that was stored.
    pub fn put(&mut self, silence: Silence) {
        self.forget(&silence.id);
        if let Some(run) = &silence.planned_by {
            self.planned.entry(run.clone()).or_default().insert(silence.id.clone());
        }
        self.by_id.insert(silence.id.clone(), silence);
    }

    /// Ends a silence now. Returns it, or `None` if it is over or unknown.
    pub fn expire(&mut self, id: &str, now: Ts) -> Option<&Silence> {
        let s = self.by_id.get_mut(id)?;
        if s.phase(now) == Phase::Expired {
            return None;
        }
        (s.starts_at, s.ends_at, s.updated_at) = (s.starts_at.min(now), now, now);
        s.unload();
        Some(s)
    }

    /// Drops the compiled matchers of a silence that has ended by itself and is only shown.
    pub fn unload(&mut self, id: &str) {
        if let Some(s) = self.by_id.get_mut(id) {
            s.unload();
        }
    }

    pub fn forget(&mut self, id: &str) {
        let Some(run) = self.by_id.remove(id).and_then(|s| s.planned_by) else { return };
        if let Some(ids) = self.planned.get_mut(&run) {
            ids.remove(id);
            if ids.is_empty() {
                self.planned.remove(&run);
            }
        }
    }

    /// Forgets ended silences above the limits, and returns their ids.
    pub fn forget_crowded_out(&mut self, now: Ts) -> Vec<String> {
        let ids = crowded_out(self.all(), now);
        self.crowded_out += ids.len() as u64;
        ids.iter().for_each(|id| self.forget(id));
        ids
    }

    /// Ended silences that were forgotten early, because there were too many.
    pub fn forgotten_early(&self) -> u64 {
        self.crowded_out
    }

    pub fn mark_reminded(&mut self, id: &str, now: Ts) -> Option<&Silence> {
        let s = self.by_id.get_mut(id)?;
        (s.reminded, s.updated_at) = (true, now);
        Some(s)
    }

    /// The next deadline of a silence, and what is due then. What was due before `now` must be
    /// done.
    pub fn next(&self, id: &str, now: Ts) -> Option<(Ts, Due)> {
        let s = self.by_id.get(id)?;
        match s.phase(now) {
            Phase::Pending => Some((s.starts_at, Due::Begins)),
            Phase::Active => match self.remind_at(s) {
                Some(at) if at > now => Some((at, Due::Remind)),
                _ => Some((s.ends_at, Due::Ends)),
            },
            Phase::Expired => Some((s.ends_at + REMEMBER, Due::Forget)),
        }
    }

    /// What is due about a silence at `now`, if anything is.
    pub fn due(&self, id: &str, now: Ts) -> Option<Due> {
        let s = self.by_id.get(id)?;
        match s.phase(now) {
            Phase::Pending => None,
            Phase::Active if self.remind_at(s).is_some_and(|at| at <= now) => Some(Due::Remind),
            Phase::Active => Some(Due::Begins),
            Phase::Expired if s.ends_at + REMEMBER <= now => Some(Due::Forget),
            Phase::Expired => Some(Due::Ends),
        }
    }

    /// Whether any silence ends with the incidents that it suppresses.
    pub fn any_expires_on_resolve(&self) -> bool {
        self.by_id.values().any(|s| s.expire_on_resolve)
    }

    /// When the reminder of a silence's end is due; `None` for one so short that its author still
    /// remembers it.
    pub fn remind_at(&self, s: &Silence) -> Option<Ts> {
        let before = self.config.remind_before;
        let long = s.ends_at - s.starts_at >= Span(before.0.saturating_mul(2));
        let wanted = before > Span::ZERO && long && !s.reminded && s.planned_by.is_none();
        wanted.then(|| Ts(s.ends_at.0.saturating_sub(before.0)))
    }
}
