//! What a pass finds out of nodes and pods.

use std::collections::BTreeMap;

use super::objects::{Condition, ContainerStatus, GpuResources, Node, Pod, Taint, Toleration, seconds};
use crate::scheduler::Outage;

/// The most nodes with GPUs, and the most types of conditions.
const MAX_NODES: usize = 50_000;
const MAX_PROBLEMS: usize = 64;
/// The most pods that are compared with the nodes.
const MAX_COMPARED: usize = 100;
const READY: &str = "Ready";

/// Why a pod waits, in words of a bounded set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// No node has room for it.
    Unschedulable,
    /// Its creator holds it back, as queues do.
    Gated,
    /// The scheduler has not looked at it.
    Unscheduled,
    /// Its image cannot be pulled.
    Image,
    /// Its containers cannot be started.
    Failing,
    Creating,
}

impl Reason {
    pub(super) const ALL: [Self; 6] =
        [Self::Unschedulable, Self::Gated, Self::Unscheduled, Self::Image, Self::Failing, Self::Creating];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unschedulable => "unschedulable",
            Self::Gated => "gated",
            Self::Unscheduled => "unscheduled",
            Self::Image => "image",
            Self::Failing => "failing",
            Self::Creating => "creating",
        }
    }

    fn of(pod: &Pod) -> Self {
        let mut conditions = pod.status.conditions.iter().flatten();
        let scheduled = conditions.find(|c| c.kind == "PodScheduled");
        if let Some(refused) = scheduled.filter(|c| c.status == "False") {
            return match refused.reason.as_deref() {
                Some("SchedulingGated") => Self::Gated,
                Some("Unschedulable") => Self::Unschedulable,
                Some(_) | None => Self::Unscheduled,
            };
        }
        if pod.spec.node_name.as_deref().unwrap_or_default().is_empty() {
            return Self::Unscheduled;
        }
        let (init, main) = (&pod.status.init_container_statuses, &pod.status.container_statuses);
        let waiting = init.iter().chain(main).flatten().filter_map(ContainerStatus::waits_for);
        waiting.min().unwrap_or(Self::Creating)
    }
}

impl ContainerStatus {
    fn waits_for(&self) -> Option<Reason> {
        let reason = self.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
        Some(match reason {
            "ContainerCreating" | "PodInitializing" => Reason::Creating,
            _ if reason.contains("Image") || reason == "RegistryUnavailable" => Reason::Image,
            _ => Reason::Failing,
        })
    }
}

/// The state of a node, as the scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeStanding {
    Ready,
    Cordoned,
    NotReady,
}

impl NodeStanding {
    pub(super) const ALL: [Self; 3] = [Self::Ready, Self::Cordoned, Self::NotReady];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Cordoned => "cordoned",
            Self::NotReady => "not_ready",
        }
    }
}

#[derive(Debug)]
struct GpuNode {
    name: String,
    standing: NodeStanding,
    /// Why it is not ready, and since when.
    reason: String,
    since: Option<f64>,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    capacity: u64,
    allocatable: u64,
}

/// The nodes that have GPUs.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    all: Vec<GpuNode>,
    /// Nodes by the type of a condition that says that something is wrong.
    pub(super) problems: BTreeMap<String, u64>,
    pub(super) left_out: u64,
}

/// GPUs by what the scheduler does with them; each counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct GpuCounts {
    pub(super) capacity: u64,
    pub(super) allocatable: u64,
    pub(super) allocated: u64,
    pub(super) idle: u64,
    /// That no pod has and none gets: of nodes that get no pod, and those that the device plugin
    /// took out.
    pub(super) unavailable: u64,
}

impl Nodes {
    pub(super) fn take(&mut self, gpus: &GpuResources, node: Node) {
        let (capacity, allocatable) =
            (gpus.count(node.status.capacity.as_ref()), gpus.count(node.status.allocatable.as_ref()));
        if capacity.or(allocatable).is_none() || node.metadata.name.is_empty() {
            return;
        }
        if self.all.len() >= MAX_NODES {
            self.left_out += 1;
            return;
        }
        let conditions = node.status.conditions.unwrap_or_default();
        for problem in conditions.iter().filter(|c| c.is_problem()) {
            let room = self.problems.len() < MAX_PROBLEMS || self.problems.contains_key(&problem.kind);
            if room {
                *self.problems.entry(problem.kind.clone()).or_default() += 1;
            }
        }
        let ready = conditions.iter().find(|c| c.kind == READY);
        let is_ready = ready.is_some_and(|c| c.status == "True");
        let (standing, reason, since) = match (is_ready, node.spec.unschedulable) {
            (false, _) => {
                let reason = ready.and_then(|c| c.reason.clone()).unwrap_or_default();
                let since = seconds(ready.and_then(|c| c.last_transition_time.as_deref()));
                (NodeStanding::NotReady, reason, since)
            }
            (true, Some(true)) => (NodeStanding::Cordoned, String::new(), None),
            (true, Some(false) | None) => (NodeStanding::Ready, String::new(), None),
        };
        self.all.push(GpuNode {
            name: node.metadata.name,
            standing,
            reason,
            since,
            labels: node.metadata.labels.unwrap_or_default(),
            taints: node.spec.taints.unwrap_or_default().into_iter().filter(Taint::keeps_away).collect(),
            capacity: capacity.unwrap_or(0),
            allocatable: allocatable.unwrap_or(0),
        });
    }

