//! The pieces of evidence: which facts count against which place.

use std::collections::BTreeMap;

use stepwatch_model::{Course, Place, Slowed, Storage, Unit};
use stepwatch_wire::conditions::{Domain, NodeCondition};

use super::OWN;
use crate::detectors::{peer, rank_loss, straggler};
use crate::node::peer_metrics::Outlier;
use crate::node::words::{self, THROTTLED};
use crate::node::{Condition, Key, Level, NodeState, Topic};
use crate::run::RunState;
use crate::run::failures::{Failure, failures};
use stepwatch_model::time::Ts;
use stepwatch_model::{Cause, Finding, Kind, Observation, Suspect, Target};

/// A statistic is evidence from this share of its bound on.
const HALF: f64 = 0.5;
/// The same for readings of devices: a single reading at the cap brings the statistic to 4/24 of
/// its bound, so that the first reading that is far enough from its peers to matter is evidence.
/// Counters are read only twice a minute.
const ONCE: f64 = 0.15;
/// Prior of a node whose exporter does not answer: this alone does not explain a fault.
const UNHEARD: f64 = 0.5;
/// Steps in which a rank's own loss is out of line that are no accident: an engineering limit,
/// since chance alone does not make one such step (see `rank_loss`).
const AGAIN: u32 = 3;
/// Waiting for data counts from this share of a step on, and from this many times the usual:
/// engineering limits. The share is the `rise` of the detector.
const WAITS: f64 = 0.05;
const ROSE: f64 = 1.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// From the finding of the run's own detector.
    Own,
    Rank,
    Reading,
    Condition,
    Setup,
    /// Evidence that many nodes have in common.
    Common,
    Phase,
}

/// Identifies pieces of two places as the same thing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alike {
    /// Evidence of a single place.
    Own(Target),
    Lost(String),
    Quiet(String),
    Behind(Place),
    Slow(Place),
    Stray(Target),
    Waits(Place),
    Standstill(String),
    /// The fingerprint of the setup.
    Setup(String),
    Phase(Target),
    /// Links of a medium that are away, or in a state.
    Link {
        medium: String,
        aspect: String,
    },
    /// GPUs that their hardware slows down for want of power, or for heat.
    Slowed(Slowed),
    Condition {
        name: String,
        number: i64,
    },
    Reading(&'static str),
}

#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) sort: Sort,
    /// Node, or rank where its node is not known, or what the nodes share.
    pub(crate) place: Place,
    pub(crate) alike: Alike,
    pub(crate) began: Ts,
    pub(crate) strength: f64,
    pub(crate) prior: f64,
    pub(crate) suspect: Suspect,
}

impl Piece {
    pub(super) fn explains(&self) -> bool {
        self.prior >= super::EXPLAINS
    }
}

impl Sort {
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::Reading | Self::Condition)
    }
}

/// When the run was at a step, by our clock.
pub(super) fn when(f: &RunState, step: i64) -> Ts {
    let (Some(last), Some(pace)) = (f.last_step, f.pace.quantile(0.5)) else { return f.last_progress };
    let back = last.saturating_sub(step).max(0) as f64 / f.interval.max(1) as f64;
    Ts(f.last_progress.0.saturating_sub((back * pace * 1000.0).min(1e15) as i64))
}

/// The evidence from the run itself.
pub(super) fn of_run(v: &Finding, f: &RunState) -> Vec<Piece> {
    let mut pieces = own(v, f);
    stragglers(v.kind.cause(), f, &mut pieces);
    loaders(v.kind.cause(), f, &mut pieces);
    setups(v.kind.cause(), f, &mut pieces);
    phases(v, f, &mut pieces);
    strays(v, f, &mut pieces);
    if v.kind.cause() == Cause::Progress {
        out_of_reach(f, &mut pieces);
        quiet(f, &mut pieces);
        // Before the first step, the last steps are those of the attempt before.
        if f.run_starts().is_none() {
            behind(f, &mut pieces);
        }
    }
    pieces
}

