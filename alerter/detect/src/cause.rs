//! Root causes of a fault of a run: the suspects, their order, and the evidence against each.
//!
//! Evidence is a difference between a place and its peers, or a report about a place: a rank that
//! computes longer than the others of its stage, a GPU or port whose readings differ from those of
//! the other nodes, an XID, a link, a mount, a setup that differs, a rank that died first or
//! stopped early, steps that are slower while a checkpoint is written. All pieces are weighed
//! alike:
//!
//! ```text
//! score = strength + 1·[began in the ten minutes before] + 1/(place in the order of onsets)
//!       + 2·(1 − share of nodes that have it) + prior(kind)
//! ```
//!
//! `strength` is 1 for a reported fact, and ln(1 + S/h) for a statistic of value S with the bound
//! h. Pieces of one place add up: the best counts whole, the best of each further sort a quarter;
//! ten ranks that died together are one sort. A piece that can neither stop nor slow a run (a prior
//! below 1: a clock, a full disk, a management link) has no place in the order of onsets, and does
//! not explain the fault. A condition of many nodes makes one suspect: what these nodes share.
//! Where ranks or devices were compared and none stands out, the finding says so: then the cause is
//! the data, an evaluation or the software.
//!
//! This is pure: the same facts always give the same suspects.

mod evidence;
mod need;
mod saves;
mod setup;
mod standstill;

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_model::{Num, Place, SHARED_NODES};

use crate::node::NodeState;
use crate::run::RunState;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Cause, Finding, Kind, Suspect};

use evidence::{Alike, Piece, Sort};
pub(crate) use need::{needs, storage_hangs};
pub(crate) use saves::together;
pub(crate) use setup::{began_with_attempt, name_groups, name_since_good, suspects_of};
pub(crate) use standstill::{all_wait, look as standstill, most_compute};

/// The most suspects named.
const NAMED: usize = 5;
/// The most pieces of evidence reported for a place.
const PIECES: usize = 3;
/// A piece that began within `BEFORE` before the onset may have caused it, or, since neither time
/// is exact, within `AFTER` after it.
const BEFORE: Span = Span::secs(600);
const AFTER: Span = Span::secs(60);
/// Suspects with a lower score are left out: 3 is the score of a reported fact that was the first
/// to begin, within the ten minutes before, but that all nodes have and that has no prior.
const WORTH: f64 = 3.0;
/// Weight of the best piece of every sort after the best of all.
const FURTHER: f64 = 0.25;
/// A piece with a smaller prior may be reported, but does not explain a fault.
const EXPLAINS: f64 = 1.0;
/// Links of two nodes that fail within this time of each other share a switch.
const FABRIC: Span = Span::secs(60);
/// Weight of an incident's own detector: it looked at the run itself.
const OWN: f64 = 3.0;

/// A place and all evidence against it.
#[derive(Debug, Default)]
struct Case {
    score: f64,
    /// A piece of it began about when the fault did.
    recent: bool,
    pieces: Vec<(f64, Sort, Suspect)>,
}

/// The suspects of a finding about a run, the first one first.
pub(crate) fn rank<'a>(
    v: &Finding,
    f: &RunState,
    nodes: impl Iterator<Item = &'a NodeState>,
) -> Vec<Suspect> {
    if v.kind == Kind::Straggler && v.suspects.iter().any(|s| s.target.is_nobody()) {
        return v.suspects.clone(); // it compared all ranks, and none is to blame
    }
    let onset = onset(v, f);
    let mut pieces = evidence::of_run(v, f);
    let nodes: Vec<&NodeState> = nodes.collect();
    pieces.extend(saves::pieces(v, f, &nodes, onset));
    // The GPU of a rank that is dead is idle, and that is known already.
    if v.kind == Kind::Hang && f.deaths.is_empty() {
        pieces.extend(standstill(v.ts, onset, nodes.iter().copied()).pieces);
    }
    nodes.iter().for_each(|node| evidence::of_node(node, v, f, onset, &mut pieces));
    let n = f.nodes.len().max(nodes.len()).max(1);
    let pieces = share(pieces, onset, n);
    let cases = weigh(pieces, onset, n);
    let mut ranked: Vec<(Place, Case)> = cases.into_iter().collect();
    ranked.sort_by(|a, b| b.1.score.total_cmp(&a.1.score).then_with(|| a.0.key().cmp(&b.0.key())));
    let worth = ranked.iter().take_while(|(_, c)| c.score >= WORTH).count();
    let little = ranked.split_off(worth).into_iter().next();
    let recent = ranked.iter().any(|(_, case)| case.recent);
    let mut suspects: Vec<Suspect> =
        ranked.into_iter().take(NAMED).filter_map(|(_, case)| case.suspect()).collect();
    let (nobody, named): (Vec<&Suspect>, Vec<&Suspect>) =
        v.suspects.iter().partition(|s| s.target.is_nobody());
    for s in named {
        let known = suspects.iter().any(|had| had.target.place() == s.target.place());
        if !known && suspects.len() < NAMED {
            suspects.push(s.clone());
        }
    }
    // A difference that is not recent does not explain a change.
    if suspects.is_empty() || !recent {
        let whole = nobody.into_iter().next().cloned().or_else(|| evidence::whole_fleet(v, f));
        suspects.splice(0..0, whole);
    }
    // If nothing else is known, weak evidence is still reported.
    if suspects.is_empty() {
        suspects.extend(little.and_then(|(_, case)| case.suspect()));
    }
    suspects
}

