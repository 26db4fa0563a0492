//! The firmware of the node and its PCIe setup, as far as files show them.
//!
//! The BIOS by DMI (Documentation/ABI/testing/sysfs-class-dmi of torvalds/linux), the microcode of
//! the processors, NVSwitches (`procfs_nvswitch.c` of NVIDIA/open-gpu-kernel-modules), the
//! management controller (drivers/char/ipmi/ipmi_msghandler.c), IOMMU groups
//! (Documentation/ABI/testing/sysfs-kernel-iommu_groups) and PCIe's Access Control Services
//! (include/uapi/linux/pci_regs.h). Files that this user may not read are left out.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::value::kinds;
use crate::roots::{self, Roots};

/// The most devices of one bus that are inspected.
const MAX_DEVICES: usize = 2048;
/// The PCI class of a bridge between two buses.
const BRIDGE: &str = "0x0604";
/// The offsets where extended capabilities begin and end.
const EXTENDED: u64 = 0x100;
const END: u64 = 0x1000;
/// The most capabilities that are followed, because a broken device can make their list a cycle.
const MAX_CAPABILITIES: usize = 96;
/// Access Control Services: its id, the offset of its control register, and the bits by which a
/// bridge redirects traffic between two devices below it to the root.
const ACS: u32 = 0x0d;
const ACS_CONTROL: u64 = 6;
const ACS_REDIRECT: u16 = 0x04 | 0x08;

