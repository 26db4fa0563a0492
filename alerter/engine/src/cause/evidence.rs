//! The pieces of evidence: what each part of the facts says against which place.

use std::collections::BTreeMap;

use super::OWN;
use crate::detectors::{first_failure, peer, rank_loss, straggler};
use crate::message::number;
use crate::node::vitals::Outlier;
use crate::node::words::{self, THROTTLED};
use crate::node::{Condition, Key, Level, NodeFacts, Topic};
use crate::run::Facts;
use crate::time::Ts;
use crate::verdict::{Cause, Kind, Suspect, Verdict};

/// Names of conditions that are of storage, by their beginnings.
const STORAGE: [&str; 6] = ["mount", "nfs", "lustre", "filesystem", "disk", "nvme"];
/// Conditions that do not stop or slow a run while they are no errors.
const HARMLESS: [&str; 7] =
    ["clock", "disk_filling", "row_remap_pending", "gpu_idle", "mount_unwatched", "rdma_unreadable", "nvml"];
/// Where a checkpoint goes that does not end.
pub(super) const CHECKPOINTS: &str = "storage of the checkpoints";
/// GPUs that their hardware slows down for want of power, or for heat: what makes it alike on two nodes, and how the driver says so.
pub(super) const SLOWED: &str = "slowed down by ";
const REASONS: [&str; 3] = ["power_brake", "power brake", "thermal"];
/// How the links of one medium that are in one state are alike.
pub(super) const LINK: &str = "link ";
/// A statistic is evidence from this share of its bound on.
const HALF: f64 = 0.5;
/// A reading that is far enough from its peers to matter is evidence from the first one on: counters are read twice a minute.
const ONCE: f64 = 0.15;
/// Prior of a node that only cannot be heard: it explains nothing.
const UNHEARD: f64 = 0.5;
/// Steps in which a rank's own loss is out of line that are no accident.
const AGAIN: u32 = 3;
/// Waiting for data counts from this share of a step on, and from this many times the usual.
const WAITS: f64 = 0.05;
const ROSE: f64 = 1.5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The run's own detector said so.
    Own,
    Rank,
    Reading,
    Condition,
    Setup,
    /// What many nodes have alike.
    Common,
    Phase,
}

#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) sort: Sort,
    /// Node, or rank where its node is not known, or what the nodes share.
    pub(crate) place: String,
    /// What makes pieces of two nodes the same thing.
    pub(crate) alike: String,
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

/// The node that a suspect's name speaks of, or the whole name.
pub(super) fn place(what: &str) -> &str {
    let end = |s: &str| s.find([' ', ',']).unwrap_or(s.len());
    if let Some(node) = what.strip_prefix("node ") {
        return &node[..end(node)];
    }
    match what.find(" on ") {
        Some(at) => {
            let node = &what[at + 4..];
            &node[..end(node)]
        }
        None => what,
    }
}

/// When the run was at a step, by our clock.
pub(super) fn when(f: &Facts, step: i64) -> Ts {
    let (Some(last), Some(pace)) = (f.last_step, f.pace.quantile(0.5)) else { return f.last_progress };
    let back = last.saturating_sub(step).max(0) as f64 / f.interval.max(1) as f64;
    Ts(f.last_progress.0.saturating_sub((back * pace * 1000.0).min(1e15) as i64))
}

/// What the run itself shows.
pub(super) fn of_run(v: &Verdict, f: &Facts) -> Vec<Piece> {
    let mut pieces = own(v, f);
    stragglers(v.kind.cause(), f, &mut pieces);
    loaders(v.kind.cause(), f, &mut pieces);
    setups(v.kind.cause(), f, &mut pieces);
    phases(v, f, &mut pieces);
    strays(v, f, &mut pieces);
    if v.kind.cause() == Cause::Progress {
        out_of_reach(f, &mut pieces);
        quiet(f, &mut pieces);
        behind(f, &mut pieces);
    }
    pieces
}

