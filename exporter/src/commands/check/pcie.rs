//! PCIe links that are narrower or slower than both of their ends allow.

use std::collections::BTreeMap;

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::host::pci::{INFO, MAX_SPEED, MAX_WIDTH, SPEED, WIDTH};
use crate::family::Family;
use crate::samples::Row;

pub(super) const CHECK: Check = Check {
    name: "pcie",
    about: "GPUs, network cards and NVMe disks have all the PCIe lanes and speed that they and their slots could",
    needs: &["pci"],
    run,
};

const SLOT: &str = "reseat it; then have the slot, the riser and the cable looked at";

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut well = BTreeMap::<&str, usize>::new();
    for row in node.rows(&INFO).filter(|row| ["gpu", "nic", "nvme", "nvswitch"].contains(&row.label("kind")))
    {
        let (device, kind) = (row.label("pci"), row.label("kind"));
        let (Some(width), Some(most)) = (value(node, &WIDTH, device), both_ends(node, &row, &MAX_WIDTH))
        else {
            continue;
        };
        let (speed, fastest) = (value(node, &SPEED, device), both_ends(node, &row, &MAX_SPEED));
        let shown = match row.label("gpu") {
            "" => format!("{kind} {device}"),
            uuid => node.gpu(uuid),
        };
        if width < most {
            found.unhealthy(format!("{shown} has {width} of {most} PCIe lanes")).device(device).action(SLOT);
        // An idle GPU lowers the speed of its link, but never the width.
        } else if let (Some(speed), Some(fastest)) = (speed, fastest)
            && speed < fastest
            && kind != "gpu"
        {
            let (speed, fastest) = (speed / 1e9, fastest / 1e9);
            found
                .warning(format!("the PCIe link of {shown} runs at {speed} of {fastest} GT/s"))
                .device(device)
                .action(SLOT);
        } else {
            *well.entry(kind).or_default() += 1;
        }
    }
    let well: Vec<String> = well.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    found.or_ok(|| {
        if well.is_empty() {
            "no link reports its width".into()
        } else {
            format!("{} at full width", well.join(", "))
        }
    })
}

/// The best value of which both the device and the port above it are capable.
fn both_ends(node: &Node<'_>, row: &Row<'_>, family: &'static Family) -> Option<f64> {
    let own = value(node, family, row.label("pci"))?;
    Some(value(node, family, row.label("upstream")).map_or(own, |above| own.min(above)))
}

/// The value of a device; zero is a function without a link of its own.
fn value(node: &Node<'_>, family: &'static Family, pci: &str) -> Option<f64> {
    node.rows(family).find(|row| row.label("pci") == pci).map(|row| row.value).filter(|value| *value > 0.0)
}
