//! What a scheduler says of nodes, by an exporter that reads the scheduler: that a node is drained,
//! down or cordoned, and why; and when it gave the node a pod.
//!
//! Only a source that the configuration allows to report other nodes (`nodes: many`) may say so,
//! and only of nodes that exporters report: nobody can invent one. It changes nothing about whom
//! the node belongs to, or when it was last heard.

use stepwatch_model::Detected;
use stepwatch_wire::names::{hello, hw, pod};
use stepwatch_wire::{Event, Kind, Value};

use super::refusal::Refusal;
use super::{Monitor, Record};
use crate::run::{Placed, plausible};

impl Monitor {
    /// The other node that an event is about.
    pub(super) fn other_node(event: &Event) -> Option<&str> {
        let about = event.extra.get(hw::ABOUT).and_then(Value::as_str).filter(|_| event.kind == Kind::Hw)?;
        (!about.is_empty() && event.node.as_deref() != Some(about)).then_some(about)
    }

    pub(super) fn outage(&mut self, record: Record<'_>, about: &str, out: &mut Vec<Detected>) {
        let Record { now, source, event } = record;
        let Some(s) = self.sources.get_mut(source) else { return };
        if !s.many_nodes {
            return s.refused.count(Refusal::OtherNode);
        }
        let Some(name) = self.node_called(about) else { return };
        let Some(node) = self.nodes.get_mut(&name) else { return };
        let changed = node.state.conditions.take(now, event, "");
        self.with_node(now, &name, changed, out);
    }

    /// When a pod was created, was given its node, and had its containers started: parts of the
    /// start of the runs that its node sees in it.
    pub(super) fn pod(&mut self, record: Record<'_>, out: &mut Vec<Detected>) {
        let Record { now, source, event } = record;
        let Some(s) = self.sources.get_mut(source) else { return };
        if !s.many_nodes {
            return s.refused.count(Refusal::OtherNode);
        }
        let word = |key: &str| event.extra.get(key).and_then(Value::as_str);
        let (Some(about), Some(id)) = (word(hw::ABOUT), word(pod::POD)) else { return };
        let Some(node) = self.node_called(about) else { return };
        let claim = self.nodes.get(&node).and_then(|node| node.state.jobs.claim(id));
        let runs = claim.map(|claim| claim.runs.clone()).unwrap_or_default();
        let time = |key: &str| event.extra.get(key).and_then(Value::as_f64);
        let placed = Placed {
            submitted: time(hello::SUBMITTED),
            allocated: time(hello::ALLOCATED),
            containers: time(pod::CONTAINERS),
        };
        for run in &runs {
            self.with_run(now, run, out, |run, _| {
                if let Some(s) = &mut run.state.starting {
                    s.placed(now, placed);
                }
            });
        }
        if let Some(at) = plausible(now, placed.allocated) {
            self.pod_given(&node, id, at);
        }
    }

    /// The node that a scheduler calls so. It may leave out the domain, if that is unambiguous.
    pub(super) fn node_called(&self, name: &str) -> Option<String> {
        if self.nodes.contains_key(name) || name.contains('.') {
            return Some(name.to_owned());
        }
        let with_domain = format!("{name}.");
        let mut all = self.nodes.range(with_domain.clone()..).map(|(node, _)| node);
        let found = all.next().filter(|node| node.starts_with(&with_domain))?;
        let is_only = all.next().is_none_or(|other| !other.starts_with(&with_domain));
        is_only.then(|| found.clone())
    }
}
