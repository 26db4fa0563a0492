//! Evaluates the devices of a run that stands still. This shows the kind of standstill, and which
//! devices differ from the others.
//!
//! In a collective that waits, a GPU spins: it is busy, draws a fraction of its usual power, and
//! its ports send nothing. A GPU that is idle while the others spin has not come to the collective,
//! and one that still works has not come yet: its rank is the one that they wait for. Where all are
//! idle, the hosts wait: for data, for storage, for a lock.

use stepwatch_model::Place;

use super::evidence::{Alike, Piece, Sort};
use crate::node::{NodeState, words};
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{Clause, Fact, Observation, Suspect, Target, clause};

/// Busy time of a GPU that spins, and of one that is idle: engineering limits, like all shares
/// here.
const SPINS: f64 = 0.9;
const IDLE: f64 = 0.1;
/// Share of its usual power that a spinning GPU stays below, and a working one above.
const WEAK: f64 = 0.5;
const WORKS: f64 = 0.8;
/// Share of the GPUs that makes it the state of the run, and largest share that differs and is
/// named.
const MOST: f64 = 0.9;
const FEW: f64 = 0.1;
/// Fewer GPUs are too few to find the one that differs.
const ENOUGH: usize = 4;
/// Bytes a second of a node whose ports carry no training.
const QUIET: f64 = 10e6;
/// A reading older than `FRESH` does not count; a node that was silent for `SILENT` is out of
/// reach.
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
    /// The kind of standstill, if the readings show it.
    pub(crate) what: Option<Clause>,
    pub(super) pieces: Vec<Piece>,
}

pub(crate) fn look<'a>(now: Ts, since: Ts, nodes: impl Iterator<Item = &'a NodeState>) -> Standstill {
    let nodes: Vec<&NodeState> = nodes.collect();
    let mut gpus: Vec<(&NodeState, &str, Doing)> = Vec::new();
    let mut shares: Vec<f64> = Vec::new();
    for node in &nodes {
        for (uuid, gpu) in
            node.gpus.iter().filter(|(_, gpu)| now - gpu.last.at < FRESH && gpu.last.at > since)
        {
            let power = gpu.power_share();
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
        let power = shares.get(shares.len() / 2).copied().unwrap_or(f64::NAN);
        let traffic: Vec<f64> = nodes.iter().filter_map(|n| n.peer_metrics.traffic(now)).collect();
        let quiet = !traffic.is_empty() && traffic.iter().all(|t| *t < QUIET);
        s.what = Some(clause!(
            "{spin} of {gpus} GPUs spin in a collective (busy, at {power} % of their usual power{ports}): an NCCL hang",
            spin,
            gpus = gpus.len(),
            power = Fact::percent(power, 0),
            ports = if quiet { ", their ports send nothing" } else { "" },
        ));
        let differ = |d: Doing| matches!(d, Doing::Idle | Doing::Works);
        let others: Vec<_> = gpus.iter().filter(|(.., d)| differ(*d)).collect();
        if (others.len() as f64) <= FEW * gpus.len() as f64 {
            s.pieces.extend(others.into_iter().map(|(node, uuid, d)| apart(since, node, uuid, *d)));
        }
    } else if most(idle) {
        let gpus = gpus.len();
        s.what = Some(clause!(
            "{idle} of {gpus} GPUs are idle: the hosts wait, for data, storage or a lock",
            idle,
            gpus,
        ));
    }
    s
}

/// Whether all of so many GPUs of a run wait in a collective while none computes. One GPU that
/// still works may be evaluating alone.
pub(crate) fn all_wait<'a>(
    now: Ts,
    since: Ts,
    world: u32,
    nodes: impl Iterator<Item = &'a NodeState>,
) -> bool {
    let (mut known, mut spin) = (0, 0);
    for (_, gpu) in nodes.flat_map(|node| node.gpus.iter()) {
        if now - gpu.last.at >= FRESH || gpu.last.at <= since {
            continue;
        }
        match doing(gpu.last.utilization, gpu.power_share()) {
            Doing::Works => return false,
            Doing::Spins => spin += 1,
            Doing::Idle | Doing::Unknown => {}
        }
        known += 1;
    }
    known >= ENOUGH && known * 2 >= world as usize && spin as f64 >= MOST * known as f64
}

