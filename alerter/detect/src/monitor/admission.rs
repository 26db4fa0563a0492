//! What a source may report: its own node, runs that it is part of, and no more than a node can
//! have.
//!
//! An exporter may be controlled by somebody else than its operator. It may report one node, which
//! it owns until it has been silent for [`HELD`]. It owns a rank until it reports that the rank is
//! gone, or falls silent. A source that has no rank of a run may not report the run. Whatever else
//! it sends is refused and counted. With `nodes: many` in the configuration a source may report
//! several nodes.

use super::nodes::MAX_NODES;
use super::refusal::{Refusal, Refused};
use super::run::Run;
use super::scraped::{SCRAPED, is_scraped, yields};
use super::sources::Source;
use super::{Key, MAX_RUNS, Monitor, Record};
use crate::run::Reporters;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Detected, NO_RUN, Scope, clause};
use stepwatch_wire::{Event, Kind};

/// A source owns a node, and a rank, until it has been silent for so long.
const HELD: Span = Span::secs(120);
/// A rank is free when its source, which still reports other things, has not reported it for so
/// long.
pub(super) const RANK_HELD: Span = Span::secs(600);
/// Runs that one source may report at once, and ranks of them: a node runs a few at a time, and a
/// sweep leaves hundreds behind.
const RUNS_OF_SOURCE: usize = 512;
const RANKS_OF_SOURCE: u32 = 4096;
/// Signals of all its runs beyond those that each run has room for.
const SIGNALS_OF_SOURCE: usize = 8192;
/// How often an address may be given to another node, and within how long.
const MOVES: usize = 3;
const MOVES_WITHIN: Span = Span::secs(86_400);
/// A run that was followed for less than `YOUNG` is forgotten to make room when it has been silent
/// for `SILENT`.
const YOUNG: Span = Span::secs(600);
const SILENT: Span = Span::secs(60);
/// The same silence where the run has an open incident that people are notified of only as one of
/// many.
const SILENT_IN_STORM: Span = Span::secs(600);
/// Least time between two searches for a run to forget.
const LOOK_FOR_ROOM: Span = Span::millis(100);

/// The rank that an event is about; a step without one is that of the first.
fn rank_of(event: &Event) -> Option<u32> {
    event.rank.or((event.kind == Kind::Step).then_some(0))
}

/// The address of a source, without what says how it is read.
fn address(source: &str) -> &str {
    source.strip_prefix(SCRAPED).unwrap_or(source)
}

/// `node001:9765` was named by the operator after `node001`, and after `node001.cluster`.
fn is_named_after(source: &str, node: &str) -> bool {
    let source = address(source);
    let host = source.rsplit_once(':').map_or(source, |(host, _)| host);
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    host == node || host.parse::<core::net::IpAddr>().is_err() && short(host) == short(node)
}

impl Source {
    fn is_alive(&self, now: Ts) -> bool {
        now - self.heard_at < HELD
    }

    /// Whether it still reports this node, as it did just before.
    fn is_at(&self, node: &str) -> bool {
        self.answers && !self.anew && self.owns && self.nodes.contains(node)
    }
}

impl Monitor {
    /// Whether a source may report this; a refusal is counted.
    pub(super) fn admits(&mut self, record: Record<'_>, out: &mut Vec<Detected>) -> bool {
        let Err(why) = self.admission(record, out) else { return true };
        if let Some(s) = self.sources.get_mut(record.source) {
            s.refused.count(why);
        }
        false
    }

