//! The nodes of a run that have one value of a setting, beside those that have another: which of
//! them compute longer. Half a cluster with another driver shows so, although no rank stands out.
//!
//! The step of a synchronous run takes as long for one half as for the other. The time in compute
//! sections does not.

use core::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use stepwatch_wire::names::setting::DIFFERS_BY_RANK;
use stepwatch_wire::setting::{ARGUMENT, Topic, VARIABLE, VISIBLE_GPUS, topic};

use super::{RunState, Variant};
use stepwatch_model::{Num, Observation};

/// The fewest nodes of a group, or else the fewest ranks of a lone node and the share that it must
/// be apart: what is wrong with a single node need not be its setup.
const NODES: usize = 2;
const RANKS: usize = 4;
const MUCH_LONGER: f64 = 2.0 * LONGER;
/// The share by which the median of one group is above that of the other, at least. Three quarters
/// of one group must lie above three quarters of the other besides. Engineering limits: chips of
/// one kind differ by a per cent or two, and a group may be as small as two of them.
const LONGER: f64 = 0.03;
/// The value of a variable or an argument on nodes that do not have it.
const NOT_SET: &str = "(not set)";

/// The nodes with one value of a setting, which compute longer than those with another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SlowerSetup {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) expected: String,
    /// The nodes that compute longer, and how many nodes there are of each.
    pub(crate) slow: BTreeSet<String>,
    pub(crate) nodes: usize,
    pub(crate) others: usize,
    /// The median of the seconds that the ranks of each compute in a step.
    pub(crate) seconds: f64,
    pub(crate) usual: f64,
}

/// The compute times of the ranks on the nodes with one value: the excess over their stage, and the
/// seconds.
#[derive(Debug, Default)]
struct Group<'a> {
    nodes: BTreeSet<&'a str>,
    excess: Vec<f64>,
    seconds: Vec<f64>,
}

impl SlowerSetup {
    pub(crate) fn observation(&self, step: Option<f64>) -> Observation {
        Observation::SettingComputesLonger {
            key: self.key.clone(),
            value: self.value.clone(),
            expected: self.expected.clone(),
            nodes: self.nodes as u64,
            others: self.others as u64,
            seconds: Num(self.seconds),
            usual: Num(self.usual),
            step: step.map(Num),
        }
    }
}

impl RunState {
    /// The setting by which the ranks differ most in how long they compute, if any.
    pub(crate) fn slower_setup(&self) -> Option<SlowerSetup> {
        if self.compute_times.members.len() < 2 * NODES || self.has_unknown_stages() {
            return None;
        }
        let mut found: Option<(f64, SlowerSetup)> = None;
        for of_run in [false, true] {
            let variants = self.config_groups.variants(of_run);
            if variants.len() < 2 {
                continue;
            }
            for key in keys(&variants) {
                let slower = self.compare(&variants, key);
                // Of equals the first, which the topic decides.
                found = match (found, slower) {
                    (Some(had), Some(new)) if new.0 > had.0 => Some(new),
                    (None, new) => new,
                    (had, _) => had,
                };
            }
        }
        found.map(|(_, slower)| slower)
    }

    /// Whether the ranks have pipeline stages and do not report them. The stages of a pipeline
    /// compute longer and shorter than each other, and each has nodes of its own.
    fn has_unknown_stages(&self) -> bool {
        let is_deep = |(key, value): (&String, &String)| {
            let mut words = key.split(|c: char| !c.is_ascii_alphanumeric());
            words.any(|word| matches!(word, "pp" | "pipeline")) && value.parse::<u32>().is_ok_and(|n| n > 1)
        };
        let variants = self.config_groups.variants(true);
        let mut settings = variants.iter().flat_map(|v| &v.setup.keys).chain(self.attempts.declared());
        self.compute_times.groups.len() < 2 && settings.any(is_deep)
    }

