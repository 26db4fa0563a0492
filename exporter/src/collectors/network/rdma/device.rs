//! Lists the RDMA devices and ports, and decides which of them are judged.
//!
//! A node has ports that are not in use: the second port of a card, the port of the management
//! network, functions assigned to virtual machines. It is no fault if they are down. By [`Role`]:
//!
//! * `auxiliary`: not a physical function on the PCI bus (software devices, subfunctions, virtual
//!   functions).
//! * `management`: an Ethernet port that carries the default route of the node, itself or through a
//!   bond, bridge or VLAN on top of it, where there are other ports for the fabric; and what the
//!   configuration calls so. Of several default routes the one of the lowest metric counts: fabrics
//!   routed over Ethernet have default routes of their own.
//! * `unprovisioned`: has never been active as far as the state goes back. A port is expected to be
//!   up once it was; how many should be up from the first day on is set in the configuration.
//! * `fabric`: all others. These are judged.

use std::path::Path;

use crate::link::Medium;
use crate::roots::{self, Roots};
use crate::topology::{self, Place};

/// The most devices of one node that are read.
pub(super) const MAX_DEVICES: usize = 128;
const MAX_PORTS: usize = 4;
/// The most stacked interfaces, such as a VLAN on a bridge on a bond on a port.
const MAX_STACK: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::collectors) enum Role {
    Fabric,
    Management,
    Unprovisioned,
    Auxiliary,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Fabric => "fabric",
            Self::Management => "management",
            Self::Unprovisioned => "unprovisioned",
            Self::Auxiliary => "auxiliary",
        }
    }
}

/// The properties of a device that do not change while its driver is loaded.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) firmware: String,
    pub(super) board: String,
    pub(super) hca_type: String,
    pub(super) driver: String,
    /// The PCI address; empty if it is not on a PCI bus.
    pub(super) pci: String,
    pub(super) numa_node: String,
    /// The GUID; empty if it has none.
    pub(super) guid: String,
    pub(super) virtual_function: bool,
    pub(super) ports: Vec<Port>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Port {
    pub(super) number: String,
    pub(super) link_layer: String,
    pub(super) netdev: String,
}

impl Device {
    fn read(dir: &Path, name: String) -> Self {
        let text = |file: &str| roots::read(&dir.join(file)).unwrap_or_default();
        let device = dir.join("device");
        let place = Place::behind(dir);
        let guid = text("node_guid");
        let numbers = roots::list(&dir.join("ports")).unwrap_or_default();
        Self {
            firmware: text("fw_ver"),
            board: text("board_id"),
            hca_type: text("hca_type"),
            driver: topology::target(&device.join("driver")).unwrap_or_default(),
            numa_node: place.as_ref().and_then(|p| p.numa_node).map(|n| n.to_string()).unwrap_or_default(),
            pci: place.map(|p| p.address).unwrap_or_default(),
            guid: if guid.bytes().all(|b| matches!(b, b'0' | b':')) { String::new() } else { guid },
            virtual_function: device.join("physfn").exists(),
            ports: numbers.into_iter().take(MAX_PORTS).map(|number| Port::read(dir, number)).collect(),
            name,
        }
    }

    /// Whether the device has ports and each reports its type. While the kernel registers it, some
    /// do not.
    pub(super) fn is_complete(&self) -> bool {
        !self.ports.is_empty() && self.ports.iter().all(|port| !port.link_layer.is_empty())
    }

    pub(super) fn medium(&self, port: &Port) -> Medium {
        match port.link_layer.as_str() {
            _ if self.driver == "efa" => Medium::Efa,
            "InfiniBand" => Medium::Infiniband,
            "Ethernet" => Medium::Roce,
            // EFA reports its layer as unspecified, and a container may not show the driver.
            _ => Medium::Efa,
        }
    }

    /// A name of the port that is stable over restarts: cards are renumbered when one is missing,
    /// but slots are not.
    pub(super) fn key(&self, port: &Port) -> String {
        let place = if self.pci.is_empty() { &self.name } else { &self.pci };
        format!("{place}/{}", port.number)
    }
}

impl Port {
    fn read(dir: &Path, number: String) -> Self {
        let link_layer = roots::read(&dir.join("ports").join(&number).join("link_layer")).unwrap_or_default();
        Self { link_layer, netdev: netdev(dir, &number).unwrap_or_default(), number }
    }
}

