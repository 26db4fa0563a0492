//! Builds the events for lines of the log, with texts for the person on call.

use std::fmt::Write as _;

use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::names::hw;
use stepwatch_wire::{Event, Kind, Value};

use super::catalogue::{self, Level};
use super::counts::Held;
use super::lines::Facts;
use super::nvidia::{self, Severity, Sxid, Xid};
use super::patterns::Report;
use crate::roots::{self, Roots};

/// The most characters of the kernel's message in a text.
const MAX_MESSAGE: usize = 240;

/// A line of the log with its position and time.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogLine<'a> {
    pub(super) text: &'a str,
    /// The sequence number of its record.
    pub(super) sequence: u64,
    pub(super) ts: f64,
    pub(super) roots: &'a Roots,
}

/// The context of an out-of-memory kill: the process, its control group and the constraint.
#[derive(Debug, Clone, Default)]
pub(super) struct Oom {
    pub(super) pid: u32,
    pub(super) cgroup: String,
    pub(super) constraint: String,
}

pub(super) fn xid(ts: f64, xid: &Xid<'_>, gpu: Option<&str>) -> Event {
    let known = catalogue::find(xid.code);
    let (level, action) = xid.verdict();
    let mut text = format!("XID {} ({}) of GPU {}", xid.code, known.name, xid.pci);
    let instances = [("gi", xid.gpu_instance), ("ci", xid.compute_instance)];
    for (name, id) in instances {
        if let Some(id) = id {
            let _ = write!(text, ", {name} {id}");
        }
    }
    let more = xid.more();
    text.push_str(&more.place());
    text.push_str(&whose(xid.process, xid.pid));
    // An XID that follows from another one needs no action of its own.
    let hint = if xid.caused_by.is_none() { xid.hint() } else { "".into() };
    let _ = match xid.caused_by {
        Some(cause) => write!(text, ", which follows from XID {cause}"),
        None => write!(text, ": {hint}"),
    };
    let mut event = event(Kind::Xid, ts, "xid", level, text);
    event.code = Some(i64::from(xid.code));
    for (name, id) in instances {
        number(&mut event, name, id);
    }
    number(&mut event, "pid", xid.pid);
    number(&mut event, "caused_by", xid.caused_by);
    number(&mut event, "link", more.link);
    for (name, of) in [("gpc", more.sm.map(|sm| sm.gpc)), ("tpc", more.sm.map(|sm| sm.tpc))] {
        number(&mut event, name, of);
    }
    number(&mut event, "sm", more.sm.map(|sm| sm.sm));
    words(
        &mut event,
        &[
            (hw::KNOWN_AS, known.name),
            (hw::HINT, &hint),
            ("unit", more.unit.unwrap_or_default()),
            ("action", action.as_str()),
            ("gpu", gpu.unwrap_or_default()),
            ("pci", &xid.pci),
            ("process", xid.process.unwrap_or_default()),
            ("message", xid.detail),
        ],
    );
    event
}

/// The event of an SXID; `None` if it is only counted.
pub(super) fn sxid(ts: f64, sxid: &Sxid<'_>) -> Option<Event> {
    let (level, action) = sxid.verdict()?;
    let known = catalogue::sxid(sxid.code);
    let (about, hint) = match sxid.severity {
        Severity::Fatal => (", fatal".to_owned(), String::new()),
        Severity::NonFatal => (", not fatal".to_owned(), String::new()),
        Severity::Correctable => (", corrected".to_owned(), String::new()),
        Severity::Unknown => (format!(" ({})", known.name), format!(". {}", known.hint)),
    };
    let text = format!("SXID {} of NVSwitch {}{about}: {}{hint}", sxid.code, sxid.nvswitch, sxid.detail);
    let mut event = event(Kind::Xid, ts, "sxid", level, text);
    event.code = Some(i64::from(sxid.code));
    number(&mut event, "nvswitch", Some(sxid.nvswitch));
    number(&mut event, "link", sxid.link);
    words(&mut event, &[("action", action.as_str()), ("pci", &sxid.pci), ("message", sxid.detail)]);
    Some(event)
}

