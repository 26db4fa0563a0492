//! What has to be done before a run can go on, as far as it is known: on a node that is broken, or
//! about what ended its ranks.
//!
//! A node is drained only for what is the node's own: a fault whose action in the catalogue is a
//! reset, a reboot or a look at the hardware, a link that is down, a host that is gone. What an
//! application does to itself happens on the next node too.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use stepwatch_model::{Course, Target};

use crate::detectors::{first_failure, link_fault};
use crate::node::{Condition, Key, Level, NodeFacts, Topic, words};
use crate::run::Facts;
use crate::time::{Span, Ts};

/// What happened once and asks for a repair counts for so long.
const REPAIR_WITHIN: Span = Span::secs(3600);
/// What the system killed for want of memory so long before is another story.
const KILLED_WITHIN: Span = Span::secs(600);
/// A run stands that took no step for so long, and for so many of its usual steps.
const STILL: Span = Span::secs(30);
const STILL_STEPS: f64 = 5.0;
/// Nodes remembered, those that need most first.
const MAX_NODES: usize = 32;
/// Characters of a rank's last words.
const MAX_WORDS: usize = 160;
/// What is asked for where an exporter names a condition and no action.
const ACTIONS: [(&str, &str); 16] = [
    ("gpu_lost", "reboot_node"),
    ("gpu_reset_failed", "reboot_node"),
    ("nvml_stuck", "reboot_node"),
    ("hard_lockup", "reboot_node"),
    ("kernel_oops", "reboot_node"),
    ("kernel_panic", "reboot_node"),
    ("nic_firmware", "reboot_node"),
    ("ecc_uncorrected", "drain_reset"),
    ("row_remap_pending", "drain_reset"),
    ("retired_pages_pending", "drain_reset"),
    ("row_remap_failed", "check_hardware"),
    ("sram_threshold", "check_hardware"),
    ("fabric_unhealthy", "check_hardware"),
    ("aer_fatal", "check_hardware"),
    ("mce", "check_hardware"),
    ("nvme_error", "check_hardware"),
];
/// Of these, what an application does to itself is not a node's, and what a vendor wants to hear of
/// seldom stops a run.
const REPAIRS: [&str; 4] = ["drain_reset", "reset_gpu", "reboot_node", "check_hardware"];
const SUPPORT: &str = "contact_support";
const LATER: &str = "drain_reset";

/// What is known of it, kept with the incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remedies {
    /// The run takes no steps.
    pub(super) stands: bool,
    /// By node, what it needs most.
    pub(super) nodes: BTreeMap<String, Remedy>,
    pub(super) ended: Option<Ended>,
}

/// The least first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Remedy {
    /// A process was killed for want of memory, in this cgroup if it is known.
    Memory {
        cgroup: String,
    },
    /// The faults of the node want this done; `sure`: at least one of them is an error.
    Repair {
        sure: bool,
        effort: usize,
        action: String,
        gpu: String,
    },
    Link {
        name: String,
    },
    /// Nothing is heard of the host: what fell silent is more than a collector of its exporter.
    Gone,
}

/// The rank that failed first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) place: Target,
    /// Its last words, if they are its own: no signal, no peer that was gone.
    pub(super) words: Option<String>,
}

impl Remedies {
    /// `gone`: nodes for which no exporter speaks.
    pub(crate) fn of<'a>(
        now: Ts,
        f: &Facts,
        gone: &BTreeSet<&str>,
        nodes: impl Iterator<Item = &'a NodeFacts>,
    ) -> Self {
        let found = nodes.filter_map(|node| Some((node, need(now, gone.contains(&*node.name), node)?)));
        let mut found: Vec<(String, Remedy)> = found.map(|(node, need)| (node.name.clone(), need)).collect();
        // Half of the run out of reach is a network, and most likely ours.
        if 2 * found.iter().filter(|(_, need)| *need == Remedy::Gone).count() > f.nodes.len() {
            found.retain(|(_, need)| *need != Remedy::Gone);
        }
        found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        found.truncate(MAX_NODES);
        Self { stands: stands(now, f), nodes: found.into_iter().collect(), ended: ended(f) }
    }
}

fn stands(now: Ts, f: &Facts) -> bool {
    let usual = f.pace.quantile(0.5).map_or(Span::ZERO, |secs| Span::from_secs_f64(STILL_STEPS * secs));
    !f.deaths.is_empty() || now - f.last_progress >= STILL.max(usual)
}

fn ended(f: &Facts) -> Option<Ended> {
    let first = first_failure::failures(f).into_iter().next()?;
    let own = first.course() == Course::Broke;
    let words = own.then(|| match first.text.char_indices().nth(MAX_WORDS) {
        Some((at, _)) => format!("{}…", &first.text[..at]),
        None => first.text,
    });
    Some(Ended { place: first.place, words: words.filter(|words| !words.is_empty()) })
}

fn need(now: Ts, gone: bool, node: &NodeFacts) -> Option<Remedy> {
    let found: Vec<Remedy> =
        node.conditions.iter().filter_map(|(key, c)| of_condition(now, node, key, c)).collect();
    // What is surely broken has to be mended, whether or not the host is up, and before a link is
    // looked at unless it can wait.
    let sure =
        |r: &&Remedy| matches!(r, Remedy::Repair { sure: true, action, .. } if gone || action != LATER);
    let sure = found.iter().filter(sure).max().cloned();
    sure.or_else(|| gone.then_some(Remedy::Gone)).or_else(|| found.into_iter().max())
}

fn of_condition(now: Ts, node: &NodeFacts, key: &Key, c: &Condition) -> Option<Remedy> {
    let lately = |within: Span| c.holds() || c.once && c.over.is_none() && now - c.last < within;
    if c.level < Level::Warn || !lately(REPAIR_WITHIN) {
        return None;
    }
    // A driver that is slow to answer us may answer the run.
    let sure = c.level == Level::Error && key.name != "nvml_stuck";
    if key.topic == Topic::Link {
        // One that went down is a warning, and an error once it has not come back. An Ethernet that is down
        // is seldom the one that a run needs.
        let down = link_fault::is_down(key, c) && c.holds() && (sure || c.state == "down");
        let down = down && c.medium != "ethernet";
        return down.then(|| Remedy::Link { name: key.name.clone() });
    }
    if key.name == "oom_kill" {
        let cgroup = if key.place.starts_with('/') { key.place.clone() } else { String::new() };
        return lately(KILLED_WITHIN).then_some(Remedy::Memory { cgroup });
    }
    let known = || ACTIONS.iter().find(|(name, _)| key.topic == Topic::Hw && *name == key.name);
    let action = if c.action.is_empty() { known()?.1 } else { c.action.as_str() };
    let counts = REPAIRS.contains(&action) || sure && action == SUPPORT;
    counts.then(|| Remedy::Repair {
        sure,
        effort: words::effort(action),
        action: action.to_owned(),
        gpu: words::gpu(node, &c.gpu, &c.pci),
    })
}
