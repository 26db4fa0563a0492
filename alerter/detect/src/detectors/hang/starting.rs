//! A start that does not come to its first step.
//!
//! It gets `start` since the last sign of progress, and while a phase is declared as long as that
//! gets; a page comes after twice that time. A run of which four starts are known, or four of runs
//! like it, gets a ticket sooner: after twice the 95th percentile of the time from the first
//! `hello` to the first step, and after `start_floor` at least. Not while a part of the start is
//! under way: a load may be the first of its kind. Nor does the page come sooner: a job that is
//! queued anew starts otherwise than one that restarts its ranks.
//!
//! Ranks that are missing while most are there are found sooner, because they need not be waited
//! for: after `start_floor`, since the last rank came. If others wait in the process group, that is
//! a page; else a ticket, because the exporters of the missing ranks may be what is missing. Once a
//! communicator of all ranks is complete, no rank is missing.
//!
//! What exporters see of processes and sockets, and NCCL's RAS of ranks, says who is missing, and
//! not when that is too long (`meeting`).
//!
//! What has never made a step may be no training: a notebook, a server, a program that prepares
//! data. Of a process that is alone, where no start of one such process is known, there is no
//! page. Of processes that exporters found, and that have not spoken, there is none either, and no
//! ticket unless the run has made steps.

use std::collections::{BTreeMap, BTreeSet};

use super::{Config, Due, Hang, Limit, NAMED, Shown};
use crate::run::{RunState, StartPhase, StartUsual, Starting};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Clause, Fact, Observation, Sentence, Suspect, Target, clause};

/// The most ranks, and the most nodes, that a sentence names.
pub(super) const LISTED: usize = 8;
/// Starts that show what is usual: with fewer, the next may well take several times as long.
const ENOUGH: u32 = 4;

pub(super) fn due(c: &Config, f: &RunState, s: &Starting) -> Option<Due> {
    if s.is_only_found() && f.total_steps == 0 {
        return None;
    }
    let own = own(c, f, s);
    let Some(at) = f.lacks_ranks_since(s) else { return Some(own) };
    let at = at.max(f.live_since) + c.start_floor;
    let missed = Limit { at, allowed: c.start_floor, why: "for the other ranks to come" };
    let first = |limit: Limit| if missed.at < limit.at { missed } else { limit };
    let page = if s.waits_in_init() { own.page.map(first) } else { own.page };
    Some(Due { ticket: first(own.ticket), page })
}

/// When it takes too long, whichever ranks are there.
fn own(c: &Config, f: &RunState, s: &Starting) -> Due {
    let since = s.since.max(f.last_sign).max(f.live_since);
    let floor = |usual: &StartUsual| {
        if usual.starts >= ENOUGH && !s.is_in_part() { c.start_floor } else { c.start }
    };
    let usual = s.usual().map(|usual| usual.limit(floor(usual))).filter(|limit| *limit != c.start);
    let mut ticket = match usual {
        Some(allowed) => Limit { at: since + allowed, allowed, why: "by its earlier starts" },
        None => Limit { at: since + c.start, allowed: c.start, why: "to start" },
    };
    if let Some((_, phase, _)) = f.open_phase() {
        let allowed = Hang::phase(c, phase.longest);
        if allowed > ticket.allowed {
            ticket = Limit { at: since + allowed, allowed, why: "for this phase" };
        }
    }
    let longest = ticket.allowed.max(c.start);
    let why = if ticket.allowed < c.start { "to start" } else { ticket.why };
    let allowed = Span::millis(longest.0.saturating_mul(2));
    let is_sure = !is_alone(f, s) && !s.is_only_found();
    let page = is_sure.then_some(Limit { at: since + allowed, allowed, why });
    Due { ticket, page }
}

/// A single process, and none alone is known to have come to a step.
fn is_alone(f: &RunState, s: &Starting) -> bool {
    let is_one = f.world.is_some_and(|world| world <= 1) || s.ranks() <= 1;
    is_one && s.usual().is_none_or(|usual| usual.ranks > 1)
}

pub(super) fn sentence(f: &RunState, s: &Starting, now: Ts, limit: &Limit) -> Sentence {
    let lasts = now - s.since;
    let phase = s.stands_in().map(|(phase, since)| {
        // By the clock of the trainer.
        clause!(", in {phase} since {since}", phase = word(phase), since)
    });
    let first = if s.ranks() > 0 {
        clause!("no first step for {lasts} since its first hello{phase}", lasts, phase)
    } else {
        clause!("no first step for {lasts} since its launcher began{phase}", lasts, phase)
    };
    Sentence::from(first)
        .and_perhaps(attempt_words(f))
        .and_perhaps(missing_words(f))
        .and_perhaps(lost_words(f, s))
        .and_perhaps(late_words(f, s))
        .and_perhaps(s.usual().map(usual_words))
        .and(clause!("{allowed} was allowed {basis}", allowed = limit.allowed, basis = limit.why))
}

/// Which attempt it is, as the page of the run counts them.
fn attempt_words(f: &RunState) -> Option<Clause> {
    let last = f.last_step?;
    Some(clause!(
        "it is attempt {attempt}, after one that came to step {step}",
        attempt = f.attempt.saturating_add(2),
        step = Fact::Step(last)
    ))
}

