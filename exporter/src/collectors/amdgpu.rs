//! GPUs of AMD, from the files of the kernel driver amdgpu in sysfs: use, memory, power,
//! temperature, clocks, memory errors by block, and bad pages. No library is needed.
//!
//! Files are those of Documentation/gpu/amdgpu (`driver-misc.rst`, `thermal.rst`, `ras.rst`) and
//! drivers/gpu/drm/amd of torvalds/linux. Values have the families of NVIDIA's GPUs where they mean
//! the same. `xgmi_error` is not read: reading it clears the errors (amdgpu_xgmi.c); those of XGMI
//! links are among the memory errors, at the location `xgmi_wafl`.

mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stepwatch_kit::config::Period;
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::collectors::gpu::families as gpu;
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::gpus::driver_version;
use crate::link::Level;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::topology;

pub const ABOUT: &str = "GPUs of AMD, from sysfs";
pub const NEEDS: &str = "/sys/bus/pci, where the driver amdgpu is loaded; any user";
pub const COST: &str = "some 40 small files a GPU, of which a few ask its firmware";

pub static BAD_PAGES: Family = Family::gauge(
    "gpu_bad_pages",
    "",
    &["gpu", "state"],
    "Pages of the memory of an AMD GPU that are taken out of use (reserved), will be with the next reset (pending), or could not be (failed)",
);

pub static FAMILIES: &[&Family] = &[&BAD_PAGES];

/// The name under which the collector's state is saved.
const NAME: &str = "amdgpu";
const VENDOR: &str = "0x1002";
const DRIVER: &str = "amdgpu";
/// PCI classes of display controllers, and of accelerators without a display.
const CLASSES: [&str; 3] = ["0x0300", "0x0380", "0x1200"];
/// The most GPUs of a node.
const MAX_GPUS: usize = 64;
const MAX_BLOCKS: usize = 32;
const MEGA: f64 = 1e6;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(1) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

/// The state that survives a restart of this exporter.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    boot: String,
    /// The GPUs seen since boot: PCI address by UUID.
    had: BTreeMap<String, String>,
}

#[derive(Debug)]
pub struct AmdgpuReader {
    memory: Memory,
    conditions: Conditions,
}

/// A GPU with its driver bound.
#[derive(Debug)]
struct Gpu {
    uuid: String,
    pci: String,
    dir: PathBuf,
}

impl AmdgpuReader {
    pub fn new(_: &Config) -> Self {
        Self { memory: Memory::default(), conditions: Conditions::default() }
    }

    fn remember(&mut self, cx: &Context<'_>, gpus: &[Gpu]) {
        let before = self.memory.had.len();
        for gpu in gpus {
            self.memory.had.insert(gpu.uuid.clone(), gpu.pci.clone());
        }
        if self.memory.had.len() != before
            && let Err(error) = persisted_state::save(cx.roots.state.as_deref(), NAME, &self.memory)
        {
            cx.hub.state_not_saved();
            tracing::warn!(%error, "cannot remember which GPUs of AMD there are");
        }
    }

    /// Reports GPUs that were seen since boot and are missing now.
    fn missing(&mut self, cx: &Context<'_>, gpus: &[Gpu], out: &mut Samples) {
        let here: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let Self { memory, conditions } = self;
        for (uuid, pci) in &memory.had {
            let lost = !here.contains(uuid.as_str());
            out.set(&gpu::LOST, &[uuid], lost);
            conditions.report(cx, NodeCondition::GpuLost, uuid, lost, || {
                let text = if lost {
                    format!("GPU {pci} is gone: the driver has it no more")
                } else {
                    format!("GPU {pci} is there again")
                };
                event(uuid, pci, Level::Error, text)
            });
        }
    }
}