    fn compare(&self, variants: &[Variant], key: &str) -> Option<(f64, SlowerSetup)> {
        let mut value_of: BTreeMap<&str, &str> = BTreeMap::new();
        for v in variants {
            let value = value_of_key(v, key)?;
            value_of.extend(v.nodes.iter().map(|node| (node.as_str(), value)));
        }
        let mut groups: BTreeMap<&str, Group<'_>> = BTreeMap::new();
        for (rank, member) in &self.compute_times.members {
            let node = self.ranks.get(rank).filter(|r| !r.stale).and_then(|r| r.node.as_deref());
            let Some((node, value)) = node.and_then(|node| Some((node, *value_of.get(node)?))) else {
                continue;
            };
            let Some(stage) = self.compute_times.groups.get(&member.stage) else { continue };
            let excess = f64::from(member.excess);
            let group = groups.entry(value).or_default();
            group.nodes.insert(node);
            group.excess.push(excess);
            group.seconds.push(stage.secs * excess.exp());
        }
        groups.retain(|_, group| group.nodes.len() >= NODES || group.excess.len() >= RANKS);
        groups.values_mut().for_each(|group| {
            group.excess.sort_by(f64::total_cmp);
            group.seconds.sort_by(f64::total_cmp);
        });
        let (expected, fast) = groups.iter().min_by(by_excess)?;
        let (value, slow) = groups.iter().max_by(by_excess)?;
        let longer = at(&slow.excess, 2) - at(&fast.excess, 2);
        let is_apart = at(&slow.excess, 1) > at(&fast.excess, 3);
        let is_lone = slow.nodes.len() < NODES || fast.nodes.len() < NODES;
        let least = if is_lone { MUCH_LONGER } else { LONGER };
        (longer >= least.ln_1p() && is_apart).then(|| {
            let slower = SlowerSetup {
                key: key.to_owned(),
                value: (*value).to_owned(),
                expected: (*expected).to_owned(),
                slow: slow.nodes.iter().map(|node| (*node).to_owned()).collect(),
                nodes: slow.nodes.len(),
                others: fast.nodes.len(),
                seconds: at(&slow.seconds, 2),
                usual: at(&fast.seconds, 2),
            };
            (longer, slower)
        })
    }
}

fn by_excess(a: &(&&str, &Group<'_>), b: &(&&str, &Group<'_>)) -> Ordering {
    at(&a.1.excess, 2).total_cmp(&at(&b.1.excess, 2))
}

/// The value of a setting on the nodes of a variant. A variable or an argument that is not there
/// is not set, if others of its kind could be read.
fn value_of_key<'a>(v: &'a Variant, key: &str) -> Option<&'a str> {
    let keys = &v.setup.keys;
    let has = |prefix: &str| keys.keys().any(|name| name.starts_with(prefix));
    let is_read = || {
        (key.starts_with(VARIABLE) && (keys.contains_key(VISIBLE_GPUS) || has(VARIABLE)))
            || (key.starts_with(ARGUMENT) && has(ARGUMENT))
    };
    keys.get(key).map(String::as_str).or_else(|| is_read().then_some(NOT_SET))
}

/// The keys of which there are several values, those that explain most first.
fn keys(variants: &[Variant]) -> Vec<&str> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for key in variants.iter().flat_map(|v| v.setup.keys.keys()) {
        let all = || variants.iter().filter_map(|v| value_of_key(v, key)).collect();
        values.entry(key).or_insert_with(all);
    }
    values.retain(|key, values| {
        values.len() > 1 && topic(key) < Topic::Other && !values.contains(DIFFERS_BY_RANK)
    });
    let mut keys: Vec<&str> = values.into_keys().collect();
    keys.sort_by_key(|key| topic(key));
    keys
}

/// A quarter of sorted values, from 1 to 3: of two neighbours the lower one, and for the last
/// quarter the higher one. NaN without any value.
fn at(sorted: &[f64], quarter: usize) -> f64 {
    let quarters = sorted.len().saturating_sub(1) * quarter;
    let index = if quarter == 3 { quarters.div_ceil(4) } else { quarters / 4 };
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
