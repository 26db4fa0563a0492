//! The setups of a run's nodes, grouped by equality: most runs have one group, however many nodes.
//!
//! A key that names a node (such as the address of a launcher's daemon) has a value of its own on
//! more than half of the nodes. It is no difference of setup, and is left out of comparisons. This
//! holds from four nodes on: two nodes with two versions of a library differ in their setup.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use stepwatch_model::time::Ts;

/// The most groups kept; nodes of further groups are only counted.
const MAX_VARIANTS: usize = 16;
/// The least number of nodes from which a key whose values all differ counts as a node's name.
const ENOUGH: usize = 4;
/// The most keys that are known to name nodes.
const MAX_OWN: usize = 256;

/// The setup that one node reports: its driver, firmware, libraries and kernel, or the
/// configuration file of the run as this node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The setup is the configuration of the run.
    pub of_run: bool,
    /// The hash over all keys and values.
    pub fingerprint: String,
    pub keys: BTreeMap<String, String>,
}

/// Nodes whose setup is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    pub setup: Setup,
    pub nodes: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConfigGroups {
    variants: Vec<Variant>,
    /// Keys that name nodes, of a node's own setup and of the run's. They were found when the
    /// groups were full, and are not kept any more.
    own: [BTreeSet<String>; 2],
    /// When a node last came, left or changed.
    pub changed_at: Option<Ts>,
    /// The number of nodes whose setup was above the limit.
    pub beyond: u32,
}

impl ConfigGroups {
    /// Records the setup of a node; true if it is new.
    pub(crate) fn take(&mut self, now: Ts, node: &str, setup: &Setup) -> bool {
        let (mut setup, of_run) = (setup.clone(), setup.of_run);
        strip(&mut setup, &self.own[usize::from(of_run)]);
        if self.variants.iter().any(|v| v.holds(&setup) && v.nodes.contains(node)) {
            return false;
        }
        self.changed_at = Some(now);
        self.drop_node(node, Some(of_run));
        if self.find(&setup).is_none() && self.variants.len() >= MAX_VARIANTS {
            self.leave_out_names();
            strip(&mut setup, &self.own[usize::from(of_run)]);
        }
        if let Some(v) = self.find(&setup) {
            v.nodes.insert(node.to_owned());
        } else if self.variants.len() < MAX_VARIANTS {
            self.variants.push(Variant { setup, nodes: BTreeSet::from([node.to_owned()]) });
        } else {
            self.beyond = self.beyond.saturating_add(1);
        }
        true
    }

    fn find(&mut self, setup: &Setup) -> Option<&mut Variant> {
        self.variants.iter_mut().find(|v| v.holds(setup))
    }

    /// Makes room: forgets keys that name a node, and merges groups that differ only in those.
    fn leave_out_names(&mut self) {
        let all = core::mem::take(&mut self.variants);
        let (of_run, of_node): (Vec<Variant>, Vec<Variant>) = all.into_iter().partition(|v| v.setup.of_run);
        for (variants, own) in [of_node, of_run].into_iter().zip(&mut self.own) {
            let names = names(&variants);
            self.variants.extend(without(variants, &names));
            own.extend(names);
            while own.len() > MAX_OWN {
                own.pop_last();
            }
        }
    }

    pub(crate) fn left(&mut self, node: &str) {
        self.drop_node(node, None);
    }

    pub(crate) fn retain(&mut self, now: Ts, keep: impl Fn(&str) -> bool) {
        if self.variants.iter().flat_map(|v| &v.nodes).all(|node| keep(node)) {
            return;
        }
        self.changed_at = Some(now);
        for v in &mut self.variants {
            v.nodes.retain(|node| keep(node));
        }
        self.variants.retain(|v| !v.nodes.is_empty());
    }

    fn drop_node(&mut self, node: &str, of_run: Option<bool>) {
        for v in self.variants.iter_mut().filter(|v| of_run.is_none_or(|of_run| v.setup.of_run == of_run)) {
            v.nodes.remove(node);
        }
        self.variants.retain(|v| !v.nodes.is_empty());
    }

    /// The setups of the runs, or of the nodes themselves, without keys that name a node. The setup
    /// that most nodes have is first; of equals, the one that sorts first.
    pub fn variants(&self, of_run: bool) -> Vec<Variant> {
        let all: Vec<Variant> = self.variants.iter().filter(|v| v.setup.of_run == of_run).cloned().collect();
        let names = names(&all);
        let mut variants = without(all, &names);
        variants.sort_by(|a, b| {
            let nodes = b.nodes.len().cmp(&a.nodes.len());
            nodes.then_with(|| a.setup.fingerprint.cmp(&b.setup.fingerprint))
        });
        variants
    }
}

