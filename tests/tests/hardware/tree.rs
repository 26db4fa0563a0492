//! Files that look like `/sys` and `/proc` of a training node: 8 GPUs, 8 InfiniBand adapters, 2
//! Ethernet interfaces.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use stepwatch_fake_nvml::Fleet;
use stepwatch_tests::programs::Machine;

/// Whose GPUs these are: they have the names and the places that the library gives.
pub(crate) const FLEET: Fleet = Fleet::H100;

/// Files of `counters` of an InfiniBand port.
const COUNTERS: &[&str] = &[
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];
/// Files of its `hw_counters`, as mlx5 has them.
const HW_COUNTERS: &[&str] = &[
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rx_atomic_requests",
    "rx_dct_connect",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
];
/// Files of `statistics` of an interface.
const STATISTICS: &[&str] = &[
    "rx_bytes",
    "tx_bytes",
    "rx_packets",
    "tx_packets",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
];

/// A directory with such files.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        let tree = Self(root.to_owned());
        tree.host();
        for i in 0..8u32 {
            tree.gpu(i, &FLEET.pci(i as usize));
            tree.infiniband(i, &format!("0000:{:02x}:00.0", 0x18 + i * 0x10));
        }
        for i in 0..2 {
            tree.ethernet(i, &format!("0000:05:00.{i}"));
        }
        tree
    }

    /// What makes an exporter look at it.
    pub(crate) fn machine(&self) -> Machine {
        let path = |part: &str| self.0.join(part).into_os_string();
        let mut args = Vec::new();
        let options = [
            ("--path.sysfs", "sys"),
            ("--path.procfs", "proc"),
            ("--path.dev", "dev"),
            ("--path.kmsg", "kmsg"),
        ];
        for (option, part) in options {
            args.extend([option.into(), path(part)]);
        }
        Machine { args, env: Vec::new() }
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn host(&self) {
        self.write("proc/stat", "cpu  1 2 3 4\nbtime 1700000000\nprocs_running 3\nprocs_blocked 0");
        self.write("proc/loadavg", "12.50 11.25 10.00 5/2000 4242");
        self.write("proc/meminfo", "MemTotal: 2113561600 kB\nMemFree: 1 kB\nMemAvailable: 1056780800 kB");
        self.write("proc/vmstat", "nr_free_pages 1\noom_kill 0");
        self.write("proc/sys/kernel/random/boot_id", "6c1a7a0e-3f0a-4a7b-9a52-0d7a1f0f5a11");
        self.write("proc/sys/kernel/hung_task_detect_count", "0");
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  x",
        );
        self.write("proc/self/mountinfo", "22 1 0:21 / / rw - ext4 /dev/sda1 rw");
        self.write("proc/self/mountstats", "device /dev/sda1 mounted on / with fstype ext4");
        for mc in 0..2 {
            for (file, text) in
                [("mc_name", "Skylake"), ("ce_count", "0"), ("ue_count", "0"), ("size_mb", "1")]
            {
                self.write(&format!("sys/devices/system/edac/mc/mc{mc}/{file}"), text);
            }
        }
        self.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
        std::fs::write(self.0.join("kmsg"), "").unwrap();
    }

    /// What every device on the bus has, and `/sys/bus/pci/devices`.
    fn pci(&self, address: &str, kind: &[(&str, &str)]) -> String {
        let device = format!("sys/devices/pci0000:00/{address}");
        let common = [
            ("numa_node", "0"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("aer_dev_correctable", "RxErr 0\nBadTLP 0\nBadDLLP 0\nRollover 0\nTOTAL_ERR_COR 0"),
            ("aer_dev_nonfatal", "Undefined 0\nDLP 0\nTLP 0\nTOTAL_ERR_NONFATAL 0"),
            ("aer_dev_fatal", "Undefined 0\nDLP 0\nTLP 0\nTOTAL_ERR_FATAL 0"),
        ];
        for (file, text) in common.iter().chain(kind) {
            self.write(&format!("{device}/{file}"), text);
        }
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:00/{address}"),
        );
        device
    }

    fn gpu(&self, i: u32, address: &str) {
        self.pci(address, &[("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330")]);
        let text = format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {}\nVideo BIOS: \t 96.00.89.00.01\nBus Location: \t {address}\nDevice Minor: \t {i}",
            FLEET.uuid(i as usize)
        );
        self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), &text);
        self.write(&format!("dev/nvidia{i}"), "");
    }

    fn infiniband(&self, i: u32, address: &str) {
        let device = self.pci(address, &[("class", "0x020700"), ("vendor", "0x15b3"), ("device", "0x1021")]);
        self.link(&format!("{device}/driver"), "../../../bus/pci/drivers/mlx5_core");
        let ib = format!("{device}/infiniband/mlx5_{i}");
        for (file, text) in [
            ("fw_ver", "28.39.3560"),
            ("board_id", "MT_0000000838"),
            ("hca_type", "MT4129"),
            ("node_guid", "a088:c203:0000:0001"),
            ("node_type", "1: CA"),
        ] {
            self.write(&format!("{ib}/{file}"), text);
        }
        let port = format!("{ib}/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "InfiniBand"),
        ] {
            self.write(&format!("{port}/{file}"), text);
        }
        for (dir, files) in [("counters", COUNTERS), ("hw_counters", HW_COUNTERS)] {
            for file in files {
                self.write(&format!("{port}/{dir}/{file}"), "0");
            }
        }
        self.link(&format!("{ib}/device"), &format!("../../../{address}"));
        let target = format!("../../devices/pci0000:00/{address}/infiniband/mlx5_{i}");
        self.link(&format!("sys/class/infiniband/mlx5_{i}"), &target);
        self.interface(&device, address, &format!("ib{i}"), "32");
    }

    /// What each adapter has sent and received by now, in words of four bytes.
    pub(crate) fn traffic(&self, words: u64) {
        for i in 0..8u64 {
            let port = format!("sys/class/infiniband/mlx5_{i}/ports/1/counters");
            for file in ["port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets"] {
                self.write(&format!("{port}/{file}"), &(words + i).to_string());
            }
        }
    }

    fn ethernet(&self, i: u32, address: &str) {
        let device = self.pci(address, &[("class", "0x020000"), ("vendor", "0x15b3"), ("device", "0x101d")]);
        self.link(&format!("{device}/driver"), "../../../bus/pci/drivers/mlx5_core");
        self.interface(&device, address, &format!("eth{i}"), "1");
    }

    fn interface(&self, device: &str, address: &str, name: &str, kind: &str) {
        let net = format!("{device}/net/{name}");
        for (file, text) in [
            ("type", kind),
            ("flags", "0x1003"),
            ("operstate", "up"),
            ("carrier", "1"),
            ("speed", "100000"),
            ("mtu", "9000"),
            ("carrier_changes", "1"),
        ] {
            self.write(&format!("{net}/{file}"), text);
        }
        for file in STATISTICS {
            self.write(&format!("{net}/statistics/{file}"), "0");
        }
        self.link(&format!("{net}/device"), &format!("../../../{address}"));
        let target = format!("../../devices/pci0000:00/{address}/net/{name}");
        self.link(&format!("sys/class/net/{name}"), &target);
    }
}
