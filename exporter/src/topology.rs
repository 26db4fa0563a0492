//! Where a device is attached: its PCI address, the bridges above it, its NUMA node. Read from the
//! links and directories of sysfs.
//!
//! Only links are followed, so this works on a tree of files, and in a container that sees the
//! `/sys` of its host.

use std::path::Path;

use crate::roots::{self, Roots};

/// The most bridges above a device; no machine has more.
const MAX_DEPTH: usize = 16;
/// Path components below a PCIe switch: the port of the switch, and the device.
const BELOW_ONE_SWITCH: usize = 2;

/// The place of a PCI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The PCI address in lower case: `0000:18:00.0`.
    pub address: String,
    /// The host bridge: `pci0000:15`. Devices that share it share the root complex of a socket.
    pub root: String,
    /// The bridges from the root port down to the one right above the device. Devices that share
    /// the last bridge are behind the same port; devices that share any other but the first, the
    /// root port, are behind the same switch.
    pub bridges: Vec<String>,
    pub numa_node: Option<u32>,
}

impl Place {
    /// The place of the device at this address.
    pub fn of_device(roots: &Roots, address: &str) -> Option<Self> {
        let address = address.to_ascii_lowercase();
        let device = std::fs::canonicalize(roots.sys("bus/pci/devices").join(&address)).ok()?;
        Self::at(&device)
    }

    /// The place of the device behind an entry of a class, such as `/sys/class/net/eth0` or
    /// `/sys/class/infiniband/mlx5_0`; `None` if the device is virtual or on another bus.
    pub fn behind(entry: &Path) -> Option<Self> {
        Self::at(&std::fs::canonicalize(entry.join("device")).ok()?)
    }

    fn at(device: &Path) -> Option<Self> {
        // In a virtual machine a virtio device is one directory below the PCI device.
        let hosted = device.file_name()?.to_str()?.starts_with("virtio");
        let device = if hosted { device.parent()? } else { device };
        let numa_node = numa_node(device);
        let parts: Vec<&str> = device.iter().filter_map(|part| part.to_str()).collect();
        let root = parts.iter().rposition(|part| is_root(part))?;
        let mut path: Vec<String> = parts.get(root + 1..)?.iter().map(|p| p.to_string()).collect();
        let address = path.pop()?;
        let known = is_address(&address) && path.len() <= MAX_DEPTH && path.iter().all(|p| is_address(p));
        known.then(|| Self { address, root: parts[root].to_owned(), bridges: path, numa_node })
    }

    /// The bridge nearest to both devices: the switch or port at which their traffic turns round.
    /// `None` if the traffic turns round at the host bridge or crosses to another one.
    pub fn common_bridge(&self, other: &Self) -> Option<&str> {
        let shared = self.shared_bridges(other).checked_sub(1)?;
        self.bridges.get(shared).map(String::as_str)
    }

    /// The path between the two, in the terms of `nvidia-smi topo` without `phb`: a path through a
    /// host bridge of one socket is `node`.
    pub fn path_to(&self, other: &Self) -> &'static str {
        let shared = self.shared_bridges(other);
        if shared > 0 {
            let below = |place: &Self| place.bridges.len() + 1 - shared;
            return if below(self).max(below(other)) <= BELOW_ONE_SWITCH { "pix" } else { "pxb" };
        }
        match (self.numa_node, other.numa_node) {
            (Some(a), Some(b)) if a == b => "node",
            (Some(_), Some(_)) => "sys",
            // A virtual machine exposes neither bridges nor NUMA nodes.
            _ if self.root == other.root => "node",
            _ => "sys",
        }
    }

    /// The number of bridges above both devices, from the root port down.
    fn shared_bridges(&self, other: &Self) -> usize {
        let same = self.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
        if self.root == other.root { same } else { 0 }
    }
}

/// The NUMA node of a device, by its directory; `None` if the platform does not report it.
pub fn numa_node(device: &Path) -> Option<u32> {
    // -1 means unknown.
    roots::read_number::<i32>(&device.join("numa_node")).and_then(|n| n.try_into().ok())
}