impl Collector for AmdgpuReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let (gpus, without) = (gpus(cx.roots), without_driver(cx.roots));
        let boot = roots::read(&cx.roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
        let saved: Memory = persisted_state::load(cx.roots.state.as_deref(), NAME);
        self.memory = if saved.boot == boot { saved } else { Memory { boot, ..Memory::default() } };
        if !gpus.is_empty() {
            return Ok(Support::Supported(format!("{} GPUs", gpus.len())));
        }
        if without > 0 {
            return Err(CollectError::Other(format!(
                "{without} GPUs of AMD are on the PCI bus and the driver amdgpu has none of them"
            )));
        }
        Ok(Support::Unsupported("no GPU of AMD is on the PCI bus".into()))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let gpus = gpus(cx.roots);
        // If a node also has NVIDIA GPUs, their collector writes the count.
        if driver_version(cx.roots).is_none() {
            out.set(&gpu::COUNT, &[], gpus.len());
            out.set(&gpu::EXPECTED, &[], self.memory.had.len().max(gpus.len()));
        }
        let driver = roots::read(&cx.roots.sys("module/amdgpu/version"))
            .or_else(|| roots::read(&cx.roots.proc("sys/kernel/osrelease")))
            .unwrap_or_default();
        for (index, gpu) in gpus.iter().enumerate() {
            gpu.write(index, &driver, out);
            let pages = gpu.bad_pages();
            for (state, count) in ["reserved", "pending", "failed"].iter().zip(pages.unwrap_or_default()) {
                out.maybe(&BAD_PAGES, &[&gpu.uuid, state], pages.map(|_| count));
            }
            let pending = pages.is_some_and(|[_, pending, _]| pending > 0);
            self.conditions.report(cx, NodeCondition::RowRemapPending, &gpu.uuid, pending, || {
                let text = if pending {
                    format!("bad pages of GPU {} are taken out of use with its next reset", gpu.pci)
                } else {
                    format!("no bad page of GPU {} waits for a reset", gpu.pci)
                };
                event(&gpu.uuid, &gpu.pci, Level::Warn, text)
            });
        }
        self.remember(cx, &gpus);
        self.missing(cx, &gpus, out);
        Ok(())
    }
}

/// AMD devices on the PCI bus, each with whether its driver is bound.
fn devices(roots: &Roots) -> impl Iterator<Item = (String, PathBuf, bool)> {
    let bus = roots.sys("bus/pci/devices");
    let addresses = roots::list(&bus).unwrap_or_default().into_iter();
    addresses.filter_map(move |pci| {
        let dir = bus.join(&pci);
        let is = |file: &str, beginnings: &[&str]| {
            let text = roots::read(&dir.join(file)).unwrap_or_default();
            beginnings.iter().any(|beginning| text.starts_with(beginning))
        };
        if !is("vendor", &[VENDOR]) || !is("class", &CLASSES) {
            return None;
        }
        let bound = topology::target(&dir.join("driver")).is_some_and(|driver| driver == DRIVER);
        Some((pci, dir, bound))
    })
}

fn gpus(roots: &Roots) -> Vec<Gpu> {
    let bound = devices(roots).filter(|(.., bound)| *bound).take(MAX_GPUS);
    bound
        .map(|(pci, dir, _)| {
            // AMD's own tools use this name. Older GPUs have no unique number.
            let uuid = roots::read(&dir.join("unique_id")).unwrap_or_else(|| pci.clone());
            Gpu { uuid: format!("GPU-{uuid}"), pci, dir }
        })
        .collect()
}

/// The number of accelerators without a driver; a display controller may do without.
fn without_driver(roots: &Roots) -> usize {
    let display =
        |dir: &Path| roots::read(&dir.join("class")).is_some_and(|class| class.starts_with("0x0300"));
    devices(roots).filter(|(_, dir, bound)| !bound && !display(dir)).count()
}

impl Gpu {
    fn number(&self, file: &str) -> Option<f64> {
        roots::read_number(&self.dir.join(file))
    }

    fn write(&self, index: usize, driver: &str, out: &mut Samples) {
        let uuid = self.uuid.as_str();
        let text = |file: &str| roots::read(&self.dir.join(file)).unwrap_or_default();
        let name =
            Some(text("product_name")).filter(|name| !name.is_empty()).unwrap_or_else(|| "AMD GPU".into());
        let (serial, vbios) = (text("serial_number"), text("vbios_version"));
        let labels = [uuid, &index.to_string(), &self.pci, &name, &serial, &vbios, driver, "", ""];
        out.set(&gpu::INFO, &labels, 1u64);
        let ratio = |file: &str| self.number(file).map(|percent| percent / 100.0);
        out.maybe(&gpu::UTILIZATION, &[uuid], ratio("gpu_busy_percent"));
        out.maybe(&gpu::MEMORY_UTILIZATION, &[uuid], ratio("mem_busy_percent"));
        let (total, used) = (self.number("mem_info_vram_total"), self.number("mem_info_vram_used"));
        out.maybe(&gpu::MEMORY_TOTAL, &[uuid], total);
        out.maybe(&gpu::MEMORY_USED, &[uuid], used);
        out.maybe(&gpu::MEMORY_FREE, &[uuid], total.zip(used).map(|(total, used)| (total - used).max(0.0)));
        out.maybe(&gpu::PCIE_ERRORS, &[uuid, "replay"], self.number("pcie_replay_count"));
        for (family, file) in
            [(&gpu::PCIE_WIDTH, "current_link_width"), (&gpu::PCIE_MAX_WIDTH, "max_link_width")]
        {
            out.maybe(family, &[uuid], self.number(file));
        }
        let generations =
            [(&gpu::PCIE_GENERATION, "current_link_speed"), (&gpu::PCIE_MAX_GENERATION, "max_link_speed")];
        for (family, file) in generations {
            out.maybe(family, &[uuid], generation(&text(file)));
        }
        self.write_sensors(out);
        self.write_errors(out);
        let table = roots::read_bytes(&self.dir.join("gpu_metrics")).unwrap_or_default();
        let read = metrics::read(&table);
        out.maybe(&gpu::ENERGY, &[uuid], read.joules);
        for (reason, holds) in read.throttled {
            out.set(&gpu::THROTTLE, &[uuid, reason], holds);
        }
    }