    pub(super) fn by_standing(&self, standing: NodeStanding) -> usize {
        self.all.iter().filter(|node| node.standing == standing).count()
    }

    pub(super) fn gpus(&self, held: &Held) -> GpuCounts {
        let mut counts = GpuCounts::default();
        for node in &self.all {
            let used = held.on(&node.name).min(node.capacity.max(node.allocatable));
            let idle = node.idle(used);
            counts.capacity += node.capacity;
            counts.allocatable += node.allocatable;
            counts.allocated += used;
            counts.idle += idle;
            counts.unavailable += node.capacity.saturating_sub(used + idle);
        }
        counts
    }

    pub(super) fn outages(&self) -> Vec<Outage> {
        let out = self.all.iter().filter(|node| node.standing != NodeStanding::Ready);
        let outage = |n: &GpuNode| Outage::new(&n.name, n.standing.as_str(), &n.reason, n.since);
        out.map(outage).collect()
    }
}

impl Condition {
    /// Node problem detectors report a problem by `True`, and `Ready` is well when `True`.
    fn is_problem(&self) -> bool {
        if self.kind == READY { self.status != "True" } else { self.status == "True" }
    }
}

impl GpuNode {
    fn idle(&self, used: u64) -> u64 {
        if self.standing == NodeStanding::Ready { self.allocatable.saturating_sub(used) } else { 0 }
    }
}

/// GPUs that pods hold, by node.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<String, u64>);

impl Held {
    pub(super) fn take(&mut self, gpus: &GpuResources, pod: &Pod) {
        let of_pod = gpus.of_pod(&pod.spec);
        if let Some(node) = pod.spec.node_name.as_ref().filter(|node| of_pod > 0 && !node.is_empty()) {
            let held = self.0.entry(node.clone()).or_default();
            *held = held.saturating_add(of_pod);
        }
    }

    /// With the GPUs of other pods.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut all = self.0.clone();
        for (node, gpus) in &other.0 {
            let held = all.entry(node.clone()).or_default();
            *held = held.saturating_add(*gpus);
        }
        Self(all)
    }

    fn on(&self, node: &str) -> u64 {
        self.0.get(node).copied().unwrap_or(0)
    }
}

/// The pods with one reason to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Pending {
    pub(super) pods: u64,
    pub(super) gpus: u64,
    /// When the oldest was created, in Unix seconds.
    pub(super) since: Option<f64>,
}

/// The pods that wait and ask for GPUs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) pending: BTreeMap<Reason, Pending>,
    /// GPUs of those that have a node already.
    pub(super) held: Held,
    unschedulable: Vec<Wanted>,
}

/// What an unschedulable pod asks for.
#[derive(Debug)]
struct Wanted {
    gpus: u64,
    selector: BTreeMap<String, String>,
    tolerations: Vec<Toleration>,
}

impl Queue {
    pub(super) fn take(&mut self, gpus: &GpuResources, pod: Pod) {
        let of_pod = gpus.of_pod(&pod.spec);
        if of_pod == 0 {
            return;
        }
        self.held.take(gpus, &pod);
        let reason = Reason::of(&pod);
        let pending = self.pending.entry(reason).or_default();
        pending.pods += 1;
        pending.gpus = pending.gpus.saturating_add(of_pod);
        let since = seconds(pod.metadata.creation_timestamp.as_deref());
        pending.since = pending.since.into_iter().chain(since).reduce(f64::min);
        let compared = reason == Reason::Unschedulable && pod.spec.is_plain();
        if compared && self.unschedulable.len() < MAX_COMPARED {
            self.unschedulable.push(Wanted {
                gpus: of_pod,
                selector: pod.spec.node_selector.unwrap_or_default(),
                tolerations: pod.spec.tolerations.unwrap_or_default(),
            });
        }
    }

    /// How many pods are unschedulable although a node that they may use has the GPUs idle. Pods
    /// with rules of affinity are not compared.
    pub(super) fn fitting(&self, nodes: &Nodes, held: &Held) -> u64 {
        let fits = |wanted: &&Wanted| {
            let mut idle = nodes.all.iter().filter(|node| node.idle(held.on(&node.name)) >= wanted.gpus);
            idle.any(|node| wanted.may_use(node))
        };
        self.unschedulable.iter().filter(fits).count() as u64
    }
}

impl Wanted {
    fn may_use(&self, node: &GpuNode) -> bool {
        let has_labels = self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|t| t.tolerates(taint));
        has_labels && node.taints.iter().all(tolerated)
    }
}
