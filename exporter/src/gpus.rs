//! The GPUs of the node, as the NVIDIA kernel driver lists them under `/proc/driver/nvidia`.
//!
//! Only files are read, without opening a device or loading a library. So it cannot disturb a job
//! or hang in the driver, and it gives the UUID at each PCI address while NVML does not answer.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::fs::Access;
use rustix::io::Errno;

use crate::roots::{self, Roots};
use crate::topology;

/// The most GPUs of a node.
const MAX_GPUS: usize = 64;
/// NVIDIA's vendor id on the PCI bus.
const NVIDIA: &str = "0x10de";
/// The name of the kernel driver on the bus.
const DRIVER: &str = "nvidia";
/// The PCI class of a GPU without a display; one with a display may serve only that.
const CONTROLLER_3D: &str = "0x0302";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    /// The PCI address in lower case, such as `0000:1b:00.0`.
    pub pci: String,
    pub minor: String,
    pub vbios: String,
    /// The firmware version of the GPU's own processor (GSP); `N/A` if the driver does not use it.
    pub firmware: String,
}

pub fn inventory(roots: &Roots) -> Vec<Gpu> {
    let dir = roots.proc("driver/nvidia/gpus");
    let addresses = roots::list(&dir).unwrap_or_default();
    let information = |pci: &String| roots::read(&dir.join(pci).join("information"));
    addresses.iter().take(MAX_GPUS).filter_map(|pci| parse_gpu(&information(pci)?)).collect()
}

/// The PCI addresses of all GPUs of the kernel driver. GPUs that it cannot communicate with are
/// included, those taken out of use are not.
pub fn addresses(roots: &Roots) -> Vec<String> {
    let dir = roots.proc("driver/nvidia/gpus");
    let in_use = |pci: &String| {
        let text = roots::read(&dir.join(pci).join("information")).unwrap_or_default();
        field(&text, "GPU Excluded").is_none_or(|excluded| excluded != "Yes")
    };
    let mut addresses = roots::list(&dir).unwrap_or_default();
    addresses.retain(in_use);
    addresses.truncate(MAX_GPUS);
    addresses.iter().map(|pci| pci.to_ascii_lowercase()).collect()
}

/// Returns the addresses whose device this process may not open, because it is missing or a control
/// group forbids it: the list is the node's even in a container. It queries the permission, and
/// opens nothing. Empty if no device may be opened at all: then the devices may not exist yet, or
/// no process may open them.
pub fn withheld(roots: &Roots, addresses: &[String]) -> BTreeSet<String> {
    let dir = roots.proc("driver/nvidia/gpus");
    let withheld = |pci: &&String| {
        let text = roots::read(&dir.join(pci).join("information")).unwrap_or_default();
        let minor = field(&text, "Device Minor").and_then(|minor| minor.parse::<u32>().ok());
        minor.is_some_and(|minor| is_withheld(&roots.dev.join(format!("nvidia{minor}"))))
    };
    let withheld: BTreeSet<String> = addresses.iter().filter(withheld).cloned().collect();
    if withheld.len() < addresses.len() { withheld } else { BTreeSet::new() }
}

/// Whether the kernel driver is bound to the GPU at this address, according to the bus. A container
/// runtime may remove GPUs from the driver's own list.
pub fn has_driver(roots: &Roots, pci: &str) -> bool {
    let driver = roots.sys("bus/pci/devices").join(pci).join("driver");
    topology::target(&driver).is_some_and(|driver| driver == DRIVER)
}

/// The number of IMEX channels that may be opened here: `/dev/nvidia-caps-imex-channels/channel0`
/// and so on. The driver creates them if GPUs of several nodes share an NVLink domain (NVIDIA's
/// IMEX guide, and NVIDIA/k8s-dra-driver-gpu). `None` if there is no such directory.
pub fn imex_channels(roots: &Roots) -> Option<usize> {
    let names = roots::list(&roots.dev.join("nvidia-caps-imex-channels")).ok()?;
    Some(names.iter().filter(|name| name.starts_with("channel")).count())
}

/// Returns the addresses of GPUs that have never answered since the driver was loaded: the driver
/// lists them without a UUID.
pub fn unborn(roots: &Roots, addresses: &[String]) -> BTreeSet<String> {
    let dir = roots.proc("driver/nvidia/gpus");
    let unborn = |pci: &&String| {
        let text = roots::read(&dir.join(pci).join("information")).unwrap_or_default();
        field(&text, "GPU UUID").is_some_and(|uuid| uuid.contains('?'))
    };
    addresses.iter().filter(unborn).cloned().collect()
}