/// The event of a pattern; `None` for patterns that are only counted.
pub(super) fn pattern(
    report: Report,
    facts: &Facts<'_>,
    at: LogLine<'_>,
    oom: Option<&Oom>,
) -> Option<Event> {
    let LogLine { text: line, ts, roots, .. } = at;
    let pci = nvidia::address(facts.pci);
    let subject = subject(facts, pci.as_deref(), oom);
    let mut event = match report {
        Report::Count => return None,
        Report::Once { condition, level, phrase } => {
            let mut event = event(Kind::Hw, ts, condition.name(), level, format!("{phrase}{subject}"));
            event.extra.insert("once".into(), Value::Bool(true));
            event
        }
        Report::Begin { condition, level, phrase } => {
            let mut event = event(Kind::Hw, ts, condition.name(), level, format!("{phrase}{subject}"));
            if facts.device.is_empty() {
                event.extra.insert("once".into(), Value::Bool(true));
            }
            event
        }
        Report::End { condition, phrase } => {
            let event = event(Kind::Hw, ts, condition.name(), Level::Info, format!("{phrase}{subject}"));
            Event { code: Some(0), ..event }
        }
        Report::Link { medium, state, level, phrase } => {
            let adapter = pci.as_deref().map(|pci| Adapter::at_address(roots, pci)).unwrap_or_default();
            let netdev = Some(facts.device).filter(|d| !d.is_empty()).or(adapter.netdev.as_deref());
            let medium = if medium == "infiniband" { adapter.medium.unwrap_or(medium) } else { medium };
            let port = adapter.rdma.as_ref().map(|device| format!("{device}/1"));
            let name = port.as_deref().or(netdev).or(pci.as_deref()).unwrap_or(medium);
            let mut event = event(Kind::Link, ts, name, level, format!("{name}: {phrase}"));
            event.code = Some(0);
            event.extra.insert("once".into(), Value::Bool(true));
            words(
                &mut event,
                &[("medium", medium), ("state", state), ("netdev", netdev.unwrap_or_default())],
            );
            event
        }
    };
    number(&mut event, "pid", facts.pid);
    let device = if facts.device.starts_with("GPU-") { "gpu" } else { "device" };
    words(
        &mut event,
        &[
            ("pci", pci.as_deref().unwrap_or_default()),
            (device, facts.device),
            ("process", facts.process),
            ("cgroup", oom.map_or("", |oom| &oom.cgroup)),
            ("constraint", oom.map_or("", |oom| &oom.constraint)),
            ("message", line),
        ],
    );
    Some(event)
}

/// The event of a message that matches no pattern and is new on this node. Only a comparison with
/// other nodes shows whether it is a fault, so the level is the lowest, and the alerter raises it.
pub(super) fn unknown(at: LogLine<'_>, message: &str, template: &str) -> Event {
    let said: String = message.trim().chars().take(MAX_MESSAGE).collect();
    let text = format!("new on this node: {said}");
    let mut event = event(Kind::Hw, at.ts, NodeCondition::KernelMessage.name(), Level::Info, text);
    event.extra.insert("once".into(), Value::Bool(true));
    words(&mut event, &[("device", template), (hw::TEMPLATE, template)]);
    event
}

