//! Detects nodes of one run whose setups differ: another driver, firmware, library, kernel setting
//! or environment variable, or another version of the run's own configuration file.
//!
//! The setup of most nodes counts as the right one; if two nodes, or halves, differ, neither does.
//! The detector waits until the nodes have not changed for `settle`, because a run comes up node by
//! node. Keys that make no difference to training are only annotated, and keys that name a node are
//! ignored ([`crate::run::ConfigGroups`]). A key that differs between the ranks of one node is not
//! compared. A library that a node does not report may only not be loaded yet. The libraries that
//! the first collective loads count as absent once the run has made steps for so long that every
//! exporter has looked again. This matters: a node without the plugin of its network trains on,
//! over sockets.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stepwatch_wire::names::setting::DIFFERS_BY_RANK;
use stepwatch_wire::setting::{ARGUMENT, Topic, topic};

use crate::detector::{ClockDetector, RunAt};
use crate::run::{ConfigGroups, RunState, Setup, SlowerSetup, Variant};
use crate::stats::latch::Latch;
use stepwatch_model::time::{Span, Ts};
use stepwatch_model::{
    Change, Fact, Finding, Kind, Observation, Sentence, Severity, Suspect, Target, clause,
};

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
        // The GPUs that a job was given on a node depend on placement.
        let benign = ["bios*", "bmc_*", "vbios*", "os_*", "hostname*", "env.CUDA_VISIBLE_DEVICES"];
        let benign = benign.map(str::to_owned).to_vec();
        Self { enabled: true, settle: Span::secs(60), benign }
    }
}

/// The most differences, and the most nodes, named one by one.
const NAMED: usize = 3;
/// Keys with versions of libraries, published once a process has loaded them.
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
/// The libraries that every node of a run loads if one does, once the ranks have run their first
/// collective.
const OF_COLLECTIVES: [&str; 4] = ["nccl", "nccl_net", "libfabric", "libibverbs"];
/// An exporter looks for the libraries of a process less and less often, in the end every 16
/// minutes.
const LOOKED_AGAIN: Span = Span::secs(1200);
/// Text for a library that a node does not have.
const NOT_LOADED: &str = "not loaded";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConfigDrift {
    latch: Latch,
    /// The last change of the nodes' setups that was evaluated.
    judged_at: Option<Ts>,
    /// The attempt that made steps, and since when.
    stepped: Option<(u32, Ts)>,
    absences: Option<Box<Absences>>,
}

/// Libraries that nodes do not report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Absences {
    /// Those that were reported as absent.
    reported: BTreeSet<String>,
    /// When to evaluate again whether absent ones count.
    look_again: Option<Ts>,
}

/// One key that differs, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference<'a> {
    key: &'a str,
    usual: &'a str,
    other: &'a str,
    nodes: &'a BTreeSet<String>,
    /// The nodes with the usual value, if they are no more than the others: then it is unknown
    /// which value is right.
    even: Option<&'a BTreeSet<String>>,
    /// A library that one side does not report.
    is_absence: bool,
}

