//! A network file system that does not answer, in front of the real binary.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::support::{Exporter, PATIENCE};

/// Opening a named pipe waits in the kernel until a process writes to it, as opening anything on a
/// dead server does.
#[test]
fn a_mount_that_is_stuck_costs_its_own_values_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let (stuck, good, proc) = (dir.path().join("stuck"), dir.path().join("good"), dir.path().join("proc"));
    rustix::fs::mknodat(CWD, &stuck, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::fs::create_dir_all(&good).unwrap();
    std::fs::create_dir_all(dir.path().join("sys")).unwrap();
    std::fs::create_dir_all(proc.join("self")).unwrap();
    let table = format!(
        "22 1 259:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:50 / {} rw - nfs4 srv:/a rw\n31 22 0:51 / {} rw - nfs4 srv:/b rw\n",
        stuck.display(),
        good.display()
    );
    std::fs::write(proc.join("self/mountinfo"), table).unwrap();
    let blocked = |count: f64| {
        std::fs::write(proc.join("stat"), format!("btime 1700000000\nprocs_blocked {count}\n")).unwrap();
    };
    blocked(1.0);
    let config = "collectors:\n  mounts: {interval: 50ms, timeout: 200ms}\n  process: {interval: 50ms}\n  ras: {enabled: false}\nexposition: {interval: 50ms}\n";
    let exporter = Exporter::start_on_tree(dir.path(), config);
    let series =
        |path: &Path, what: &str| format!("mount_{what}{{mount=\"{}\",fstype=\"nfs4\"}}", path.display());
    exporter.wait_for(&series(&stuck, "responsive"), 0.0);
    exporter.wait_for(&series(&good, "responsive"), 1.0);
    let mut records = exporter.stream(Some("0:0"));
    let begun = records.find(|r| r["name"] == "mount_stuck");
    assert_eq!((begun["k"].as_str(), begun["code"].as_i64()), (Some("hw"), Some(1)), "{begun}");
    assert_eq!(begun["mount"].as_str(), stuck.to_str());

    // While it is stuck the rest goes on, and no page waits.
    for count in [7.0, 8.0] {
        blocked(count);
        exporter.wait_for("kernel_blocked_processes", count);
    }
    let began = Instant::now();
    let page = exporter.page();
    assert!(began.elapsed() < PATIENCE / 10);
    let healthy = "stepwatch_exporter_collector_state{collector=\"mounts\",state=\"healthy\"}";
    assert_eq!(page.get(healthy), Some(1.0));
    assert!(page.get(&series(&stuck, "response_seconds")).unwrap() >= 0.2);

    // A process writes: the server is back, however often it is asked.
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let _server =
        std::fs::OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(&stuck).unwrap();
    exporter.wait_for(&series(&stuck, "responsive"), 1.0);
    let over = records.find(|r| r["name"] == "mount_stuck");
    assert_eq!((over["code"].as_i64(), over["level"].as_str()), (Some(0), Some("info")), "{over}");
    let (ok, log) = exporter.stop();
    assert!(ok, "{log}");
}
