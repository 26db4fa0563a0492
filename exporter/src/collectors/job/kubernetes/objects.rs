//! What is read of nodes and pods; all other fields are skipped.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

type Map = Option<BTreeMap<String, String>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) labels: Map,
    #[expect(clippy::zero_sized_map_values, reason = "a set is no map for serde")]
    annotations: Option<BTreeMap<String, IgnoredAny>>,
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
    scheduler_name: Option<String>,
    scheduling_gates: Option<Vec<IgnoredAny>>,
    /// Wishes that are not compared: whether a pod with one fits is unknown.
    affinity: Option<IgnoredAny>,
    topology_spread_constraints: Option<IgnoredAny>,
    resource_claims: Option<IgnoredAny>,
    /// The group of Kubernetes 1.35, and that of later ones.
    workload_ref: Option<IgnoredAny>,
    scheduling_group: Option<IgnoredAny>,
    overhead: Option<IgnoredAny>,
    resources: Option<IgnoredAny>,
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
    /// When its node took it.
    pub(super) start_time: Option<String>,
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
    pub(super) running: Option<Running>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Running {
    pub(super) started_at: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Waiting {
    pub(super) reason: Option<String>,
}

/// The scheduler that looks at each pod by itself.
const SCHEDULER: &str = "default-scheduler";
/// Labels and annotations of pods that start only together with others: of Volcano, of the plugin
/// for coscheduling, which had two, of Kueue, YuniKorn and Run:ai.
const GROUPS: [&str; 6] = [
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "kueue.x-k8s.io/pod-group-name",
    "yunikorn.apache.org/task-group-name",
    "pod-group-name",
];
/// The most names of resources of a node or a pod.
const MAX_NAMES: usize = 64;
/// More GPUs of a name than a node or a pod has.
const MOST: u64 = 1 << 20;

/// Amounts of resources by their names, in thousandths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Amounts(BTreeMap<String, u64>);

impl Amounts {
    pub(super) fn parse(resources: Option<&BTreeMap<String, String>>) -> Self {
        let mut amounts = Self::default();
        for (name, quantity) in resources.into_iter().flatten() {
            amounts.set(name, |_| thousandths(quantity).unwrap_or(0));
        }
        amounts
    }

    /// Changes the amount of a name, from 0 if there is none.
    fn set(&mut self, name: &str, change: impl FnOnce(u64) -> u64) {
        if let Some(amount) = self.0.get_mut(name) {
            *amount = change(*amount);
        } else if self.0.len() < MAX_NAMES {
            self.0.insert(name.to_owned(), change(0));
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, more)| self.set(name, |had| had.saturating_add(*more)));
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, less)| self.set(name, |had| had.saturating_sub(*less)));
    }

    fn raise(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, least)| self.set(name, |had| had.max(*least)));
    }

    /// Whether there is as much of everything.
    pub(super) fn has(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|(name, amount)| self.0.get(name).copied().unwrap_or(0) >= *amount)
    }

    /// The number of devices of a name.
    pub(super) fn count(&self, name: &str) -> u64 {
        // Kubernetes counts devices in whole numbers.
        self.0.get(name).map_or(0, |amount| amount / 1000).min(MOST)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// A quantity of Kubernetes: `8`, `500m`, `1.5`, `64Gi`, `128974848`, `1e3`.
fn thousandths(quantity: &str) -> Option<u64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let suffix = SUFFIXES.iter().find_map(|(suffix, unit)| Some((quantity.strip_suffix(suffix)?, *unit)));
    let (number, unit) = suffix.unwrap_or((quantity, 1.0));
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    Some((number * unit * 1e3).round() as u64)
}

/// The resources that are GPUs, by patterns of their names.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuResources(Vec<glob::Pattern>);

impl GpuResources {
    pub(super) fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }

    /// The number of GPUs, of all names.
    pub(super) fn total(&self, amounts: &Amounts) -> u64 {
        amounts.names().filter(|name| self.has(name)).map(|name| amounts.count(name)).sum()
    }
}

impl Container {
    fn amounts(&self) -> Amounts {
        let Resources { requests, limits } = &self.resources;
        let (requests, mut all) = (Amounts::parse(requests.as_ref()), Amounts::parse(limits.as_ref()));
        // A limit counts where nothing is requested.
        requests.0.iter().for_each(|(name, requested)| all.set(name, |_| *requested));
        all
    }
}

