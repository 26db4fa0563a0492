//! Block devices and NVMe controllers in sysfs: read-only flags, errors, and states other than
//! live.
//!
//! The wear of an NVMe drive takes a command to the drive, which sysfs does not send: that is
//! [`crate::collectors::storage::nvme`]. SCSI and SATA drives are left to `smartctl` and its
//! exporters.

use std::path::{Path, PathBuf};

use crate::family::Family;
use crate::roots::{self, Roots};
use crate::samples::Samples;

const DEVICE: &[&str] = &["device"];

pub(super) static READ_ONLY: Family = Family::gauge(
    "disk_device_read_only",
    "",
    DEVICE,
    "Whether the block device can only be read: a drive that is worn out or has failed may do that",
);
pub(super) static SIZE: Family =
    Family::gauge("disk_device_size_bytes", "bytes", DEVICE, "Size of the block device");
pub(super) static IO_ERRORS: Family = Family::counter(
    "disk_device_io_errors_total",
    "",
    DEVICE,
    "Requests that a SCSI, SAS or SATA device answered with an error",
);
pub(super) static INFO: Family = Family::gauge(
    "disk_device_info",
    "",
    &["device", "model", "rotational"],
    "Block device with what it calls itself; always 1",
);
pub(super) static FS_ERRORS: Family = Family::counter(
    "disk_filesystem_errors_total",
    "",
    DEVICE,
    "Errors that ext4 found in the file system on this device since it was last checked",
);
pub(super) static MISSING: Family = Family::gauge(
    "disk_array_missing_devices",
    "",
    DEVICE,
    "Devices that a software RAID lacks; one that lacks any has lost its redundancy, or will with the next",
);
pub(super) static NVME_UP: Family = Family::gauge(
    "disk_nvme_up",
    "",
    &["controller"],
    "Whether the NVMe controller is live: not resetting, reconnecting or dead",
);
pub(super) static NVME_INFO: Family = Family::gauge(
    "disk_nvme_info",
    "",
    &["controller", "model", "firmware", "pci", "state"],
    "NVMe controller with its state as the kernel calls it; always 1",
);
pub(super) static NVME_TEMPERATURE: Family = Family::gauge(
    "disk_nvme_temperature_celsius",
    "celsius",
    &["controller"],
    "Temperature of the drive, composite of its sensors",
);

/// The most block devices of one node that are exported, and the most NVMe controllers.
const MAX_DEVICES: usize = 128;
/// Prefixes of block devices that are not drives: memory, files, mappings of other devices, trays.
const VIRTUAL: [&str; 8] = ["loop", "ram", "zram", "dm-", "sr", "fd", "nbd", "zd"];

/// The state of an NVMe controller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Controller {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) pci: String,
}

/// The block devices that are drives, with their directories.
pub(super) fn drives(roots: &Roots) -> impl Iterator<Item = (String, PathBuf)> {
    let dir = roots.sys("block");
    let real = |name: &String| !VIRTUAL.iter().any(|prefix| name.starts_with(prefix));
    let names = roots::list(&dir).unwrap_or_default().into_iter().filter(real).take(MAX_DEVICES);
    names.map(move |name| {
        let path = dir.join(&name);
        (name, path)
    })
}

pub(super) fn block(roots: &Roots, out: &mut Samples) {
    for (name, path) in drives(roots) {
        let labels: &[&str] = &[&name];
        out.maybe(&READ_ONLY, labels, roots::read_number::<u32>(&path.join("ro")));
        // The size is in sectors of 512 bytes, whatever the drive's own are. An empty slot has
        // none.
        let sectors = roots::read_number::<u64>(&path.join("size")).filter(|sectors| *sectors > 0);
        out.maybe(&SIZE, labels, sectors.map(|sectors| sectors.saturating_mul(512)));
        out.maybe(&IO_ERRORS, labels, hexadecimal(&path.join("device/ioerr_cnt")));
        out.maybe(&MISSING, labels, roots::read_number::<u32>(&path.join("md/degraded")));
        let model = roots::read(&path.join("device/model")).unwrap_or_default();
        let rotational = roots::read(&path.join("queue/rotational")).unwrap_or_default();
        out.set(&INFO, &[&name, model.trim(), &rotational], 1u64);
    }
    let dir = roots.sys("fs/ext4");
    for device in roots::list(&dir).unwrap_or_default().into_iter().take(MAX_DEVICES) {
        out.maybe(&FS_ERRORS, &[&device], roots::read_number::<u64>(&dir.join(&device).join("errors_count")));
    }
}