/// The suspects that the detector itself names, with its evidence and in its order.
fn own(v: &Finding, f: &RunState) -> Vec<Piece> {
    let mut named: Vec<Suspect> = v.suspects.iter().filter(|s| !s.target.is_nobody()).cloned().collect();
    if v.kind == Kind::RankLoss {
        named.clear(); // what it saw is weighed as evidence of the run
    }
    let failed = failures(f);
    if v.kind.cause() == Cause::Progress {
        let first = failed.first().filter(|d| named.iter().all(|s| s.target.place() != d.place.place()));
        named.extend(first.cloned().map(Failure::died));
    }
    let onset = super::onset(v, f);
    let died = |what: &Target| failed.iter().find(|d| d.place == *what).map(|d| d.at.max(onset));
    let course = |s: &Suspect| s.observations().map(Observation::course).max().unwrap_or(Course::Broke);
    let piece = |(i, suspect): (usize, Suspect)| Piece {
        sort: Sort::Own,
        place: suspect.target.place(),
        alike: Alike::Own(suspect.target.clone()),
        began: died(&suspect.target).unwrap_or(onset),
        strength: 1.0,
        prior: OWN - 0.2 * i as f64 - f64::from(course(&suspect).rank()),
        suspect,
    };
    named.into_iter().enumerate().map(piece).collect()
}

/// Nodes whose exporter stopped answering about when the run stopped: the host is gone, and the
/// ranks of the other nodes follow. An exporter that went away while the run went on is no cause.
fn out_of_reach(f: &RunState, pieces: &mut Vec<Piece>) {
    let dark = f.dark();
    for (node, lost) in f.lost_nodes().filter(|(node, _)| f.nodes.contains_key(*node)) {
        let with_it = dark.iter().any(|(dark, _)| *dark == node);
        let why = Observation::ExporterSilent { since: lost.since, reason: lost.reason.clone() };
        pieces.push(Piece {
            sort: Sort::Own,
            place: Place::Node(node.to_owned()),
            alike: Alike::Lost(node.to_owned()),
            began: if with_it { lost.since.min(f.last_progress) } else { lost.since },
            strength: 1.0,
            prior: if with_it { OWN } else { UNHEARD },
            suspect: Suspect::new(Target::node(node), why),
        });
    }
}

/// The few nodes that reported nothing since ranks of all other nodes began to die: their own ranks
/// had no time to report an error.
fn quiet(f: &RunState, pieces: &mut Vec<Piece>) {
    // Who died before says nothing of a start that goes on, and may not be of its nodes.
    if f.run_starts().is_some() {
        return;
    }
    let Some(first) = f.deaths.values().map(|d| d.at).min() else { return };
    let mut seen: BTreeMap<&str, Ts> = BTreeMap::new();
    for (_, r) in f.followed() {
        if let Some(node) = &r.node {
            let at = seen.entry(node).or_default();
            *at = (*at).max(r.last_seen);
        }
    }
    let silent: Vec<&str> = seen.iter().filter(|(_, at)| **at < first).map(|(node, _)| *node).collect();
    if silent.len() * 4 > seen.len() {
        return;
    }
    for node in silent.into_iter().take(super::NAMED) {
        pieces.push(Piece {
            sort: Sort::Own,
            place: Place::Node(node.to_owned()),
            alike: Alike::Quiet(node.to_owned()),
            began: f.last_progress,
            strength: 1.0,
            prior: 2.5,
            suspect: Suspect::new(Target::node(node), Observation::RanksSilent),
        });
    }
}

/// The few ranks that did not make the last step that others made.
fn behind(f: &RunState, pieces: &mut Vec<Piece>) {
    let steps = || f.followed().filter(|(_, r)| !r.done).filter_map(|(n, r)| Some((n, r.last_step?)));
    let Some(high) = steps().map(|s| s.1).max() else { return };
    let late: Vec<(u32, i64)> = steps().filter(|s| s.1 < high).collect();
    if late.len() * 4 > steps().count() {
        return;
    }
    for (rank, step) in late.into_iter().take(super::NAMED) {
        let what = f.rank_target(rank);
        pieces.push(Piece {
            sort: Sort::Own,
            place: what.place(),
            alike: Alike::Behind(what.place()),
            began: f.last_progress,
            strength: 1.0,
            prior: 1.5,
            suspect: Suspect::new(what, Observation::StoppedEarly { step, others: high }),
        });
    }
}

fn stragglers(cause: Cause, f: &RunState, pieces: &mut Vec<Piece>) {
    if !matches!(cause, Cause::Speed | Cause::Progress) {
        return;
    }
    for (rank, m) in f.compute_times.members.iter().filter(|(_, m)| m.drift.level() >= HALF) {
        let suspect = straggler::suspect(f, *rank, m);
        pieces.push(Piece {
            sort: Sort::Rank,
            place: suspect.target.place(),
            alike: Alike::Slow(suspect.target.place()),
            began: when(f, m.drift.onset()),
            strength: m.drift.level().ln_1p(),
            prior: 2.5,
            suspect,
        });
    }
}

