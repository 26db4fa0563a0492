//! A start that does not come to its first step.
//!
//! A run that has started before, or others of its configuration, is compared with those starts: a
//! ticket after twice the 95th percentile of the time from the first `hello` to the first step, and
//! after `start_floor` at least. Of a run without such a past nobody knows how long it loads: it
//! gets `start` since the last sign of progress. The page comes after twice that time.
//!
//! Ranks that are missing while most are there are found sooner, because they need not be waited
//! for: after `start_floor`, since half of the ranks were there. If the others wait for them in the
//! process group, that is a page; else a ticket, because their exporters may be what is missing,
//! and a page when the ticket of the start is due. Once a rank has completed the process group, no
//! rank is missing.

use std::collections::BTreeMap;

use super::{Config, Due, NAMED};
use crate::run::{MAX_RANKS, RunState, StartPhase, Starting};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Clause, Fact, Observation, Sentence, Suspect, Target, clause};

/// The most ranks that a sentence names.
const LISTED: usize = 8;

pub(super) fn due(c: &Config, f: &RunState, s: &Starting) -> Due {
    let usual = f.attempts.usual_next_start();
    let (since, allowed, why) = match &usual {
        Some(usual) => (s.since, usual.limit(c.start_floor), "by its earlier starts"),
        None => (s.since.max(f.last_sign), c.start, "to start"),
    };
    let ticket = since.max(f.live_since) + allowed;
    let own = Due { ticket, page: ticket + allowed, allowed, why };
    let Some(at) = missing_since(f, s) else { return own };
    let missed = at.max(f.live_since) + c.start_floor;
    if missed >= ticket {
        return Due { page: if s.waits_in_init() { ticket } else { own.page }, ..own };
    }
    let page = if s.waits_in_init() { missed } else { ticket };
    Due { ticket: missed, page, allowed: c.start_floor, why: "for ranks to come" }
}

/// Since when most ranks are there and some are not.
fn missing_since(f: &RunState, s: &Starting) -> Option<Ts> {
    let at = s.majority_at.filter(|_| !s.has_met() && f.lost.is_empty())?;
    f.world.is_some_and(|world| s.lacks(world, f.attempts.usual_next_start().as_ref())).then_some(at)
}

/// The ranks that have not said hello. Some trainers report from some ranks only: then those that
/// never reported are not expected.
fn missing(f: &RunState, s: &Starting) -> Vec<u32> {
    let Some(world) = f.world.filter(|_| missing_since(f, s).is_some()) else { return Vec::new() };
    let usual = f.attempts.usual_next_start();
    let most = u32::try_from(MAX_RANKS).unwrap_or(u32::MAX);
    let is_expected =
        |rank: &u32| usual.as_ref().is_none_or(|usual| usual.ranks >= world) || f.ranks.contains_key(rank);
    s.without_hello((0..world.min(most)).filter(is_expected)).collect()
}

pub(super) fn sentence(f: &RunState, s: &Starting, now: Ts, due: &Due) -> Sentence {
    let lasts = now - s.since;
    let phase = s.stands_in().map(|(phase, since)| {
        // By the clock of the trainer.
        clause!(", in {phase} since {since}", phase = word(phase), since)
    });
    let usual = f.attempts.usual_next_start().map(|usual| {
        let took = Span::millis(usual.greeted_ms);
        match usual.starts {
            1 => clause!("the start before took {took}", took),
            starts => clause!("95 % of {starts} starts before took {took} at most", starts, took),
        }
    });
    Sentence::from(clause!("no first step for {lasts} since its first hello{phase}", lasts, phase))
        .and_perhaps(missing_words(f, s))
        .and_perhaps(behind_words(s))
        .and_perhaps(usual)
        .and(clause!("{allowed} was allowed {basis}", allowed = due.allowed, basis = due.why))
}

fn missing_words(f: &RunState, s: &Starting) -> Option<Clause> {
    let ranks = missing(f, s);
    let world = f.world.filter(|_| !ranks.is_empty())?;
    Some(clause!(
        "no hello came from {count} of {world} ranks: {ranks}{more}",
        count = ranks.len(),
        world,
        ranks = listed(&ranks),
        more = more(ranks.len()),
    ))
}

fn behind_words(s: &Starting) -> Option<Clause> {
    let late: Vec<u32> = s.behind_in_init().into_iter().collect();
    if late.is_empty() {
        return None;
    }
    let (ranks, more) = (listed(&late), more(late.len()));
    Some(if s.has_met() {
        clause!("the process group is not complete on ranks {ranks}{more}", ranks, more)
    } else {
        clause!("the process group waits for ranks {ranks}{more}", ranks, more)
    })
}

fn listed(ranks: &[u32]) -> Fact {
    Fact::Counts(ranks.iter().take(LISTED).map(|rank| i64::from(*rank)).collect())
}

fn more(ranks: usize) -> Option<Clause> {
    let more = ranks.saturating_sub(LISTED);
    (more > 0).then(|| clause!(" and {more} more", more))
}

fn word(phase: StartPhase) -> &'static str {
    match phase {
        StartPhase::Queue => "the queue",
        StartPhase::Rendezvous => "the rendezvous of the launchers",
        StartPhase::Launch => "the launch of the processes",
        StartPhase::Imports => "the imports",
        StartPhase::Load => "the load of the checkpoint",
        StartPhase::Compile => "the compilation",
        StartPhase::Init => "the process group",
        StartPhase::FirstStep => "the first step",
        StartPhase::Unknown => "an unknown part",
    }
}

/// The missing ranks, by node where one lacks all that it had; else those that the process group
/// waits for.
pub(super) fn suspects(f: &RunState, s: &Starting) -> Vec<Suspect> {
    let ranks = missing(f, s);
    let there = s.ranks() as u64;
    let mut by_node: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let node_of = |rank: u32| f.ranks.get(&rank).and_then(|r| r.node.as_deref());
    for rank in &ranks {
        if let Some(node) = node_of(*rank) {
            by_node.entry(node).or_default().push(*rank);
        }
    }
    let mut had: BTreeMap<&str, usize> = BTreeMap::new();
    for node in f.ranks.values().filter_map(|r| r.node.as_deref()) {
        *had.entry(node).or_default() += 1;
    }
    let whole: BTreeMap<&str, usize> = by_node
        .iter()
        .filter(|(node, missing)| missing.len() > 1 && had.get(*node) == Some(&missing.len()))
        .map(|(node, missing)| (*node, missing.len()))
        .collect();
    let nodes = whole.iter().map(|(node, missing)| {
        let why = Observation::RanksMissing { missing: *missing as u64, there };
        Suspect::new(Target::node(*node), why)
    });
    let single = ranks.iter().filter(|rank| node_of(**rank).is_none_or(|node| !whole.contains_key(node)));
    let single = single
        .map(|rank| Suspect::new(f.rank_target(*rank), Observation::RanksMissing { missing: 1, there }));
    let behind = s.behind_in_init();
    let late = behind.iter().map(|rank| {
        let (begun, others) = (s.has_met(), s.ranks().saturating_sub(behind.len()) as u64);
        Suspect::new(f.rank_target(*rank), Observation::LateInInit { begun, others })
    });
    nodes.chain(single).chain(late).take(NAMED).collect()
}