/// When the fault began, by our clock, as nearly as is known.
fn onset(v: &Finding, f: &RunState) -> Ts {
    if v.kind.cause() == Cause::Progress {
        return f.last_progress;
    }
    evidence::when(f, v.start_step).min(v.ts)
}

/// Merges evidence that many nodes have in common into one piece.
fn share(pieces: Vec<Piece>, onset: Ts, nodes: usize) -> Vec<Piece> {
    let mut holders: BTreeMap<&Alike, Vec<&Piece>> = BTreeMap::new();
    let recent = |p: &&Piece| p.explains() && p.began >= Ts(onset.0.saturating_sub(BEFORE.0));
    for p in pieces.iter().filter(|p| p.sort.is_shared()).filter(recent) {
        holders.entry(&p.alike).or_default().push(p);
    }
    let common: BTreeMap<Alike, Piece> = holders
        .iter()
        .filter(|(alike, held)| is_common(alike, held, nodes))
        .filter_map(|(alike, held)| {
            let places: BTreeSet<&Place> = held.iter().map(|p| &p.place).collect();
            Some(((*alike).clone(), evidence::common(alike, places.len(), held, nodes)?))
        })
        .collect();
    let mut left: Vec<Piece> = pieces.into_iter().filter(|p| !common.contains_key(&p.alike)).collect();
    left.extend(common.into_values());
    left
}

/// Whether enough places have it that the cause is what they share.
fn is_common(alike: &Alike, held: &[&Piece], nodes: usize) -> bool {
    let places = |held: &[&Piece]| held.iter().map(|p| &p.place).collect::<BTreeSet<_>>().len();
    if !matches!(alike, Alike::Link { .. }) {
        // In a run of two nodes, two that are slowed down at once are all; in a larger run, they
        // are not.
        let all = matches!(alike, Alike::Slowed(_)) && nodes == 2 && places(held) == 2;
        return all || places(held) >= SHARED_NODES;
    }
    let mut held = held.to_vec();
    held.sort_by_key(|p| p.began);
    held.windows(2).any(|pair| pair[1].began - pair[0].began <= FABRIC && places(pair) == 2)
}

fn weigh(mut pieces: Vec<Piece>, onset: Ts, nodes: usize) -> BTreeMap<Place, Case> {
    pieces.sort_by_key(|p| p.began);
    let mut holders: BTreeMap<&Alike, BTreeSet<&Place>> = BTreeMap::new();
    for p in &pieces {
        holders.entry(&p.alike).or_default().insert(&p.place);
    }
    let held = |p: &Piece| holders.get(&p.alike).map_or(1, BTreeSet::len);
    let shares: Vec<f64> = pieces.iter().map(|p| held(p) as f64 / nodes.max(2) as f64).collect();
    let mut cases: BTreeMap<Place, Case> = BTreeMap::new();
    // Pieces that began at the same moment have the same place in the order.
    let (mut order, mut last) = (0.0, None);
    for (p, share) in pieces.into_iter().zip(shares) {
        let near = p.began <= onset + AFTER && p.began >= Ts(onset.0.saturating_sub(BEFORE.0));
        let recent = near && p.explains();
        if recent && last.replace(p.began) != Some(p.began) {
            order += 1.0;
        }
        let early = if recent { 1.0 + 1.0 / order } else { 0.0 };
        let specific = if p.sort == Sort::Common { 2.0 } else { 2.0 * (1.0 - share.min(1.0)) };
        let score = p.strength + early + specific + p.prior;
        let case = cases.entry(p.place).or_default();
        case.recent |= recent;
        let (since, strength) = (Some(p.began), Some(Num(p.strength)));
        case.pieces.push((score, p.sort, p.suspect.weighed(since, strength)));
    }
    for case in cases.values_mut() {
        case.pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut sorts, mut further) = (Vec::new(), 0.0);
        for (score, sort, _) in &case.pieces {
            if sorts.is_empty() {
                case.score = *score;
            } else if !sorts.contains(sort) {
                further += FURTHER * score;
            }
            sorts.push(*sort);
        }
        case.score += further.min(OWN);
    }
    cases
}

impl Case {
    /// The best piece names the place; the others are listed after it.
    fn suspect(self) -> Option<Suspect> {
        let mut pieces = self.pieces.into_iter().take(PIECES).map(|(_, _, suspect)| suspect);
        let mut best = pieces.next()?;
        pieces.for_each(|further| best.join(further));
        Some(best.scored(self.score))
    }
}