/// The rank whose own loss was out of line first: no number where the others had one, or far out
/// again and again. Far out once is a batch more often than a GPU.
fn strays(v: &Finding, f: &RunState, pieces: &mut Vec<Piece>) {
    if v.kind.cause() != Cause::Numerics {
        return;
    }
    let Some((first, times)) = rank_loss::worst(f) else { return };
    let sure = times >= AGAIN || !first.loss.is_finite();
    let what = f.rank_target(first.rank);
    pieces.push(Piece {
        sort: Sort::Rank,
        place: what.place(),
        alike: Alike::Stray(what.clone()),
        began: when(f, first.step),
        strength: f64::from(times).ln_1p(),
        prior: if sure { OWN } else { 0.9 },
        suspect: Suspect::new(what, rank_loss::seen(&first, Some(times))),
    });
}

/// Ranks that wait for data longer than the others.
fn loaders(cause: Cause, f: &RunState, pieces: &mut Vec<Piece>) {
    let waits = |m: &crate::run::rank_compute_time::Member| cause == Cause::Speed && m.waits.level() >= HALF;
    for (rank, m) in f.compute_times.members.iter().filter(|(_, m)| waits(m)) {
        let what = f.rank_target(*rank);
        let (since_step, value) = (m.waits.onset(), m.waits.excess().into());
        let why = Observation::WaitsForData { since_step, value };
        pieces.push(Piece {
            sort: Sort::Rank,
            place: what.place(),
            alike: Alike::Waits(what.place()),
            began: when(f, m.waits.onset()),
            strength: m.waits.level().ln_1p(),
            prior: 2.5,
            suspect: Suspect::new(what, why),
        });
    }
}

fn setups(cause: Cause, f: &RunState, pieces: &mut Vec<Piece>) {
    for of_run in [false, true] {
        let variants = f.config_groups.variants(of_run);
        let [usual, others @ ..] = variants.as_slice() else { continue };
        // If two halves differ, it is unknown which is set up correctly.
        let fewer = others.iter().filter(|other| other.nodes.len() < usual.nodes.len());
        for other in fewer.filter(|_| cause != Cause::Numerics) {
            let differs = |key: &&String| usual.setup.keys.get(*key) != other.setup.keys.get(*key);
            let keys = other.setup.keys.keys().chain(usual.setup.keys.keys());
            let Some(key) = keys.clone().find(differs) else { continue };
            for node in other.nodes.iter().take(super::NAMED) {
                pieces.push(Piece {
                    sort: Sort::Setup,
                    place: Place::Node(node.clone()),
                    alike: Alike::Setup(other.setup.fingerprint.clone()),
                    began: f.config_groups.changed_at.unwrap_or(f.first_seen),
                    strength: 0.0,
                    prior: 1.0,
                    suspect: Suspect::new(
                        Target::node(node),
                        Observation::SetUpDifferently { key: key.clone() },
                    ),
                });
            }
        }
    }
}

/// What all ranks of the run wait for.
fn phases(v: &Finding, f: &RunState, pieces: &mut Vec<Piece>) {
    let (cause, onset) = (v.kind.cause(), super::onset(v, f));
    let (data, compute) = (&f.compute_times.data, &f.compute_times.compute);
    let waits = data.lately > ROSE * data.usual && data.lately > WAITS * compute.usual;
    if cause == Cause::Speed && data.n > 20 && waits {
        let (value, expected) = (data.lately.into(), data.usual.into());
        let why = Observation::AllWaitForData { value, expected };
        pieces.push(phase(Target::DataLoading, onset, 3.0, why));
    }
    if cause == Cause::Progress && f.checkpoints.in_progress.is_some() {
        let storage = Target::Storage(Storage::OfCheckpoints);
        pieces.push(phase(storage, onset, 1.5, Observation::CheckpointOpen));
    }
}

pub(super) fn phase(what: Target, began: Ts, prior: f64, why: Observation) -> Piece {
    Piece {
        sort: Sort::Phase,
        place: what.place(),
        alike: Alike::Phase(what.clone()),
        began,
        strength: 1.0,
        prior,
        suspect: Suspect::new(what, why),
    }
}

