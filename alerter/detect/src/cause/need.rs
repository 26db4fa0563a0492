//! Finds what has to be done before a run can go on: on a broken node, or about what ended its
//! ranks.
//!
//! A node is drained only for a fault of its own: one whose action in the catalogue is a reset, a
//! reboot or a look at the hardware, a link that is down, a host that is gone. A fault that an
//! application causes by itself happens on the next node too.

use std::collections::BTreeSet;

use stepwatch_model::{Course, FirstFailure, Need, Needs};

use stepwatch_wire::conditions::{NodeCondition, Remedy};

use crate::node::{Condition, Key, Level, NodeState, Topic, words};
use crate::run::RunState;
use crate::run::failures::failures;
use stepwatch_model::time::{Span, Ts};

/// How long a fault that happened once and needs a repair counts.
const REPAIR_WITHIN: Span = Span::secs(3600);
/// A process that the kernel killed for want of memory longer before than this is unrelated.
const KILLED_WITHIN: Span = Span::secs(600);
/// A run that took no step for so long, and for so many of its usual steps, stands still.
const STILL: Span = Span::secs(30);
const STILL_STEPS: f64 = 5.0;
/// Conditions of a node in which a save may never end.
const HANGS: [NodeCondition; 3] =
    [NodeCondition::MountStuck, NodeCondition::NfsStall, NodeCondition::LustreStall];
/// Nodes remembered, those that need most first.
const MAX_NODES: usize = 32;
/// Characters of a rank's last words.
const MAX_WORDS: usize = 160;

/// `gone`: nodes that no exporter reports.
pub(crate) fn needs<'a>(
    now: Ts,
    f: &RunState,
    gone: &BTreeSet<&str>,
    nodes: impl Iterator<Item = &'a NodeState>,
) -> Needs {
    let found = nodes.filter_map(|node| Some((node, need(now, gone.contains(&*node.name), node)?)));
    let mut found: Vec<(String, Need)> = found.map(|(node, need)| (node.name.clone(), need)).collect();
    // If half of the run is out of reach, the cause is a network, most likely the alerter's own.
    if 2 * found.iter().filter(|(_, need)| *need == Need::Gone).count() > f.nodes.len() {
        found.retain(|(_, need)| *need != Need::Gone);
    }
    found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    found.truncate(MAX_NODES);
    let done = f.ended.as_ref().is_some_and(|ended| ended.code == 0 && !ended.silent);
    Needs { stands: stands(now, f), nodes: found.into_iter().collect(), ended: ended(f), done }
}

fn stands(now: Ts, f: &RunState) -> bool {
    let usual = f.pace.quantile(0.5).map_or(Span::ZERO, |secs| Span::from_secs_f64(STILL_STEPS * secs));
    !f.deaths.is_empty() || f.ended.is_some() || now - f.last_progress >= STILL.max(usual)
}

/// Whether a file system of a node does not answer.
pub(crate) fn storage_hangs(node: &NodeState) -> bool {
    let hangs = |(key, c): (&Key, &Condition)| c.holds() && HANGS.iter().any(|one| key.name == one.name());
    node.conditions.iter().any(hangs)
}

fn ended(f: &RunState) -> Option<FirstFailure> {
    let first = failures(f).into_iter().next()?;
    let own = first.course == Course::Broke;
    let words = own.then(|| match first.text.char_indices().nth(MAX_WORDS) {
        Some((at, _)) => [&first.text[..at], "…"].concat(),
        None => first.text,
    });
    Some(FirstFailure { place: first.place, words: words.filter(|words| !words.is_empty()) })
}

fn need(now: Ts, gone: bool, node: &NodeState) -> Option<Need> {
    let found: Vec<Need> =
        node.conditions.iter().filter_map(|(key, c)| of_condition(now, node, key, c)).collect();
    // Broken hardware has to be repaired whether or not the host is up. Unless the repair can wait,
    // it comes before a look at a link.
    let sure = |r: &&Need| matches!(r, Need::Repair { sure: true, action, .. } if gone || *action != Remedy::DrainReset);
    let sure = found.iter().filter(sure).max().cloned();
    sure.or_else(|| gone.then_some(Need::Gone)).or_else(|| found.into_iter().max())
}

fn of_condition(now: Ts, node: &NodeState, key: &Key, c: &Condition) -> Option<Need> {
    let lately = |within: Span| c.holds() || c.once && c.over.is_none() && now - c.last < within;
    if c.level < Level::Warn || !lately(REPAIR_WITHIN) {
        return None;
    }
    // A driver that is slow to answer the exporter may still answer the run.
    let sure = c.level == Level::Error && key.name != NodeCondition::NvmlStuck.name();
    if key.topic == Topic::Link {
        // One that went down is a warning, and an error once it has not come back. An Ethernet that
        // is down is seldom the one that a run needs.
        let down = key.is_link_down(c) && c.holds() && (sure || c.state == "down");
        let down = down && c.medium != "ethernet";
        return down.then(|| Need::Link { name: key.name.clone() });
    }
    if key.name == NodeCondition::OomKill.name() {
        let cgroup = if key.place.starts_with('/') { key.place.clone() } else { String::new() };
        return lately(KILLED_WITHIN).then_some(Need::Memory { cgroup });
    }
    // An exporter may name a condition without an action.
    let action = match &c.action {
        Some(action) => action.known()?,
        None => key.row()?.remedy,
    };
    let counts = action.repairs_node() || sure && action == Remedy::ContactSupport;
    counts.then(|| Need::Repair { sure, action, gpu: words::gpu(node, &c.gpu, &c.pci) })
}