/// Whether most GPUs of a run compute: it takes steps that no line has shown yet, or evaluates.
pub(crate) fn most_compute<'a>(now: Ts, since: Ts, nodes: impl Iterator<Item = &'a NodeState>) -> bool {
    let gpus = nodes.flat_map(|node| node.gpus.iter()).map(|(_, gpu)| gpu);
    let (mut known, mut work) = (0, 0);
    for gpu in gpus.filter(|gpu| now - gpu.last.at < FRESH && gpu.last.at > since) {
        known += 1;
        work += usize::from(doing(gpu.last.utilization, gpu.power_share()) == Doing::Works);
    }
    known > 0 && work as f64 >= MOST * f64::from(known)
}

fn doing(utilization: Option<f64>, power: Option<f64>) -> Doing {
    match (utilization, power) {
        (Some(u), Some(p)) if u >= SPINS && p < WEAK => Doing::Spins,
        (Some(u), Some(p)) if u >= SPINS && p > WORKS => Doing::Works,
        (Some(u), _) if u <= IDLE => Doing::Idle,
        _ => Doing::Unknown,
    }
}

fn apart(since: Ts, node: &NodeState, uuid: &str, doing: Doing) -> Piece {
    let why = match doing {
        Doing::Idle => Observation::IdleInCollective,
        _ => Observation::WorksInCollective,
    };
    piece(since, node, words::gpu_of(node, uuid, ""), why, 3.0)
}

/// A node that has fallen silent while the others report.
fn silent(now: Ts, since: Ts, nodes: &[&NodeState], s: &mut Standstill) {
    let gone: Vec<&&NodeState> = nodes.iter().filter(|n| now - n.last_heard > SILENT).collect();
    if gone.is_empty() || gone.len() * 2 > nodes.len() {
        return;
    }
    for node in gone {
        let why = Observation::NodeSilent { lasts: now - node.last_heard };
        s.pieces.push(piece(since.max(node.last_heard), node, Target::node(&node.name), why, 3.0));
    }
}

