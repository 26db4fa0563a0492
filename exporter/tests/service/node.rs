//! Trees of files that look like `/sys` and `/proc` of a node.

use std::os::unix::fs::symlink;
use std::path::Path;

pub(crate) mod fabric;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

/// A node with 8 H100, two cabled 100-gigabit interfaces, one that is unplugged on purpose, and the
/// virtual ones of a container host.
pub(crate) fn gpu_node(root: &Path) {
    for i in 0..8u32 {
        let pci = format!("0000:{:02x}:00.0", 0x1b + i * 0x10);
        write(
            root,
            &format!("proc/driver/nvidia/gpus/{pci}/information"),
            &format!(
                "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t {}\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{i}\n\
                 Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nBus Location: \t {pci}\nDevice Minor: \t {i}",
                200 + i
            ),
        );
    }
    let banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024";
    write(root, "proc/driver/nvidia/version", banner);
    write(root, "proc/stat", "cpu  1 2 3 4\nbtime 1700000000\nprocs_running 3\nprocs_blocked 2");
    write(root, "proc/loadavg", "12.50 11.25 10.00 5/2000 4242");
    write(
        root,
        "proc/meminfo",
        "MemTotal:       2113561600 kB\nMemFree: 1 kB\nMemAvailable:   1056780800 kB",
    );
    write(root, "proc/vmstat", "nr_free_pages 1\noom_kill 3");
    for (name, pci, flags, state, speed) in [
        ("eth0", "0000:5d:00.0", "0x1003", "up", "100000"),
        ("eth1", "0000:5d:00.1", "0x1003", "up", "100000"),
        ("eth2", "0000:5e:00.0", "0x1002", "down", "-1"),
    ] {
        let device = format!("sys/devices/pci0000:5c/{pci}");
        let net = format!("{device}/net/{name}");
        for (file, text) in [
            ("type", "1"),
            ("flags", flags),
            ("operstate", state),
            ("speed", speed),
            ("mtu", "9000"),
            ("carrier_changes", "2"),
            ("statistics/rx_bytes", "1000000"),
            ("statistics/tx_bytes", "2000000"),
            ("statistics/rx_packets", "1000"),
            ("statistics/tx_packets", "2000"),
            ("statistics/rx_errors", "0"),
            ("statistics/tx_errors", "1"),
            ("statistics/rx_dropped", "7"),
            ("statistics/tx_dropped", "0"),
        ] {
            write(root, &format!("{net}/{file}"), text);
        }
        write(root, &format!("{device}/numa_node"), "1");
        symlink(format!("../../../{pci}"), root.join(&net).join("device")).unwrap();
        std::fs::create_dir_all(root.join("sys/bus/pci/drivers/mlx5_core")).unwrap();
        symlink("../../../bus/pci/drivers/mlx5_core", root.join(&device).join("driver")).unwrap();
        std::fs::create_dir_all(root.join("sys/class/net")).unwrap();
        let link = format!("../../devices/pci0000:5c/{pci}/net/{name}");
        symlink(link, root.join("sys/class/net").join(name)).unwrap();
    }
    for (name, kind) in [("lo", "772"), ("veth1a2b", "1"), ("docker0", "1")] {
        write(root, &format!("sys/class/net/{name}/type"), kind);
        write(root, &format!("sys/class/net/{name}/operstate"), "up");
    }
}