/// The network interface of a port: the one of its device that has this port number.
fn netdev(dir: &Path, number: &str) -> Option<String> {
    let dir = dir.join("device/net");
    let names = roots::list(&dir).ok()?;
    let index = number.parse::<u32>().ok()?.checked_sub(1)?;
    let of_port = |name: &&String| {
        let dir = dir.join(name);
        // Drivers with one port leave one file or the other empty; those with several fill at least
        // one.
        let said = |file: &str| {
            let text = roots::read(&dir.join(file))?;
            text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
        };
        said("dev_port").unwrap_or(0).max(said("dev_id").unwrap_or(0)) == index
    };
    names.iter().find(of_port).cloned()
}

pub(super) fn inventory(roots: &Roots, names: &[String]) -> Vec<Device> {
    let root = roots.sys("class/infiniband");
    names.iter().map(|name| Device::read(&root.join(name), name.clone())).collect()
}

/// The interfaces of the node's default route: the one in the route, and those that it is built on.
pub(super) fn management_interfaces(roots: &Roots) -> Vec<String> {
    // Process 1 is in the host's network, whereas `self` may be in a container's.
    let read = |file: &str| {
        let paths = [roots.proc("1/net").join(file), roots.proc("net").join(file)];
        paths.iter().find_map(|path| roots::read(path)).unwrap_or_default()
    };
    let routed = default_route(&read("route")).or_else(|| default_route_v6(&read("ipv6_route")));
    let mut found: Vec<String> = routed.into_iter().collect();
    let mut level = found.clone();
    for _ in 0..MAX_STACK {
        let below = |name: &String| {
            let entries = roots::list(&roots.sys("class/net").join(name)).unwrap_or_default();
            entries
                .into_iter()
                .filter_map(|e| e.strip_prefix("lower_").map(str::to_owned))
                .collect::<Vec<_>>()
        };
        level = level.iter().flat_map(below).filter(|name| !found.contains(name)).collect();
        found.extend_from_slice(&level);
    }
    found
}

/// The interface of the default route with the lowest metric, from `/proc/net/route`.
pub(super) fn default_route(text: &str) -> Option<String> {
    const UP: u32 = 1;
    let routes = text.lines().skip(1).filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _, flags, _, _, metric, mask, ..] = columns[..] else { return None };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let default = destination == "00000000" && mask == "00000000" && flags & UP != 0;
        default.then_some((metric.parse::<u32>().ok()?, name))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name.to_owned())
}

/// The interface of the default route with the lowest metric, from `/proc/net/ipv6_route`.
pub(super) fn default_route_v6(text: &str) -> Option<String> {
    let routes = text.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, _, name] = columns[..] else { return None };
        let default = length == "00" && destination.bytes().all(|b| b == b'0') && name != "lo";
        default.then_some((u32::from_str_radix(metric, 16).ok()?, name))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth1\t00000000\t0101000A\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
        bond0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth2\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
    const ROUTES6: &str = "fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n";

    #[test]
    fn the_default_route_of_the_lowest_metric() {
        assert_eq!(default_route(ROUTES).as_deref(), Some("bond0"));
        assert_eq!(default_route_v6(ROUTES6).as_deref(), Some("eth0"));
        assert_eq!((default_route(""), default_route_v6("")), (None, None));
    }

    #[test]
    fn what_carries_the_default_route_is_found_below_bonds_and_vlans() {
        let dir = tempfile::tempdir().unwrap();
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        std::fs::create_dir_all(roots.proc("net")).unwrap();
        std::fs::write(roots.proc("net/route"), ROUTES.replace("bond0", "vlan7")).unwrap();
        for below in ["vlan7/lower_bond0", "bond0/lower_eth8", "bond0/lower_eth9", "eth9/lower_vlan7"] {
            std::fs::create_dir_all(roots.sys("class/net").join(below)).unwrap();
        }
        assert_eq!(management_interfaces(&roots), ["vlan7", "bond0", "eth8", "eth9"]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = (default_route(&text), default_route_v6(&text));
        }

        #[test]
        fn mutated_routes(at in 0usize..200, byte in 0u8..128) {
            for (text, read) in [(ROUTES, default_route as fn(&str) -> _), (ROUTES6, default_route_v6)] {
                let mut text = text.as_bytes().to_vec();
                text[at] = byte;
                let _ = read(&String::from_utf8_lossy(&text));
            }
        }
    }
}
