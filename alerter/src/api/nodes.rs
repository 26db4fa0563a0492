//! Nodes by HTTP: the list, worst first, and one node in detail.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use stepwatch_detect::node::Level;
use utoipa::ToSchema;

use super::auth::Caller;
use super::doc::errors::{Broken, NotFound};
use super::doc::examples;
use super::error::ApiError;
use super::extract::Named;
use super::state::Api;
use super::view::{IncidentView, When};
use crate::label_names::nearest;
use crate::node_snapshot::{ConditionSnapshot, GpuSnapshot, NodeSnapshot};
use crate::store::Filter;

/// The most unresolved incidents that are searched for the nodes that they name.
const INCIDENTS_SCANNED: u32 = 5_000;
/// The most incidents of one node, latest first.
const INCIDENTS_SHOWN: u32 = 100;

type Result<T> = core::result::Result<T, ApiError>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The worst first.
    pub nodes: Vec<NodeView>,
    /// Nodes beyond the limit of one answer.
    pub hidden: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(examples(examples::node))]
pub struct NodeView {
    pub node: String,
    pub state: NodeStateView,
    pub last_heard_at: When,
    /// Runs with ranks on it.
    pub runs: Vec<String>,
    /// Jobs of its scheduler: `job 4711 of bob on slurm`.
    pub jobs: Vec<String>,
    pub gpus: usize,
    /// Conditions that hold, and the worst of them in words.
    pub conditions: usize,
    pub worst: Option<String>,
    /// Unresolved incidents that name it.
    pub incidents: usize,
}

/// How a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeStateView {
    /// Something holds that is an error.
    Faulty,
    /// Something holds that is a warning, or an unresolved incident names it.
    Suspect,
    /// Nothing was heard of it for 25 minutes.
    Silent,
    Healthy,
}

/// A node, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    #[serde(flatten)]
    pub node: NodeView,
    /// What holds, and what happened within the last hour; the worst first.
    pub condition_list: Vec<ConditionView>,
    pub gpu_list: Vec<GpuView>,
    /// In what it differs from most nodes of a run.
    pub differences: Vec<DifferenceView>,
    /// The latest incidents about it.
    pub incident_list: Vec<IncidentView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConditionView {
    pub name: String,
    /// Number of an XID.
    pub xid: Option<i64>,
    /// GPU, device, mount or process.
    pub place: String,
    pub level: LevelView,
    pub text: String,
    /// What its exporter advises.
    pub action: String,
    /// By the clock of the node.
    pub began_at: When,
    pub last_at: When,
    pub times: u32,
    /// False of what happened and is no condition, and of what is over.
    pub holds: bool,
    pub over_at: Option<When>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LevelView {
    Info,
    Warning,
    Error,
}

/// A GPU as it was last read; what is absent was not reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuView {
    pub uuid: String,
    pub index: Option<u32>,
    pub pci: String,
    /// It is still read, as the others of the node are.
    pub there: bool,
    pub read_at: Option<When>,
    pub utilization_ratio: Option<f64>,
    pub sm_clock_hertz: Option<f64>,
    pub sm_clock_max_hertz: Option<f64>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub temperature_celsius: Option<f64>,
    pub ecc_corrected: Option<f64>,
    pub remapped_rows: Option<f64>,
    /// Why the driver holds its clocks down.
    pub throttled_by: Vec<String>,
}

/// A setting in which a node differs from most nodes of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DifferenceView {
    pub run: String,
    pub key: String,
    pub value: String,
    pub usual: String,
}

/// Nodes whose exporters are read, the worst first.
///
/// A token that is limited to some runs or teams sees the nodes that these runs use.
#[utoipa::path(
    get,
    path = "/api/v1/nodes",
    operation_id = "listNodes",
    tag = "state",
    responses((status = 200, description = "The nodes", body = NodeList), Broken)
)]
pub(super) async fn list(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<NodeList>> {
    Ok(Json(api.node_list(&caller).await?))
}

/// A node: its conditions, GPUs, runs, incidents, and in what it differs from other nodes.
#[utoipa::path(
    get,
    path = "/api/v1/nodes/{node}",
    operation_id = "getNode",
    tag = "state",
    params(("node" = String, Path, description = "The name of the node")),
    responses((status = 200, description = "The node", body = NodeDetail), NotFound, Broken)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Named(node): Named,
) -> Result<Json<NodeDetail>> {
    Ok(Json(api.node_detail(&caller, &node).await?))
}

impl Api {
    /// The nodes that the caller may see.
    pub(crate) async fn node_list(&self, caller: &Caller) -> Result<NodeList> {
        let view = self.runtime.views.get();
        let filter = Filter {
            unresolved: true,
            and_firing: true,
            limit: Some(INCIDENTS_SCANNED),
            ..Filter::default()
        };
        let mut named: BTreeMap<String, usize> = BTreeMap::new();
        for record in self.incidents(caller, filter).await? {
            record.nodes.into_iter().for_each(|node| *named.entry(node).or_default() += 1);
        }
        let admits = self.runs_seen(caller);
        let shown = view.nodes.iter().filter_map(|node| {
            let runs = visible(node, admits.as_deref())?;
            let incidents = named.get(&node.node).copied().unwrap_or(0);
            Some(NodeView::new(node, runs, incidents).limited(admits.is_some()))
        });
        let mut nodes: Vec<NodeView> = shown.collect();
        nodes.sort_by(|a, b| {
            let worse = |n: &NodeView| (n.state, core::cmp::Reverse((n.incidents, n.conditions)));
            worse(a).cmp(&worse(b)).then_with(|| a.node.cmp(&b.node))
        });
        let hidden = if caller.token_scope().is_some() { 0 } else { view.nodes_hidden };
        Ok(NodeList { nodes, hidden })
    }