/// Evidence from the readings and conditions of a node.
pub(super) fn of_node(node: &NodeState, v: &Finding, f: &RunState, onset: Ts, pieces: &mut Vec<Piece>) {
    let cause = v.kind.cause();
    let since = Ts(onset.0.saturating_sub(super::BEFORE.0));
    for (key, c) in node.conditions.iter().filter(|(_, c)| c.touches(since) && c.concerns(&f.name)) {
        // A fault of hardware explains a loss that jumps only if the hardware is broken.
        if cause == Cause::Numerics && (c.level < Level::Error || c.first < since || key.topic == Topic::Link)
        {
            continue;
        }
        let suspect = words::suspect(node, key, c);
        let slowed = suspect.observations().find_map(Observation::slowed);
        let alike = match (key.topic, slowed) {
            (Topic::Link, _) => Alike::Link { medium: c.medium.clone(), aspect: key.aspect.clone() },
            (Topic::Hw, Some(slowed)) if key.name == THROTTLED => Alike::Slowed(slowed),
            _ => Alike::Condition { name: key.name.clone(), number: key.number },
        };
        pieces.push(Piece {
            sort: Sort::Condition,
            place: suspect.target.place(),
            alike,
            began: c.first,
            strength: 1.0,
            prior: prior(key, c),
            suspect,
        });
    }
    if cause == Cause::Numerics {
        return;
    }
    let apart = |o: &Outlier<'_>| o.sign.drift.level() >= ONCE && o.is_apart_from(&f.peers);
    for o in node.peer_metrics.outliers().filter(apart) {
        pieces.push(Piece {
            sort: Sort::Reading,
            place: Place::Node(node.name.clone()),
            alike: Alike::Reading(o.peer_metric.words),
            began: Ts(o.sign.drift.onset()),
            strength: o.sign.drift.level().ln_1p(),
            prior: o.peer_metric.prior,
            suspect: peer::suspect(node, &o),
        });
    }
}

/// The prior: how often such a fault is the cause, before anything else is known.
fn prior(key: &Key, c: &Condition) -> f64 {
    let kind = match key.topic {
        // An XID that follows from another one is no cause.
        Topic::Xid if c.caused_by.is_some() => 0.5,
        Topic::Xid => 3.0,
        Topic::Link if c.medium == "ethernet" => 0.5,
        Topic::Link => 2.0,
        Topic::Hw if c.level < Level::Error && key.row().is_some_and(|row| !row.stops_runs) => 0.5,
        Topic::Hw if key.name == THROTTLED => 2.0,
        Topic::Hw => 2.5,
    };
    match c.level {
        Level::Error => kind + 0.5,
        Level::Warn => kind - 0.5,
        // XIDs that an application causes by itself.
        Level::Info => (kind - 2.5).max(0.0),
    }
}

/// The component that these places share, as one piece.
pub(super) fn common(alike: &Alike, places: usize, held: &[&Piece], nodes: usize) -> Option<Piece> {
    let first = held.iter().min_by_key(|p| p.began)?;
    let is_storage = |name: &str| {
        NodeCondition::parse(name).is_some_and(|condition| condition.row().domain == Domain::Storage)
    };
    let what = match alike {
        Alike::Condition { name, .. } if is_storage(name) => Target::Storage(Storage::OfNodes),
        Alike::Slowed(_) => Target::Power,
        Alike::Link { .. } => Target::Switch,
        _ => return None,
    };
    let why = Observation::Shared {
        places: places as u64,
        nodes: nodes as u64,
        first: first.place.clone(),
        evidence: first.suspect.evidence.clone(),
    };
    Some(Piece {
        sort: Sort::Common,
        place: what.place(),
        alike: alike.clone(),
        began: first.began,
        strength: 1.0,
        prior: held.iter().map(|p| p.prior).fold(0.0, f64::max) + 0.5,
        suspect: Suspect::new(what, why),
    })
}

/// The evidence that ranks or devices were compared and none stands out.
pub(super) fn whole_fleet(v: &Finding, f: &RunState) -> Option<Suspect> {
    if v.kind.cause() == Cause::Numerics && f.nodes.len() > 1 {
        let why = Observation::NoFault { nodes: f.nodes.len() as u64 };
        return Some(Suspect::new(Target::Recipe { step: v.start_step }, why));
    }
    if v.kind.cause() != Cause::Speed || v.kind == Kind::Straggler {
        return None;
    }
    let (ranks, devices) = (f.compute_times.members.len(), f.peers.compared());
    let ranks = if ranks > 1 { ranks as u64 } else { 0 };
    let why = Observation::NothingStandsOut { ranks, devices: devices as u64 };
    (ranks > 0 || devices > 0).then(|| Suspect::new(Target::Fleet(Unit::Nodes), why))
}