    /// Writes the values of the sensors that the driver registers.
    fn write_sensors(&self, out: &mut Samples) {
        let hwmon = self.dir.join("hwmon");
        let sensors = roots::list(&hwmon).unwrap_or_default();
        let Some(dir) = sensors.first().map(|name| hwmon.join(name)) else { return };
        let uuid = self.uuid.as_str();
        let number = |file: &str| roots::read_number::<f64>(&dir.join(file));
        let power = number("power1_average").or_else(|| number("power1_input"));
        out.maybe(&gpu::POWER, &[uuid], power.map(|microwatts| microwatts / MEGA));
        out.maybe(&gpu::POWER_LIMIT, &[uuid], number("power1_cap").map(|microwatts| microwatts / MEGA));
        for n in 1..=3 {
            let label = roots::read(&dir.join(format!("temp{n}_label"))).unwrap_or_default();
            // The hottest place of the chip decides about throttling, so it stands for the chip.
            let sensor = match label.as_str() {
                "junction" => "gpu",
                "mem" => "memory",
                "edge" => "edge",
                _ => continue,
            };
            let celsius = |of: &str| number(&format!("temp{n}_{of}")).map(|milli| milli / 1000.0);
            out.maybe(&gpu::TEMPERATURE, &[uuid, sensor], celsius("input"));
            if sensor == "gpu" {
                out.maybe(&gpu::THRESHOLD, &[uuid, "slowdown"], celsius("crit"));
                out.maybe(&gpu::THRESHOLD, &[uuid, "shutdown"], celsius("emergency"));
            }
        }
        for (n, domain) in [(1, "sm"), (2, "memory")] {
            out.maybe(&gpu::CLOCK, &[uuid, domain], number(&format!("freq{n}_input")));
        }
        for (file, domain) in [("pp_dpm_sclk", "sm"), ("pp_dpm_mclk", "memory")] {
            let levels = roots::read(&self.dir.join(file)).unwrap_or_default();
            out.maybe(&gpu::CLOCK_MAX, &[uuid, domain], highest(&levels));
        }
    }

    /// Writes the memory errors of each block since the driver was loaded, from lines such as `ue:
    /// 0`, `ce: 12` and `de: 0`.
    fn write_errors(&self, out: &mut Samples) {
        let dir = self.dir.join("ras");
        let files = roots::list(&dir).unwrap_or_default();
        for file in files.iter().take(MAX_BLOCKS) {
            let Some(block) = file.strip_suffix("_err_count") else { continue };
            let text = roots::read(&dir.join(file)).unwrap_or_default();
            for line in text.lines() {
                let Some((kind, count)) = line.split_once(": ") else { continue };
                let severity = match kind {
                    "ue" => "uncorrected",
                    "ce" => "corrected",
                    "de" => "deferred",
                    _ => continue,
                };
                let labels = [&self.uuid, severity, "volatile", block];
                out.maybe(&gpu::ECC, &labels, count.trim().parse::<u64>().ok());
            }
        }
    }

    /// The numbers of reserved, pending and failed bad pages, if the driver lists them as
    /// `0x00000001 : 0x00001000 : R`.
    fn bad_pages(&self) -> Option<[u64; 3]> {
        let text = roots::read(&self.dir.join("ras/gpu_vram_bad_pages"))?;
        let of = |state: &str| {
            text.lines().filter(|line| line.rsplit(':').next().is_some_and(|s| s.trim() == state)).count()
        };
        Some([of("R") as u64, of("P") as u64, of("F") as u64])
    }
}

