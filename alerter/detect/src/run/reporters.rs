//! The sources that report a run: those that were admitted, the first of them, the user who owns
//! the run, and which source reports which rank.
//!
//! This is only a record. `monitor/admission.rs` decides whether a source may report a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use stepwatch_model::time::Ts;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reporters {
    /// In the order in which they came: `ranks` refers to a source by its index.
    sources: Vec<String>,
    first: u32,
    /// The user who owns the run, as the first source declared.
    pub(crate) uid: Option<u32>,
    /// Since when that user owns it, if another user owned it before.
    pub(crate) since: Option<Ts>,
    ranks: BTreeMap<u32, u32>,
    /// Sources that declared another user, with that user.
    denied: BTreeMap<String, u32>,
    /// The source of another user that reports steps, about which people were notified.
    pub(crate) disputed_by: Option<String>,
}

impl Reporters {
    /// The source that reported the run first.
    pub(crate) fn first(&self) -> Option<&str> {
        self.sources.get(self.first as usize).map(String::as_str)
    }

    pub(crate) fn is_one(&self, source: &str) -> bool {
        self.first() == Some(source) || self.sources.iter().any(|s| s == source)
    }

    /// Whether no other source reports the run.
    pub(crate) fn is_only(&self, source: &str) -> bool {
        self.sources.iter().all(|s| s == source)
    }

    /// The source that reports a rank.
    pub(crate) fn source_of_rank(&self, rank: u32) -> Option<&str> {
        self.ranks.get(&rank).and_then(|at| self.sources.get(*at as usize)).map(String::as_str)
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = (u32, &str)> {
        let source = |at: &u32| self.sources.get(*at as usize).map(String::as_str);
        self.ranks.iter().filter_map(move |(rank, at)| Some((*rank, source(at)?)))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.ranks.len() >= super::MAX_RANKS
    }

    pub(crate) fn add(&mut self, source: &str) {
        self.place(source, None);
    }

    /// Records that this source reports a rank from now on.
    pub(crate) fn bind(&mut self, rank: u32, source: &str) {
        // Ranks of one source are neighbours, as a rule.
        let near = rank.checked_sub(1).and_then(|rank| self.ranks.get(&rank)).copied();
        let at = self.place(source, near);
        self.ranks.insert(rank, at);
    }

    fn place(&mut self, source: &str, near: Option<u32>) -> u32 {
        let is_near = |at: &u32| self.sources.get(*at as usize).is_some_and(|s| s == source);
        if let Some(at) = near.filter(is_near) {
            return at;
        }
        let at = self.sources.iter().position(|s| s == source).unwrap_or_else(|| {
            self.sources.push(source.to_owned());
            self.sources.len() - 1
        });
        at as u32
    }

    /// Passes the run to another user, whom this source declared.
    pub(crate) fn pass_on(&mut self, now: Ts, source: &str, uid: u32) {
        *self = Self { uid: Some(uid), since: Some(now), ..Self::default() };
        self.add(source);
    }

    pub(crate) fn deny(&mut self, source: &str, uid: u32) {
        self.denied.insert(source.to_owned(), uid);
    }

    pub(crate) fn allow(&mut self, source: &str) {
        self.denied.remove(source);
    }

    /// The user that a source declared, if that user does not own the run.
    pub(crate) fn denied(&self, source: &str) -> Option<u32> {
        self.denied.get(source).copied()
    }
}
