//! What a pass finds out of nodes and pods.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{
    Amounts, Condition, ContainerStatus, GpuResources, Node, Pod, Taint, Toleration, seconds,
};
use super::placed::Placed;
use crate::scheduler::{Outage, Waiter};

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
    /// The names of its GPUs' resources.
    gpus: Vec<String>,
    capacity: Amounts,
    allocatable: Amounts,
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
    pub(super) allocated: u64,
    pub(super) idle: u64,
    /// That no pod has and none gets: of nodes that get no pod, and those that the device plugin
    /// took out.
    pub(super) unavailable: u64,
}

impl Nodes {
    pub(super) fn take(&mut self, gpus: &GpuResources, node: Node) {
        let capacity = Amounts::parse(node.status.capacity.as_ref());
        let allocatable = Amounts::parse(node.status.allocatable.as_ref());
        let names: BTreeSet<&str> = capacity.names().chain(allocatable.names()).collect();
        let gpus: Vec<String> = names.into_iter().filter(|name| gpus.has(name)).map(str::to_owned).collect();
        if gpus.is_empty() || node.metadata.name.is_empty() {
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
            gpus,
            capacity,
            allocatable,
        });
    }

    pub(super) fn by_standing(&self, standing: NodeStanding) -> usize {
        self.all.iter().filter(|node| node.standing == standing).count()
    }

    pub(super) fn gpus(&self, held: &Held) -> GpuCounts {
        let mut counts = GpuCounts::default();
        for node in &self.all {
            for name in &node.gpus {
                let (capacity, allocatable) = (node.capacity.count(name), node.allocatable.count(name));
                let used = held.on(&node.name).map_or(0, |held| held.count(name));
                let used = used.min(capacity.max(allocatable));
                let is_ready = node.standing == NodeStanding::Ready;
                let idle = if is_ready { allocatable.saturating_sub(used) } else { 0 };
                counts.allocated += used;
                counts.idle += idle;
                counts.unavailable += capacity.saturating_sub(used + idle);
            }
        }
        counts
    }

    /// The GPUs that the nodes have, and those that pods may have.
    pub(super) fn there(&self) -> (u64, u64) {
        let all = self.all.iter().flat_map(|node| node.gpus.iter().map(move |name| (node, name)));
        let each = all.map(|(node, name)| (node.capacity.count(name), node.allocatable.count(name)));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
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
    /// What the node has left for pods.
    fn free(&self, held: &Held) -> Amounts {
        let mut free = self.allocatable.clone();
        held.on(&self.name).into_iter().for_each(|held| free.subtract(held));
        free
    }
}

/// What pods hold, by node: also pods without GPUs, which hold processors and memory.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<String, Amounts>);

impl Held {
    pub(super) fn take(&mut self, pod: &Pod) {
        if let Some(node) = pod.spec.node_name.as_ref().filter(|node| !node.is_empty()) {
            self.add(node, &pod.spec.amounts());
        }
    }

    fn add(&mut self, node: &str, amounts: &Amounts) {
        if let Some(held) = self.0.get_mut(node) {
            held.add(amounts);
        } else if self.0.len() < MAX_NODES {
            self.0.insert(node.to_owned(), amounts.clone());
        }
    }

    /// Adds what other pods hold.
    pub(super) fn with(mut self, other: &Self) -> Self {
        other.0.iter().for_each(|(node, amounts)| self.add(node, amounts));
        self
    }

    fn on(&self, node: &str) -> Option<&Amounts> {
        self.0.get(node)
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
    /// What those hold that have a node already, and those without GPUs.
    pub(super) held: Held,
    /// Those that have a node and wait there for their images.
    pub(super) placed: Vec<Placed>,
    unschedulable: Vec<Wanted>,
}

/// What an unschedulable pod asks for.
#[derive(Debug)]
struct Wanted {
    id: String,
    name: String,
    /// When it was created, in Unix seconds; 0 if nothing says so.
    created: f64,
    amounts: Amounts,
    selector: BTreeMap<String, String>,
    tolerations: Vec<Toleration>,
}

impl Queue {
    pub(super) fn take(&mut self, gpus: &GpuResources, pod: Pod) {
        self.held.take(&pod);
        self.placed.extend(Placed::of(gpus, &pod));
        let amounts = pod.spec.amounts();
        let of_pod = gpus.total(&amounts);
        if of_pod == 0 {
            return;
        }
        let reason = Reason::of(&pod);
        let pending = self.pending.entry(reason).or_default();
        pending.pods += 1;
        pending.gpus = pending.gpus.saturating_add(of_pod);
        let since = seconds(pod.metadata.creation_timestamp.as_deref());
        pending.since = pending.since.into_iter().chain(since).reduce(f64::min);
        let compared = reason == Reason::Unschedulable && pod.is_plain();
        if compared && self.unschedulable.len() < MAX_COMPARED {
            self.unschedulable.push(Wanted {
                name: format!("pod {}/{}", pod.metadata.namespace, pod.metadata.name),
                id: pod.metadata.uid,
                created: since.unwrap_or(0.0),
                amounts,
                selector: pod.spec.node_selector.unwrap_or_default(),
                tolerations: pod.spec.tolerations.unwrap_or_default(),
            });
        }
    }

    /// The pods that are unschedulable although a node that they may use has room for them, the
    /// oldest first. What one would use is none's after it. Pods that start only with others, with
    /// rules of affinity or of another scheduler are not compared.
    pub(super) fn fitting(&self, nodes: &Nodes, held: &Held) -> Vec<Waiter> {
        let ready = nodes.all.iter().filter(|node| node.standing == NodeStanding::Ready);
        let mut free: Vec<(&GpuNode, Amounts)> = ready.map(|node| (node, node.free(held))).collect();
        let mut all: Vec<&Wanted> = self.unschedulable.iter().collect();
        all.sort_by(|a, b| a.created.total_cmp(&b.created).then_with(|| a.id.cmp(&b.id)));
        let mut fitting = Vec::new();
        for wanted in all {
            let room = free.iter_mut().find(|(node, free)| free.has(&wanted.amounts) && wanted.may_use(node));
            if let Some((_, free)) = room {
                free.subtract(&wanted.amounts);
                fitting.push(Waiter::new(&wanted.id, &wanted.name));
            }
        }
        fitting
    }
}

impl Wanted {
    fn may_use(&self, node: &GpuNode) -> bool {
        let has_labels = self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let tolerated = |taint: &Taint| self.tolerations.iter().any(|t| t.tolerates(taint));
        has_labels && node.taints.iter().all(tolerated)
    }
}
