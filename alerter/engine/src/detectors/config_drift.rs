//! Nodes of one run that are set up differently: another driver, firmware, library, kernel setting or environment variable, or another
//! version of the run's own configuration file.
//!
//! The setup that most nodes have is taken for the right one; of two nodes, or halves, neither. It waits until the nodes have stood still
//! for `settle`, because a run comes up node by node. Keys that make no difference to training make an annotation only, and keys that
//! name a node none ([`crate::run::Setups`]). What differs between the ranks of one node is a rank's affair, and a library that a node does not
//! tell may only not be loaded yet.

use core::fmt::Write as _;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::setting::DIFFERS_BY_RANK;

use crate::detector::ClockDetector;
use crate::run::{Facts, Variant};
use crate::stats::latch::Latch;
use crate::time::{Span, Ts};
use crate::verdict::{Change, Kind, Severity, Suspect, Verdict};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// How long the nodes of the run must not have changed.
    pub settle: Span,
    /// Keys that may differ; `*` at the end stands for anything.
    pub benign: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        let benign = ["bios*", "vbios*", "os_*", "hostname*"].map(str::to_owned).to_vec();
        Self { enabled: true, settle: Span::secs(60), benign }
    }
}

/// Differences and nodes named one by one.
const NAMED: usize = 3;
/// Versions of libraries, told once a process has loaded them.
const LIBRARIES: [&str; 12] = [
    "nccl",
    "nccl_net",
    "cuda",
    "cudart",
    "cublas",
    "cudnn",
    "nvshmem",
    "torch",
    "transformer_engine",
    "libfabric",
    "libibverbs",
    "ucx",
];
/// Characters shown of a value.
const VALUE_MAX: usize = 60;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConfigDrift {
    latch: Latch,
    /// What was told: the state of the nodes at that time.
    told: Option<Ts>,
}

/// One key that differs, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference<'a> {
    key: &'a str,
    usual: &'a str,
    other: &'a str,
    nodes: &'a BTreeSet<String>,
    /// The nodes that have the usual value, where they are no more than the others: nobody knows which is right.
    even: Option<&'a BTreeSet<String>>,
}

impl ConfigDrift {
    fn is_benign(c: &Config, key: &str) -> bool {
        c.benign.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => key == pattern,
        })
    }

    fn judge(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        let groups = [f.setups.of(false), f.setups.of(true)];
        let all: Vec<Difference<'_>> = groups.iter().flat_map(|variants| differences(variants)).collect();
        let (harmless, mut all): (Vec<_>, Vec<_>) = all.into_iter().partition(|d| Self::is_benign(c, d.key));
        // What fewest nodes have first.
        all.sort_by_key(|d| d.nodes.len());
        if all.is_empty() {
            if self.latch.clear() {
                let what = if harmless.is_empty() { "again" } else { "in all that matters" };
                let why = format!("the nodes of the run agree {what}");
                out.push(verdict(now, f, Change::Clear, Severity::Info, why));
            }
            if !harmless.is_empty() {
                out.push(verdict(now, f, Change::Note, Severity::Info, sentence(f, &harmless)));
            }
            return;
        }
        self.latch.raise(Severity::Ticket);
        let mut v = verdict(now, f, Change::Raise, Severity::Ticket, sentence(f, &all));
        v.value = all.len() as f64;
        for d in &all {
            for node in d.nodes.iter().chain(d.even.into_iter().flatten()).take(NAMED) {
                let what = format!("node {node}");
                if v.suspects.len() < NAMED && !v.suspects.iter().any(|s| s.what == what) {
                    v.suspects.push(Suspect { what, why: told(d) });
                }
            }
        }
        out.push(v);
    }
}

/// Whether a key that has two values says something of the two nodes.
fn tells(key: &str, a: Option<&String>, b: Option<&String>) -> bool {
    let by_rank = [a, b].into_iter().flatten().any(|v| v == DIFFERS_BY_RANK);
    a != b && !by_rank && (!LIBRARIES.contains(&key) || a.is_some() && b.is_some())
}

fn value(v: Option<&String>) -> &str {
    v.map_or("nothing", String::as_str)
}

/// Every key in which a setup differs from the one that most nodes have.
fn differences(variants: &[Variant]) -> Vec<Difference<'_>> {
    let [most, others @ ..] = variants else { return Vec::new() };
    let mut all = Vec::new();
    for Variant { setup, nodes } in others {
        let (a, b) = (&most.setup.keys, &setup.keys);
        let even = (most.nodes.len() == nodes.len()).then_some(&most.nodes);
        let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for key in keys.into_iter().filter(|key| tells(key, a.get(*key), b.get(*key))) {
            let (usual, other) = (value(a.get(key)), value(b.get(key)));
            all.push(Difference { key, usual, other, nodes, even });
        }
    }
    all
}

fn short(value: &str) -> String {
    if value.chars().count() <= VALUE_MAX {
        return value.to_owned();
    }
    value.chars().take(VALUE_MAX - 1).chain(['…']).collect()
}

/// The first of them by name.
fn names(nodes: &BTreeSet<String>) -> String {
    let mut names = nodes.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = nodes.len().saturating_sub(NAMED);
    if more > 0 {
        let _ = write!(names, " and {more} more node{}", if more == 1 { "" } else { "s" });
    }
    names
}

fn told(d: &Difference<'_>) -> String {
    let (other, usual) = (short(d.other), short(d.usual));
    let Some(even) = d.even else { return format!("{} is {other}, elsewhere {usual}", d.key) };
    format!("{} is {other} on {}, {usual} on {}", d.key, names(d.nodes), names(even))
}

fn sentence(f: &Facts, all: &[Difference<'_>]) -> String {
    let [first, rest @ ..] = all else { return String::new() };
    let total = f.nodes.len();
    let mut why = if first.even.is_some() {
        format!("the {total} nodes of the run are set up differently: {}", told(first))
    } else {
        let verb = if first.nodes.len() == 1 { "differs" } else { "differ" };
        let who = names(first.nodes);
        format!("{who} {verb} from the other nodes of the run ({total} in all): {}", told(first))
    };
    for d in rest.iter().take(NAMED - 1) {
        let on = d.nodes.first().filter(|_| d.even.is_none());
        let on = on.map(|node| format!(" on {node}")).unwrap_or_default();
        let _ = write!(why, "; {}{on}", told(d));
    }
    if rest.len() >= NAMED {
        let _ = write!(why, "; and {} more", rest.len() + 1 - NAMED);
    }
    why
}

impl ClockDetector for ConfigDrift {
    type Config = Config;

    fn look(&mut self, c: &Config, now: Ts, f: &Facts, out: &mut Vec<Verdict>) {
        if self.deadline(c, f).is_some_and(|at| at <= now) {
            self.told = f.setups.changed_at;
            self.judge(c, now, f, out);
        }
    }

    fn deadline(&self, c: &Config, f: &Facts) -> Option<Ts> {
        let changed = f.setups.changed_at.filter(|at| self.told != Some(*at))?;
        (c.enabled && f.ended.is_none()).then(|| changed + c.settle)
    }
}

fn verdict(now: Ts, f: &Facts, change: Change, severity: Severity, why: String) -> Verdict {
    let step = f.last_step.unwrap_or(0);
    Verdict {
        change,
        kind: Kind::ConfigDrift,
        severity,
        signal: "config".into(),
        step,
        ts: now,
        start_step: step,
        value: 0.0,
        expected: 0.0,
        score: 0.0,
        why,
        suspects: Vec::new(),
    }
}