impl Variant {
    fn holds(&self, setup: &Setup) -> bool {
        let same = self.setup.fingerprint == setup.fingerprint || self.setup.keys == setup.keys;
        self.setup.of_run == setup.of_run && same
    }
}

/// The keys that name nodes.
fn names(variants: &[Variant]) -> BTreeSet<String> {
    let nodes: usize = variants.iter().map(|v| v.nodes.len()).sum();
    // With so few groups, too many nodes share their values.
    if nodes < ENOUGH || 2 * variants.len() <= nodes {
        return BTreeSet::new();
    }
    let keys: BTreeSet<&String> = variants.iter().flat_map(|v| v.setup.keys.keys()).collect();
    let is_name = |key: &&&String| {
        let mut held: BTreeMap<Option<&String>, usize> = BTreeMap::new();
        for v in variants {
            *held.entry(v.setup.keys.get(**key)).or_default() += v.nodes.len();
        }
        2 * held.values().filter(|nodes| **nodes == 1).count() > nodes
    };
    keys.iter().filter(is_name).map(|key| (*key).clone()).collect()
}

/// Removes keys, and merges the groups that are then equal.
fn without(variants: Vec<Variant>, keys: &BTreeSet<String>) -> Vec<Variant> {
    if keys.is_empty() {
        return variants;
    }
    let mut merged: Vec<Variant> = Vec::new();
    for mut v in variants {
        strip(&mut v.setup, keys);
        match merged.iter_mut().find(|had| had.holds(&v.setup)) {
            Some(had) => had.nodes.append(&mut v.nodes),
            None => merged.push(v),
        }
    }
    merged
}

/// Removes keys from a setup, and computes its fingerprint again.
fn strip(setup: &mut Setup, keys: &BTreeSet<String>) {
    if keys.is_empty() {
        return;
    }
    setup.keys.retain(|key, _| !keys.contains(key));
    let all = setup.keys.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    setup.fingerprint = format!("{:016x}", stepwatch_model::fingerprint(all));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(keys: &[(&str, String)]) -> Setup {
        let fingerprint = keys.iter().map(|(_, v)| v.as_str()).collect();
        let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Setup { of_run: true, fingerprint, keys }
    }

    fn of_nodes(nodes: usize, nccl: impl Fn(usize) -> usize) -> ConfigGroups {
        let mut all = ConfigGroups::default();
        for i in 0..nodes {
            let keys = [("daemon", format!("tcp://10.0.0.{i}")), ("nccl", format!("2.27.{}", nccl(i)))];
            all.take(Ts(0), &format!("n{i}"), &setup(&keys));
        }
        all
    }

    #[test]
    fn what_names_a_node_takes_no_room_and_hides_nothing() {
        for nodes in [4, 15, 16, 17, 40, 200] {
            let odd = nodes - 1;
            let all = of_nodes(nodes, |i| if i == odd { 3 } else { 5 });
            let found = all.variants(true);
            assert_eq!((found.len(), all.beyond), (2, 0), "of {nodes} nodes");
            assert_eq!(found[0].nodes.len(), odd);
            assert_eq!(found[1].nodes, BTreeSet::from([format!("n{odd}")]));
            assert!(found.iter().all(|v| v.setup.keys.len() == 1), "{found:?}");
            assert_ne!(found[0].setup.fingerprint, found[1].setup.fingerprint);
        }
    }

    #[test]
    fn another_name_is_no_news_once_it_is_known_to_be_one() {
        let mut all = of_nodes(20, |_| 5);
        let keys = |nccl: &str| setup(&[("daemon", "tcp://10.9.9.9".into()), ("nccl", nccl.into())]);
        assert!(!all.take(Ts(1), "n3", &keys("2.27.5")));
        assert!(all.take(Ts(1), "n3", &keys("2.27.3")));
    }

    #[test]
    fn keys_that_name_nodes_are_bounded() {
        let mut all = ConfigGroups::default();
        for round in 0..400 {
            let name = format!("x{round}");
            for i in 0..17 {
                let keys = [("nccl", "2.27".to_owned()), (name.as_str(), i.to_string())];
                all.take(Ts(round), &format!("n{i}"), &setup(&keys));
            }
        }
        assert!((200..=MAX_OWN).contains(&all.own[1].len()), "{}", all.own[1].len());
    }

    #[test]
    fn two_or_three_nodes_differ_and_a_rollout_is_no_name() {
        assert_eq!(of_nodes(2, |i| i).variants(true).len(), 2);
        assert_eq!(of_nodes(3, |i| i).variants(true).len(), 3);
        let found = of_nodes(9, |i| i / 3).variants(true);
        assert_eq!(found.iter().map(|v| v.nodes.len()).collect::<Vec<_>>(), [3, 3, 3]);
    }
}