/// The PCIe generation of a speed such as `32.0 GT/s PCIe`.
fn generation(speed: &str) -> Option<u64> {
    let rate: f64 = speed.split(' ').next()?.parse().ok()?;
    let all = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    (1..).zip(all).find(|(_, of)| (rate - of).abs() < 0.1).map(|(generation, _)| generation)
}

/// The highest level of a clock in hertz, from lines such as `1: 2100Mhz *`.
fn highest(levels: &str) -> Option<f64> {
    let megahertz = |line: &str| -> Option<f64> {
        let (_, rest) = line.split_once(':')?;
        let rest = rest.trim().to_ascii_lowercase();
        rest.split("mhz").next()?.trim().parse().ok()
    };
    levels.lines().filter_map(megahertz).max_by(f64::total_cmp).map(|megahertz| megahertz * MEGA)
}

fn event(uuid: &str, pci: &str, level: Level, text: String) -> Event {
    let mut event = Event {
        ts: Some(unix_now()),
        level: Some(level.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("gpu".into(), Value::Text(uuid.to_owned()));
    event.extra.insert("pci".into(), Value::Text(pci.to_owned()));
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    struct Node {
        dir: tempfile::TempDir,
        bench: Bench,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |part: &str| dir.path().join(part);
            std::fs::create_dir_all(at("state")).unwrap();
            let roots =
                Roots { sysfs: at("sys"), procfs: at("proc"), state: Some(at("state")), ..Roots::default() };
            let node = Self { bench: Bench::new(roots), dir };
            node.write("proc/sys/kernel/random/boot_id", "boot-1");
            node
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }

        fn device(&self, pci: &str, class: &str, bound: bool) {
            let of = |file: &str| format!("sys/bus/pci/devices/{pci}/{file}");
            self.write(&of("vendor"), "0x1002");
            self.write(&of("class"), class);
            if bound {
                let driver = self.dir.path().join("sys/bus/pci/drivers/amdgpu");
                std::fs::create_dir_all(&driver).unwrap();
                std::os::unix::fs::symlink(driver, self.dir.path().join(of("driver"))).unwrap();
            }
        }

        /// The files and numbers of the fixture `class/drm/card0` of prometheus/procfs
        /// (Apache-2.0), those of `hwmon` and `ras` as Documentation/gpu/amdgpu of the kernel gives
        /// them.
        fn gpu(&self, pci: &str, id: &str) {
            self.device(pci, "0x120000", true);
            for (file, text) in [
                ("unique_id", id),
                ("product_name", "AMD Instinct MI210"),
                ("serial_number", "PCB012345-0001"),
                ("vbios_version", "115-D558BE-006"),
                ("gpu_busy_percent", "4"),
                ("mem_busy_percent", "1"),
                ("mem_info_vram_total", "8573157376"),
                ("mem_info_vram_used", "1490378752"),
                ("pcie_replay_count", "7"),
                ("current_link_speed", "16.0 GT/s PCIe"),
                ("max_link_speed", "32.0 GT/s PCIe"),
                ("current_link_width", "16"),
                ("pp_dpm_sclk", "0: 500Mhz\n1: 1700Mhz *"),
                ("hwmon/hwmon4/power1_average", "41000000"),
                ("hwmon/hwmon4/power1_cap", "300000000"),
                ("hwmon/hwmon4/temp1_label", "edge"),
                ("hwmon/hwmon4/temp1_input", "39000"),
                ("hwmon/hwmon4/temp2_label", "junction"),
                ("hwmon/hwmon4/temp2_input", "44000"),
                ("hwmon/hwmon4/temp2_crit", "100000"),
                ("hwmon/hwmon4/temp3_label", "mem"),
                ("hwmon/hwmon4/temp3_input", "47000"),
                ("hwmon/hwmon4/freq1_input", "1700000000"),
                ("ras/umc_err_count", "ue: 1\nce: 12\nde: 0"),
                ("ras/xgmi_wafl_err_count", "ue: 0\nce: 3"),
                ("ras/features", "feature mask: 0x5fd"),
                ("ras/gpu_vram_bad_pages", "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P"),
            ] {
                self.write(&format!("sys/bus/pci/devices/{pci}/{file}"), text);
            }
        }

        fn reader(&self) -> AmdgpuReader {
            let mut reader = AmdgpuReader::new(&Config::default());
            assert!(matches!(reader.probe(&self.bench.context()), Ok(Support::Supported(_))));
            reader
        }
    }

    #[test]
    fn a_gpu() {
        let node = Node::new();
        node.gpu("0000:c1:00.0", "0123456789abcdef");
        let page = node.bench.collect(&mut node.reader());
        let gpu = "GPU-0123456789abcdef";
        let info =
            [gpu, "0", "0000:c1:00.0", "AMD Instinct MI210", "PCB012345-0001", "115-D558BE-006", "", "", ""];
        assert_eq!(page.get(&gpu::INFO, &info), Some(1.0));
        for (family, labels, want) in [
            (&gpu::COUNT, &[][..], 1.0),
            (&gpu::UTILIZATION, &[gpu], 0.04),
            (&gpu::MEMORY_USED, &[gpu], 1_490_378_752.0),
            (&gpu::POWER, &[gpu], 41.0),
            (&gpu::POWER_LIMIT, &[gpu], 300.0),
            (&gpu::TEMPERATURE, &[gpu, "gpu"], 44.0),
            (&gpu::TEMPERATURE, &[gpu, "memory"], 47.0),
            (&gpu::THRESHOLD, &[gpu, "slowdown"], 100.0),
            (&gpu::CLOCK, &[gpu, "sm"], 1.7e9),
            (&gpu::CLOCK_MAX, &[gpu, "sm"], 1.7e9),
            (&gpu::PCIE_GENERATION, &[gpu], 4.0),
            (&gpu::PCIE_MAX_GENERATION, &[gpu], 5.0),
            (&gpu::PCIE_WIDTH, &[gpu], 16.0),
            (&gpu::PCIE_ERRORS, &[gpu, "replay"], 7.0),
            (&gpu::ECC, &[gpu, "uncorrected", "volatile", "umc"], 1.0),
            (&gpu::ECC, &[gpu, "corrected", "volatile", "xgmi_wafl"], 3.0),
            (&gpu::LOST, &[gpu], 0.0),
            (&BAD_PAGES, &[gpu, "reserved"], 1.0),
            (&BAD_PAGES, &[gpu, "pending"], 1.0),
        ] {
            assert_eq!(page.get(family, labels), Some(want), "{} {labels:?}", family.name);
        }
        let said: Vec<_> = node.bench.published().into_iter().map(|e| (e.name, e.text)).collect();
        let pending = "bad pages of GPU 0000:c1:00.0 are taken out of use with its next reset";
        assert_eq!(said, [(Some("row_remap_pending".into()), Some(pending.into()))]);
    }

    #[test]
    fn a_gpu_that_is_gone_is_missed_until_the_next_boot() {
        let node = Node::new();
        for (pci, id) in [("0000:c1:00.0", "a"), ("0000:c6:00.0", "b")] {
            node.device(pci, "0x120000", true);
            node.write(&format!("sys/bus/pci/devices/{pci}/unique_id"), id);
        }
        node.bench.collect(&mut node.reader());
        std::fs::remove_dir_all(node.dir.path().join("sys/bus/pci/devices/0000:c6:00.0")).unwrap();
        let page = node.bench.collect(&mut node.reader());
        assert_eq!((page.get(&gpu::COUNT, &[]), page.get(&gpu::EXPECTED, &[])), (Some(1.0), Some(2.0)));
        assert_eq!(page.get(&gpu::LOST, &["GPU-b"]), Some(1.0));
        let said: Vec<_> = node.bench.published().into_iter().map(|e| (e.name, e.text)).collect();
        let gone = "GPU 0000:c6:00.0 is gone: the driver has it no more";
        assert_eq!(said, [(Some("gpu_lost".into()), Some(gone.into()))]);
        node.write("proc/sys/kernel/random/boot_id", "boot-2");
        let page = node.bench.collect(&mut node.reader());
        assert_eq!(page.get(&gpu::EXPECTED, &[]), Some(1.0));
    }

    #[test]
    fn accelerators_without_a_driver_are_a_failure_and_no_absence() {
        let node = Node::new();
        let mut reader = AmdgpuReader::new(&Config::default());
        assert!(matches!(reader.probe(&node.bench.context()), Ok(Support::Unsupported(_))));
        node.device("0000:03:00.0", "0x030000", false);
        assert!(matches!(reader.probe(&node.bench.context()), Ok(Support::Unsupported(_))), "a display");
        node.device("0000:c1:00.0", "0x120000", false);
        let error = reader.probe(&node.bench.context()).unwrap_err().to_string();
        assert_eq!(error, "1 GPUs of AMD are on the PCI bus and the driver amdgpu has none of them");
    }

    proptest::proptest! {
        #[test]
        fn any_text(text: String) {
            let _ = (generation(&text), highest(&text));
        }
    }
}