impl ConfigDrift {
    fn is_benign(c: &Config, key: &str) -> bool {
        c.benign.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => key == pattern,
        })
    }

    fn reported_as_absent(&self) -> impl Iterator<Item = &String> {
        self.absences.iter().flat_map(|absences| &absences.reported)
    }

    /// When a library that a node does not report begins to count as absent. While no rank has made
    /// a step, this is the earliest possible time.
    fn absence_counts_at(&self, now: Ts, f: &RunState) -> Ts {
        let stepped = self.stepped.filter(|(attempt, _)| *attempt == f.attempt).map_or(now, |(_, at)| at);
        f.config_groups.changed_at.map_or(stepped, |changed| changed.max(stepped)) + LOOKED_AGAIN
    }

    fn judge(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        let groups = [f.config_groups.variants(false), f.config_groups.variants(true)];
        let mut all: Vec<Difference<'_>> = groups.iter().flat_map(|variants| differences(variants)).collect();
        let counts_at = self.absence_counts_at(now, f);
        // After a restart, no process may have loaded the missing libraries yet.
        let is_present = |key: &String| groups.iter().flatten().any(|v| v.setup.keys.contains_key(key));
        let is_early = all.iter().any(|d| d.is_absence) || !self.reported_as_absent().all(is_present);
        let waits = is_early && counts_at > now;
        if waits || self.absences.is_some() {
            self.absences.get_or_insert_default().look_again = waits.then_some(counts_at);
        }
        all.retain(|d| !(waits && d.is_absence));
        let (harmless, mut all): (Vec<_>, Vec<_>) = all.into_iter().partition(|d| Self::is_benign(c, d.key));
        // Differences of the fewest nodes come first.
        all.sort_by_key(|d| d.nodes.len());
        if all.is_empty() && waits {
            return;
        }
        if all.is_empty() {
            self.absences = None;
            if self.latch.clear() {
                let what = if harmless.is_empty() { "again" } else { "in all that matters" };
                let why = clause!("the nodes of the run agree {what}", what);
                out.push(finding(view, Change::Clear, Severity::Info, why));
            }
            if !harmless.is_empty() {
                out.push(finding(view, Change::Note, Severity::Info, sentence(f, &harmless)));
            }
            return;
        }
        self.latch.raise(Severity::Ticket);
        if !waits {
            let reported: BTreeSet<_> =
                all.iter().filter(|d| d.is_absence).map(|d| d.key.to_owned()).collect();
            let absences = Absences { reported, look_again: None };
            self.absences = (!absences.reported.is_empty()).then(|| Box::new(absences));
        }
        let mut v = finding(view, Change::Raise, Severity::Ticket, sentence(f, &all));
        v.value = all.len() as f64;
        if let Some(slower) = slower(f, &all) {
            let target = Target::Setting { key: slower.key.clone() };
            v.suspects.push(Suspect::new(target, slower.observation(None)));
        }
        for d in &all {
            for node in d.nodes.iter().chain(d.even.into_iter().flatten()).take(NAMED) {
                let target = Target::node(node);
                if v.suspects.len() < NAMED && !v.suspects.iter().any(|s| s.target == target) {
                    v.suspects.push(Suspect::new(target, observation(d)));
                }
            }
        }
        out.push(v);
    }
}

/// A key in which a node differs from most nodes of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupDifference {
    pub node: String,
    pub key: String,
    pub value: String,
    pub usual: String,
}

/// The differences of the nodes of a run, the harmless ones too.
pub fn by_node(setups: &ConfigGroups) -> Vec<SetupDifference> {
    let variants = setups.variants(false);
    let of = |d: &Difference<'_>| {
        let (key, value, usual) = (d.key.to_owned(), d.other.to_owned(), d.usual.to_owned());
        let all = d.nodes.iter().map(move |node| SetupDifference {
            node: node.clone(),
            key: key.clone(),
            value: value.clone(),
            usual: usual.clone(),
        });
        all.collect::<Vec<_>>()
    };
    differences(&variants).iter().flat_map(of).collect()
}

/// Whether the values of a key are a difference of the two setups.
fn differs(key: &str, a: &Setup, b: &Setup) -> bool {
    let values = [a.keys.get(key), b.keys.get(key)];
    let by_rank = values.into_iter().flatten().any(|v| v == DIFFERS_BY_RANK);
    // An argument that nothing is known of may name the node.
    let unknown = key.starts_with(ARGUMENT) && topic(key) == Topic::Other;
    values[0] != values[1] && !by_rank && !unknown && (!is_absence(key, a, b) || may_be_absent(key, a, b))
}

/// Whether only one of them reports the library `key`.
fn is_absence(key: &str, a: &Setup, b: &Setup) -> bool {
    LIBRARIES.contains(&key) && a.keys.contains_key(key) != b.keys.contains_key(key)
}

/// Whether an absence can count: a node that reports no library at all may not look at what its
/// processes have loaded.
fn may_be_absent(key: &str, a: &Setup, b: &Setup) -> bool {
    let sees = |setup: &Setup| LIBRARIES.iter().any(|library| setup.keys.contains_key(*library));
    OF_COLLECTIVES.contains(&key) && sees(a) && sees(b)
}

