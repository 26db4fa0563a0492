//! Streams when a pod with GPUs was created, was given its node, and had its containers started.
//! No node knows that, and it is how long a start waited in the queue and for its image.
//!
//! Pods are told of for an hour, at every pass: the node must have told first whose pod it is.

use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::names::{hello, hw, pod};
use stepwatch_wire::{Event, Kind, Value};

use super::objects::{GpuResources, Pod, seconds};
use crate::clock::unix_now;
use crate::collector::Context;
use crate::origin::Origin;

/// How long after it was given a node a pod is told of.
const TOLD_SECONDS: f64 = 3600.0;
/// The most pods that are told of: one a node of a large job.
const MAX_PODS: usize = 4096;

/// The times of a pod, in Unix seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    uid: String,
    /// Its namespace and name, as the node calls its job.
    id: String,
    node: String,
    created: Option<f64>,
    scheduled: f64,
    /// When the last of its containers started; `None` while one waits for its image.
    started: Option<f64>,
    /// It was among the pods that run: there is no need to look for it there.
    runs: bool,
}

/// Pods that were given a node lately, by uid.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<String, Placed>);

impl Placed {
    /// `None` for a pod without a GPU or a node.
    pub(super) fn of(gpus: &GpuResources, pod: &Pod) -> Option<Self> {
        let node = pod.spec.node_name.clone().filter(|node| !node.is_empty())?;
        if gpus.total(&pod.spec.amounts()) == 0 || pod.metadata.uid.is_empty() {
            return None;
        }
        let conditions = pod.status.conditions.iter().flatten();
        let scheduled = conditions.filter(|c| c.kind == "PodScheduled" && c.status == "True");
        let scheduled = scheduled.filter_map(|c| seconds(c.last_transition_time.as_deref())).reduce(f64::max);
        let containers = pod.status.container_statuses.as_deref().unwrap_or_default();
        let started =
            containers.iter().map(|c| seconds(c.state.as_ref()?.running.as_ref()?.started_at.as_deref()));
        let started: Option<Vec<f64>> = started.collect();
        Some(Self {
            uid: pod.metadata.uid.clone(),
            id: format!("{}/{}", pod.metadata.namespace, pod.metadata.name),
            node,
            created: seconds(pod.metadata.creation_timestamp.as_deref()),
            scheduled: scheduled.or_else(|| seconds(pod.status.start_time.as_deref()))?,
            started: started.and_then(|all| all.into_iter().reduce(f64::max)),
            runs: false,
        })
    }

    pub(super) fn running(self) -> Self {
        Self { runs: true, ..self }
    }

    fn is_new(&self, now: f64) -> bool {
        now - self.scheduled < TOLD_SECONDS
    }

    fn event(&self) -> Event {
        let mut event =
            Event { ts: Some(unix_now()), name: Some(pod::NAME.into()), ..Event::new(Kind::Health) };
        for (key, text) in [(hw::ABOUT, &self.node), (pod::POD, &self.id)] {
            event.extra.insert(key.into(), Value::Text(text.clone()));
        }
        let times = [
            (hello::SUBMITTED, self.created),
            (hello::ALLOCATED, Some(self.scheduled)),
            (pod::CONTAINERS, self.started),
        ];
        for (key, time) in times {
            event.extra.extend(time.map(|time| (key.to_owned(), Value::Number(time))));
        }
        event
    }
}

impl Places {
    /// Whether a pod has left the list of those that wait, so that its containers may have started. A
    /// container that has ended, or fails, never has: that does not make it new.
    pub(super) fn have_begun(&self, waiting: &[Placed]) -> bool {
        let waiting: BTreeSet<&str> = waiting.iter().map(|pod| pod.uid.as_str()).collect();
        self.0.values().any(|pod| !pod.runs && !waiting.contains(pod.uid.as_str()))
    }

