//! Fabrics: InfiniBand of eight rails, RoCE, EFA; with the ports that a node has beside them, and
//! ports that are broken.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::write;

/// An RDMA device of one port.
pub(crate) struct Device<'a> {
    pub(crate) name: &'a str,
    /// Below `sys/devices`.
    pub(crate) path: &'a str,
    pub(crate) netdev: &'a str,
    pub(crate) driver: &'a str,
    pub(crate) layer: &'a str,
    pub(crate) state: (&'a str, &'a str),
    pub(crate) rate: &'a str,
}

const UP: (&str, &str) = ("4: ACTIVE", "5: LinkUp");
const DOWN: (&str, &str) = ("1: DOWN", "3: Disabled");

impl Device<'_> {
    pub(crate) fn make(&self, root: &Path) {
        let address = self.path.rsplit('/').next().unwrap();
        let device = format!("sys/devices/{}", self.path);
        let dir = format!("{device}/infiniband/{}", self.name);
        let port = format!("{dir}/ports/1");
        for (file, text) in [
            ("fw_ver", "28.39.1002"),
            ("board_id", "MT_0000000838"),
            ("hca_type", "MT4129"),
            ("node_guid", &format!("b8ce:f603:00{}:{}", &address[5..7], &address[8..10].repeat(2))),
            ("ports/1/link_layer", self.layer),
            ("ports/1/state", self.state.0),
            ("ports/1/phys_state", self.state.1),
            ("ports/1/rate", self.rate),
        ] {
            write(root, &format!("{dir}/{file}"), text);
        }
        counters(root, &port, self.driver == "efa");
        pci(root, self.path, "0x020700", "0x15b3", self.driver);
        if !self.netdev.is_empty() {
            write(root, &format!("{device}/net/{}/dev_port", self.netdev), "0");
        }
        symlink(root.join(&device), root.join(&dir).join("device")).unwrap();
        let class = root.join("sys/class/infiniband");
        std::fs::create_dir_all(&class).unwrap();
        symlink(root.join(&dir), class.join(self.name)).unwrap();
    }
}

fn counters(root: &Path, port: &str, efa: bool) {
    let standard: &[(&str, &str)] = &[
        ("port_rcv_data", "250"),
        ("port_xmit_data", "500"),
        ("port_rcv_packets", "10"),
        ("port_xmit_packets", "20"),
        ("unicast_rcv_packets", "9"),
        ("multicast_rcv_packets", "1"),
        ("symbol_error", "3"),
        ("link_error_recovery", "0"),
        ("link_downed", "1"),
        ("port_rcv_errors", "0"),
        ("port_xmit_discards", "2"),
        ("local_link_integrity_errors", "0"),
        ("excessive_buffer_overrun_errors", "0"),
        ("VL15_dropped", "0"),
        ("port_xmit_wait", "77"),
    ];
    let mellanox: &[(&str, &str)] = &[
        ("lifespan", "10"),
        ("out_of_sequence", "4"),
        ("local_ack_timeout_err", "0"),
        ("np_ecn_marked_roce_packets", "0"),
        ("a_counter_of_a_later_driver", "5"),
    ];
    let amazon: &[(&str, &str)] = &[
        ("lifespan", "12"),
        ("rx_bytes", "1000"),
        ("tx_bytes", "2000"),
        ("rx_pkts", "10"),
        ("tx_pkts", "20"),
        ("rx_drops", "0"),
        ("rdma_read_bytes", "0"),
        ("rdma_write_bytes", "123"),
        ("retrans_bytes", "0"),
        ("retrans_pkts", "0"),
        ("impaired_remote_conn_events", "0"),
        ("unresponsive_remote_events", "0"),
    ];
    let files = |folder: &str, files: &[(&str, &str)]| {
        files.iter().for_each(|(name, text)| write(root, &format!("{port}/{folder}/{name}"), text));
    };
    if efa {
        files("hw_counters", amazon);
    } else {
        files("counters", standard);
        files("hw_counters", mellanox);
    }
}

