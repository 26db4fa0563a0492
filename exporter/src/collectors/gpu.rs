//! Which GPUs the node has, as the NVIDIA kernel driver lists them under `/proc/driver/nvidia`.
//!
//! The inventory alone, without opening the device or loading a library: it cannot disturb a job or hang in the driver.
//! It is where the peak for MFU comes from when neither the operator nor the trainer names the GPU.

use std::time::Duration;

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::family::Family;
use crate::gpus::{driver_version, inventory};
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
