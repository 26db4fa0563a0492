//! Texts about faults of nodes.

use stepwatch_model::{Fault, Observation, Remedy, Said, Suspect, Target};
use stepwatch_wire::conditions::NodeCondition;

use super::NodeState;
use super::Tenants;
use super::conditions::{Condition, Key, Topic};
use stepwatch_model::time::{Span, Ts};

/// What exporters call ranks that do not join a collective.
pub(crate) const RAS_STUCK: &str = NodeCondition::RasStuck.name();
/// Runs named of those that are hit beside the first.
const MAX_OTHERS: usize = 3;
/// A GPU that its hardware slows down.
pub(crate) const THROTTLED: &str = NodeCondition::GpuThrottled.name();

/// `GPU 3 (GPU-2f3c…)`, or as much of it as is known; empty if nothing is.
pub(crate) fn gpu(f: &NodeState, uuid: &str, pci: &str) -> String {
    gpu_of(f, uuid, pci).name()
}

pub(crate) fn gpu_of(f: &NodeState, uuid: &str, pci: &str) -> Target {
    let known = f.gpus.find(uuid, pci);
    Target::Gpu {
        node: f.name.clone(),
        index: known.and_then(|(_, gpu)| gpu.index),
        uuid: known.map_or(uuid, |(uuid, _)| uuid).to_owned(),
        pci: pci.to_owned(),
    }
}

/// What the condition is of: a GPU, a link, a mount, or the node as a whole.
pub(crate) fn target(f: &NodeState, key: &Key, c: &Condition) -> Target {
    let node = f.name.clone();
    let found = match key.topic {
        Topic::Link => Target::Link { node, name: key.name.clone(), medium: c.medium.clone() },
        _ if !c.gpu.is_empty() => gpu_of(f, &c.gpu, &c.pci),
        Topic::Xid => gpu_of(f, &c.gpu, &c.pci),
        Topic::Hw if f.gpus.find("", &c.pci).is_some() => gpu_of(f, "", &c.pci),
        Topic::Hw => Target::Part { node, name: key.place.clone() },
    };
    if found.name().is_empty() { Target::node(&f.name) } else { found }
}

/// The device that has the condition, by the best name that the event gives.
pub(crate) fn device<'a>(key: &'a Key, c: &'a Condition) -> &'a str {
    match key.topic {
        _ if !c.gpu.is_empty() => &c.gpu,
        Topic::Link => &key.name,
        Topic::Xid | Topic::Hw => &key.place,
    }
}

/// The exporter's text of the condition, without the full stop.
fn meaning(c: &Condition) -> &str {
    c.text.trim().trim_end_matches('.')
}

fn fault(key: &Key, c: &Condition) -> Fault {
    let fault = Fault::new(key.topic, &key.name, key.number, &c.state);
    if c.known_as.is_empty() { fault.with_sentence(&c.text) } else { fault.with_name(&c.known_as, &c.hint) }
}

/// `XID 79 on GPU 3 (GPU-2f3c…) of gpu-042: GPU has fallen off the bus`; of other things the
/// exporter's own sentence.
pub(crate) fn happened(f: &NodeState, key: &Key, c: &Condition) -> String {
    let (fault, target, node) = (fault(key, c), target(f, key, c), &f.name);
    let title = fault.title();
    let times = if c.times > 1 { format!(", {} times", c.times) } else { String::new() };
    let text = meaning(c);
    if key.topic == Topic::Xid && target.is_device() && key.name == "xid" {
        let name = fault.known_as().unwrap_or(text);
        return format!("{title} on {} of {node}{times}: {name}", target.name());
    }
    if matches!(fault.said, Said::Nothing) {
        let on = if target.is_device() { format!("{} of ", target.name()) } else { String::new() };
        return format!("{title} on {on}{node}{times}");
    }
    if c.gpu.is_empty() {
        format!("{text}, on {node}{times}")
    } else {
        format!("{text} ({}), on {node}{times}", c.gpu)
    }
}

/// The target that a condition blames, or the device that has it.
pub(crate) fn suspect(f: &NodeState, key: &Key, c: &Condition) -> Suspect {
    let target = c.blames.clone().unwrap_or_else(|| target(f, key, c));
    Suspect::new(target, Observation::Fault { fault: fault(key, c), slowed: c.slowed })
}

/// Which run is hit, and where it stands.
pub(crate) fn hit(now: Ts, f: &NodeState, tenants: Tenants<'_>) -> String {
    let job = f.jobs.first();
    let Some(t) = tenants.first() else {
        return job.map_or_else(
            || "no run uses the node".to_owned(),
            |job| format!("no run that is followed uses the node, but {job} does"),
        );
    };
    let job = job.map(|job| format!(" ({job})")).unwrap_or_default();
    let ranks = if t.ranks == 1 { "1 rank".into() } else { format!("{} ranks", t.ranks) };
    let stands = match t.last_step {
        Some(step) if now - t.last_progress > Span::secs(60) => {
            format!(" and stands at step {step} since {}", now - t.last_progress)
        }
        Some(step) => format!(", at step {step}"),
        None => String::new(),
    };
    if let Some(at) = t.ended {
        let (verb, ago) = (if t.ranks == 1 { "was" } else { "were" }, now - at);
        return format!(
            "no run uses the node now; {ranks} of run {}{job} {verb} there, which failed {ago} ago",
            t.run
        );
    }
    format!("run {}{job} has {ranks} there{stands}{}", t.run, others(tenants))
}

/// The runs that are hit beside the first.
fn others(tenants: Tenants<'_>) -> String {
    let names: Vec<&str> = tenants.iter().skip(1).take(MAX_OTHERS).map(|t| t.run.as_str()).collect();
    match tenants.len().saturating_sub(1 + names.len()) {
        _ if names.is_empty() => String::new(),
        0 => format!("; {} too", names.join(", ")),
        more => format!("; {} and {more} more runs too", names.join(", ")),
    }
}

/// What to do, from the catalogue's word for it.
pub(crate) fn advice(f: &NodeState, c: &Condition) -> Option<String> {
    Remedy::from_action(&c.action, &f.name, &gpu(f, &c.gpu, &c.pci)).map(|remedy| remedy.to_string())
}