/// A PCI device with a link of 16 lanes at 32 GT/s, if it is not there yet.
fn pci(root: &Path, path: &str, class: &str, vendor: &str, driver: &str) {
    let device = format!("sys/devices/{path}");
    let devices = root.join("sys/bus/pci/devices");
    std::fs::create_dir_all(&devices).unwrap();
    let address = path.rsplit('/').next().unwrap();
    if symlink(root.join(&device), devices.join(address)).is_err() {
        return;
    }
    for (file, text) in [
        ("class", class),
        ("vendor", vendor),
        ("numa_node", if address < "0000:80" { "0" } else { "1" }),
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_width", "16"),
        ("aer_dev_correctable", "RxErr 0\nBadTLP 2\nTOTAL_ERR_COR 2"),
        ("aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0"),
        ("aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 0"),
    ] {
        write(root, &format!("{device}/{file}"), text);
    }
    std::fs::create_dir_all(root.join("sys/bus/pci/drivers").join(driver)).unwrap();
    symlink(root.join("sys/bus/pci/drivers").join(driver), root.join(&device).join("driver")).unwrap();
}

/// A rail: a GPU and a device of the fabric behind a switch of their own. Returns the place of the
/// device.
fn rail(root: &Path, i: u32) -> String {
    let bus = |n: u32| format!("{:02x}", 0x15 + 0x20 * i.min(6) + n + if i == 7 { 0x08 } else { 0 });
    let port = format!("pci0000:{0}/0000:{0}:01.0", bus(0));
    let switch = format!("{port}/0000:{}:00.0", bus(1));
    let (above_gpu, above_nic) =
        (format!("{switch}/0000:{}:00.0", bus(2)), format!("{switch}/0000:{}:01.0", bus(2)));
    let (gpu, nic) =
        (format!("{above_gpu}/0000:{}:00.0", bus(3)), format!("{above_nic}/0000:{}:00.0", bus(4)));
    for bridge in [&port, &switch, &above_gpu, &above_nic] {
        pci(root, bridge, "0x060400", "0x1000", "pcieport");
    }
    pci(root, &gpu, "0x030200", "0x10de", "nvidia");
    let address = gpu.rsplit('/').next().unwrap_or_default();
    let text = format!(
        "Model: NVIDIA H100 80GB HBM3\nGPU UUID: GPU-00000000-0000-0000-0000-00000000000{i}\nBus Location: {address}\nDevice Minor: {i}"
    );
    write(root, &format!("proc/driver/nvidia/gpus/{address}/information"), &text);
    nic
}

/// An Ethernet interface of a device.
fn interface(root: &Path, path: &str, name: &str) {
    let dir = format!("sys/devices/{path}/net/{name}");
    for (file, text) in [
        ("type", "1"),
        ("flags", "0x1003"),
        ("operstate", "up"),
        ("speed", "100000"),
        ("mtu", "9000"),
        ("carrier_changes", "2"),
        ("dev_port", "0"),
        ("statistics/rx_bytes", "1000000"),
        ("statistics/rx_dropped", "7"),
    ] {
        write(root, &format!("{dir}/{file}"), text);
    }
    symlink(root.join("sys/devices").join(path), root.join(&dir).join("device")).unwrap();
    std::fs::create_dir_all(root.join("sys/class/net")).unwrap();
    symlink(root.join(&dir), root.join("sys/class/net").join(name)).unwrap();
}

/// The default route, over this interface.
fn route(root: &Path, interface: &str) {
    let text = format!(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n{interface} 00000000 0100000A 0003 0 0 100 00000000 0 0 0"
    );
    write(root, "proc/net/route", &text);
}

/// Eight rails of InfiniBand at 400 Gb/s, and a card at 100 that carries the management network
/// through a bond.
pub(crate) fn infiniband(root: &Path) {
    for i in 0..8 {
        let path = rail(root, i);
        let (name, netdev) = (format!("mlx5_{i}"), format!("ib{i}"));
        let (driver, layer, rate) = ("mlx5_core", "InfiniBand", "400 Gb/sec (4X NDR)");
        Device { name: &name, path: &path, netdev: &netdev, driver, layer, state: UP, rate }.make(root);
    }
    management(root);
}

