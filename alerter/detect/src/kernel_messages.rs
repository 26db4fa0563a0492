//! Keeps which kernel messages are on which nodes of the fleet. This distinguishes a message that
//! is unusual from one that is new everywhere: after a rollout of a kernel or driver, or from a job
//! that hits all its nodes.
//!
//! It is not stored, because it follows from the nodes.

use std::collections::BTreeMap;

use crate::node::NodeState;
use crate::node::messages::{REMEMBER, SETTLE};
use stepwatch_model::time::Ts;

/// The most templates kept; for one more, the one that was seen longest ago is dropped.
const MAX_TEMPLATES: usize = 8192;
/// Nodes that a message may be on and still be odd, or this part of the nodes of the run:
/// engineering limits.
const FEW_NODES: usize = 2;
const FEW_RATIO: f64 = 0.02;
/// Nodes that are remembered of one template: more than are few, of the largest run.
const MAX_NODES: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct KernelMessages {
    /// When each template was seen on each node.
    seen: BTreeMap<String, BTreeMap<String, Ts>>,
}

impl KernelMessages {
    /// Records the messages of a node.
    pub(crate) fn note(&mut self, node: &NodeState) {
        for message in node.messages.iter() {
            if !self.seen.contains_key(&message.template) && self.seen.len() >= MAX_TEMPLATES {
                self.make_room();
            }
            let nodes = self.seen.entry(message.template.clone()).or_default();
            if nodes.len() < MAX_NODES || nodes.contains_key(&node.name) {
                nodes.insert(node.name.clone(), message.at);
            }
        }
    }

    fn make_room(&mut self) {
        let newest = |nodes: &BTreeMap<String, Ts>| nodes.values().copied().max();
        let oldest =
            self.seen.iter().min_by_key(|(_, nodes)| newest(nodes)).map(|(template, _)| template.clone());
        oldest.map(|template| self.seen.remove(&template));
    }

    /// Whether the fleet had no such message in the day before `at`, and few nodes had it since.
    /// `nodes`: those of the run, or of the fleet where no run is hit.
    pub(crate) fn is_odd(&self, template: &str, at: Ts, nodes: usize) -> bool {
        let Some(seen) = self.seen.get(template) else { return true };
        // Messages that arrived on several nodes before their evaluation are one event.
        let known = seen.values().any(|seen| *seen < at.earlier(SETTLE) && at - *seen < REMEMBER);
        let lately = seen.values().filter(|seen| at - **seen < REMEMBER).count();
        let few = FEW_NODES.max((nodes as f64 * FEW_RATIO) as usize);
        !known && lately <= few
    }

    /// Forgets what is too old to count.
    pub(crate) fn forget(&mut self, now: Ts) {
        for nodes in self.seen.values_mut() {
            nodes.retain(|_, seen| now - *seen < REMEMBER);
        }
        self.seen.retain(|_, nodes| !nodes.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_wire::names::hw;
    use stepwatch_wire::{Event, Kind, Value};

    use super::*;
    use crate::monitor::Node;

    fn said(fleet: &mut KernelMessages, second: i64, name: &str) {
        let mut node = Node::new(name, Ts(0), &Arc::default());
        let mut event = Event { name: Some("kernel_message".into()), code: Some(1), ..Event::new(Kind::Hw) };
        event.extra.insert(hw::TEMPLATE.to_owned(), Value::Text("foo: odd".into()));
        let news = node.event(Ts::from_secs_f64(second as f64), &event, None);
        assert!(!news.changed, "it is no condition yet");
        fleet.note(&node.state);
    }

    #[test]
    fn few_nodes_are_odd_and_many_are_a_rollout() {
        let mut fleet = KernelMessages::default();
        let at = Ts::from_secs_f64(1e6);
        said(&mut fleet, 1_000_000, "n1");
        said(&mut fleet, 1_000_030, "n2");
        assert!(fleet.is_odd("foo: odd", at, 8) && fleet.is_odd("bar", at, 8));
        said(&mut fleet, 1_000_060, "n3");
        assert!(!fleet.is_odd("foo: odd", at, 8));
        assert!(fleet.is_odd("foo: odd", at, 150), "3 of 150 are few");
    }

    #[test]
    fn what_another_node_had_within_the_day_is_known() {
        let mut fleet = KernelMessages::default();
        said(&mut fleet, 1_000_000, "n1");
        said(&mut fleet, 1_003_600, "n2");
        assert!(fleet.is_odd("foo: odd", Ts::from_secs_f64(1e6), 8));
        assert!(!fleet.is_odd("foo: odd", Ts::from_secs_f64(1_003_600.0), 8));
        assert!(fleet.is_odd("foo: odd", Ts::from_secs_f64(1_100_000.0), 8), "more than a day later");
        fleet.forget(Ts::from_secs_f64(2e6));
        assert!(fleet.seen.is_empty());
    }
}
