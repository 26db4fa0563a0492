//! How many series a node has: 8 GPUs, 8 adapters and 2 Ethernet interfaces without a run, with the
//! defaults of every collector.

use std::collections::BTreeMap;

use stepwatch_fake_nvml::{Fleet, Script, Stage};
use stepwatch_tests::poll::{PATIENCE, poll_until};
use stepwatch_tests::{Exporter, say};

use crate::tree::Tree;

/// What a Prometheus of hundreds of nodes can be asked to keep of one.
const BUDGET: usize = 1500;

/// Series by family.
fn series(page: &str) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap_or(line);
        *counted.entry(name).or_default() += 1;
    }
    counted
}

/// The page of a node with these GPUs, once all of their sources have been read.
async fn page(fleet: Fleet, extra: &str) -> String {
    let dir = tempfile::Builder::new().prefix("stepwatch").tempdir().unwrap();
    let tree = Tree::new(&dir.path().join("tree"));
    let stage = Stage::new(dir.path(), &Script::for_fleet(fleet)).unwrap();
    let machine = crate::bench::with_gpus(tree.machine(), &stage);
    let exporter = Exporter::start_on(machine, &dir.path().join("exporter"), "", extra).await.unwrap();
    let read = poll_until("a page with all of the node", PATIENCE, async || {
        let page = exporter.metrics().await.ok()?;
        let there = ["gpu_graphics_active_ratio{", "rdma_port_", "pci_link_", "nic_", "disk_"];
        there.iter().all(|start| page.lines().any(|line| line.starts_with(start))).then_some(page)
    });
    read.await.unwrap()
}

#[tokio::test]
async fn a_node_of_eight_gpus_keeps_to_its_budget() {
    for fleet in [Fleet::H100, Fleet::B200] {
        let page = page(fleet, "").await;
        let counted = series(&page);
        let total: usize = counted.values().sum();
        say::figure(&format!("series of a node of {fleet:?} without a run: {total}"));
        let mut most: Vec<_> = counted.into_iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        assert!(total <= BUDGET, "{total} series: {most:#?}");
    }
}

#[tokio::test]
async fn what_is_asked_for_is_there_and_what_is_not_wanted_is_not() {
    let extra =
        "collectors:\n  gpu: {metrics: {include: [gpu_nvlink_errors_total], exclude: ['gpu_nvlink_*']}}\n";
    let page = page(Fleet::H100, extra).await;
    let counted = series(&page);
    assert!(counted.get("gpu_nvlink_errors_total").is_some_and(|count| *count >= 8 * 18), "{counted:#?}");
    assert!(!counted.contains_key("gpu_nvlink_up"), "{counted:#?}");
    assert!(page.contains("stepwatch_exporter_collector_series_left_out{collector=\"gpu\"}"), "{page}");
}
