//! How a node's troubles read.

use super::conditions::{Condition, Key, Topic};
use super::{NodeFacts, Tenants};
use crate::time::{Span, Ts};
use crate::verdict::Suspect;

/// What exporters call ranks that do not join a collective.
pub(crate) const RAS_STUCK: &str = "ras_stuck";
/// What links of several nodes that go down at once have in common.
pub(crate) const SWITCH: &str = "switch or cable that the nodes share";
/// And mounts that do not answer, or GPUs that their hardware slows down.
pub(crate) const STORAGE: &str = "storage that the nodes share";
pub(crate) const POWER: &str = "power or cooling that the nodes share";
/// A GPU that its hardware slows down.
pub(crate) const THROTTLED: &str = "gpu_throttled";

/// `GPU 3 (GPU-2f3c…)`, or as much of it as is known; empty if nothing is.
pub(crate) fn gpu(f: &NodeFacts, uuid: &str, pci: &str) -> String {
    let known = f.gpus.find(uuid, pci);
    let uuid = known.map_or(uuid, |(uuid, _)| uuid);
    let id = if uuid.is_empty() { pci } else { uuid };
    match (known.and_then(|(_, gpu)| gpu.index), id) {
        (Some(index), id) => format!("GPU {index} ({id})"),
        (None, "") => String::new(),
        (None, id) if id.starts_with("GPU-") => id.to_owned(),
        (None, id) => format!("the GPU at {id}"),
    }
}

/// What the condition is of: a GPU, a link, a mount.
fn place(f: &NodeFacts, key: &Key, c: &Condition) -> String {
    match key.topic {
        Topic::Link => match c.medium.as_str() {
            "" => key.name.clone(),
            medium => format!("{} ({})", key.name, medium_name(medium)),
        },
        _ if !c.gpu.is_empty() => gpu(f, &c.gpu, &c.pci),
        Topic::Xid => gpu(f, &c.gpu, &c.pci),
        Topic::Hw if f.gpus.find("", &c.pci).is_some() => gpu(f, "", &c.pci),
        Topic::Hw => key.place.clone(),
    }
}

/// What has the condition, however it is told of.
pub(crate) fn device<'a>(key: &'a Key, c: &'a Condition) -> &'a str {
    match key.topic {
        _ if !c.gpu.is_empty() => &c.gpu,
        Topic::Link => &key.name,
        Topic::Xid | Topic::Hw => &key.place,
    }
}

fn medium_name(medium: &str) -> &str {
    match medium {
        "infiniband" => "InfiniBand",
        "roce" => "RoCE",
        "efa" => "EFA",
        "ethernet" => "Ethernet",
        "nvlink" => "NVLink",
        "pcie" => "PCIe",
        other => other,
    }
}

/// `XID 79`, `GPU lost`, `link down`.
fn title(key: &Key, c: &Condition) -> String {
    match (key.topic, c.state.as_str()) {
        (Topic::Xid, _) => format!("{} {}", key.name.to_ascii_uppercase(), key.number),
        (Topic::Link, "drop") => "link down".into(),
        (Topic::Link, "flap") => "link flapping".into(),
        (Topic::Link, "errors") => "link errors".into(),
        (Topic::Link, state) => format!("link {state}"),
        (Topic::Hw, _) => {
            let words = key.name.replace('_', " ");
            match words.split_once(' ') {
                Some((word @ ("gpu" | "nvml" | "ecc" | "nfs" | "aer" | "oom" | "ras" | "sram"), rest)) => {
                    format!("{} {rest}", word.to_ascii_uppercase())
                }
                _ => words,
            }
        }
    }
}

/// What the exporter said of it, without the full stop.
fn meaning(c: &Condition) -> &str {
    c.text.trim().trim_end_matches('.')
}

/// The name of an XID and what to do about it, out of `XID 79 (GPU has fallen off the bus) of GPU 0000:3b:00.0: Drain the node`.
fn named<'a>(title: &str, text: &'a str) -> Option<(&'a str, Option<&'a str>)> {
    let (name, rest) = text.strip_prefix(title)?.trim_start().strip_prefix('(')?.split_once(") of ")?;
    Some((name, rest.split_once(": ").map(|(_, hint)| hint)))
}

/// `XID 79 on GPU 3 (GPU-2f3c…) of gpu-042: GPU has fallen off the bus`; of other things the exporter's own sentence.
pub(crate) fn happened(f: &NodeFacts, key: &Key, c: &Condition) -> String {
    let (title, place, node) = (title(key, c), place(f, key, c), &f.name);
    let times = if c.times > 1 { format!(", {} times", c.times) } else { String::new() };
    let text = meaning(c);
    if key.topic == Topic::Xid && !place.is_empty() && key.name == "xid" {
        let name = named(&title, text).map_or(text, |(name, _)| name);
        return format!("{title} on {place} of {node}{times}: {name}");
    }
    if text.is_empty() {
        let on = if place.is_empty() { String::new() } else { format!("{place} of ") };
        return format!("{title} on {on}{node}{times}");
    }
    if c.gpu.is_empty() {
        format!("{text}, on {node}{times}")
    } else {
        format!("{text} ({}), on {node}{times}", c.gpu)
    }
}

pub(crate) fn suspect(f: &NodeFacts, key: &Key, c: &Condition) -> Suspect {
    let (title, place) = (title(key, c), place(f, key, c));
    let what = if !c.blames.is_empty() {
        c.blames.clone()
    } else if place.is_empty() {
        format!("node {}", f.name)
    } else {
        format!("node {}, {place}", f.name)
    };
    let text = meaning(c);
    let why = match (text, named(&title, text)) {
        ("", _) => title,
        (_, Some((name, Some(hint)))) => format!("{title}, {name}: {hint}"),
        (_, Some((name, None))) => format!("{title}: {name}"),
        _ if key.topic == Topic::Xid && !text.starts_with(&title) => format!("{title}: {text}"),
        _ => text.to_owned(),
    };
    Suspect { what, why }
}

/// Who is hit.
pub(crate) fn hit(f: &NodeFacts, tenants: Tenants<'_>, now: Ts) -> String {
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
    let more =
        if tenants.len() > 1 { format!("; {} more runs too", tenants.len() - 1) } else { String::new() };
    format!("run {}{job} has {ranks} there{stands}{more}", t.run)
}

/// How much of the node what is asked for costs: who does the most has done the rest too.
pub(crate) fn effort(action: &str) -> usize {
    const LEAST_FIRST: [&str; 6] =
        ["restart_app", "drain_reset", "reset_gpu", "reboot_node", "check_hardware", "contact_support"];
    LEAST_FIRST.iter().position(|known| *known == action).map_or(0, |n| n + 1)
}

/// What to do, from the catalogue's word for it.
pub(crate) fn advice(f: &NodeFacts, c: &Condition) -> Option<String> {
    asks(&c.action, &f.name, &gpu(f, &c.gpu, &c.pci))
}

/// The same of an action of a GPU of a node.
pub(crate) fn asks(action: &str, node: &str, gpu: &str) -> Option<String> {
    let gpu = if gpu.is_empty() { "the GPU" } else { gpu };
    Some(match action {
        "" | "none" => return None,
        "restart_app" => "restart the job; the node can stay".into(),
        "reset_gpu" => format!("drain {node} and reset {gpu}"),
        "reboot_node" => format!("drain {node} and reboot it"),
        "drain_reset" => format!("drain {node} at the next checkpoint, then reset {gpu}"),
        "check_hardware" => format!("drain {node} and have its hardware checked"),
        "contact_support" => format!("drain {node} and contact the vendor's support"),
        other => other.replace('_', " "),
    })
}
