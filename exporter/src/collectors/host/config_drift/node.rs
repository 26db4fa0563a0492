//! The setup of the node itself: driver, firmware, kernel and its settings. Only files are read; no
//! program is run and no device is opened.

use super::firmware;
use super::value::{Settings, hash, kinds, shown};
use crate::gpus::{driver_version, inventory};
use crate::roots::{self, Roots};

/// Kernel settings that affect training: memory, sockets, routing between rails. None of them is
/// derived from the size of the node's memory.
const SYSCTLS: &[&str] = &[
    "fs.nr_open",
    "kernel.numa_balancing",
    "kernel.sched_autogroup_enabled",
    "kernel.yama.ptrace_scope",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "vm.compaction_proactiveness",
    "vm.dirty_background_ratio",
    "vm.dirty_ratio",
    "vm.max_map_count",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
];

/// Options of the kernel's command line that are compared; others name disks and consoles.
const CMDLINE: &[&str] = &[
    "amd_iommu",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "iommu",
    "isolcpus",
    "mitigations",
    "nohz_full",
    "numa_balancing",
    "pci",
    "pcie_aspm",
    "processor.max_cstate",
    "transparent_hugepage",
];

/// Modules with a driver version of their own, not the kernel's: OFED, EFA, GPUDirect.
const MODULES: &[(&str, &str)] = &[
    ("mlx5_core", "ofed"),
    ("efa", "efa_driver"),
    ("gdrdrv", "gdrcopy_driver"),
    ("nvidia_fs", "gds_driver"),
    ("nvidia_peermem", "peermem_driver"),
];

const MAX_POLICIES: usize = 4096;

pub(super) fn settings(roots: &Roots, sysctls: &[String]) -> Settings {
    let mut found = Settings::new();
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            found.insert(key.to_owned(), shown(&value));
        }
    };
    let gpus = inventory(roots);
    set("gpus", kinds(gpus.iter().map(|g| g.name.clone())));
    set("vbios", kinds(gpus.iter().map(|g| g.vbios.clone())));
    set("gsp_firmware", kinds(gpus.iter().map(|g| g.firmware.clone())));
    set("driver", driver_version(roots));
    set("driver_flavour", flavour(roots));
    set("driver_parameters", roots::read(&roots.proc("driver/nvidia/params")).map(|t| hash(t.as_bytes())));
    set("rdma_firmware", rdma_firmware(roots));
    for (module, key) in MODULES {
        set(key, roots::read(&roots.sys("module").join(module).join("version")));
    }
    set("kernel", roots::read(&roots.proc("sys/kernel/osrelease")));
    set("cpu_model", cpu_model(roots));
    set("cpus", roots::read(&roots.sys("devices/system/cpu/online")));
    set("smt", roots::read(&roots.sys("devices/system/cpu/smt/control")));
    set("cpu_governor", governors(roots));
    for file in ["enabled", "defrag"] {
        let text = roots::read(&roots.sys("kernel/mm/transparent_hugepage").join(file));
        set(&format!("transparent_hugepage.{file}"), text.as_deref().map(chosen));
    }
    for name in SYSCTLS.iter().copied().chain(sysctls.iter().map(String::as_str)) {
        let words = roots::read(&roots.proc("sys").join(name.replace('.', "/")));
        let words = words.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        set(&format!("sysctl.{name}"), words);
    }
    for (key, value) in firmware::settings(roots) {
        set(key, value);
    }
    let cmdline = roots::read(&roots.proc("cmdline")).unwrap_or_default();
    for name in CMDLINE {
        set(&format!("cmdline.{name}"), option(&cmdline, name));
    }
    found
}

fn flavour(roots: &Roots) -> Option<String> {
    let banner = roots::read(&roots.proc("driver/nvidia/version"))?;
    Some(if banner.contains("Open Kernel Module") { "open" } else { "proprietary" }.to_owned())
}

/// The boards with their firmware. Names of devices are left out, because they differ between
/// nodes.
fn rdma_firmware(roots: &Roots) -> Option<String> {
    let dir = roots.sys("class/infiniband");
    let names = roots::list(&dir).unwrap_or_default();
    kinds(names.into_iter().map(|name| {
        let board =
            ["board_id", "fw_ver"].map(|file| roots::read(&dir.join(&name).join(file)).unwrap_or_default());
        board.join(" ").trim().to_owned()
    }))
}