fn usual_words(usual: &StartUsual) -> Clause {
    let longest = Span::millis(usual.longest_ms);
    match usual.starts {
        1 => clause!("the start before took {longest}", longest),
        starts => clause!(
            "{starts} starts before took {longest} at most, and half of them {median} at most",
            starts,
            longest,
            median = Span::millis(usual.median_ms)
        ),
    }
}

fn missing_words(f: &RunState) -> Option<Clause> {
    let ranks = f.missing_ranks();
    let world = f.world.filter(|_| !ranks.is_empty())?;
    Some(clause!(
        "no hello came from {count} of {world} ranks: {ranks}{more}",
        count = ranks.len(),
        world,
        ranks = listed(&ranks),
        more = more(ranks.len()),
    ))
}

/// Ranks that may be there, on nodes that cannot be heard.
fn lost_words(f: &RunState, s: &Starting) -> Option<Clause> {
    let mut nodes: Vec<String> = Vec::new();
    let mut count = 0_usize;
    for (_, node) in f.ranks_of_lost(s) {
        count += 1;
        if nodes.len() < LISTED && nodes.iter().all(|had| had != node) {
            nodes.push(node.to_owned());
        }
    }
    (count > 0).then(|| {
        clause!("{count} ranks without a hello were on nodes whose exporters are lost: {nodes}", count, nodes)
    })
}

fn late(f: &RunState, s: &Starting) -> Vec<u32> {
    s.late_for_init(|rank| f.ranks.get(&rank)?.node.clone())
}

fn late_words(f: &RunState, s: &Starting) -> Option<Clause> {
    let late = late(f, s);
    let (ranks, more) = (listed(&late), more(late.len()));
    (!late.is_empty()).then(|| clause!("the process group waits for ranks {ranks}{more}", ranks, more))
}

pub(super) fn listed(ranks: &[u32]) -> Fact {
    Fact::Counts(ranks.iter().take(LISTED).map(|rank| i64::from(*rank)).collect())
}

pub(super) fn more(ranks: usize) -> Option<Clause> {
    let more = ranks.saturating_sub(LISTED);
    (more > 0).then(|| clause!(" and {more} more", more))
}

fn word(phase: StartPhase) -> &'static str {
    match phase {
        StartPhase::Queue => "the queue",
        StartPhase::Rendezvous => "the rendezvous of the launchers",
        StartPhase::Image => "the image",
        StartPhase::Launch => "the launch of the processes",
        StartPhase::UntilHello => "what comes before its hello",
        StartPhase::Load => "the load of the checkpoint",
        StartPhase::Compile => "the compilation",
        StartPhase::Init => "the process group",
        StartPhase::FirstStep => "the first step",
        StartPhase::Unknown => "an unknown part",
    }
}

/// Ranks without a process and nodes that do not reach the master; then the missing ranks, by node
/// where one lacks all that it had; else those that the process group waits for. Where a rank was
/// in the attempt before says nothing, unless it has a process there, another rank said hello from
/// that node, or the job still `holds` it.
pub(crate) fn suspects(
    now: Ts,
    f: &RunState,
    s: &Starting,
    shown: &Shown<'_>,
    holds: impl Fn(&str) -> bool,
) -> Vec<Suspect> {
    let (there, here) = (s.ranks() as u64, f.nodes_in_start(s));
    let absent = shown.absent_ranks(s);
    let ranks: Vec<u32> = f.missing_ranks().into_iter().filter(|rank| !absent.contains(rank)).collect();
    let node_of = |rank: u32| {
        let before = || {
            let node = f.ranks.get(&rank)?.node.as_deref()?;
            (here.contains_key(node) || holds(node)).then_some(node)
        };
        shown.process_on(rank).or_else(before)
    };
    let why = |ranks: u64, with_process: u64| {
        if ranks == with_process {
            Observation::ProcessSilent { ranks, there }
        } else {
            Observation::RanksMissing { missing: ranks, there }
        }
    };
    // By node, the ranks that it lacks, and how many of them have a process there.
    let mut by_node: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for rank in &ranks {
        let Some(node) = node_of(*rank).filter(|node| !here.contains_key(node)) else { continue };
        let (missing, with_process) = by_node.entry(node).or_default();
        *missing += 1;
        *with_process += u64::from(shown.process_on(*rank).is_some());
    }
    by_node.retain(|_, (missing, _)| *missing > 1);
    let nodes = by_node.iter().map(|(node, (missing, with_process))| {
        Suspect::new(Target::node(*node), why(*missing, *with_process))
    });
    let single = ranks.iter().filter_map(|rank| {
        let process = shown.process_on(*rank);
        let target = match node_of(*rank) {
            Some(node) if by_node.contains_key(node) => return None,
            Some(node) if process.is_some() => Target::rank(*rank, Some(node)),
            Some(_) => f.rank_target(*rank),
            None => Target::rank(*rank, None),
        };
        Some(Suspect::new(target, why(1, u64::from(process.is_some()))))
    });
    let behind = late(f, s);
    let others = s.ranks().saturating_sub(behind.len()) as u64;
    let late =
        behind.iter().map(|rank| Suspect::new(f.rank_target(*rank), Observation::LateInInit { others }));
    let seen = shown.suspects(now, s).into_iter();
    let all = seen.chain(nodes).chain(single).chain(shown.unheard_suspects(f, s)).chain(late);
    let mut known = BTreeSet::new();
    all.filter(|one| known.insert(one.target.clone())).take(NAMED).collect()
}