fn is_withheld(device: &Path) -> bool {
    let may = rustix::fs::access(device, Access::READ_OK | Access::WRITE_OK);
    matches!(may, Err(Errno::NOENT | Errno::PERM | Errno::ACCESS))
}

/// The number of unused compute GPUs on the bus: without a driver, and not given to a virtual
/// machine. It is used while the kernel driver, which would list them, is not loaded.
pub fn idle(roots: &Roots) -> usize {
    let devices = roots.sys("bus/pci/devices");
    let is_idle = |address: &&String| {
        let dir = devices.join(address);
        let is = |file: &str, beginning: &str| {
            roots::read(&dir.join(file)).is_some_and(|text| text.starts_with(beginning))
        };
        is("vendor", NVIDIA) && is("class", CONTROLLER_3D) && topology::target(&dir.join("driver")).is_none()
    };
    roots::list(&devices).unwrap_or_default().iter().filter(is_idle).take(MAX_GPUS).count()
}

/// Parses the lines `Key: \t value` of one GPU. A GPU without a UUID is one that the driver cannot
/// communicate with.
fn parse_gpu(text: &str) -> Option<Gpu> {
    let field = |key| field(text, key).map(str::to_owned);
    let uuid = field("GPU UUID").filter(|u| u.starts_with("GPU-") && !u.contains('?'))?;
    Some(Gpu {
        uuid,
        name: field("Model").unwrap_or_default(),
        pci: field("Bus Location").unwrap_or_default().to_ascii_lowercase(),
        minor: field("Device Minor").unwrap_or_default(),
        vbios: field("Video BIOS").unwrap_or_default(),
        firmware: field("GPU Firmware").unwrap_or_default(),
    })
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix(':')).map(str::trim)
}

/// The first token of the driver's banner that looks like a version.
pub fn driver_version(roots: &Roots) -> Option<String> {
    let text = roots::read(&roots.proc("driver/nvidia/version"))?;
    let is_version = |w: &&str| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 212\nGPU UUID: \t GPU-3c6e8a4b-9d2f-4a51-8e07-5b1f2c3d4e5f\n\
        Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nBus Location: \t 0000:1b:00.0\nDevice Minor: \t 0\nGPU Firmware: \t 570.133.20\nGPU Excluded:\t No\n";

    #[test]
    fn the_drivers_lines() {
        let gpu = parse_gpu(TEXT).unwrap();
        assert_eq!(gpu.name, "NVIDIA H100 80GB HBM3");
        assert_eq!(gpu.uuid, "GPU-3c6e8a4b-9d2f-4a51-8e07-5b1f2c3d4e5f");
        assert_eq!((gpu.pci.as_str(), gpu.minor.as_str()), ("0000:1b:00.0", "0"));
        assert_eq!(
            parse_gpu(&TEXT.replace("GPU-3c6e8a4b", "GPU-????????")),
            None,
            "a GPU that does not answer"
        );
    }

    #[test]
    fn devices_that_may_not_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let device = |minor: u32| dir.path().join(format!("nvidia{minor}"));
        let mut addresses = Vec::new();
        for minor in 0..3 {
            let pci = format!("0000:{minor}b:00.0");
            let place = dir.path().join("driver/nvidia/gpus").join(&pci);
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("information"), format!("Device Minor: \t {minor}\n")).unwrap();
            addresses.push(pci);
        }
        let roots = Roots { procfs: dir.path().into(), dev: dir.path().into(), ..Roots::default() };
        assert!(withheld(&roots, &addresses).is_empty(), "nobody has made them");
        std::fs::write(device(0), "").unwrap();
        assert_eq!(withheld(&roots, &addresses), addresses[1..].iter().cloned().collect());
        std::fs::write(device(2), "").unwrap();
        assert_eq!(withheld(&roots, &addresses), [addresses[1].clone()].into());
    }

    #[test]
    fn those_that_the_driver_has_not_got_to_answer() {
        let dir = tempfile::tempdir().unwrap();
        let addresses = ["0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0"].map(str::to_owned);
        for (pci, text) in
            addresses.iter().zip([TEXT, &TEXT.replace("3c6e8a4b", "????????"), "Model:\t H100\n"])
        {
            let place = dir.path().join("driver/nvidia/gpus").join(pci);
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("information"), text).unwrap();
        }
        let roots = Roots { procfs: dir.path().into(), ..Roots::default() };
        assert_eq!(unborn(&roots, &addresses), [addresses[1].clone()].into());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = parse_gpu(&text);
        }
    }
}
