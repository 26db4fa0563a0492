//! What is read of nodes and pods; all other fields are skipped.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

type Map = Option<BTreeMap<String, String>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) labels: Map,
    pub(super) creation_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) last_transition_time: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: Meta,
    pub(super) spec: NodeSpec,
    pub(super) status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) unschedulable: Option<bool>,
    pub(super) taints: Option<Vec<Taint>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) effect: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStatus {
    pub(super) capacity: Map,
    pub(super) allocatable: Map,
    pub(super) conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Meta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) node_selector: Map,
    pub(super) tolerations: Option<Vec<Toleration>>,
    /// Wishes that are not compared: whether a pod with one fits is unknown.
    affinity: Option<IgnoredAny>,
    topology_spread_constraints: Option<IgnoredAny>,
    resource_claims: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    resources: Resources,
    /// `Always` for one that runs beside the others.
    restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    requests: Map,
    limits: Map,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) state: Option<ContainerState>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerState {
    pub(super) waiting: Option<Waiting>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Waiting {
    pub(super) reason: Option<String>,
}

/// The resources that are GPUs, by patterns of their names.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuResources(Vec<glob::Pattern>);

/// More GPUs than a node or a pod has.
const MOST: u64 = 1 << 20;

impl GpuResources {
    pub(super) fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect())
    }

    /// The number of GPUs in a list of resources; `None` if it has none of their names.
    pub(super) fn count(&self, resources: Option<&BTreeMap<String, String>>) -> Option<u64> {
        let ours = |name: &str| self.0.iter().any(|pattern| pattern.matches(name));
        let all = resources.into_iter().flatten().filter(|(name, _)| ours(name));
        // Kubernetes counts devices in whole numbers.
        let counts = all.map(|(_, quantity)| quantity.parse::<u64>().unwrap_or(0).min(MOST));
        counts.reduce(u64::saturating_add)
    }

    /// The number of GPUs that a pod holds: of containers that run together the sum, of those that
    /// run before them the largest.
    pub(super) fn of_pod(&self, spec: &PodSpec) -> u64 {
        let of = |container: &Container| {
            let resources = &container.resources;
            let requested = self.count(resources.requests.as_ref());
            requested.or_else(|| self.count(resources.limits.as_ref())).unwrap_or(0)
        };
        let add = |sum: u64, container: &Container| sum.saturating_add(of(container));
        let (mut beside, mut before) = (0, 0);
        for container in spec.init_containers.iter().flatten() {
            if container.restart_policy.as_deref() == Some("Always") {
                beside = add(beside, container);
            } else {
                before = before.max(add(beside, container));
            }
        }
        spec.containers.iter().flatten().fold(beside, add).max(before)
    }
}

impl PodSpec {
    /// Whether the pod asks for nodes only by what is compared here.
    pub(super) fn is_plain(&self) -> bool {
        let wishes = [&self.affinity, &self.topology_spread_constraints, &self.resource_claims];
        wishes.iter().all(|wish| wish.is_none())
    }
}

impl Toleration {
    pub(super) fn tolerates(&self, taint: &Taint) -> bool {
        let [key, operator, value, effect] = [&self.key, &self.operator, &self.value, &self.effect]
            .map(|field| field.as_deref().unwrap_or_default());
        let exists = operator == "Exists";
        let same_value = exists || value == taint.value.as_deref().unwrap_or_default();
        let same_key = key == taint.key || exists && key.is_empty();
        same_key && same_value && (effect.is_empty() || effect == taint.effect)
    }
}

impl Taint {
    /// Whether it keeps pods away, and does not only prefer others.
    pub(super) fn keeps_away(&self) -> bool {
        self.effect != "PreferNoSchedule"
    }
}

/// A time of Kubernetes as Unix seconds.
pub(super) fn seconds(time: Option<&str>) -> Option<f64> {
    let time: jiff::Timestamp = time?.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_a_pod() {
        let gpus = GpuResources::new(&["nvidia.com/*".into(), "amd.com/gpu".into()]);
        let of = |spec: &str| gpus.of_pod(&serde_json::from_str(spec).unwrap());
        let container = |list: &str| format!(r#"{{"resources":{{"requests":{{{list}}}}}}}"#);
        let (one, eight) =
            (container(r#""nvidia.com/gpu":"1""#), container(r#""cpu":"9","nvidia.com/gpu":"8""#));
        for (spec, count) in [
            (format!(r#"{{"containers":[{eight}]}}"#), 8),
            (format!(r#"{{"containers":[{eight},{one}]}}"#), 9),
            (format!(r#"{{"containers":[{one}],"initContainers":[{eight}]}}"#), 8),
            (format!(r#"{{"containers":[{eight}],"initContainers":[{one},{one}]}}"#), 8),
            (r#"{"containers":[{"resources":{"limits":{"amd.com/gpu":"4"}}}]}"#.into(), 4),
            (r#"{"containers":[{"resources":{"limits":{"amd.com/gpu":"four"}}}]}"#.into(), 0),
            (r#"{"containers":[{"resources":{"requests":{"cpu":"1"}}},{}]}"#.into(), 0),
            (r#"{"containers":null}"#.into(), 0),
        ] {
            assert_eq!(of(&spec), count, "{spec}");
        }
        let beside = one.replacen('{', r#"{"restartPolicy":"Always","#, 1);
        assert_eq!(of(&format!(r#"{{"containers":[{eight}],"initContainers":[{beside},{eight}]}}"#)), 9);
    }

    #[test]
    fn tolerations() {
        let of = |text: &str| -> Toleration { serde_json::from_str(text).unwrap() };
        let taint = Taint { key: "team".into(), value: Some("a".into()), effect: "NoSchedule".into() };
        for (text, tolerates) in [
            (r#"{"operator":"Exists"}"#, true),
            (r#"{"key":"team","operator":"Exists"}"#, true),
            (r#"{"key":"team","operator":"Equal","value":"a","effect":"NoSchedule"}"#, true),
            (r#"{"key":"team","value":"a"}"#, true),
            (r#"{"key":"team","value":"b"}"#, false),
            (r#"{"key":"team","operator":"Exists","effect":"NoExecute"}"#, false),
            (r#"{"key":"nvidia.com/gpu","operator":"Exists"}"#, false),
            (r#"{}"#, false),
        ] {
            assert_eq!(of(text).tolerates(&taint), tolerates, "{text}");
        }
        assert!(!Taint { effect: "PreferNoSchedule".into(), ..taint }.keeps_away());
    }

    #[test]
    fn times() {
        assert_eq!(seconds(Some("2026-11-30T17:08:14Z")), Some(1_796_058_494.0));
        assert_eq!((seconds(Some("yesterday")), seconds(None)), (None, None));
    }
}