    /// A node that the caller may see.
    pub(crate) async fn node_detail(&self, caller: &Caller, name: &str) -> Result<NodeDetail> {
        let view = self.runtime.views.get();
        let admits = self.runs_seen(caller);
        let found = view.nodes.iter().find(|node| node.node == name);
        let seen = found.and_then(|node| Some((node, visible(node, admits.as_deref())?)));
        let Some((node, runs)) = seen else {
            let names = view.nodes.iter().filter(|n| visible(n, admits.as_deref()).is_some());
            let near = nearest(name, names.map(|n| n.node.as_str()));
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            return Err(ApiError::not_found(format!("there is no node {name:?}{near}")));
        };
        let filter =
            Filter { node: Some(name.to_owned()), limit: Some(INCIDENTS_SHOWN), ..Filter::default() };
        let incidents = self.incidents(caller, filter).await?;
        let unresolved = incidents.iter().filter(|r| r.end.is_none()).count();
        let differences = node.differences.iter().filter(|(run, _)| runs.contains(run));
        let differences = differences.map(|(run, d)| DifferenceView {
            run: run.clone(),
            key: d.key.clone(),
            value: d.value.clone(),
            usual: d.usual.clone(),
        });
        Ok(NodeDetail {
            differences: differences.collect(),
            condition_list: node.conditions.iter().map(ConditionView::from).collect(),
            gpu_list: node.gpus.iter().map(GpuView::from).collect(),
            incident_list: incidents.into_iter().map(IncidentView::from).collect(),
            node: NodeView::new(node, runs, unresolved).limited(admits.is_some()),
        })
    }

    /// The runs that a limited caller may see; `None` if the caller has no limits.
    fn runs_seen(&self, caller: &Caller) -> Option<Vec<String>> {
        caller.token_scope()?;
        Some(self.run_views(caller).runs.into_iter().map(|run| run.run).collect())
    }
}

/// The runs of a node that a caller may see; `None` if the caller may not see the node.
fn visible(node: &NodeSnapshot, admits: Option<&[String]>) -> Option<Vec<String>> {
    let Some(admits) = admits else { return Some(node.runs.clone()) };
    let runs: Vec<String> = node.runs.iter().filter(|run| admits.contains(run)).cloned().collect();
    (!runs.is_empty()).then_some(runs)
}

impl NodeView {
    fn new(node: &NodeSnapshot, runs: Vec<String>, incidents: usize) -> Self {
        let state = match node.worst() {
            _ if node.silent => NodeStateView::Silent,
            Some(Level::Error) => NodeStateView::Faulty,
            Some(Level::Warn) => NodeStateView::Suspect,
            _ if incidents > 0 => NodeStateView::Suspect,
            _ => NodeStateView::Healthy,
        };
        let worst = node.conditions.first().filter(|c| c.holds);
        Self {
            node: node.node.clone(),
            state,
            last_heard_at: When(node.last_heard),
            runs,
            jobs: node.jobs.clone(),
            gpus: node.gpus.iter().filter(|gpu| gpu.there).count(),
            conditions: node.conditions.iter().filter(|c| c.holds).count(),
            worst: worst.map(|c| if c.text.is_empty() { c.name.clone() } else { c.text.clone() }),
            incidents,
        }
    }
}

impl NodeView {
    /// The node without the jobs of others, if the caller is limited.
    fn limited(mut self, limited: bool) -> Self {
        if limited {
            self.jobs.clear();
        }
        self
    }
}

impl From<&ConditionSnapshot> for ConditionView {
    fn from(c: &ConditionSnapshot) -> Self {
        let level = match c.level {
            Level::Info => LevelView::Info,
            Level::Warn => LevelView::Warning,
            Level::Error => LevelView::Error,
        };
        Self {
            name: c.name.clone(),
            xid: c.xid,
            place: c.place.clone(),
            level,
            text: c.text.clone(),
            action: c.action.clone(),
            began_at: When(c.began),
            last_at: When(c.last),
            times: c.times,
            holds: c.holds,
            over_at: c.over.map(When),
        }
    }
}

impl From<&GpuSnapshot> for GpuView {
    fn from(g: &GpuSnapshot) -> Self {
        let r = &g.gpu.last;
        let remapped = [r.remapped_correctable, r.remapped_uncorrectable];
        Self {
            uuid: g.uuid.clone(),
            index: g.gpu.index,
            pci: g.gpu.pci.clone(),
            there: g.there,
            read_at: (g.gpu.readings > 0).then_some(When(r.at)),
            utilization_ratio: r.utilization,
            sm_clock_hertz: r.sm_clock,
            sm_clock_max_hertz: r.sm_clock_max,
            power_watts: r.power,
            power_limit_watts: r.power_limit,
            temperature_celsius: r.temperature,
            ecc_corrected: r.ecc_corrected,
            remapped_rows: remapped.iter().any(Option::is_some).then(|| remapped.iter().flatten().sum()),
            throttled_by: r.reasons.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