/// The last component of the target of a symbolic link: the address of a device, or the name of its
/// driver.
pub fn target(link: &Path) -> Option<String> {
    let path = std::fs::read_link(link).ok()?;
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Whether this is a PCI address as sysfs writes it: `0000:1b:00.0`; the domain may be longer.
pub fn is_address(text: &str) -> bool {
    let hex = |part: &str, len: std::ops::RangeInclusive<usize>| {
        len.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let mut parts = text.splitn(3, ':');
    let (Some(domain), Some(bus), Some(slot)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let Some((device, function)) = slot.split_once('.') else { return false };
    hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2) && hex(function, 1..=1)
}

/// Whether this is the directory of a host bridge: `pci0000:15`.
fn is_root(part: &str) -> bool {
    part.strip_prefix("pci").is_some_and(|rest| is_address(&format!("{rest}:00.0")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn device(root: &Path, path: &str, numa: &str) {
        let dir = root.join("devices").join(path);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("numa_node"), numa).unwrap();
        let address = path.rsplit('/').next().unwrap();
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        let _ = symlink(format!("../../../devices/{path}"), root.join("bus/pci/devices").join(address));
    }

    #[test]
    fn a_gpu_and_its_nic_meet_at_their_switch() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        device(dir.path(), "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "0\n");
        device(dir.path(), "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", "0\n");
        device(dir.path(), "pci0000:15/0000:15:02.0/0000:1a:00.0", "-1\n");
        device(dir.path(), "pci0000:97/0000:97:01.0/0000:98:00.0", "1\n");
        let place = |address| Place::of_device(&roots, address).unwrap();
        let gpu = place("0000:18:00.0");
        assert_eq!((gpu.root.as_str(), gpu.numa_node), ("pci0000:15", Some(0)));
        assert_eq!(gpu.bridges, ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"]);
        assert_eq!(gpu.common_bridge(&place("0000:19:00.0")), Some("0000:16:00.0"));
        assert_eq!(gpu.common_bridge(&place("0000:1a:00.0")), None);
        assert_eq!(gpu.common_bridge(&place("0000:98:00.0")), None);
        assert_eq!((place("0000:1a:00.0").numa_node, place("0000:98:00.0").numa_node), (None, Some(1)));
        assert_eq!(Place::of_device(&roots, "0000:ff:00.0"), None);

        let net = dir.path().join("devices/pci0000:97/0000:97:01.0/0000:98:00.0/net/eth0");
        fs::create_dir_all(&net).unwrap();
        symlink("../../../0000:98:00.0", net.join("device")).unwrap();
        fs::create_dir_all(dir.path().join("class/net")).unwrap();
        let entry = dir.path().join("class/net/eth0");
        symlink("../../devices/pci0000:97/0000:97:01.0/0000:98:00.0/net/eth0", &entry).unwrap();
        assert_eq!(Place::behind(&entry), Some(place("0000:98:00.0")));
        fs::create_dir_all(dir.path().join("devices/pci0000:97/0000:97:01.0/0000:98:00.0/virtio3")).unwrap();
        fs::remove_file(net.join("device")).unwrap();
        symlink("../../virtio3", net.join("device")).unwrap();
        assert_eq!(Place::behind(&entry), Some(place("0000:98:00.0")), "what a hypervisor puts on the bus");
        fs::remove_file(net.join("device")).unwrap();
        symlink("../../../0000:98:00.0", net.join("device")).unwrap();
        assert_eq!(target(&net.join("device")).as_deref(), Some("0000:98:00.0"));
    }

    #[test]
    fn addresses() {
        for good in ["0000:1b:00.0", "10000:e1:1f.7", "0000:ff:1f.7"] {
            assert!(is_address(good), "{good}");
        }
        for bad in
            ["", "1b:00.0", "0000:1b:00", "0000:1b:0.0", "0000:1b:00.00", "mlx5_core.sf.2", "0000:1b:00.0.1"]
        {
            assert!(!is_address(bad), "{bad}");
        }
        assert!(is_root("pci0000:15") && !is_root("pci") && !is_root("pci0000:15:01.0"));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = (is_address(&text), is_root(&text));
        }
    }
}
