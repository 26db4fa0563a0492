//! Texts about slow ranks.

use std::collections::BTreeSet;

use stepwatch_model::Unit;

use super::picture::{FAR, Rotation};
use crate::run::RunState;
use crate::run::rank_compute_time::{Group, Member, RankComputeTimes};
use stepwatch_model::{Clause, Fact, Observation, Sentence, Suspect, Target, clause};

/// Pauses of a garbage collector: the spread of their lengths as a share of the time lost, at most;
/// their distance from ranks without one in sigmas, at least (6·10⁻¹⁶ of a normal distribution lies
/// above 8); and the share of the loss that the trainer itself reports as `gc`. The shares are
/// engineering limits.
const ALIKE: f64 = 0.35;
const APART: f64 = 8.0;
const CALLED_GC: f64 = 0.5;
/// Correlation from which the time of a rank is that of its work: an engineering limit, 36 % of the
/// variance.
const FOLLOWS: f64 = 0.6;
const TOGETHER: &str = "collect on all of them at the same steps";
/// The most ranks named one by one.
const NAMED: usize = 3;

/// The suspects, the slowest first.
pub(super) fn slowest(f: &RunState, named: &BTreeSet<u32>) -> Vec<Suspect> {
    ranked(f, named).take(NAMED).map(|(rank, m)| suspect(f, rank, m)).collect()
}

pub(super) fn no_host(why: Observation) -> Suspect {
    Suspect::new(Target::Fleet(Unit::Ranks), why)
}

/// The ranks, the slowest first.
fn ranked<'a>(f: &'a RunState, named: &BTreeSet<u32>) -> impl Iterator<Item = (u32, &'a Member)> {
    let mut all: Vec<_> =
        named.iter().filter_map(|rank| Some((*rank, f.compute_times.members.get(rank)?))).collect();
    all.sort_by(|a, b| b.1.excess.total_cmp(&a.1.excess).then(a.0.cmp(&b.0)));
    all.into_iter()
}

pub(super) fn worst<'a>(f: &'a RunState, named: &BTreeSet<u32>) -> Option<(u32, &'a Member)> {
    ranked(f, named).next()
}

fn peers(f: &RunState, m: &Member) -> Clause {
    let others = f.compute_times.groups.get(&m.stage).map_or(0, |g| g.ranks.saturating_sub(1));
    let of = (f.compute_times.groups.len() > 1).then(|| clause!(" of stage {stage}", stage = m.stage));
    match others {
        1 => clause!("the other rank{of}", of),
        _ => clause!("the other {others} ranks{of}", others, of),
    }
}

/// A rank and its deviation, for a list of suspects.
pub(crate) fn suspect(f: &RunState, rank: u32, m: &Member) -> Suspect {
    let others = f.compute_times.groups.get(&m.stage).map_or(0, |g| g.ranks.saturating_sub(1));
    let seen = Observation::ComputesLonger {
        value: f64::from(m.excess).exp().into(),
        others,
        stage: (f.compute_times.groups.len() > 1).then_some(m.stage),
        since_step: m.onset(),
    };
    Suspect::new(f.rank_target(rank), seen)
}

pub(super) fn who(f: &RunState, named: &BTreeSet<u32>) -> Sentence {
    let Some((rank, m)) = worst(f, named) else { return Sentence::default() };
    let ratio = f64::from(m.excess).exp();
    let secs = f.compute_times.groups.get(&m.stage).map_or(0.0, |g| g.secs);
    let mut why = Sentence::from(clause!(
        "{rank} computes {times} times as long as {peers}: {now_seconds} s a step against {usual_seconds} s, and every step \
         waits for it",
        rank = f.rank_target(rank),
        times = ratio,
        peers = peers(f, m),
        now_seconds = ratio * secs,
        usual_seconds = secs,
    ));
    if named.len() > 1 {
        let others = ranked(f, named).skip(1).take(NAMED).map(|(rank, _)| f.rank_target(rank)).collect();
        let (more, others) = (named.len() - 1, Fact::Targets(others));
        why.add(clause!("{more} more are slow: {others}", more, others));
    }
    why
}

pub(super) fn split(s: &RankComputeTimes, named: &BTreeSet<u32>) -> Clause {
    clause!(
        "{slow} of {ranks} ranks compute longer than the others in every step: the work is not evenly split, or they are of \
         another kind",
        slow = named.len(),
        ranks = s.members.len(),
    )
}

impl Rotation<'_> {
    pub(super) fn words(&self, s: &RankComputeTimes) -> Sentence {
        let stage = self.stage.filter(|_| s.groups.len() > 1);
        let of = stage.map(|stage| clause!(" of stage {stage}", stage));
        let (reason, remedy) = reason(self.group);
        Sentence::from(clause!(
            "each step waits {wait_seconds} s ({wait} % of its compute time) for its slowest rank{of}, which is another one \
             each time: {reason}",
            wait_seconds = self.lost * self.group.secs,
            wait = Fact::percent(self.lost, 0),
            of,
            reason,
        ))
        .and_perhaps(remedy.map(|remedy| clause!("{remedy}", remedy)))
    }
}

/// The reason for the pattern, and what helps.
fn reason(g: &Group) -> (&'static str, Option<&'static str>) {
    let (lost, spread) = g.lost.location_scale();
    let alike = spread < ALIKE * lost && g.sigmas.median() > APART;
    if g.gc.median() > CALLED_GC {
        ("garbage collection that the ranks do not do at the same time", Some(TOGETHER))
    } else if g.follows_load.median() > FOLLOWS || g.sigmas.median() < FAR.into() {
        ("the work differs, as with sequences of uneven length", Some("balance the lengths over the ranks"))
    } else if alike {
        let pauses = "pauses of about the same length on ranks that are otherwise alike, as garbage collection makes that the \
                      ranks do not do at the same time";
        (pauses, Some(TOGETHER))
    } else {
        ("look at the work and at pauses of the process, not at a host", None)
    }
}
