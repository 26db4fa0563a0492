//! Keeps which nodes have a link that is down, and since when: links of several nodes that fail at
//! once share a switch.
//!
//! It is not stored, because it follows from the nodes. Times are by the clocks of the nodes,
//! because a backlog arrives all at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::node::{Level, NodeState, Topic};
use stepwatch_model::time::Ts;
use stepwatch_model::{LINKS_AT_ONCE, MAX_NODES_AT_ONCE};

/// What links of one medium may share. A port of RoCE and its interface are two of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Medium {
    Rdma,
    Ethernet,
    NvLink,
}

impl Medium {
    fn parse(medium: &str) -> Option<Self> {
        match medium {
            "infiniband" | "roce" | "efa" => Some(Self::Rdma),
            "ethernet" => Some(Self::Ethernet),
            "nvlink" => Some(Self::NvLink),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fabric {
    down: BTreeSet<(Medium, Ts, String)>,
    of: BTreeMap<String, Vec<(Medium, Ts)>>,
}

impl Fabric {
    /// Records the links of a node that are down. A link that makes errors, is slow, or is up again
    /// says nothing about the fabric.
    pub(crate) fn note(&mut self, node: &NodeState) {
        let links = node.conditions.iter().filter(|(key, _)| key.topic == Topic::Link);
        let down = links.filter(|(key, c)| key.is_link_down(c) && c.holds() && c.level > Level::Info);
        let down: Vec<_> = down.filter_map(|(_, c)| Some((Medium::parse(&c.medium)?, c.began))).collect();
        if self.of.get(&node.name).map_or(down.is_empty(), |had| *had == down) {
            return;
        }
        self.forget(&node.name);
        for (medium, at) in &down {
            self.down.insert((*medium, *at, node.name.clone()));
        }
        if !down.is_empty() {
            self.of.insert(node.name.clone(), down);
        }
    }

    pub(crate) fn forget(&mut self, node: &str) {
        for (medium, at) in self.of.remove(node).unwrap_or_default() {
            self.down.remove(&(medium, at, node.to_owned()));
        }
    }

    /// The nodes whose links of the medium that this node lost last went down with it, itself among
    /// them.
    pub(crate) fn together<'a>(&'a self, node: &'a str) -> BTreeSet<&'a str> {
        let newest = self.of.get(node).and_then(|down| down.iter().max_by_key(|(_, at)| *at));
        let Some((medium, at)) = newest else { return BTreeSet::new() };
        let from = (*medium, Ts(at.0.saturating_sub(LINKS_AT_ONCE.0)), String::new());
        let mut near = self.down.range(from..).take_while(|(m, ..)| m == medium).peekable();
        let until = near.peek().map_or(*at, |(_, first, _)| Ts(first.0.saturating_add(LINKS_AT_ONCE.0)));
        let near = near.take_while(|(_, at, _)| *at <= until);
        let mut nodes = BTreeSet::from([node]);
        for (_, _, other) in near {
            if nodes.len() >= MAX_NODES_AT_ONCE {
                break;
            }
            nodes.insert(other);
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepwatch_wire::{Event, Kind, Value};

    use super::*;
    use crate::monitor::Node;

    /// A link of a node went down, or something else became of it, at this second.
    fn said(fabric: &mut Fabric, (second, name, medium, state): (i64, &str, &str, &str)) {
        let mut node = Node::new(name, Ts(0), &Arc::default());
        let mut e = Event { name: Some("p1".into()), level: Some("warn".into()), ..Event::new(Kind::Link) };
        (e.code, e.ts) = (Some(0), Some(second as f64));
        e.extra.insert("medium".into(), Value::Text(medium.into()));
        e.extra.insert("state".into(), Value::Text(state.into()));
        node.event(Ts(9_000_000), &e, None);
        fabric.note(&node.state);
    }

    fn together(story: &[(i64, &str, &str, &str)], node: &str) -> Vec<String> {
        let mut fabric = Fabric::default();
        story.iter().for_each(|event| said(&mut fabric, *event));
        fabric.together(node).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_minute_is_counted_from_the_first() {
        let story =
            [0, 25, 50, 75, 100, 125].map(|at| (at, ["a", "b", "c", "d", "e", "f"][at as usize / 25]));
        let story = story.map(|(at, node)| (at, node, "infiniband", "down"));
        assert_eq!(together(&story, "c"), ["a", "b", "c"]);
        assert_eq!(together(&story, "d"), ["b", "c", "d"], "the first is more than a minute away");
        assert_eq!(together(&story, "a"), ["a", "b", "c"], "also of what came later");
    }

    #[test]
    fn only_what_is_down_and_of_one_medium() {
        let story = [
            (0, "a", "infiniband", "down"),
            (1, "b", "roce", "drop"),
            (2, "c", "ethernet", "down"),
            (3, "d", "infiniband", "flap"),
            (4, "e", "infiniband", "errors"),
            (5, "f", "pcie", "down"),
        ];
        assert_eq!(together(&story, "a"), ["a", "b"]);
        assert_eq!(together(&story, "c"), ["c"]);
        assert_eq!(together(&story, "d"), [""; 0]);
        assert_eq!(together(&story, "f"), [""; 0]);
    }

    #[test]
    fn a_link_that_is_up_again_is_forgotten() {
        let mut fabric = Fabric::default();
        said(&mut fabric, (0, "a", "infiniband", "down"));
        said(&mut fabric, (1, "b", "infiniband", "down"));
        said(&mut fabric, (2, "a", "infiniband", "flap"));
        assert_eq!(fabric.together("b").len(), 1);
        fabric.forget("b");
        assert!(fabric.down.is_empty() && fabric.of.is_empty());
    }
}
