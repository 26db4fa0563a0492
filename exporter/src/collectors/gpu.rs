//! Which GPUs the node has, as the NVIDIA kernel driver lists them under `/proc/driver/nvidia`.
//!
//! The inventory alone, without opening the device or loading a library: it cannot disturb a job or hang in the driver.
//! It is where the peak for MFU comes from when neither the operator nor the trainer names the GPU.

use std::time::Duration;

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::family::Family;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "GPUs of the node, from the NVIDIA kernel driver";

pub static INFO: Family = Family::gauge(
    "gpu_info",
    "",
    &["gpu", "name", "pci", "minor", "vbios"],
    "GPU of the node by its UUID, with everything else that is known of it; always 1",
);
pub static DRIVER: Family =
    Family::gauge("gpu_driver_info", "", &["version"], "Version of the NVIDIA kernel driver; always 1");

pub static FAMILIES: &[&Family] = &[&INFO, &DRIVER];

/// More GPUs than any node has.
const MAX_GPUS: usize = 64;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true }
    }
}

pub fn rhythm(_: &Config) -> Rhythm {
    Rhythm { interval: Duration::from_mins(1), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct Reader;

#[derive(Debug, PartialEq, Eq)]
struct Gpu {
    uuid: String,
    name: String,
    pci: String,
    minor: String,
    vbios: String,
}

impl Reader {
    pub fn new(_: &Config) -> Self {
        Self
    }
}

impl Collector for Reader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let gpus = inventory(cx.roots);
        let library = cx.roots.nvml_library.as_ref().map(|p| format!(", NVML at {}", p.display()));
        Ok(match gpus.first() {
            Some(first) => {
                Support::Supported(format!("{} x {}{}", gpus.len(), first.name, library.unwrap_or_default()))
            }
            None => Support::Unsupported("no NVIDIA kernel driver with a GPU".into()),
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let gpus = inventory(cx.roots);
        for gpu in &gpus {
            out.set(&INFO, &[&gpu.uuid, &gpu.name, &gpu.pci, &gpu.minor, &gpu.vbios], 1u64);
        }
        if let Some(version) = driver_version(cx.roots) {
            out.set(&DRIVER, &[&version], 1u64);
        }
        // A node of mixed GPUs has no one peak.
        let first = gpus.first().map(|g| g.name.clone());
        let same = first.filter(|name| gpus.iter().all(|g| g.name == *name));
        cx.hub.set_detected_gpu(same);
        Ok(())
    }
}

fn inventory(roots: &Roots) -> Vec<Gpu> {
    let dir = roots.proc("driver/nvidia/gpus");
    let addresses = roots::list(&dir).unwrap_or_default();
    let information = |pci: &String| roots::read(&dir.join(pci).join("information"));
    addresses.iter().take(MAX_GPUS).filter_map(|pci| parse_gpu(&information(pci)?)).collect()
}

/// Reads the lines `Key: \t value` of one GPU. A GPU without a UUID is one that the driver cannot talk to.
fn parse_gpu(text: &str) -> Option<Gpu> {
    let field = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix(':'));
        line.map(|v| v.trim().to_owned())
    };
    let uuid = field("GPU UUID").filter(|u| u.starts_with("GPU-") && !u.contains('?'))?;
    Some(Gpu {
        uuid,
        name: field("Model").unwrap_or_default(),
        pci: field("Bus Location").unwrap_or_default(),
        minor: field("Device Minor").unwrap_or_default(),
        vbios: field("Video BIOS").unwrap_or_default(),
    })
}

/// The first version-like word of the driver's banner.
fn driver_version(roots: &Roots) -> Option<String> {
    let text = roots::read(&roots.proc("driver/nvidia/version"))?;
    let is_version = |w: &&str| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 212\nGPU UUID: \t GPU-3c6e8a4b-9d2f-4a51-8e07-5b1f2c3d4e5f\n\
        Video BIOS: \t 96.00.89.00.01\nBus Type: \t PCIe\nBus Location: \t 0000:1b:00.0\nDevice Minor: \t 0\nGPU Excluded:\t No\n";

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

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = parse_gpu(&text);
        }
    }
}