    /// The refusals of each source that had any.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Refused)> {
        self.sources
            .iter()
            .filter(|(_, s)| s.refused.last().is_some())
            .map(|(name, s)| (name.as_str(), &s.refused))
    }

    fn admission(&mut self, record: Record<'_>, out: &mut Vec<Detected>) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        let s = match self.sources.get_mut(source) {
            Some(s) => s,
            None => self.sources.entry(source.to_owned()).or_default(),
        };
        s.heard_at = now;
        if let Some(node) = event.node.as_deref().filter(|node| !node.is_empty() && !s.is_at(node)) {
            self.claim(record, node)?;
        }
        let Some(name) = event.run.as_deref().filter(|_| !is_of_node(event.kind)) else { return Ok(()) };
        let Some(run) = self.runs.get(name) else {
            // A `bye` begins no run.
            return if event.kind == Kind::Bye { Ok(()) } else { self.may_begin(now, source, out) };
        };
        // Nearly all events are of a rank that the source owns.
        let declares = event.kind == Kind::Hello && event.uid.is_some();
        let is_owners = event.uid.is_none_or(|uid| run.reporters.uid == Some(uid));
        let has_rank = |rank| run.reporters.source_of_rank(rank).is_some_and(|of| of == source);
        let asks_for_room = run.signals.asks_for_room(now, event);
        if declares || !is_owners || !rank_of(event).is_some_and(has_rank) {
            self.may_join(record, name, out)?;
            self.note_reporter(record, name);
        }
        if asks_for_room {
            self.make_room_for_signals(record, name);
        }
        Ok(())
    }

    /// A source names a node: the node is the source's own, or becomes it.
    fn claim(&mut self, record: Record<'_>, node: &str) -> Result<(), Refusal> {
        let Record { now, source, event } = record;
        let Some(s) = self.sources.get_mut(source) else { return Ok(()) };
        if s.many_nodes && self.owners.get(node).is_some_and(|owner| owner == source) {
            return Ok(());
        }
        // A node has several instances that a Prometheus scrapes: ours, DCGM's, node_exporter.
        let owner = self.owners.get(node).filter(|owner| is_scraped(owner) && is_scraped(source));
        if owner.is_some_and(|owner| owner != source) && (s.nodes.is_empty() || s.nodes.contains(node)) {
            self.speaks_for(source, node);
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
            // Two collectors may report the same nodes.
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

    /// The other source that owns the node. After a restart that is the first to report it of those
    /// that reported it before.
    fn owner(&self, now: Ts, node: &str, source: &str) -> Option<&Source> {
        let alive = |name: &str| self.sources.get(name).filter(|s| s.is_alive(now));
        match self.owners.get(node) {
            Some(owner) if owner == source || yields(owner, source) => None,
            Some(owner) => alive(owner),
            None if self.speakers.of_node(node).any(|s| s == source) => None,
            None => self.speakers.of_node(node).filter(|s| !yields(s, source)).find_map(|s| alive(s)),
        }
    }

    /// Finds out how many signals of its own a run may have, where it may want more.
    pub(super) fn make_room_for_signals(&mut self, record: Record<'_>, name: &str) {
        let Record { now, source, event } = record;
        let Some(run) = self.runs.get(name).filter(|run| run.signals.asks_for_room(now, event)) else {
            return;
        };
        let own = run.signals.beyond_usual();
        let room = match self.sources.get(source) {
            Some(s) if !s.many_nodes => {
                let runs = s.runs.iter().filter_map(|run| self.runs.get(run));
                let all: usize = runs.map(|run| run.signals.beyond_usual()).sum();
                own + SIGNALS_OF_SOURCE.saturating_sub(all)
            }
            _ => usize::MAX / 2,
        };
        if let Some(run) = self.runs.get_mut(name) {
            run.signals.has_room(now, room);
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
        let t = &run.reporters;
        let stranger = !s.many_nodes && !t.is_one(source);
        let Some(rank) = rank_of(event) else {
            if stranger && self.is_others(now, source, run) {
                return Err(Refusal::NotOfRun);
            }
            return self.has_room(now, source, name, out);
        };
        match t.source_of_rank(rank) {
            Some(of) if of == source => return Ok(()),
            Some(of) if yields(of, source) => {}
            Some(of) if self.has_rank(now, of, run, rank) => {
                let both = s.many_nodes && self.sources.get(of).is_some_and(|of| of.many_nodes);
                return if both { Ok(()) } else { Err(Refusal::RankTaken) };
            }
            Some(_) => {}
            None if stranger && self.is_others(now, source, run) => {
                let f = &run.state;
                let fits = match f.world {
                    Some(world) => rank < world && event.world.is_none_or(|given| given == world),
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

    /// Makes room for one more run that other sources report too.
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
        let others = run.reporters.ranks().filter(|(_, of)| *of != source && !yields(of, source));
        others.into_iter().any(|(rank, of)| self.has_rank(now, of, run, rank))
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
    pub(super) fn note_reporter(&mut self, record: Record<'_>, name: &str) {
        let Record { source, event, .. } = record;
        let Some(run) = self.runs.get_mut(name) else { return };
        let t = &mut run.reporters;
        match rank_of(event) {
            Some(rank) if t.source_of_rank(rank) == Some(source) || t.is_full() => {}
            Some(rank) => {
                let had = t.source_of_rank(rank).map(str::to_owned);
                t.bind(rank, source);
                for (name, less, more) in [(had.as_deref(), 1, 0), (Some(source), 0, 1)] {
                    if let Some(s) = name.and_then(|name| self.sources.get_mut(name)) {
                        s.ranks = s.ranks.saturating_sub(less) + more;
                    }
                }
            }
            None => t.add(source),
        }
        // A step counts as well, because the `hello` may have been lost or refused. Other events do
        // not: root may send them before the user trains. Once another source was admitted, a late
        // `uid` would take the run from it.
        if matches!(event.kind, Kind::Hello | Kind::Step) && t.uid.is_none() && t.is_only(source) {
            t.uid = event.uid;
        }
        self.feeds(source, name);
    }

    /// The ranks of a run are owned by no source any more.
    pub(super) fn release(&mut self, reporters: &Reporters) {
        for (_, source) in reporters.ranks() {
            if let Some(s) = self.sources.get_mut(source) {
                s.ranks = s.ranks.saturating_sub(1);
            }
        }
    }

    /// Counts the ranks and disputes of each source after a start.
    pub(super) fn count_ranks(&mut self) {
        for run in self.runs.values() {
            for (_, source) in run.reporters.ranks() {
                if let Some(s) = self.sources.get_mut(source) {
                    s.ranks += 1;
                }
            }
            let disputes = run.reporters.disputed_by.as_ref();
            if let Some(s) = disputes.and_then(|source| self.sources.get_mut(source)) {
                s.disputes += 1;
            }
        }
    }

    /// Forgets the run of the source, or any run, that matters least: one that is over, or young
    /// and silent, and about which nobody was notified.
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
            .filter(|run| run.reporters.first() == Some(source))
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
            Some(notified) => !notified && silent >= SILENT_IN_STORM,
        }
    }

    pub(super) fn forget_run(&mut self, now: Ts, name: &str, out: &mut Vec<Detected>) {
        self.settle_dispute(now, name, clause!("the run is forgotten"), out);
        self.leave(name);
        let mut run = self.runs.remove(name);
        if let Some(run) = &mut run {
            self.release(&run.reporters);
            self.keep_accounts(now, run);
            self.keep_setup(now, run);
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