fn cpu_model(roots: &Roots) -> Option<String> {
    let text = roots::read(&roots.proc("cpuinfo"))?;
    let line = text.lines().find_map(|l| l.strip_prefix("model name"))?;
    Some(line.trim_start().trim_start_matches(':').trim().to_owned())
}

/// All governors in use; a single name if the processors agree.
fn governors(roots: &Roots) -> Option<String> {
    let dir = roots.sys("devices/system/cpu/cpufreq");
    let policies = roots::list(&dir).unwrap_or_default().into_iter().filter(|p| p.starts_with("policy"));
    let read = |policy: String| roots::read(&dir.join(policy).join("scaling_governor"));
    let found: std::collections::BTreeSet<String> = policies.take(MAX_POLICIES).filter_map(read).collect();
    (!found.is_empty()).then(|| found.into_iter().collect::<Vec<_>>().join(" "))
}

/// The choice in brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> String {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(chosen, _)| chosen).to_owned()
}

/// All values of an option, which may occur more than once.
fn option(cmdline: &str, name: &str) -> Option<String> {
    let values = cmdline.split_whitespace().filter_map(|word| match word.split_once('=') {
        Some((key, value)) if key == name => Some(value),
        None if word == name => Some("on"),
        _ => None,
    });
    let values: Vec<&str> = values.collect();
    (!values.is_empty()).then(|| values.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build",
        );
        for (i, bios) in ["96.00.89.00.01", "96.00.89.00.01", "96.00.A5.00.02"].iter().enumerate() {
            let text = format!(
                "Model: H100\nGPU UUID: GPU-0{i}\nVideo BIOS: {bios}\nDevice Minor: {i}\nGPU Firmware: \t 570.133.20\n"
            );
            write(&format!("proc/driver/nvidia/gpus/0000:0{i}:00.0/information"), &text);
        }
        for (device, firmware) in [("mlx5_0", "28.39.2048"), ("mlx5_1", "28.39.2048"), ("ibp1", "28.41.1000")]
        {
            write(&format!("sys/class/infiniband/{device}/board_id"), "MT_0000000838\n");
            write(&format!("sys/class/infiniband/{device}/fw_ver"), &format!("{firmware}\n"));
        }
        write("sys/module/mlx5_core/version", "24.10-1.1.4\n");
        write("proc/sys/kernel/osrelease", "6.8.0-51-generic\n");
        write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        write("proc/sys/vm/swappiness", "60\n");
        write("proc/sys/vm/custom", "1\n");
        write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n");
        write("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave\n");
        write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n");
        write(
            "proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=UUID=x iommu=pt hugepagesz=1G hugepagesz=2M nohz_full ro\n",
        );
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        let found = settings(&roots, &["vm.custom".to_owned()]);
        for (key, want) in [
            ("driver", "570.133.20"),
            ("driver_flavour", "open"),
            ("gpus", "H100"),
            ("gsp_firmware", "570.133.20"),
            ("vbios", "96.00.89.00.01, 96.00.A5.00.02"),
            ("rdma_firmware", "MT_0000000838 28.39.2048, MT_0000000838 28.41.1000"),
            ("ofed", "24.10-1.1.4"),
            ("kernel", "6.8.0-51-generic"),
            ("sysctl.net.ipv4.tcp_rmem", "4096 131072 6291456"),
            ("sysctl.vm.swappiness", "60"),
            ("sysctl.vm.custom", "1"),
            ("transparent_hugepage.enabled", "madvise"),
            ("cpu_governor", "performance powersave"),
            ("cpu_model", "Intel(R) Xeon(R) Platinum 8480C"),
            ("cmdline.iommu", "pt"),
            ("cmdline.hugepagesz", "1G,2M"),
            ("cmdline.nohz_full", "on"),
        ] {
            assert_eq!(found.get(key).map(String::as_str), Some(want), "{key}");
        }
        assert_eq!(found.len(), 17, "{found:?}");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, name in "[a-z]{1,4}") {
            let _ = (chosen(&text), option(&text, &name));
        }
    }
}
