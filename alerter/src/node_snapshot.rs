//! A copy of one node's state from the engine, for the API and the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepwatch_detect::Node;
use stepwatch_detect::detectors::config_drift::{self, SetupDifference};
use stepwatch_detect::node::{Condition, Gpu, Key, Level, Topic};
use stepwatch_engine::Engine;
use stepwatch_model::time::{Span, Ts};

/// The most nodes that are shown; the others are counted.
pub const MAX_NODES_SHOWN: usize = 20_000;
/// The time without reports after which a node is silent. An exporter repeats its conditions every
/// 10 minutes.
pub const SILENT_AFTER: Span = Span::secs(1500);
/// The age after which a copy is renewed even without a report, because time passes and runs start.
const RENEW: Span = Span::secs(5);
/// The most copies made in one pass, so that the loop is not delayed.
const COPIES_A_PASS: usize = 1_000;
/// The most differences kept of one node.
const MAX_DIFFERENCES: usize = 64;

/// The state of a node. Times are those of the alerter's clock.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    pub node: String,
    pub last_heard: Ts,
    /// Nothing was reported for [`SILENT_AFTER`].
    pub silent: bool,
    /// The present conditions, and those of the last hour; the worst first.
    pub conditions: Vec<ConditionSnapshot>,
    pub gpus: Vec<GpuSnapshot>,
    /// Runs with ranks on the node.
    pub runs: Vec<String>,
    /// Jobs of the node's scheduler, as text.
    pub jobs: Vec<String>,
    /// The settings in which the node differs from most nodes of a run.
    pub differences: Vec<(String, SetupDifference)>,
    /// The number of conditions that were dropped for lack of room.
    pub conditions_dropped: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ConditionSnapshot {
    pub topic: Topic,
    pub name: String,
    /// The number of an XID.
    pub xid: Option<i64>,
    /// The GPU, device, mount or process.
    pub place: String,
    pub level: Level,
    pub text: String,
    pub action: String,
    pub gpu: String,
    /// The times of the first and last report, by the node's clock.
    pub began: Ts,
    pub last: Ts,
    pub times: u32,
    pub holds: bool,
    pub over: Option<Ts>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GpuSnapshot {
    pub uuid: String,
    /// Whether the GPU is still read, like the others of the node.
    pub there: bool,
    pub gpu: Gpu,
}

impl NodeSnapshot {
    fn new(now: Ts, node: &Node, engine: &Engine, drift: &Drift) -> Self {
        let state = &node.state;
        let mut conditions: Vec<_> =
            state.conditions.iter().map(|(key, c)| ConditionSnapshot::new(key, c)).collect();
        conditions.sort_by_key(|c| core::cmp::Reverse((c.holds, c.level, c.last)));
        let gpu = |(uuid, gpu): (&str, &Gpu)| {
            let there = state.gpus.is_there(uuid);
            GpuSnapshot { uuid: uuid.to_owned(), there, gpu: gpu.clone() }
        };
        let mut gpus: Vec<_> = state.gpus.iter().map(gpu).collect();
        gpus.sort_by(|a, b| (a.gpu.index, &a.gpu.pci).cmp(&(b.gpu.index, &b.gpu.pci)));
        Self {
            node: state.name.clone(),
            last_heard: state.last_heard,
            silent: now - state.last_heard > SILENT_AFTER,
            conditions,
            gpus,
            runs: engine.runs_on(&state.name).map(str::to_owned).collect(),
            jobs: state.jobs.words().map(str::to_owned).collect(),
            differences: drift.of(&state.name),
            conditions_dropped: state.conditions.dropped,
        }
    }

    /// The worst level of the present conditions.
    pub fn worst(&self) -> Option<Level> {
        self.conditions.iter().filter(|c| c.holds).map(|c| c.level).max()
    }
}

impl ConditionSnapshot {
    fn new(key: &Key, c: &Condition) -> Self {
        Self {
            topic: key.topic,
            name: if key.aspect.is_empty() {
                key.name.clone()
            } else {
                format!("{} {}", key.name, key.aspect)
            },
            xid: (key.topic == Topic::Xid).then_some(key.number),
            place: key.place.clone(),
            level: c.level,
            text: c.text.clone(),
            action: c.action.as_ref().map_or_else(String::new, |action| action.as_str().to_owned()),
            gpu: c.gpu.clone(),
            began: c.began,
            last: c.last,
            times: c.times,
            holds: c.holds(),
            over: c.over,
        }
    }
}

/// The differences of nodes from most nodes of their run, by run.
#[derive(Debug, Default)]
struct Drift(BTreeMap<String, (Option<Ts>, Vec<SetupDifference>)>);

impl Drift {
    /// Compares the nodes of runs whose setup changed.
    fn renew(&mut self, engine: &Engine) {
        self.0.retain(|name, _| engine.run(name).is_some());
        for run in engine.runs() {
            let (name, setups) = (&run.state.name, &run.state.config_groups);
            if self.0.get(name).is_none_or(|(at, _)| *at != setups.changed_at) {
                self.0.insert(name.clone(), (setups.changed_at, config_drift::by_node(setups)));
            }
        }
    }

    fn of(&self, node: &str) -> Vec<(String, SetupDifference)> {
        let all = self.0.iter().flat_map(|(run, (_, all))| all.iter().map(move |d| (run, d)));
        let own = all.filter(|(_, d)| d.node == node).take(MAX_DIFFERENCES);
        own.map(|(run, d)| (run.clone(), d.clone())).collect()
    }
}

/// Copies of all nodes, renewed when something changes.
#[derive(Debug, Default)]
pub struct NodeSnapshots {
    made: BTreeMap<String, Made>,
    drift: Drift,
}

#[derive(Debug)]
struct Made {
    heard: Ts,
    at: Ts,
    copy: Arc<NodeSnapshot>,
}

impl NodeSnapshots {
    /// Renews the outdated copies, and returns all. If there are too many at a time, new nodes and
    /// nodes with new reports come first.
    pub fn renew(&mut self, now: Ts, engine: &Engine) -> Arc<[Arc<NodeSnapshot>]> {
        self.drift.renew(engine);
        let (mut copies, mut seen) = (0, Vec::new());
        for node in engine.nodes().take(MAX_NODES_SHOWN) {
            let name = &node.state.name;
            let heard = node.state.last_heard;
            let due = self.made.get(name).is_none_or(|made| made.heard != heard || now - made.at > RENEW);
            if due && copies < COPIES_A_PASS {
                copies += 1;
                let copy = Arc::new(NodeSnapshot::new(now, node, engine, &self.drift));
                self.made.insert(name.clone(), Made { heard, at: now, copy });
            }
            if let Some(made) = self.made.get(name) {
                seen.push(Arc::clone(&made.copy));
            }
        }
        if self.made.len() > seen.len() {
            let names: BTreeSet<&str> = seen.iter().map(|n| n.node.as_str()).collect();
            self.made.retain(|name, _| names.contains(name.as_str()));
        }
        seen.into()
    }
}