pub(super) fn nvme(roots: &Roots, out: &mut Samples) -> Vec<Controller> {
    let dir = roots.sys("class/nvme");
    let mut found = Vec::new();
    for name in roots::list(&dir).unwrap_or_default().into_iter().take(MAX_DEVICES) {
        let path = dir.join(&name);
        let text =
            |file: &str| roots::read(&path.join(file)).map(|t| t.trim().to_owned()).unwrap_or_default();
        let (state, pci) = (text("state"), text("address"));
        if !state.is_empty() {
            out.set(&NVME_UP, &[&name], state == "live");
        }
        out.set(&NVME_INFO, &[&name, &text("model"), &text("firmware_rev"), &pci, &state], 1u64);
        out.maybe(&NVME_TEMPERATURE, &[&name], temperature(&path));
        found.push(Controller { name, state, pci });
    }
    found
}

/// The temperature in degrees, from the driver's sensor in thousandths of a degree.
fn temperature(controller: &Path) -> Option<f64> {
    let under = |dir: &Path| {
        let names = roots::list(dir).unwrap_or_default();
        let sensors = names.into_iter().filter(|n| n.starts_with("hwmon") && n.len() > "hwmon".len());
        sensors.map(|n| dir.join(n)).find_map(|d| roots::read_number::<f64>(&d.join("temp1_input")))
    };
    under(controller).or_else(|| under(&controller.join("hwmon"))).map(|milli| milli / 1000.0)
}

/// Parses a file such as `0x1f`.
fn hexadecimal(path: &Path) -> Option<u64> {
    u64::from_str_radix(roots::read(path)?.trim().trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_arrays_and_controllers() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sysfs: dir.path().into(), ..Roots::default() };
        for (path, text) in [
            ("block/sda/ro", "0"),
            ("block/sda/size", "2048"),
            ("block/sda/device/ioerr_cnt", "0x1f"),
            ("block/sda/device/model", "SAMSUNG MZ7L3480  "),
            ("block/sda/queue/rotational", "0"),
            ("block/nvme0n1/ro", "1"),
            ("block/md0/md/degraded", "1"),
            ("block/loop0/ro", "0"),
            ("fs/ext4/sda1/errors_count", "7"),
            ("class/nvme/nvme0/state", "live"),
            ("class/nvme/nvme0/model", "KIOXIA KCD8"),
            ("class/nvme/nvme0/firmware_rev", "0105"),
            ("class/nvme/nvme0/address", "0000:81:00.0"),
            ("class/nvme/nvme0/hwmon3/temp1_input", "41850"),
            ("class/nvme/nvme1/state", "dead"),
            ("class/nvme/nvme1/hwmon/hwmon4/temp1_input", "52000"),
        ] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        let mut out = Samples::default();
        block(&roots, &mut out);
        let states: Vec<_> = nvme(&roots, &mut out).into_iter().map(|c| (c.name, c.state, c.pci)).collect();
        let own = str::to_owned;
        assert_eq!(
            states,
            [(own("nvme0"), own("live"), own("0000:81:00.0")), (own("nvme1"), own("dead"), String::new())]
        );
        for (family, labels, want) in [
            (&READ_ONLY, &["sda"][..], Some(0.0)),
            (&READ_ONLY, &["nvme0n1"], Some(1.0)),
            (&READ_ONLY, &["loop0"], None),
            (&SIZE, &["sda"], Some(1_048_576.0)),
            (&IO_ERRORS, &["sda"], Some(31.0)),
            (&IO_ERRORS, &["nvme0n1"], None),
            (&MISSING, &["md0"], Some(1.0)),
            (&INFO, &["sda", "SAMSUNG MZ7L3480", "0"], Some(1.0)),
            (&FS_ERRORS, &["sda1"], Some(7.0)),
            (&NVME_UP, &["nvme0"], Some(1.0)),
            (&NVME_UP, &["nvme1"], Some(0.0)),
            (&NVME_INFO, &["nvme0", "KIOXIA KCD8", "0105", "0000:81:00.0", "live"], Some(1.0)),
            (&NVME_TEMPERATURE, &["nvme0"], Some(41.85)),
            (&NVME_TEMPERATURE, &["nvme1"], Some(52.0)),
        ] {
            assert_eq!(out.get(family, labels), want, "{} {labels:?}", family.name);
        }
    }
}
