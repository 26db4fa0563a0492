//! What the devices of a run that stands still are doing: it says what kind of standstill it is, and who is not where the others are.
//!
//! In a collective that waits, a GPU spins: it is busy, draws a fraction of its usual power, and its ports send nothing. A GPU that is
//! idle while the others spin has not come to the collective, and one that still works has not come yet: its rank is the one that they
//! wait for. Where all are idle, the hosts wait: for data, for storage, for a lock.

use std::fmt::Write as _;

use super::evidence::{Piece, Sort};
use crate::node::{NodeFacts, words};
use crate::time::{Span, Ts};
use crate::verdict::Suspect;

/// Busy time of a GPU that spins, and of one that is idle.
const SPINS: f64 = 0.9;
const IDLE: f64 = 0.1;
/// Share of its usual power that a spinning GPU stays below, and a working one above.
const WEAK: f64 = 0.6;
const WORKS: f64 = 0.8;
/// Share of the GPUs that makes it the state of the run, and largest share that differs and is named.
const MOST: f64 = 0.9;
const FEW: f64 = 0.1;
/// Fewer GPUs are too few to tell who differs.
const ENOUGH: usize = 4;
/// Bytes a second of a node whose ports carry no training.
const QUIET: f64 = 10e6;
/// A reading older than this is of before; a node that was silent for so long is out of reach.
const FRESH: Span = Span::secs(45);
const SILENT: Span = Span::secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Spins,
    Idle,
    Works,
    Unknown,
}

/// The state of a run's devices.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    /// What kind it is, in words; empty if the devices do not tell.
    pub(crate) what: String,
    pub(super) pieces: Vec<Piece>,
}

pub(crate) fn look<'a>(now: Ts, since: Ts, nodes: impl Iterator<Item = &'a NodeFacts>) -> Standstill {
    let nodes: Vec<&NodeFacts> = nodes.collect();
    let mut gpus: Vec<(&NodeFacts, &str, Doing)> = Vec::new();
    let mut shares: Vec<f64> = Vec::new();
    for node in &nodes {
        for (uuid, gpu) in
            node.gpus.iter().filter(|(_, gpu)| now - gpu.last.at < FRESH && gpu.last.at > since)
        {
            let power = gpu.last.power.filter(|_| gpu.usual_power > 0.0).map(|p| p / gpu.usual_power);
            shares.extend(power);
            gpus.push((node, uuid, doing(gpu.last.utilization, power)));
        }
    }
    let mut s = Standstill::default();
    silent(now, since, &nodes, &mut s);
    let count = |want: Doing| gpus.iter().filter(|(.., d)| *d == want).count();
    let most = |n: usize| gpus.len() >= ENOUGH && n as f64 >= MOST * gpus.len() as f64;
    let (spin, idle) = (count(Doing::Spins), count(Doing::Idle));
    if most(spin) {
        shares.sort_by(f64::total_cmp);
        let power = shares.get(shares.len() / 2).map_or(f64::NAN, |p| 100.0 * p);
        let _ = write!(
            s.what,
            "{spin} of {} GPUs spin in a collective (busy, at {power:.0} % of their usual power",
            gpus.len()
        );
        let traffic: Vec<f64> = nodes.iter().filter_map(|n| n.vitals.traffic(now)).collect();
        if !traffic.is_empty() && traffic.iter().all(|t| *t < QUIET) {
            s.what.push_str(", their ports send nothing");
        }
        s.what.push_str("): an NCCL hang");
        let differ = |d: Doing| matches!(d, Doing::Idle | Doing::Works);
        let others: Vec<_> = gpus.iter().filter(|(.., d)| differ(*d)).collect();
        if (others.len() as f64) <= FEW * gpus.len() as f64 {
            s.pieces.extend(others.into_iter().map(|(node, uuid, d)| apart(now, node, uuid, *d)));
        }
    } else if most(idle) {
        let _ = write!(
            s.what,
            "{idle} of {} GPUs are idle: the hosts wait, for data, storage or a lock",
            gpus.len()
        );
    }
    s
}

fn doing(utilization: Option<f64>, power: Option<f64>) -> Doing {
    match (utilization, power) {
        (Some(u), Some(p)) if u >= SPINS && p < WEAK => Doing::Spins,
        (Some(u), Some(p)) if u >= SPINS && p > WORKS => Doing::Works,
        (Some(u), _) if u <= IDLE => Doing::Idle,
        _ => Doing::Unknown,
    }
}

fn apart(now: Ts, node: &NodeFacts, uuid: &str, doing: Doing) -> Piece {
    let why = match doing {
        Doing::Idle => "is idle while the others spin in a collective: its rank did not come to it",
        _ => "still works while the others spin in a collective: its rank has not come to it",
    };
    piece(now, node, format!("node {}, {}", node.name, words::gpu(node, uuid, "")), why.to_owned(), 3.0)
}

/// A node that has fallen silent while the others speak.
fn silent(now: Ts, since: Ts, nodes: &[&NodeFacts], s: &mut Standstill) {
    let gone: Vec<&&NodeFacts> = nodes.iter().filter(|n| now - n.last_heard > SILENT).collect();
    if gone.is_empty() || gone.len() * 2 > nodes.len() {
        return;
    }
    for node in gone {
        let why = format!(
            "nothing was heard of the node for {}: the host or its exporter is gone",
            now - node.last_heard
        );
        s.pieces.push(piece(since.max(node.last_heard), node, format!("node {}", node.name), why, 3.0));
    }
}

fn piece(began: Ts, node: &NodeFacts, what: String, why: String, prior: f64) -> Piece {
    Piece {
        sort: Sort::Own,
        place: node.name.clone(),
        alike: format!("standstill {}", node.name),
        began,
        strength: 1.0,
        prior,
        suspect: Suspect { what, why },
    }
}