fn management(root: &Path) {
    let path = "pci0000:00/0000:00:01.0/0000:01:00.0";
    pci(root, "pci0000:00/0000:00:01.0", "0x060400", "0x8086", "pcieport");
    let (name, netdev, driver, layer, rate) =
        ("mlx5_8", "eth0", "mlx5_core", "Ethernet", "100 Gb/sec (4X EDR)");
    Device { name, path, netdev, driver, layer, state: UP, rate }.make(root);
    interface(root, path, "eth0");
    std::fs::create_dir_all(root.join("sys/class/net/bond0/lower_eth0")).unwrap();
    route(root, "bond0");
}

/// RoCE on the first two rails, the second at half its speed on half its lanes; a function that is
/// not provisioned; a virtual one.
pub(crate) fn roce(root: &Path) {
    let (driver, layer) = ("mlx5_core", "Ethernet");
    for (i, state, rate) in [
        (0, UP, "400 Gb/sec (4X NDR)"),
        (1, UP, "200 Gb/sec (4X HDR)"),
        (2, DOWN, "40 Gb/sec (4X QDR)"),
        (3, UP, "400 Gb/sec (4X NDR)"),
    ] {
        let (path, name, netdev) = (rail(root, i), format!("mlx5_{i}"), format!("rail{i}"));
        Device { name: &name, path: &path, netdev: &netdev, driver, layer, state, rate }.make(root);
        if i == 3 {
            std::fs::create_dir(root.join("sys/devices").join(&path).join("physfn")).unwrap();
        }
        if i == 1 {
            write(root, &format!("sys/devices/{path}/current_link_width"), "8");
        }
    }
    management(root);
}

/// Thirty-two devices of EFA.
pub(crate) fn efa(root: &Path) {
    for i in 0..32 {
        let bus = 0x4f + i * 5;
        let (name, path) = (format!("rdmap{bus}s0"), format!("pci0000:{bus:02x}/0000:{bus:02x}:00.0"));
        let (driver, layer, rate) = ("efa", "Unspecified", "100 Gb/sec (4X EDR)");
        Device { name: &name, path: &path, netdev: "", driver, layer, state: UP, rate }.make(root);
    }
}

/// A file that can be opened and whose every read is `EINVAL`, which is the kernel's error for
/// counters that a port does not reply to.
fn without_reply() -> &'static str {
    let refuses = |path: &&str| std::fs::read(path).is_err_and(|e| e.raw_os_error() == Some(22));
    // The first is refused to all but root, the second is a file on hosts with SELinux.
    ["/proc/self/clear_refs", "/proc/self/attr/keycreate"].into_iter().find(refuses).unwrap()
}

/// InfiniBand whose first port has no counters, whose second does not reply, and whose fourth fails
/// at every read of them.
pub(crate) fn broken(root: &Path) {
    infiniband(root);
    let port = |name: &str| root.join("sys/class/infiniband").join(name).join("ports/1");
    for counter in std::fs::read_dir(port("mlx5_0").join("counters")).unwrap() {
        std::fs::write(counter.unwrap().path(), "N/A (no PMA)\n").unwrap();
    }
    std::fs::remove_file(port("mlx5_0").join("rate")).unwrap();
    std::fs::write(port("mlx5_0").join("phys_state"), "garbage\n").unwrap();
    // Every read of the latter is `EIO`.
    for (device, target) in [("mlx5_1", without_reply()), ("mlx5_3", "/proc/self/mem")] {
        for counter in std::fs::read_dir(port(device).join("counters")).unwrap() {
            let counter = counter.unwrap().path();
            std::fs::remove_file(&counter).unwrap();
            symlink(target, &counter).unwrap();
        }
    }
}