    /// Takes in the pods of a pass. `whole`: those that run were listed too.
    pub(super) fn take(&mut self, found: Vec<Placed>, whole: bool) {
        let now = unix_now();
        if whole {
            let uids: BTreeSet<&str> = found.iter().map(|pod| pod.uid.as_str()).collect();
            self.0.retain(|uid, _| uids.contains(uid.as_str()));
        }
        for pod in found.into_iter().filter(|pod| pod.is_new(now)) {
            if self.0.len() < MAX_PODS || self.0.contains_key(&pod.uid) {
                self.0.insert(pod.uid.clone(), pod);
            }
        }
        self.0.retain(|_, pod| pod.is_new(now));
    }

    pub(super) fn publish(&self, cx: &Context<'_>) {
        for pod in self.0.values() {
            cx.hub.publish(Origin::Node, pod.event());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(status: &str) -> Option<Placed> {
        let pod = format!(
            r#"{{"metadata":{{"name":"llama-0","namespace":"ml","uid":"u1","creationTimestamp":"2026-11-30T17:00:00Z"}},
               "spec":{{"nodeName":"n1","containers":[{{"resources":{{"requests":{{"nvidia.com/gpu":"8"}}}}}}]}},
               "status":{status}}}"#
        );
        let gpus = GpuResources::new(&["nvidia.com/gpu".into()]);
        Placed::of(&gpus, &serde_json::from_str(&pod).unwrap())
    }

    #[test]
    fn the_times_of_a_pod() {
        let at = |time: &str| seconds(Some(&format!("2026-11-30T{time}Z")));
        let scheduled =
            r#"[{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-11-30T17:05:00Z"}]"#;
        let pulls =
            placed(&format!(r#"{{"conditions":{scheduled},"startTime":"2026-11-30T17:05:01Z"}}"#)).unwrap();
        assert_eq!((pulls.id.as_str(), pulls.node.as_str()), ("ml/llama-0", "n1"));
        assert_eq!(
            (pulls.created, Some(pulls.scheduled), pulls.started),
            (at("17:00:00"), at("17:05:00"), None)
        );
        let one = |time: &str| format!(r#"{{"state":{{"running":{{"startedAt":"2026-11-30T{time}Z"}}}}}}"#);
        let both = format!(
            r#"{{"conditions":{scheduled},"containerStatuses":[{},{}]}}"#,
            one("17:09:00"),
            one("17:08:00")
        );
        assert_eq!(placed(&both).unwrap().started, at("17:09:00"));
        let waits = format!(
            r#"{{"conditions":{scheduled},"containerStatuses":[{},{{"state":{{"waiting":{{}}}}}}]}}"#,
            one("17:09:00")
        );
        assert_eq!(placed(&waits).unwrap().started, None, "one of them waits");
        assert_eq!(placed("{}"), None, "it has no time");
        let started = placed(r#"{"startTime":"2026-11-30T17:05:01Z"}"#).unwrap();
        assert_eq!(Some(started.scheduled), at("17:05:01"));
    }

    #[test]
    fn pods_are_told_of_for_an_hour_and_listed_again_when_one_begins() {
        let now = unix_now();
        let pod = |uid: &str, ago: f64, started: Option<f64>| Placed {
            uid: uid.into(),
            id: format!("ml/{uid}"),
            node: "n1".into(),
            created: None,
            scheduled: now - ago,
            started,
            runs: false,
        };
        let bench = crate::testing::Bench::new(crate::roots::Roots::default());
        let mut places = Places::default();
        places.take(vec![pod("a", 60.0, None), pod("old", 4000.0, None)], false);
        assert!(!places.have_begun(&[pod("a", 60.0, None)]) && places.have_begun(&[]));
        places.take(vec![pod("a", 60.0, None).running()], true);
        assert!(!places.have_begun(&[]), "one of its containers has ended");
        places.take(vec![pod("a", 60.0, Some(now)).running()], true);
        assert!(!places.have_begun(&[]));
        places.publish(&bench.context());
        let told = bench.published();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(
            (told[0].name.as_deref(), &told[0].extra["pod"]),
            (Some("pod"), &Value::Text("ml/a".into()))
        );
        places.take(Vec::new(), true);
        places.publish(&bench.context());
        assert!(bench.published().is_empty(), "it is gone");
    }
}