fn value<'a>(setup: &'a Setup, key: &str) -> &'a str {
    let absent = if LIBRARIES.contains(&key) { NOT_LOADED } else { "nothing" };
    setup.keys.get(key).map_or(absent, String::as_str)
}

/// Every key in which a setup differs from the one that most nodes have.
fn differences(variants: &[Variant]) -> Vec<Difference<'_>> {
    let [most, others @ ..] = variants else { return Vec::new() };
    let mut all = Vec::new();
    for Variant { setup, nodes } in others {
        let (a, b) = (&most.setup, setup);
        let even = (most.nodes.len() == nodes.len()).then_some(&most.nodes);
        let keys: BTreeSet<&String> = a.keys.keys().chain(b.keys.keys()).collect();
        for key in keys.into_iter().filter(|key| differs(key, a, b)) {
            let (usual, other) = (value(a, key), value(b, key));
            all.push(Difference { key, usual, other, nodes, even, is_absence: is_absence(key, a, b) });
        }
    }
    all
}

fn observation(d: &Difference<'_>) -> Observation {
    let list = |nodes: &BTreeSet<String>| nodes.iter().cloned().collect();
    Observation::Setting {
        key: d.key.to_owned(),
        value: d.other.to_owned(),
        expected: d.usual.to_owned(),
        on: d.even.map(|even| [list(d.nodes), list(even)]),
    }
}

/// The difference that makes some of the nodes slower.
fn slower(f: &RunState, all: &[Difference<'_>]) -> Option<SlowerSetup> {
    f.slower_setup().filter(|slower| all.iter().any(|d| d.key == slower.key))
}

fn sentence(f: &RunState, all: &[Difference<'_>]) -> Sentence {
    let [first, rest @ ..] = all else { return Sentence::default() };
    let total = f.nodes.len();
    let seen = &observation(first);
    let mut why = Sentence::from(if first.even.is_some() {
        clause!("the {total} nodes of the run are set up differently: {seen}", total, seen)
    } else {
        clause!(
            "{nodes} {verb} from the other nodes of the run ({total} in all): {seen}",
            nodes = Fact::Nodes(first.nodes.iter().cloned().collect()),
            verb = if first.nodes.len() == 1 { "differs" } else { "differ" },
            total,
            seen,
        )
    });
    for d in rest.iter().take(NAMED - 1) {
        let on = d.nodes.first().filter(|_| d.even.is_none());
        let on = on.map(|node| clause!(" on {node}", node = node.clone()));
        why.add(clause!("{seen}{on}", seen = &observation(d), on));
    }
    if rest.len() >= NAMED {
        why.add(clause!("and {more} more", more = rest.len() + 1 - NAMED));
    }
    if let Some(slower) = slower(f, all) {
        why.add(clause!("{seen}", seen = &slower.observation(None)));
    }
    why
}

impl ClockDetector for ConfigDrift {
    type Config = Config;

    fn look(&mut self, c: &Config, view: RunAt<'_>, out: &mut Vec<Finding>) {
        let RunAt { now, run: f } = view;
        if f.attempt_steps > 0 && self.stepped.is_none_or(|(attempt, _)| attempt != f.attempt) {
            self.stepped = Some((f.attempt, now));
        }
        if self.deadline(c, f).is_some_and(|at| at <= now) {
            self.judged_at = f.config_groups.changed_at;
            self.judge(c, view, out);
        }
    }

    fn deadline(&self, c: &Config, f: &RunState) -> Option<Ts> {
        let changed =
            f.config_groups.changed_at.filter(|at| self.judged_at != Some(*at)).map(|at| at + c.settle);
        changed
            .into_iter()
            .chain(self.absences.as_ref().and_then(|absences| absences.look_again))
            .min()
            .filter(|_| c.enabled && f.ended.is_none())
    }
}

fn finding(view: RunAt<'_>, change: Change, severity: Severity, why: impl Into<Sentence>) -> Finding {
    Finding { why: why.into(), ..view.finding(Kind::ConfigDrift, "config", change, severity) }
}
