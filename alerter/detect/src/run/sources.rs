//! The sources of a run: exporters that answer, exporters that do not, and the consequences for the
//! run.

use std::collections::{BTreeMap, BTreeSet};

use super::Rank;
use super::lost_source::Lost;
use super::state::RunState;
use stepwatch_model::time::{Span, Ts};

/// The tolerance for a node and its run to have stopped at the same moment, in addition to the time
/// between two steps. A stream without records counts as broken after 15 s, and earlier records of
/// the other nodes arrive within seconds.
const NOTICED: Span = Span::secs(45);
const ON_ITS_WAY: Span = Span::secs(10);
/// The number of reports by which ranks in one collective may differ.
const APART: i64 = 2;

impl RunState {
    /// Resumes after a time until `now` in which nothing was received.
    pub(crate) fn resume(&mut self, now: Ts) {
        self.live_since = now;
        self.checkpoints.in_progress = None;
        self.resumed_at = now;
    }

    /// Since when a source is known not to answer. Its state while the alerter was down is unknown.
    pub(crate) fn away_since(&self, lost: &Lost) -> Ts {
        lost.since.max(self.resumed_at)
    }

    /// Whether `source` has reported the run within this time, so that its loss matters.
    pub(crate) fn is_fed_by(&self, source: &str, now: Ts, within: Span) -> bool {
        if self.lost.contains_key(source) {
            return true;
        }
        // Measured from the last report of the run: a run that is silent everywhere has not left
        // this node.
        let fed = self.live.get(source).is_some_and(|at| self.last_heard - *at < within);
        fed && self.ended.is_none() && now - self.last_heard < super::FORGET_AFTER
    }

    pub fn source_up(&mut self, now: Ts, source: &str) {
        if self.lost.remove(source).is_some() {
            self.live_since = now;
        }
        self.live.insert(source.to_owned(), now);
    }

    /// Records that a source does not answer. `node` is the node that it reports, if known.
    pub fn source_down(&mut self, now: Ts, source: &str, node: Option<&str>, reason: &str) {
        self.live.remove(source);
        let lost = || Lost { since: now, reason: reason.to_owned(), node: node.map(str::to_owned) };
        self.lost.entry(source.to_owned()).or_insert_with(lost);
    }

    pub fn source_gone(&mut self, source: &str) {
        self.live.remove(source);
        self.lost.remove(source);
    }

    /// The sources that do not answer, by node. The address of a source need not be the name of its
    /// node.
    fn unanswered(&self) -> impl Iterator<Item = (&str, &Lost)> {
        self.lost.iter().filter_map(|(source, lost)| {
            let host = source.rsplit_once(':').map_or(source.as_str(), |(host, _)| host);
            let host = || Some(host).filter(|host| self.nodes.contains_key(*host));
            Some((lost.node.as_deref().or_else(host)?, lost))
        })
    }

    /// The nodes of unanswered sources that no other source reports. An exporter that was restarted
    /// may answer at another address.
    pub(crate) fn lost_nodes(&self) -> impl Iterator<Item = (&str, &Lost)> {
        self.unanswered().filter(|(node, _)| !self.heard_elsewhere.contains(*node))
    }

    /// Nodes whose exporters do not answer.
    pub(crate) fn out_of_reach(&self) -> BTreeSet<&str> {
        self.lost_nodes().map(|(node, _)| node).collect()
    }

    /// The nodes of the run that stopped reporting when the run stopped, and since when that is
    /// known, while other nodes still report a standstill. These hosts died, not only their
    /// exporters: an exporter that dies alone stops no rank, and ranks that sent a `bye` stopped
    /// for another reason.
    pub(crate) fn dark(&self) -> Vec<(&str, Ts)> {
        if self.lost.is_empty() || self.live.is_empty() || self.ended.is_some() || !self.stands() {
            return Vec::new();
        }
        let pace = Span::from_secs_f64(self.pace.quantile(0.99).unwrap_or(0.0));
        let with_it = |at: Ts| {
            at <= self.last_progress + NOTICED + pace && self.last_progress <= at + ON_ITS_WAY + pace
        };
        let here = self.lost_nodes().filter(|(node, _)| self.nodes.contains_key(*node));
        here.filter(|(_, lost)| with_it(lost.since))
            .map(|(node, lost)| (node, self.away_since(lost)))
            .collect()
    }

    /// The ranks whose progress is known, without those whose node cannot be reached while the run
    /// goes on.
    pub(crate) fn followed(&self) -> impl Iterator<Item = (u32, &Rank)> {
        let (mut unheard, dark) = (self.unheard(), self.dark());
        unheard.retain(|node, _| dark.iter().all(|(dark, _)| dark != node));
        self.members().filter(move |(_, r)| !r.is_unheard(&unheard))
    }

    /// Whether every rank whose `bye` could arrive has sent it. The ranks of lost sources are taken
    /// to have ended with them.
    pub(crate) fn is_over_elsewhere(&self) -> bool {
        let within_reach = || self.members_within_reach();
        !self.lost.is_empty()
            && self.deaths.is_empty()
            && within_reach().count() > 0
            && within_reach().all(|r| r.done)
    }

    /// Whether the ranks with sources that answer are all at the step of the run, and none has sent
    /// a `bye`.
    fn stands(&self) -> bool {
        let Some(last) = self.last_step else { return false };
        let reach = APART.saturating_mul(self.interval.max(1));
        let mut furthest = None;
        for rank in self.members_within_reach() {
            if rank.done && self.deaths.is_empty() {
                return false;
            }
            furthest = furthest.max(rank.last_step);
        }
        furthest.is_some_and(|step| step.abs_diff(last) <= reach.unsigned_abs())
    }

    fn members_within_reach(&self) -> impl Iterator<Item = &Rank> {
        let unheard = self.unheard();
        self.members().map(|(_, r)| r).filter(move |r| !r.is_unheard(&unheard))
    }

    /// Since when the last source of each node has not answered. Another source may report the
    /// node, but not yet its ranks.
    fn unheard(&self) -> BTreeMap<&str, Ts> {
        let mut since = BTreeMap::new();
        for (node, lost) in self.unanswered() {
            let at = since.entry(node).or_insert(lost.since);
            *at = lost.since.max(*at);
        }
        since
    }
}

impl Rank {
    fn is_unheard(&self, unheard: &BTreeMap<&str, Ts>) -> bool {
        let since = self.node.as_deref().and_then(|node| unheard.get(node));
        since.is_some_and(|since| self.last_seen <= *since)
    }
}
