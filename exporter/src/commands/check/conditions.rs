//! Further conditions of the node: all those that collectors publish on the stream.
//!
//! A new fault that a collector detects is reported here without a check of its own.

use stepwatch_wire::conditions::{BY_EVENT, NodeCondition};
use stepwatch_wire::{Event, Kind};

use super::item::Check;
use super::node::Node;
use super::report::{Findings, Verdict};

pub(super) const CHECK: Check = Check {
    name: BY_EVENT,
    about: "no collector reports a fault that holds",
    needs: &["bonds", "clock", "disk", "edac", "gpu", "kernel", "mounts", "nic", "nvme", "pci", "rdma"],
    run,
};

/// A full network file system is reported alike on all nodes. It is a warning, because a failed
/// check would take all of them out of service.
const FILLING: NodeCondition = NodeCondition::DiskFilling;

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    for event in node.events().iter().filter(|e| holds(e)) {
        let name = event.name.as_deref().unwrap_or("fault");
        let verdict = match event.level.as_deref() {
            Some("error") => Verdict::Unhealthy,
            Some("warn" | "warning") => Verdict::Warning,
            _ => continue,
        };
        let condition = NodeCondition::parse(name);
        if condition.is_some_and(|condition| condition.row().check != BY_EVENT) {
            continue;
        }
        let of_all_nodes =
            condition == Some(FILLING) && device(event).is_some_and(|mount| node.is_shared(mount));
        let verdict = if of_all_nodes { Verdict::Warning } else { verdict };
        let finding = found.add(verdict, event.text.as_deref().unwrap_or(name));
        finding.device(device(event).unwrap_or(name));
    }
    found.or_ok(|| "none".into())
}

fn holds(event: &Event) -> bool {
    match event.kind {
        Kind::Hw => event.code == Some(1),
        // The code of a link is 1 while the link is good.
        Kind::Link => event.code == Some(0),
        _ => false,
    }
}

fn device(event: &Event) -> Option<&str> {
    let keys = ["gpu", "device", "mount", "pci"];
    keys.iter().find_map(|key| event.extra.get(*key)?.as_str())
}

#[cfg(test)]
mod tests {
    use stepwatch_wire::Value;

    use super::super::tests::{heard, says};
    use super::*;
    use crate::collectors::storage::disk::INFO;
    use crate::samples::Samples;

    #[test]
    fn the_verdict_follows_the_level_of_a_condition() {
        let event = |kind, name: &str, code, level: &str| Event {
            name: Some(name.into()),
            code: Some(code),
            level: Some(level.into()),
            text: Some(format!("{name} it is")),
            ..Event::new(kind)
        };
        let says = heard(
            &CHECK,
            vec![
                event(Kind::Hw, "mce", 1, "error"),
                event(Kind::Hw, "over", 0, "error"),
                event(Kind::Hw, "disk_filling", 1, "warn"),
                event(Kind::Hw, "curious", 1, "info"),
                event(Kind::Hw, "clock_unsynced", 1, "warn"),
                event(Kind::Link, "mlx5_0/1", 0, "error"),
                event(Kind::Link, "eth0", 1, "info"),
                event(Kind::Step, "step", 1, "error"),
            ],
        );
        insta::assert_snapshot!(says, @r"
        warning   conditions disk_filling it is
        unhealthy conditions mce it is
        unhealthy conditions mlx5_0/1 it is
        ");
        insta::assert_snapshot!(heard(&CHECK, Vec::new()), @"ok        conditions none");
    }

    #[test]
    fn a_file_system_of_all_nodes_that_is_full() {
        let mut samples = Samples::default();
        samples.set(&INFO, &["/ckpt", "nfs4", "srv:/ckpt"], 1u64);
        samples.set(&INFO, &["/local", "xfs", "/dev/md0"], 1u64);
        let full = |name: &str, mount: &str| {
            let mut event = Event {
                name: Some(name.into()),
                code: Some(1),
                level: Some("error".into()),
                text: Some(format!("{name}: {mount}")),
                ..Event::new(Kind::Hw)
            };
            event.extra.insert("mount".into(), Value::Text(mount.into()));
            event
        };
        let events = vec![
            full(FILLING.name(), "/ckpt"),
            full(FILLING.name(), "/local"),
            full("filesystem_readonly", "/ckpt"),
        ];
        insta::assert_snapshot!(says(&CHECK, samples, events), @r"
        warning   conditions disk_filling: /ckpt
        unhealthy conditions disk_filling: /local
        unhealthy conditions filesystem_readonly: /ckpt
        ");
    }
}
