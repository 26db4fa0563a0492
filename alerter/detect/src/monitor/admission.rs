//! What a source is let to say: of its own node, of runs that it is part of, and of no more than a
//! node can have.
//!
//! An exporter may be in other hands than its operator's. It speaks of one node, which is its own
//! until it has been silent for [`HELD`]; a rank is its own until it says that the rank is gone, or
//! falls silent; and who has no rank of a run does not speak for the run. What it says beyond that
//! is refused and counted. `nodes: many` in the configuration says that a source speaks for others.

use super::nodes::MAX_NODES;
use super::run::Run;
use super::sources::Source;
use super::{Key, MAX_RUNS, Monitor, Record};
use crate::run::Tellers;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Detected, NO_RUN, Scope};
use stepwatch_wire::{Event, Kind};

/// A node, and a rank, is a source's own until it has been silent for so long.
const HELD: Span = Span::secs(120);
/// A rank that its source does not speak of any more, although it speaks, is free after so long.
pub(super) const RANK_HELD: Span = Span::secs(600);
/// Runs that one source tells of at once, and ranks of them: a node runs a few at a time, and a
/// sweep leaves hundreds behind.
const RUNS_OF_SOURCE: usize = 512;
const RANKS_OF_SOURCE: u32 = 4096;
/// How often an address may be given to another node, and within how long.
const MOVES: usize = 3;
const MOVES_WITHIN: Span = Span::secs(86_400);
/// A run that was followed for less than this is young: it makes room when it has been silent for
/// so long.
const YOUNG: Span = Span::secs(600);
const SILENT: Span = Span::secs(60);
/// How long one is silent of which an incident is open that is told as one of many.
const SILENT_IN_STORM: Span = Span::secs(600);
/// Room is looked for, and made, this often.
const LOOK_FOR_ROOM: Span = Span::millis(100);

/// Why a source is not let to say something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    OtherNode,
    NodeTaken,
    RankTaken,
    RankUnknown,
    NotOfRun,
    OtherUser,
    TooManyRuns,
    TooManyRanks,
    TooManyNodes,
}

impl Refusal {
    pub const ALL: [Self; 9] = [
        Self::OtherNode,
        Self::NodeTaken,
        Self::RankTaken,
        Self::RankUnknown,
        Self::NotOfRun,
        Self::OtherUser,
        Self::TooManyRuns,
        Self::TooManyRanks,
        Self::TooManyNodes,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherNode => "other_node",
            Self::NodeTaken => "node_taken",
            Self::RankTaken => "rank_taken",
            Self::RankUnknown => "rank_unknown",
            Self::NotOfRun => "not_of_run",
            Self::OtherUser => "other_user",
            Self::TooManyRuns => "too_many_runs",
            Self::TooManyRanks => "too_many_ranks",
            Self::TooManyNodes => "too_many_nodes",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Self::OtherNode => "it names a node that is not its own",
            Self::NodeTaken => "its node is spoken for by another exporter",
            Self::RankTaken => "it names a rank that another exporter reports",
            Self::RankUnknown => "it names a rank that the run does not have",
            Self::NotOfRun => "it speaks for a run of which it has no rank",
            Self::OtherUser => "it names a run of another user",
            Self::TooManyRuns => "it names too many runs",
            Self::TooManyRanks => "it names too many ranks",
            Self::TooManyNodes => "there are too many nodes",
        }
    }
}

/// What a source was refused, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    counts: [u64; Refusal::ALL.len()],
    last: Option<Refusal>,
}

impl Refused {
    fn count(&mut self, why: Refusal) {
        self.counts[why as usize] += 1;
        self.last = Some(why);
    }

    pub fn of(&self, why: Refusal) -> u64 {
        self.counts[why as usize]
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Why it was refused last.
    pub fn last(&self) -> Option<Refusal> {
        self.last
    }
}

/// The rank that an event is about; a step without one is that of the first.
fn rank_of(event: &Event) -> Option<u32> {
    event.rank.or((event.kind == Kind::Step).then_some(0))
}

/// `node001:9765` was named by the operator after `node001`, and after `node001.cluster`.
fn is_named_after(source: &str, node: &str) -> bool {
    let host = source.rsplit_once(':').map_or(source, |(host, _)| host);
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    host == node || host.parse::<core::net::IpAddr>().is_err() && short(host) == short(node)
}

impl Source {
    fn is_alive(&self, now: Ts) -> bool {
        now - self.heard_at < HELD
    }

