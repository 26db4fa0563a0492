//! The fabric: pages of the real binary over generated trees, and links that fail under it.

use std::path::Path;

use crate::node::fabric;
use crate::support::{Exporter, binary};

/// One page, with those families of links that `keep` selects: other collectors have their own
/// tests.
fn page(root: &Path, keep: impl Fn(&str) -> bool) -> String {
    let args =
        ["sysfs", "procfs", "shm"].map(|p| (format!("--path.{p}"), root.join(p.trim_end_matches("fs"))));
    let mut command = binary();
    command.arg("--once");
    args.iter().for_each(|(name, value)| {
        command.arg(name).arg(value);
    });
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let ours = |line: &&str| ["rdma_", "nic_", "pci_"].iter().any(|family| line.starts_with(family));
    let rails = |line: &&str| !line.starts_with("rdma_rail_");
    text.lines()
        .filter(ours)
        .filter(rails)
        .filter(|line| keep(line))
        .map(|line| line.to_owned() + "\n")
        .collect()
}

/// Whether the line is of one of these devices, or of none.
fn is_of(line: &str, devices: &[&str]) -> bool {
    !line.contains('{') || devices.iter().any(|d| line.contains(&format!("device=\"{d}\"")))
}

#[test]
fn infiniband() {
    let dir = tempfile::tempdir().unwrap();
    fabric::infiniband(dir.path());
    insta::assert_snapshot!(page(dir.path(), |line| is_of(line, &["mlx5_0", "mlx5_8", "eth0"])));
}

#[test]
fn pcie_of_one_rail() {
    let dir = tempfile::tempdir().unwrap();
    fabric::roce(dir.path());
    let rail = ["0000:35:01.0", "0000:36:00.0", "0000:37:01.0", "0000:38:00.0", "0000:39:00.0"];
    let of_rail = |line: &str| rail.iter().any(|pci| line.contains(&format!("pci=\"{pci}\"")));
    insta::assert_snapshot!(page(dir.path(), |line| line.starts_with("pci_") && of_rail(line)));
}

#[test]
fn roce() {
    let dir = tempfile::tempdir().unwrap();
    fabric::roce(dir.path());
    let shown = |line: &str| line.starts_with("rdma_p") || line.starts_with("rdma_info");
    insta::assert_snapshot!(page(dir.path(), |line| shown(line) && !line.contains("_packets_")));
}

#[test]
fn efa() {
    let dir = tempfile::tempdir().unwrap();
    fabric::efa(dir.path());
    let all = page(dir.path(), |_| true);
    let up = all.lines().filter(|l| l.starts_with("rdma_port_up{") && l.ends_with(" 1")).count();
    assert_eq!(up, 32);
    insta::assert_snapshot!(page(dir.path(), |line| is_of(line, &["rdmap79s0"])));
}

#[test]
fn broken_ports_cost_their_own_values_and_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fabric::broken(dir.path());
    let sample = |line: &str| is_of(line, &["mlx5_0", "mlx5_1"]) || line.contains("mlx5_2\",port=\"1\"}");
    insta::assert_snapshot!(page(dir.path(), |line| sample(line) && line.starts_with("rdma_")));

    let often = "collectors: {rdma: {interval: 10ms, counters_interval: 10ms}}";
    let exporter = Exporter::start_on_tree(dir.path(), often);
    exporter.wait_for("rdma_device_quarantined{device=\"mlx5_1\"}", 1.0);
    exporter.wait_for("rdma_device_quarantined{device=\"mlx5_3\"}", 1.0);
    // A device that only does not reply would be reported before it.
    let record = exporter.stream(None).find(|r| r["name"] == "rdma_unreadable");
    let text = "RDMA device mlx5_3 cannot be read in ports/1/counters: left alone, and looked at again from time to time";
    assert_eq!((record["k"].as_str(), record["text"].as_str()), (Some("hw"), Some(text)));
    let page = exporter.page();
    assert_eq!(
        page.get("rdma_device_quarantined{device=\"mlx5_0\"}"),
        None,
        "nothing to report is no failure"
    );
    assert_eq!(page.get("rdma_port_up{device=\"mlx5_1\",port=\"1\"}"), Some(1.0));
    assert_eq!(page.get("rdma_ports_up"), Some(8.0));
}

#[test]
fn a_port_fails_is_gone_after_a_restart_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    fabric::infiniband(dir.path());
    let config = "collectors: {rdma: {interval: 10ms, drop_after: 50ms, grace: 0s}}";
    let class = dir.path().join("sys/class/infiniband");
    let port = class.join("mlx5_3/ports/1");
    let link = |state: &'static str| {
        move |r: &serde_json::Value| r["k"] == "link" && r["name"] == "mlx5_3/1" && r["state"] == state
    };

    let exporter = Exporter::start_on_tree(dir.path(), config);
    exporter.wait_for("rdma_ports_up", 8.0);
    let mut stream = exporter.stream(None);
    std::fs::write(port.join("phys_state"), "2: Polling\n").unwrap();
    std::fs::write(port.join("state"), "1: DOWN\n").unwrap();
    let down = stream.find(link("down"));
    assert_eq!((down["code"].as_i64(), down["level"].as_str()), (Some(0), Some("warn")));
    assert_eq!((down["medium"].as_str(), down["netdev"].as_str()), (Some("infiniband"), Some("ib3")));
    assert_eq!(stream.find(link("drop"))["level"], "error");
    exporter.wait_for("rdma_ports_up", 7.0);
    exporter.wait_for("rdma_port_condition{device=\"mlx5_3\",port=\"1\",condition=\"drop\"}", 1.0);
    drop(exporter);

    // The card did not survive the reboot, and no program that starts now has ever seen it.
    let card = std::fs::read_link(class.join("mlx5_3")).unwrap();
    std::fs::remove_file(class.join("mlx5_3")).unwrap();
    let exporter = Exporter::start_on_tree(dir.path(), config);
    exporter.wait_for("rdma_ports_expected", 8.0);
    exporter.wait_for("rdma_port_condition{device=\"mlx5_3\",port=\"1\",condition=\"drop\"}", 1.0);
    std::fs::write(port_of(&card).join("state"), "4: ACTIVE\n").unwrap();
    std::fs::write(port_of(&card).join("phys_state"), "5: LinkUp\n").unwrap();
    std::os::unix::fs::symlink(&card, class.join("mlx5_3")).unwrap();
    let up = exporter.stream(None).find(link("up"));
    assert_eq!((up["code"].as_i64(), up["level"].as_str()), (Some(1), Some("info")));
    exporter.wait_for("rdma_ports_up", 8.0);
}

fn port_of(card: &Path) -> std::path::PathBuf {
    card.join("ports/1")
}