fn piece(began: Ts, node: &NodeState, what: Target, why: Observation, prior: f64) -> Piece {
    Piece {
        sort: Sort::Own,
        place: Place::Node(node.name.clone()),
        alike: Alike::Standstill(node.name.clone()),
        began,
        strength: 1.0,
        prior,
        suspect: Suspect::new(what, why),
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::{Event, Kind, Value};

    use super::*;
    use crate::monitor::Node;

    /// When the run stopped, and when it is judged.
    const STOP: Ts = Ts(300_000);
    const NOW: Ts = Ts(360_000);

    fn reading(kind: &str, key: &str, value: &str, m: &[(&str, f64)]) -> Event {
        let mut e = Event { name: Some(kind.into()), ..Event::new(Kind::Health) };
        e.extra.insert(key.into(), Value::Text(value.into()));
        for (name, v) in m {
            e.m.set(name, *v);
        }
        e
    }

    /// A node that works until the stop, and whose GPUs do this from then on.
    fn node(name: &str, doing: &[Doing], until: Ts) -> NodeState {
        let mut node = Node::new(name, Ts(0), &std::sync::Arc::default());
        let mut sent = 0.0;
        for at in (0..=until.0).step_by(10_000).map(Ts) {
            let works = at <= STOP;
            for (i, doing) in doing.iter().enumerate() {
                let (busy, watts) = match doing {
                    _ if works => (0.99, 600.0),
                    Doing::Spins => (1.0, 170.0),
                    Doing::Idle => (0.0, 70.0),
                    Doing::Works => (0.99, 590.0),
                    Doing::Unknown => (0.5, 300.0),
                };
                let mut e = reading(
                    "gpu",
                    "gpu",
                    &format!("GPU-{name}-{i}"),
                    &[("utilization_ratio", busy), ("power_watts", watts), ("power_limit_watts", 700.0)],
                );
                e.extra.insert("index".into(), Value::Number(i as f64));
                node.event(at, &e, None);
            }
            sent += if works { 2e11 } else { 1e3 };
            node.event(at, &reading("rdma", "device", "mlx5_0", &[("transmit_bytes", sent)]), None);
        }
        node.state
    }

    fn seen(nodes: &[NodeState]) -> (String, Vec<String>) {
        let s = look(NOW, STOP, nodes.iter());
        let what = s.what.map(|what| what.to_string()).unwrap_or_default();
        (what, s.pieces.into_iter().map(|p| format!("{}: {}", p.suspect.what(), p.suspect.why())).collect())
    }

    fn fleet(odd: Doing) -> Vec<NodeState> {
        let mut doing = [Doing::Spins; 8];
        let all = node("n1", &doing, NOW);
        doing[3] = odd;
        vec![all, node("n2", &doing, NOW)]
    }

    #[test]
    fn gpus_that_all_spin_are_a_collective_that_nobody_can_be_blamed_for() {
        let (what, pieces) = seen(&fleet(Doing::Spins));
        assert!(what.starts_with("16 of 16 GPUs spin in a collective (busy, at 30 % of"), "{what}");
        assert!(what.ends_with("their ports send nothing): an NCCL hang"), "{what}");
        assert_eq!(pieces, [""; 0]);
    }

    #[test]
    fn the_one_that_did_not_come_is_named_whether_it_idles_or_works() {
        for (odd, why) in
            [(Doing::Idle, "its rank did not come to it"), (Doing::Works, "its rank has not come to it")]
        {
            let (what, pieces) = seen(&fleet(odd));
            assert!(what.contains("15 of 16 GPUs spin"), "{what}");
            assert!(pieces.len() == 1 && pieces[0].starts_with("node n2, GPU 3 (GPU-n2-3)"), "{pieces:?}");
            assert!(pieces[0].ends_with(why), "{pieces:?}");
        }
        assert!(seen(&fleet(Doing::Unknown)).1.is_empty(), "half busy is neither");
    }

    #[test]
    fn hosts_that_wait_are_distinguished_from_a_collective() {
        let (what, pieces) = seen(&[node("n1", &[Doing::Idle; 8], NOW), node("n2", &[Doing::Idle; 8], NOW)]);
        assert!(what.starts_with("16 of 16 GPUs are idle: the hosts wait") && pieces.is_empty(), "{what}");
        let half = [node("n1", &[Doing::Idle; 8], NOW), node("n2", &[Doing::Spins; 8], NOW)];
        assert_eq!(seen(&half), (String::new(), Vec::new()), "two halves are no state of the run");
    }

    #[test]
    fn a_reading_from_before_the_stop_says_nothing_of_it() {
        let old = [node("n1", &[Doing::Spins; 8], STOP), node("n2", &[Doing::Spins; 8], STOP)];
        assert_eq!(seen(&old).0, "");
    }

    #[test]
    fn a_node_that_fell_silent_is_named_and_not_if_most_did() {
        let silent = Ts(NOW.0 - SILENT.0 - 1000);
        let well = |name| node(name, &[Doing::Spins; 8], NOW);
        let (_, pieces) = seen(&[well("n1"), well("n2"), node("n3", &[Doing::Spins; 8], silent)]);
        assert!(
            pieces.len() == 1 && pieces[0].starts_with("node n3: nothing was heard of the node for"),
            "{pieces:?}"
        );
        let gone = |name| node(name, &[Doing::Spins; 8], silent);
        assert!(seen(&[well("n1"), gone("n2"), gone("n3")]).1.is_empty());
    }
}