    /// Speaks of this node as it did just before.
    fn is_at(&self, node: &str) -> bool {
        self.answers && !self.anew && self.owns && self.nodes.contains(node)
    }
}

impl Monitor {
    /// Whether a source may say this; a refusal is counted.
    pub(super) fn admits(&mut self, record: Record<'_>, out: &mut Vec<Detected>) -> bool {
        let Err(why) = self.admission(record, out) else { return true };
        if let Some(s) = self.sources.get_mut(record.source) {
            s.refused.count(why);
        }
        false
    }

    /// What sources were refused, of those that were.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Refused)> {
        self.sources
            .iter()
            .filter(|(_, s)| s.refused.last.is_some())
            .map(|(name, s)| (name.as_str(), &s.refused))
    }

    fn admission(&mut self, record: Record<'_>, out: &mut Vec<Detected>) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        if !self.sources.contains_key(source) {
            self.sources.insert(source.to_owned(), Source::default());
        }
        let Some(s) = self.sources.get_mut(source) else { return Ok(()) };
        s.heard_at = now;
        if let Some(node) = event.node.as_deref().filter(|node| !node.is_empty() && !s.is_at(node)) {
            self.claim(record, node)?;
        }
        let Some(name) = event.run.as_deref().filter(|_| !is_of_node(event.kind)) else { return Ok(()) };
        let Some(run) = self.runs.get(name) else {
            // Whoever only says goodbye begins nothing.
            return if event.kind == Kind::Bye { Ok(()) } else { self.may_begin(now, source, out) };
        };
        // Nearly all events are those of a rank that is the source's own.
        if event.uid.is_none() && rank_of(event).is_some_and(|rank| run.tellers.of(rank) == Some(source)) {
            return Ok(());
        }
        self.may_join(record, name, out)?;
        self.told_by(record, name);
        Ok(())
    }

    /// A source names a node: the node is the source's own, or becomes it.
    fn claim(&mut self, record: Record<'_>, node: &str) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        let Some(s) = self.sources.get_mut(source) else { return Ok(()) };
        if s.many_nodes && self.owners.get(node).is_some_and(|owner| owner == source) {
            return Ok(());
        }
        let moves = !s.many_nodes && !s.nodes.is_empty() && !s.nodes.contains(node);
        if moves {
            s.moves.retain(|at| now - *at < MOVES_WITHIN);
            if !s.anew || s.moves.len() >= MOVES {
                return Err(Refusal::OtherNode);
            }
        }
        let many_nodes = s.many_nodes;
        let boot = event.cursor.as_ref().map_or("", |cursor| cursor.boot.as_str());
        if let Some(owner) = self.owner(now, node, source) {
            let same = !owner.answers && !boot.is_empty() && owner.boot == boot;
            // Two collectors may hear the same nodes.
            let both = many_nodes && owner.many_nodes;
            let named = |source: &str| is_named_after(source, node);
            let other = self.owners.get(node).is_some_and(|owner| named(owner));
            if !same && !both && (other || !named(source)) {
                return Err(Refusal::NodeTaken);
            }
        }
        if self.owners.len() >= MAX_NODES && !self.owners.contains_key(node) {
            self.dropped_nodes += 1;
            return Err(Refusal::TooManyNodes);
        }
        if moves {
            self.owners.retain(|_, owner| owner != source);
        }
        if let Some(had) = self.owners.insert(node.to_owned(), source.to_owned()).filter(|had| had != source)
            && let Some(had) = self.sources.get_mut(&had)
        {
            // A collector has other nodes.
            (had.owns, had.displaced) = (false, !had.many_nodes);
        }
        if let Some(s) = self.sources.get_mut(source) {
            (s.owns, s.displaced) = (true, false);
            boot.clone_into(&mut s.boot);
            s.moves.extend(moves.then_some(now));
        }
        self.speaks_for(source, node);
        Ok(())
    }

    /// Another source whose node it is. After a restart that is whichever told of it before and
    /// speaks first.
    fn owner(&self, now: Ts, node: &str, source: &str) -> Option<&Source> {
        let alive = |name: &str| self.sources.get(name).filter(|s| s.is_alive(now));
        match self.owners.get(node) {
            Some(owner) if owner == source => None,
            Some(owner) => alive(owner),
            None if self.speakers.of(node).any(|s| s == source) => None,
            None => self.speakers.of(node).find_map(|s| alive(s)),
        }
    }

    /// Whether a source may report a run that is not known yet.
    fn may_begin(&mut self, now: Ts, source: &str, out: &mut Vec<Detected>) -> Result<(), Refusal> {
        let Some(s) = self.sources.get(source) else { return Ok(()) };
        let (own, all) = (!s.many_nodes && s.runs.len() >= RUNS_OF_SOURCE, self.runs.len() >= MAX_RUNS);
        if (own || all) && !self.makes_room(now, source, all && !own, out) {
            self.dropped_runs += u64::from(all);
            return Err(Refusal::TooManyRuns);
        }
        Ok(())
    }

    /// Whether a source may report a run that is known, and this rank of it.
    fn may_join(&mut self, record: Record<'_>, name: &str, out: &mut Vec<Detected>) -> Result<(), Refusal> {
        self.is_its_users(record, name, out)?;
        let Record { now, source, event } = record;
        let (Some(run), Some(s)) = (self.runs.get(name), self.sources.get(source)) else { return Ok(()) };
        let t = &run.tellers;
        let stranger = !s.many_nodes && !t.is_one(source);
        let Some(rank) = rank_of(event) else {
            if stranger && self.is_others(now, source, run) {
                return Err(Refusal::NotOfRun);
            }
            return self.has_room(now, source, name, out);
        };
        match t.of(rank) {
            Some(of) if of == source => return Ok(()),
            Some(of) if self.has_rank(now, of, run, rank) => {
                let both = s.many_nodes && self.sources.get(of).is_some_and(|of| of.many_nodes);
                return if both { Ok(()) } else { Err(Refusal::RankTaken) };
            }
            Some(_) => {}
            None if stranger && self.is_others(now, source, run) => {
                let f = &run.state;
                let fits = match f.world {
                    Some(world) => rank < world && event.world.is_none_or(|told| told == world),
                    None => now - f.attempt_at < YOUNG,
                };
                if !fits {
                    return Err(Refusal::RankUnknown);
                }
            }
            None => {}
        }
        if !s.many_nodes && s.ranks >= RANKS_OF_SOURCE {
            return Err(Refusal::TooManyRanks);
        }
        self.has_room(now, source, name, out)
    }

    /// For one run more that others tell of too.
    fn has_room(
        &mut self,
        now: Ts,
        source: &str,
        name: &str,
        out: &mut Vec<Detected>,
    ) -> Result<(), Refusal> {
        let more = |s: &Source| !s.many_nodes && s.runs.len() >= RUNS_OF_SOURCE && !s.runs.contains(name);
        let full = self.sources.get(source).is_some_and(more);
        if full && !self.makes_room(now, source, false, out) {
            return Err(Refusal::TooManyRuns);
        }
        Ok(())
    }

    /// Whether other sources have ranks of the run.
    fn is_others(&self, now: Ts, source: &str, run: &Run) -> bool {
        run.tellers.ranks().any(|(rank, of)| of != source && self.has_rank(now, of, run, rank))
    }

    /// Whether a rank is still that of the source which reported it.
    fn has_rank(&self, now: Ts, source: &str, run: &Run, rank: u32) -> bool {
        let Some(s) = self.sources.get(source) else { return false };
        let f = &run.state;
        let gone = f.ended.is_some() || f.deaths.contains_key(&rank);
        let here = |r: &crate::run::Rank| !r.done && !r.stale && now - r.last_seen < RANK_HELD;
        s.is_alive(now) && !s.displaced && !gone && f.ranks.get(&rank).is_some_and(here)
    }

    /// Notes that a source reports a run.
    pub(super) fn told_by(&mut self, record: Record<'_>, name: &str) {
        let Record { source, event, .. } = record;
        let Some(run) = self.runs.get_mut(name) else { return };
        let t = &mut run.tellers;
        match rank_of(event) {
            Some(rank) if t.of(rank) == Some(source) || t.is_full() => {}
            Some(rank) => {
                let had = t.of(rank).map(str::to_owned);
                t.bind(rank, source);
                for (name, less, more) in [(had.as_deref(), 1, 0), (Some(source), 0, 1)] {
                    if let Some(s) = name.and_then(|name| self.sources.get_mut(name)) {
                        s.ranks = s.ranks.saturating_sub(less) + more;
                    }
                }
            }
            None => t.add(source),
        }
        if event.kind == Kind::Hello && t.uid.is_none() && t.first() == Some(source) {
            t.uid = event.uid;
        }
        self.feeds(source, name);
    }

    /// The ranks of a run are nobody's any more.
    pub(super) fn release(&mut self, tellers: &Tellers) {
        for (_, source) in tellers.ranks() {
            if let Some(s) = self.sources.get_mut(source) {
                s.ranks = s.ranks.saturating_sub(1);
            }
        }
    }

    /// Counts the ranks and disputes of each source after a start.
    pub(super) fn count_ranks(&mut self) {
        for run in self.runs.values() {
            for (_, source) in run.tellers.ranks() {
                if let Some(s) = self.sources.get_mut(source) {
                    s.ranks += 1;
                }
            }
            let disputes = run.tellers.disputed_by.as_ref();
            if let Some(s) = disputes.and_then(|source| self.sources.get_mut(source)) {
                s.disputes += 1;
            }
        }
    }

    /// Forgets the run of the source, or any run, that matters least: one that is over, or young
    /// and silent, and of which nobody is told.
    fn makes_room(&mut self, now: Ts, source: &str, any: bool, out: &mut Vec<Detected>) -> bool {
        let Some(s) = self.sources.get_mut(source) else { return false };
        let looked = if any { &mut self.looked_for_room } else { &mut s.looked_for_room };
        if now - *looked < LOOK_FOR_ROOM {
            return false;
        }
        *looked = now;
        let Some(s) = self.sources.get(source) else { return false };
        let own = s.runs.iter().filter_map(|name| self.runs.get(name)).filter(|_| !any);
        let all = self.runs.values().filter(|_| any);
        let least = own
            .filter(|run| run.tellers.first() == Some(source))
            .chain(all)
            .filter(|run| self.may_go(now, run))
            .min_by_key(|run| run.state.last_heard)
            .map(|run| run.state.name.clone());
        least.inspect(|name| self.forget_run(now, name, out)).is_some()
    }

    fn may_go(&self, now: Ts, run: &Run) -> bool {
        let f = &run.state;
        let silent = now - f.last_heard;
        let young = f.last_heard - f.first_seen < YOUNG && silent >= SILENT;
        if f.name == NO_RUN || !(young || f.ended.is_some()) {
            return false;
        }
        match self.incidents.get(&f.name).and_then(|known| known.notified) {
            None => true,
            Some(told) => !told && silent >= SILENT_IN_STORM,
        }
    }

    pub(super) fn forget_run(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        self.settle_dispute(now, name, "the run is forgotten", out);
        self.leave(name);
        let run = self.runs.remove(name);
        if let Some(run) = &run {
            self.release(&run.tellers);
        }
        let heard = run.map_or(now, |run| run.state.last_heard);
        self.sources.values_mut().for_each(|s| {
            s.runs.remove(name);
        });
        out.push(Detected::Forgotten { scope: Scope::Run(name.to_owned()), heard_at: heard });
        self.timers.set(&Key::Run(name.to_owned()), None);
        self.dirty.insert(Key::Run(name.to_owned()));
    }
}

fn is_of_node(kind: Kind) -> bool {
    matches!(kind, Kind::Xid | Kind::Link | Kind::Hw | Kind::Health)
}