/// The repeated event of a condition that still holds.
pub(super) fn again(ts: f64, held: &Held) -> Event {
    let mut event = Event {
        ts: Some(ts),
        name: Some(held.name.clone()),
        level: Some(held.level.clone()),
        code: Some(1),
        text: Some(held.text.clone()),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("again".into(), Value::Bool(true));
    words(&mut event, &[("device", &held.device)]);
    event
}

/// The event for the end of a condition that the log does not contain; `why` is the reason to
/// assume it.
pub(super) fn over(ts: f64, held: &Held, why: &str) -> Event {
    let text = format!("over: {why} ({})", held.text);
    let mut event = event(Kind::Hw, ts, &held.name, Level::Info, text);
    event.code = Some(0);
    words(&mut event, &[("device", &held.device)]);
    event
}

/// Adds the GPU to the event, if its address is that of a GPU.
pub(super) fn of_gpu(event: &mut Event, gpu: &str) {
    words(event, &[("gpu", gpu)]);
}

fn event(kind: Kind, ts: f64, name: &str, level: Level, text: String) -> Event {
    Event {
        ts: Some(ts),
        name: Some(name.to_owned()),
        level: Some(level.as_str().to_owned()),
        code: Some(1),
        text: Some(text),
        ..Event::new(kind)
    }
}

/// The process, device or GPU that the event is about.
fn subject(facts: &Facts<'_>, pci: Option<&str>, oom: Option<&Oom>) -> String {
    let mut parts = Vec::new();
    if !facts.process.is_empty() {
        parts.push(whose(Some(facts.process), facts.pid).trim_start_matches([',', ' ']).to_owned());
    }
    parts.extend(
        [facts.device, pci.unwrap_or_default()].iter().filter(|p| !p.is_empty()).map(|p| (*p).to_owned()),
    );
    if let Some(oom) = oom {
        parts.push(format!("in cgroup {}", oom.cgroup));
    }
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

fn whose(process: Option<&str>, pid: Option<u32>) -> String {
    match (process, pid) {
        (Some(process), Some(pid)) => format!(", process {process} (pid {pid})"),
        (Some(process), None) => format!(", process {process}"),
        (None, Some(pid)) => format!(", pid {pid}"),
        (None, None) => String::new(),
    }
}

fn number(event: &mut Event, key: &str, value: Option<u32>) {
    if let Some(value) = value {
        event.extra.insert(key.into(), Value::Number(f64::from(value)));
    }
}

fn words(event: &mut Event, pairs: &[(&str, &str)]) {
    for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        let value = value.chars().take(MAX_MESSAGE).collect();
        event.extra.insert((*key).into(), Value::Text(value));
    }
}

/// The names of the network adapter at a PCI address.
#[derive(Debug, Default)]
struct Adapter {
    rdma: Option<String>,
    netdev: Option<String>,
    medium: Option<&'static str>,
}

impl Adapter {
    fn at_address(roots: &Roots, pci: &str) -> Self {
        let dir = roots.sys("bus/pci/devices").join(pci);
        let first = |what: &str| roots::list(&dir.join(what)).ok()?.into_iter().next();
        let (rdma, netdev) = (first("infiniband"), first("net"));
        let kind =
            netdev.as_ref().and_then(|n| roots::read_number::<u32>(&dir.join("net").join(n).join("type")));
        let medium = match (kind, &rdma) {
            (Some(1), Some(_)) => Some("roce"),
            (Some(1), None) => Some("ethernet"),
            _ => None,
        };
        Self { rdma, netdev, medium }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::{Found, recognise};
    use super::super::nvidia::Line;
    use super::*;

    fn event_of(line: &str, roots: &Roots) -> Event {
        match recognise(line) {
            Some(Found::Nvidia(Line::Xid(x))) => xid(1e9, &x, Some("GPU-1")),
            Some(Found::Nvidia(Line::Sxid(s))) => sxid(1e9, &s).unwrap(),
            Some(Found::Pattern(s, facts)) => {
                pattern(s.report(), &facts, LogLine { text: line, sequence: 0, ts: 1e9, roots }, None)
                    .unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sentences() {
        let dir = tempfile::tempdir().unwrap();
        let adapter = dir.path().join("bus/pci/devices/0000:ca:00.0");
        std::fs::create_dir_all(adapter.join("infiniband/mlx5_4")).unwrap();
        std::fs::create_dir_all(adapter.join("net/eth2")).unwrap();
        std::fs::write(adapter.join("net/eth2/type"), "1\n").unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        let lines = [
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 45, pid=42, name=python3, Ch 00000010 caused by previous Xid 94",
            "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 24 LTSSM Fault Up",
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)",
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)",
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            "NVRM: Xid (PCI:0000:b5:00): 13, pid=7, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address",
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 10007, IO failure",
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 27002, Failed to init CCI(0)",
            "nfs: server 10.0.0.9 not responding, timed out",
            "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:10kB",
            "mlx5_core 0000:ca:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            "mlx5_core 0000:ca:00.0: Port module event: module 0, Cable unplugged",
            "mlx5_core 0000:ca:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link",
            "nfs: server 10.0.0.9 OK",
        ];
        let events: String = lines.iter().map(|line| event_of(line, &roots).to_json() + "\n").collect();
        insta::assert_snapshot!(events);
    }
}
