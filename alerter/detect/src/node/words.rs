//! Texts about the faults of nodes.

use stepwatch_model::{Clause, Fact, Fault, Observation, Remedy, Said, Suspect, Target, clause};
use stepwatch_wire::conditions::NodeCondition;

use super::NodeState;
use super::Tenants;
use super::conditions::{Condition, Key, Topic};
use stepwatch_model::time::{Span, Ts};

/// The condition of ranks that do not join a collective.
pub(crate) const RAS_STUCK: &str = NodeCondition::RasStuck.name();
/// The most runs named besides the first one that is hit.
const MAX_OTHERS: usize = 3;
/// The condition of a GPU that its hardware slows down.
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

/// The target of a condition: a GPU, a link, a mount, or the node as a whole.
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

/// `XID 79 on GPU 3 (GPU-2f3c…) of gpu-042: GPU has fallen off the bus`; for other conditions,
/// the exporter's own sentence.
pub(crate) fn happened(f: &NodeState, key: &Key, c: &Condition) -> Clause {
    let (said, target, node) = (fault(key, c), target(f, key, c), f.name.clone());
    let fault = said.title();
    let times = (c.times > 1).then(|| clause!(", {times} times", times = c.times));
    let text = meaning(c);
    if key.topic == Topic::Xid && target.is_device() && key.name == "xid" {
        let meaning = Fact::text(said.known_as().unwrap_or(text));
        let device = Fact::Device(target);
        return clause!(
            "{fault} on {device} of {node}{times}: {meaning}",
            fault,
            device,
            node,
            times,
            meaning
        );
    }
    if matches!(said.said, Said::Nothing) {
        let of = target.is_device().then(|| clause!("{device} of ", device = Fact::Device(target)));
        return clause!("{fault} on {of}{node}{times}", fault, of, node, times);
    }
    let text = Fact::text(text);
    if c.gpu.is_empty() {
        clause!("{text}, on {node}{times}", text, node, times)
    } else {
        clause!("{text} ({gpu}), on {node}{times}", text, gpu = c.gpu.clone(), node, times)
    }
}

/// Says that a device no longer exists.
pub(crate) fn not_there(f: &NodeState, device: Target) -> Clause {
    clause!("{device} of {node} is not there any more", device = Fact::Device(device), node = f.name.clone(),)
}

/// The target that a condition blames, or the device that has it.
pub(crate) fn suspect(f: &NodeState, key: &Key, c: &Condition) -> Suspect {
    let target = c.blames.clone().unwrap_or_else(|| target(f, key, c));
    Suspect::new(target, Observation::Fault { fault: fault(key, c), slowed: c.slowed })
}

/// Names the run that is hit, and its progress.
pub(crate) fn hit(now: Ts, f: &NodeState, tenants: Tenants<'_>) -> Clause {
    let job = f.jobs.first().map(Fact::text);
    let Some(t) = tenants.first() else {
        return match job {
            None => clause!("no run uses the node"),
            Some(job) => clause!("no run that is followed uses the node, but {job} does", job),
        };
    };
    let (run, ranks) = (t.run.clone(), t.ranks);
    let job = job.map(|job| clause!(" ({job})", job));
    let ranks = if ranks == 1 { clause!("{ranks} rank", ranks) } else { clause!("{ranks} ranks", ranks) };
    if let Some(at) = t.ended {
        return clause!(
            "no run uses the node now; {ranks} of run {run}{job} {verb} there, which failed {ago} ago",
            ranks,
            run,
            job,
            verb = if t.ranks == 1 { "was" } else { "were" },
            ago = now - at,
        );
    }
    let idle = now - t.last_progress;
    let stands = t.last_step.map(Fact::Step).map(|step| {
        if idle > Span::secs(60) {
            clause!(" and stands at step {step} since {idle}", step, idle)
        } else {
            clause!(", at step {step}", step)
        }
    });
    let others = others(tenants);
    clause!("run {run}{job} has {ranks} there{stands}{others}", run, job, ranks, stands, others)
}

/// Names the runs that are hit besides the first.
fn others(tenants: Tenants<'_>) -> Option<Clause> {
    let runs: Vec<String> = tenants.iter().skip(1).take(MAX_OTHERS).map(|t| t.run.clone()).collect();
    match tenants.len().saturating_sub(1 + runs.len()) {
        _ if runs.is_empty() => None,
        0 => Some(clause!("; {other_runs} too", other_runs = runs)),
        more => Some(clause!("; {other_runs} and {more} more runs too", other_runs = runs, more)),
    }
}

/// The advice for the action that the catalogue names.
pub(crate) fn advice(f: &NodeState, c: &Condition) -> Option<Clause> {
    let remedy = Remedy::from_action(c.action.as_ref()?, &f.name, &gpu(f, &c.gpu, &c.pci))?;
    Some(clause!("{remedy}", remedy = Fact::Remedy(Box::new(remedy))))
}