/// Whom the detector names comes with what it saw; the order is its own.
fn own(v: &Verdict, f: &Facts) -> Vec<Piece> {
    let mut named: Vec<Suspect> = v.suspects.iter().filter(|s| !super::is_nobody(s)).cloned().collect();
    if v.kind == Kind::RankLoss {
        named.clear(); // what it saw is weighed as evidence of the run
    }
    if v.kind.cause() == Cause::Progress {
        let first = dead(f).filter(|d| named.iter().all(|s| place(&s.what) != place(&d.what)));
        named.extend(first);
    }
    let (onset, failed) = (super::onset(v, f), first_failure::failures(f));
    let died = |what: &str| failed.iter().find(|d| d.place == what).map(|d| d.at.max(onset));
    let piece = |(i, suspect): (usize, Suspect)| Piece {
        sort: Sort::Own,
        place: place(&suspect.what).to_owned(),
        alike: format!("own {}", suspect.what),
        began: died(&suspect.what).unwrap_or(onset),
        strength: 1.0,
        prior: OWN - 0.2 * i as f64 - f64::from(first_failure::follows(&suspect.why)),
        suspect,
    };
    named.into_iter().enumerate().map(piece).collect()
}

/// The rank that failed first.
fn dead(f: &Facts) -> Option<Suspect> {
    let first = first_failure::failures(f).into_iter().next()?;
    Some(Suspect { why: format!("died at {}: {}", first.at, first.text), what: first.place })
}

/// Nodes whose exporter stopped answering about when the run stopped: the host is gone, and the others' ranks follow it. One that went away
/// while the run went on stops nothing.
fn out_of_reach(f: &Facts, pieces: &mut Vec<Piece>) {
    let dark = f.dark();
    for (node, lost) in f.lost_nodes().filter(|(node, _)| f.nodes.contains_key(*node)) {
        let with_it = dark.iter().any(|(dark, _)| *dark == node);
        let why = format!("its exporter does not answer since {}: {}", lost.since, lost.reason);
        pieces.push(Piece {
            sort: Sort::Own,
            place: node.to_owned(),
            alike: format!("lost {node}"),
            began: if with_it { lost.since.min(f.last_progress) } else { lost.since },
            strength: 1.0,
            prior: if with_it { OWN } else { UNHEARD },
            suspect: Suspect { what: format!("node {node}"), why },
        });
    }
}

/// The few nodes of which nothing was heard since ranks of all the others began to die: theirs had no time to.
fn quiet(f: &Facts, pieces: &mut Vec<Piece>) {
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
        let why = "nothing was heard of its ranks since those of the other nodes began to die".to_owned();
        pieces.push(Piece {
            sort: Sort::Own,
            place: node.to_owned(),
            alike: format!("quiet {node}"),
            began: f.last_progress,
            strength: 1.0,
            prior: 2.5,
            suspect: Suspect { what: format!("node {node}"), why },
        });
    }
}

/// The few ranks that did not make the last step that others made.
fn behind(f: &Facts, pieces: &mut Vec<Piece>) {
    let steps = || f.followed().filter(|(_, r)| !r.done).filter_map(|(n, r)| Some((n, r.last_step?)));
    let Some(high) = steps().map(|s| s.1).max() else { return };
    let late: Vec<(u32, i64)> = steps().filter(|s| s.1 < high).collect();
    if late.len() * 4 > steps().count() {
        return;
    }
    for (rank, step) in late.into_iter().take(super::NAMED) {
        let what = straggler::at(f, rank);
        pieces.push(Piece {
            sort: Sort::Own,
            place: place(&what).to_owned(),
            alike: format!("behind {}", place(&what)),
            began: f.last_progress,
            strength: 1.0,
            prior: 1.5,
            suspect: Suspect { what, why: format!("stopped at step {step}, the others reached {high}") },
        });
    }
}

fn stragglers(cause: Cause, f: &Facts, pieces: &mut Vec<Piece>) {
    if !matches!(cause, Cause::Speed | Cause::Progress) {
        return;
    }
    for (rank, m) in f.sections.members.iter().filter(|(_, m)| m.drift.level() >= HALF) {
        let suspect = straggler::suspect(f, *rank, m);
        pieces.push(Piece {
            sort: Sort::Rank,
            place: place(&suspect.what).to_owned(),
            alike: format!("slow {}", place(&suspect.what)),
            began: when(f, m.drift.onset()),
            strength: m.drift.level().ln_1p(),
            prior: 2.5,
            suspect,
        });
    }
}