impl PodSpec {
    /// What the pod holds: of containers that run together the sum, of those that run before them
    /// the largest.
    pub(super) fn amounts(&self) -> Amounts {
        let (mut beside, mut before) = (Amounts::default(), Amounts::default());
        for container in self.init_containers.iter().flatten() {
            let mut amounts = container.amounts();
            if container.restart_policy.as_deref() == Some("Always") {
                beside.add(&amounts);
            } else {
                amounts.add(&beside);
                before.raise(&amounts);
            }
        }
        for container in self.containers.iter().flatten() {
            beside.add(&container.amounts());
        }
        beside.raise(&before);
        beside
    }
}

impl Pod {
    /// Whether the pod asks for nodes only by what is compared here, and alone.
    pub(super) fn is_plain(&self) -> bool {
        let (spec, meta) = (&self.spec, &self.metadata);
        let wishes = [
            &spec.affinity,
            &spec.topology_spread_constraints,
            &spec.resource_claims,
            &spec.workload_ref,
            &spec.scheduling_group,
            &spec.overhead,
            &spec.resources,
        ];
        let is_in_group = GROUPS.iter().any(|name| {
            meta.labels.as_ref().is_some_and(|labels| labels.contains_key(*name))
                || meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(*name))
        });
        let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
        let is_gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
        wishes.iter().all(|wish| wish.is_none())
            && !is_in_group
            && !is_gated
            && (scheduler.is_empty() || scheduler == SCHEDULER)
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
        let gpus = GpuResources::new(&["nvidia.com/gpu".into(), "amd.com/gpu".into()]);
        let of = |spec: &str| {
            let spec: PodSpec = serde_json::from_str(spec).unwrap();
            gpus.total(&spec.amounts())
        };
        let container = |list: &str| format!(r#"{{"resources":{{"requests":{{{list}}}}}}}"#);
        let (one, eight) =
            (container(r#""nvidia.com/gpu":"1""#), container(r#""cpu":"9","nvidia.com/gpu":"8""#));
        for (spec, count) in [
            (format!(r#"{{"containers":[{eight}]}}"#), 8),
            (format!(r#"{{"containers":[{eight},{one}]}}"#), 9),
            (format!(r#"{{"containers":[{one}],"initContainers":[{eight}]}}"#), 8),
            (format!(r#"{{"containers":[{eight}],"initContainers":[{one},{one}]}}"#), 8),
            (r#"{"containers":[{"resources":{"requests":{"nvidia.com/hostdev":"4"}}}]}"#.into(), 0),
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
    fn quantities() {
        for (text, amount) in [
            ("8", Some(8000)),
            ("500m", Some(500)),
            ("1.5", Some(1500)),
            ("64Gi", Some(68_719_476_736_000)),
            ("1G", Some(1_000_000_000_000)),
            ("1e3", Some(1_000_000)),
            ("12E3", Some(12_000_000)),
            ("100n", Some(0)),
            ("", None),
            ("-1", None),
            ("inf", None),
            ("many", None),
        ] {
            assert_eq!(thousandths(text), amount, "{text}");
        }
    }

    #[test]
    fn amounts_of_many_names_are_limited() {
        let many: BTreeMap<_, _> = (0..1000).map(|i| (format!("x.com/{i}"), "1".to_owned())).collect();
        assert_eq!(Amounts::parse(Some(&many)).names().count(), 64);
    }

    #[test]
    fn a_pod_of_a_group_or_of_another_scheduler_is_not_plain() {
        let plain = |text: &str| serde_json::from_str::<Pod>(text).unwrap().is_plain();
        for text in [
            "{}",
            r#"{"spec":{"schedulerName":"default-scheduler","schedulingGates":[]}}"#,
            r#"{"metadata":{"labels":{"kueue.x-k8s.io/queue-name":"q"},"annotations":{"a":"b"}}}"#,
        ] {
            assert!(plain(text), "{text}");
        }
        for text in [
            r#"{"spec":{"schedulerName":"volcano"}}"#,
            r#"{"spec":{"schedulingGates":[{"name":"kueue.x-k8s.io/admission"}]}}"#,
            r#"{"spec":{"workloadRef":{"name":"w"}}}"#,
            r#"{"spec":{"schedulingGroup":{"podGroupName":"g"}}}"#,
            r#"{"metadata":{"annotations":{"scheduling.k8s.io/group-name":"g"}}}"#,
            r#"{"metadata":{"labels":{"scheduling.x-k8s.io/pod-group":"g"}}}"#,
            r#"{"metadata":{"labels":{"kueue.x-k8s.io/pod-group-name":"g"}}}"#,
        ] {
            assert!(!plain(text), "{text}");
        }
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
