//! How the nodes of a run are set up, grouped by what is equal: most runs have one group, however many nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::time::Ts;

/// Groups told apart; nodes of further ones are only counted.
const MAX_VARIANTS: usize = 16;

/// What one node says of its driver, firmware, libraries and kernel, or of the configuration file of the run as it sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// It is the run's own configuration.
    pub of_run: bool,
    /// Over all keys and values.
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
pub struct Setups {
    variants: Vec<Variant>,
    /// When a node last came, left or changed.
    pub changed_at: Option<Ts>,
    /// Nodes whose setup was one too many.
    pub beyond: u32,
}

impl Setups {
    /// True if it is news.
    pub(super) fn take(&mut self, now: Ts, node: &str, setup: &Setup) -> bool {
        let same = |v: &Variant| v.setup.of_run == setup.of_run && v.setup.fingerprint == setup.fingerprint;
        if self.variants.iter().any(|v| same(v) && v.nodes.contains(node)) {
            return false;
        }
        self.changed_at = Some(now);
        self.drop_node(node, Some(setup.of_run));
        if let Some(v) = self.variants.iter_mut().find(|v| same(v)) {
            v.nodes.insert(node.to_owned());
        } else if self.variants.len() < MAX_VARIANTS {
            self.variants.push(Variant { setup: setup.clone(), nodes: BTreeSet::from([node.to_owned()]) });
        } else {
            self.beyond = self.beyond.saturating_add(1);
        }
        true
    }

    pub(super) fn left(&mut self, node: &str) {
        self.drop_node(node, None);
    }

    pub(super) fn retain(&mut self, now: Ts, keep: impl Fn(&str) -> bool) {
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

    /// The setups of one sort, the one that most nodes have first; of equals, the one that sorts first.
    pub fn of(&self, of_run: bool) -> Vec<&Variant> {
        let mut variants: Vec<&Variant> = self.variants.iter().filter(|v| v.setup.of_run == of_run).collect();
        variants.sort_by(|a, b| {
            let nodes = b.nodes.len().cmp(&a.nodes.len());
            nodes.then_with(|| a.setup.fingerprint.cmp(&b.setup.fingerprint))
        });
        variants
    }
}