/// The rank whose own loss was out of line first: no number where the others had one, or far out again and again. Far out once is a batch
/// more often than a GPU.
fn strays(v: &Verdict, f: &Facts, pieces: &mut Vec<Piece>) {
    if v.kind.cause() != Cause::Numerics {
        return;
    }
    let Some((first, times)) = rank_loss::worst(f) else { return };
    let sure = times >= AGAIN || !first.loss.is_finite();
    let what = straggler::at(f, first.rank);
    let often = if times > 1 { format!(", and it was out of line in {times} steps") } else { String::new() };
    let why = format!("{}{often}: replay the batch on another GPU", rank_loss::words(&first));
    pieces.push(Piece {
        sort: Sort::Rank,
        place: place(&what).to_owned(),
        alike: format!("stray {what}"),
        began: when(f, first.step),
        strength: f64::from(times).ln_1p(),
        prior: if sure { OWN } else { 0.9 },
        suspect: Suspect { what, why },
    });
}

/// Ranks that wait for data longer than the others.
fn loaders(cause: Cause, f: &Facts, pieces: &mut Vec<Piece>) {
    let waits = |m: &crate::run::sections::Member| cause == Cause::Speed && m.waits.level() >= HALF;
    for (rank, m) in f.sections.members.iter().filter(|(_, m)| waits(m)) {
        let what = straggler::at(f, *rank);
        let why = format!(
            "waits for data longer than the other ranks since step {}, by {} % of the compute time of a step: look at its loader and \
             at the storage of its node",
            m.waits.onset(),
            number(100.0 * m.waits.excess())
        );
        pieces.push(Piece {
            sort: Sort::Rank,
            place: place(&what).to_owned(),
            alike: format!("waits {}", place(&what)),
            began: when(f, m.waits.onset()),
            strength: m.waits.level().ln_1p(),
            prior: 2.5,
            suspect: Suspect { what, why },
        });
    }
}

fn setups(cause: Cause, f: &Facts, pieces: &mut Vec<Piece>) {
    for of_run in [false, true] {
        let variants = f.setups.of(of_run);
        let [usual, others @ ..] = variants.as_slice() else { continue };
        // Of two halves nobody knows which is set up as it should be.
        let fewer = others.iter().filter(|other| other.nodes.len() < usual.nodes.len());
        for other in fewer.filter(|_| cause != Cause::Numerics) {
            let differs = |key: &&String| usual.setup.keys.get(*key) != other.setup.keys.get(*key);
            let keys = other.setup.keys.keys().chain(usual.setup.keys.keys());
            let Some(key) = keys.clone().find(differs) else { continue };
            for node in other.nodes.iter().take(super::NAMED) {
                pieces.push(Piece {
                    sort: Sort::Setup,
                    place: node.clone(),
                    alike: format!("setup {}", other.setup.fingerprint),
                    began: f.setups.changed_at.unwrap_or(f.first_seen),
                    strength: 0.0,
                    prior: 1.0,
                    suspect: Suspect {
                        what: format!("node {node}"),
                        why: format!("is set up differently: {key}"),
                    },
                });
            }
        }
    }
}

/// What the run waits for, all ranks alike.
fn phases(v: &Verdict, f: &Facts, pieces: &mut Vec<Piece>) {
    let (cause, onset) = (v.kind.cause(), super::onset(v, f));
    let (data, compute) = (&f.sections.data, &f.sections.compute);
    let waits = data.lately > ROSE * data.usual && data.lately > WAITS * compute.usual;
    if cause == Cause::Speed && data.n > 20 && waits {
        let why = format!(
            "every rank waits for data {} s a step, usually {} s: look at the loader and at the storage behind it",
            number(data.lately),
            number(data.usual)
        );
        pieces.push(phase("data loading", onset, 3.0, why));
    }
    if cause == Cause::Progress && f.checkpoints.in_progress.is_some() {
        let why =
            "a checkpoint had begun and did not end: look at the storage that it is written to".to_owned();
        pieces.push(phase(CHECKPOINTS, onset, 1.5, why));
    }
}

fn phase(what: &str, began: Ts, prior: f64, why: String) -> Piece {
    Piece {
        sort: Sort::Phase,
        place: what.to_owned(),
        alike: what.to_owned(),
        began,
        strength: 1.0,
        prior,
        suspect: Suspect { what: what.to_owned(), why },
    }
}