/// The settings by key.
pub(super) fn settings(roots: &Roots) -> [(&'static str, Option<String>); 8] {
    let dmi = |file: &str| roots::read(&roots.sys("class/dmi/id").join(file));
    [
        ("product", dmi("product_name")),
        ("bios", dmi("bios_version")),
        ("bios_date", dmi("bios_date")),
        ("microcode", microcode(roots)),
        ("nvswitch_firmware", nvswitches(roots)),
        ("bmc_firmware", management_controller(roots)),
        ("iommu_groups", iommu(roots)),
        ("pcie_acs", access_control(roots)),
    ]
}

/// The microcode of all processors; a single value if they agree.
fn microcode(roots: &Roots) -> Option<String> {
    let text = roots::read(&roots.proc("cpuinfo"))?;
    let of_line =
        |line: &str| line.strip_prefix("microcode")?.trim_start().strip_prefix(':').map(str::to_owned);
    kinds(text.lines().filter_map(of_line).map(|version| version.trim().to_owned()))
}

fn nvswitches(roots: &Roots) -> Option<String> {
    let dir = roots.proc("driver/nvidia-nvswitch/devices");
    let switches = roots::list(&dir).unwrap_or_default();
    kinds(switches.into_iter().take(MAX_DEVICES).filter_map(|switch| {
        let text = roots::read(&dir.join(switch).join("information"))?;
        let version = text.lines().find_map(|line| line.strip_prefix("BIOS Version:"))?;
        Some(version.trim().to_owned())
    }))
}

fn management_controller(roots: &Roots) -> Option<String> {
    let dir = roots.sys("bus/platform/devices");
    let controllers =
        roots::list(&dir).unwrap_or_default().into_iter().filter(|name| name.starts_with("ipmi_bmc"));
    kinds(controllers.filter_map(|name| roots::read(&dir.join(name).join("firmware_revision"))))
}

/// How the IOMMU treats devices: `identity` keeps their addresses, and `DMA` translates them, which
/// costs bandwidth between GPUs and network adapters.
fn iommu(roots: &Roots) -> Option<String> {
    let dir = roots.sys("kernel/iommu_groups");
    let groups = roots::list(&dir).unwrap_or_default();
    kinds(groups.into_iter().take(MAX_DEVICES).filter_map(|group| roots::read(&dir.join(group).join("type"))))
}

/// Whether bridges redirect traffic between two devices below them to the root, as for virtual
/// machines: `off`, `redirects`, or both. Only CAP_SYS_ADMIN may read those registers of a device.
fn access_control(roots: &Roots) -> Option<String> {
    let dir = roots.sys("bus/pci/devices");
    let is_bridge =
        |path: &Path| roots::read(&path.join("class")).is_some_and(|class| class.starts_with(BRIDGE));
    let devices = roots::list(&dir).unwrap_or_default();
    let bridges =
        devices.into_iter().take(MAX_DEVICES).map(|name| dir.join(name)).filter(|path| is_bridge(path));
    let controls = bridges.filter_map(|bridge| control(&File::open(bridge.join("config")).ok()?));
    let states: BTreeSet<&str> =
        controls.map(|bits| if bits & ACS_REDIRECT == 0 { "off" } else { "redirects" }).collect();
    kinds(states.into_iter().map(str::to_owned))
}

/// The control register of Access Control Services, if the device has it.
fn control(config: &File) -> Option<u16> {
    let mut at = EXTENDED;
    for _ in 0..MAX_CAPABILITIES {
        let mut header = [0; 4];
        config.read_exact_at(&mut header, at).ok()?;
        let header = u32::from_le_bytes(header);
        if header & 0xffff == ACS {
            let mut bits = [0; 2];
            config.read_exact_at(&mut bits, at + ACS_CONTROL).ok()?;
            return Some(u16::from_le_bytes(bits));
        }
        at = u64::from(header >> 20) & !3;
        // A device that does not answer returns all ones.
        if !(EXTENDED..END).contains(&at) || header == u32::MAX {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Registers with an error reporting capability before that of access control.
    fn registers(control: u16) -> Vec<u8> {
        let mut all = vec![0; END as usize];
        all[0x100..0x104].copy_from_slice(&(0x0001u32 | 0x2 << 16 | 0x148 << 20).to_le_bytes());
        all[0x148..0x14c].copy_from_slice(&(ACS | 0x1 << 16).to_le_bytes());
        all[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        all
    }

    #[test]
    fn a_node() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let roots =
            Roots { sysfs: dir.path().join("sys"), procfs: dir.path().join("proc"), ..Roots::default() };
        assert!(settings(&roots).iter().all(|(_, value)| value.is_none()), "of a node without these files");
        write("sys/class/dmi/id/product_name", b"DGXH100\n");
        write("sys/class/dmi/id/bios_version", b"1.05.03\n");
        write("sys/class/dmi/id/bios_date", b"12/06/2023\n");
        write(
            "proc/cpuinfo",
            b"processor\t: 0\nmicrocode\t: 0x2b000603\nprocessor\t: 1\nmicrocode\t: 0x2b000603\n",
        );
        for switch in ["0000:05:00.0", "0000:06:00.0"] {
            let path = format!("proc/driver/nvidia-nvswitch/devices/{switch}/information");
            write(&path, b"BIOS Version: 96.10.6d.00.01\n");
        }
        write("sys/bus/platform/devices/ipmi_bmc.0/firmware_revision", b"23.9\n");
        write("sys/bus/platform/devices/serial8250/uevent", b"");
        for (group, kind) in [("0", "DMA-FQ"), ("1", "identity"), ("2", "identity")] {
            write(&format!("sys/kernel/iommu_groups/{group}/type"), format!("{kind}\n").as_bytes());
        }
        let device = |address: &str, class: &str, config: &[u8]| {
            write(&format!("sys/bus/pci/devices/{address}/class"), class.as_bytes());
            write(&format!("sys/bus/pci/devices/{address}/config"), config);
        };
        device("0000:00:01.0", "0x060400\n", &registers(0));
        // The registers as an unprivileged user reads them, and those of a device that is gone.
        device("0000:00:02.0", "0x060400\n", &registers(0x1d)[..64]);
        device("0000:00:03.0", "0x060400\n", &[0xff; END as usize]);
        device("0000:1b:00.0", "0x030200\n", &registers(0x1d));
        let found = |roots: &Roots| BTreeMap::from(settings(roots));
        let value = |of: &str| found(&roots)[of].clone();
        for (key, want) in [
            ("product", "DGXH100"),
            ("bios", "1.05.03"),
            ("bios_date", "12/06/2023"),
            ("microcode", "0x2b000603"),
            ("nvswitch_firmware", "96.10.6d.00.01"),
            ("bmc_firmware", "23.9"),
            ("iommu_groups", "DMA-FQ, identity"),
            ("pcie_acs", "off"),
        ] {
            assert_eq!(value(key).as_deref(), Some(want), "{key}");
        }
        device("0000:00:02.0", "0x060400\n", &registers(0x1d));
        assert_eq!(value("pcie_acs").as_deref(), Some("off, redirects"));
    }

    #[test]
    fn a_list_of_capabilities_that_is_a_circle_ends() {
        let mut circle = vec![0; END as usize];
        circle[0x100..0x104].copy_from_slice(&(0x0001u32 | 0x100 << 20).to_le_bytes());
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), circle).unwrap();
        assert_eq!(control(&File::open(path.path()).unwrap()), None);
    }
}
