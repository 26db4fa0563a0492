//! RDMA ports: whether those of the fabric are up, and as fast as they should be.

use std::collections::BTreeMap;

use super::item::Check;
use super::node::Node;
use super::report::Findings;
use crate::collectors::network::rdma::{EXPECTED_RATE, PORT_INFO, PORTS_EXPECTED, PORTS_UP, RATE, UP};
use crate::family::Family;
use crate::samples::Row;

pub(super) const CHECK: Check = Check {
    name: "rdma",
    about: "RDMA ports of the fabric are all up and at their rate",
    needs: &["rdma"],
    run,
};

const CABLE: &str = "check its cable, transceiver and switch port";
/// Rates are rounded by drivers.
const TOLERANCE: f64 = 0.99;

fn run(node: &Node<'_>) -> Findings {
    let mut found = Findings::default();
    let mut rates = BTreeMap::<u64, usize>::new();
    let ports: Vec<Row<'_>> = node.rows(&PORT_INFO).collect();
    let layer_is_up = |layer: &str| {
        ports.iter().any(|row| row.label("link_layer") == layer && value(node, &UP, row) == Some(1.0))
    };
    for row in &ports {
        let (port, up) = (name(row), value(node, &UP, row));
        match (row.label("role"), up) {
            ("fabric", Some(0.0)) => {
                found.unhealthy(format!("{port} is down")).device(port).action(CABLE);
            }
            // The port may be cabled and broken, or never have been cabled: the expected ports are
            // not configured.
            ("unprovisioned", Some(0.0)) if layer_is_up(row.label("link_layer")) => {
                found
                    .warning(format!("{port} is down, and it is not known whether it should be up"))
                    .device(port)
                    .action("set how many ports there should be: collectors.rdma.expected");
            }
            ("fabric", Some(_)) => slow(node, row, &mut found, &mut rates),
            ("fabric" | "unprovisioned", None) => {
                found
                    .warning(format!("{port} does not report whether it is up"))
                    .device(port)
                    .action("look for errors of its driver in the kernel log");
            }
            _ => {}
        }
    }
    let total = |family| node.rows(family).next().map(|row| row.value);
    if let (Some(up), Some(expected)) = (total(&PORTS_UP), total(&PORTS_EXPECTED))
        && up < expected
    {
        found.unhealthy(format!("{up} of {expected} RDMA ports of the fabric are up")).action(CABLE);
    }
    let rates: Vec<String> = rates.iter().map(|(gbps, n)| format!("{n} at {gbps} Gb/s")).collect();
    found.or_ok(|| if rates.is_empty() { "no port of a fabric".into() } else { rates.join(", ") })
}

fn slow(node: &Node<'_>, row: &Row<'_>, found: &mut Findings, rates: &mut BTreeMap<u64, usize>) {
    let Some(rate) = value(node, &RATE, row) else { return };
    *rates.entry(gbps(rate)).or_default() += 1;
    if let Some(expected) = value(node, &EXPECTED_RATE, row).filter(|expected| rate < expected * TOLERANCE) {
        let port = name(row);
        found
            .unhealthy(format!("{port} runs at {} Gb/s of {}", gbps(rate), gbps(expected)))
            .device(port)
            .action(CABLE);
    }
}

fn name(row: &Row<'_>) -> String {
    format!("{}/{}", row.label("device"), row.label("port"))
}

/// The value of another family for the same port.
fn value(node: &Node<'_>, family: &'static Family, port: &Row<'_>) -> Option<f64> {
    let same = |row: &Row<'_>| ["device", "port"].iter().all(|label| row.label(label) == port.label(label));
    node.rows(family).find(same).map(|row| row.value)
}

fn gbps(bytes_per_second: f64) -> u64 {
    (bytes_per_second * 8.0 / 1e9).round() as u64
}