/// What a node reads and what it said of itself.
pub(super) fn of_node(node: &NodeFacts, v: &Verdict, f: &Facts, onset: Ts, pieces: &mut Vec<Piece>) {
    let cause = v.kind.cause();
    let since = Ts(onset.0.saturating_sub(super::BEFORE.0));
    for (key, c) in node.conditions.iter().filter(|(_, c)| c.touches(since)) {
        // A loss that jumps has a cause in hardware only where hardware is broken.
        if cause == Cause::Numerics && (c.level < Level::Error || c.first < since || key.topic == Topic::Link)
        {
            continue;
        }
        let suspect = words::suspect(node, key, c);
        let alike = match (key.topic, key.aspect.as_str()) {
            (Topic::Link, "") => format!("{LINK}{} away", c.medium),
            (Topic::Link, aspect) => format!("{LINK}{} {aspect}", c.medium),
            (Topic::Hw, _) if key.name == THROTTLED && slowed_by(&c.text).is_some() => {
                format!("{SLOWED}{}", slowed_by(&c.text).unwrap_or_default())
            }
            _ => format!("{} {}", key.name, key.number),
        };
        pieces.push(Piece {
            sort: Sort::Condition,
            place: place(&suspect.what).to_owned(),
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
    for o in node.vitals.outliers().filter(apart) {
        pieces.push(Piece {
            sort: Sort::Reading,
            place: node.name.clone(),
            alike: o.vital.words.to_owned(),
            began: Ts(o.sign.drift.onset()),
            strength: o.sign.drift.level().ln_1p(),
            prior: o.vital.prior,
            suspect: peer::suspect(node, &o),
        });
    }
}

/// Which of the reasons that many nodes may share slows a GPU down.
pub(super) fn slowed_by(words: &str) -> Option<&'static str> {
    REASONS.into_iter().find(|reason| words.contains(reason))
}

/// How often such a thing is the cause, before anything else is known.
fn prior(key: &Key, c: &Condition) -> f64 {
    let kind = match key.topic {
        // What another XID brought about causes nothing.
        Topic::Xid if c.caused_by.is_some() => 0.5,
        Topic::Xid => 3.0,
        Topic::Link if c.medium == "ethernet" => 0.5,
        Topic::Link => 2.0,
        Topic::Hw if c.level < Level::Error && HARMLESS.iter().any(|name| key.name.starts_with(name)) => 0.5,
        Topic::Hw if key.name == THROTTLED => 2.0,
        Topic::Hw => 2.5,
    };
    match c.level {
        Level::Error => kind + 0.5,
        Level::Warn => kind - 0.5,
        // What an application does to itself.
        Level::Info => (kind - 2.5).max(0.0),
    }
}

pub(super) fn is_storage(alike: &str) -> bool {
    STORAGE.iter().any(|s| alike.starts_with(s))
}

/// The one thing that so many places share.
pub(super) fn common(alike: &str, places: usize, held: &[&Piece], nodes: usize) -> Option<Piece> {
    let first = held.iter().min_by_key(|p| p.began)?;
    let what = if is_storage(alike) {
        words::STORAGE
    } else if alike.starts_with(SLOWED) {
        words::POWER
    } else if alike.starts_with(LINK) {
        words::SWITCH
    } else {
        return None;
    };
    let why =
        format!("{places} of {nodes} nodes have it alike, {} first: {}", first.place, first.suspect.why);
    Some(Piece {
        sort: Sort::Common,
        place: what.to_owned(),
        alike: alike.to_owned(),
        began: first.began,
        strength: 1.0,
        prior: held.iter().map(|p| p.prior).fold(0.0, f64::max) + 0.5,
        suspect: Suspect { what: what.to_owned(), why },
    })
}

/// Nothing stands out where things were compared: that is an answer too.
pub(super) fn whole_fleet(v: &Verdict, f: &Facts) -> Option<Suspect> {
    if v.kind.cause() == Cause::Numerics && f.nodes.len() > 1 {
        let why = format!("none of {} nodes reported a fault in the ten minutes before", f.nodes.len());
        return Some(Suspect { what: format!("the batch of step {}, or the recipe", v.start_step), why });
    }
    if v.kind.cause() != Cause::Speed || v.kind == Kind::Straggler {
        return None;
    }
    let (ranks, devices) = (f.sections.members.len(), f.peers.compared());
    let compared = match (ranks > 1, devices > 0) {
        (true, true) => format!("{ranks} ranks and {devices} GPUs and ports"),
        (true, false) => format!("{ranks} ranks"),
        (false, true) => format!("{devices} GPUs and ports"),
        (false, false) => return None,
    };
    let why = format!(
        "the whole run slowed alike and none of {compared} stands out: look at data, evaluation or software"
    );
    Some(Suspect { what: "no single node".into(), why })
}
