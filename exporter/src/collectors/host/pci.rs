//! PCIe links of GPUs, network cards, NVMe disks and the bridges above them: speed and width
//! compared with the possible ones, and the errors that the kernel counts of each.
//!
//! A card that trained at x8 of x16 after a reboot, or at the previous generation, halves the data
//! rate of every step, and no other metric shows it. `judge` distinguishes a degraded link from
//! that of a GPU saving power.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::gpus;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::topology::{self, Place};

mod aer;
mod judge;
#[cfg(test)]
mod tests;
mod work;

use aer::{Aer, Severity};
use judge::{Judge, Look};
use work::Work;

pub const ABOUT: &str = "PCIe links of GPUs, network cards and NVMe disks: speed, width, errors";
pub const NEEDS: &str = "/sys/bus/pci; any user; which GPUs are at work from NVML, or from the files that training processes have open (CAP_SYS_PTRACE)";
pub const COST: &str = "up to 8 small files a device; one call a GPU while the link of one is slow";

const PCI: &[&str] = &["pci"];

pub static INFO: Family = Family::gauge(
    "pci_info",
    "",
    &["pci", "kind", "driver", "numa_node", "upstream", "gpu"],
    "Device with what it is, the bridge right above it and the UUID of its GPU; always 1",
);
pub static SPEED: Family = Family::gauge(
    "pci_link_speed_transfers_per_second",
    "",
    PCI,
    "Transfers a second of each lane of the link, now; a GPU that has nothing to do may lower it",
);
pub static WIDTH: Family = Family::gauge("pci_link_width", "", PCI, "Lanes of the link, now");
pub static MAX_SPEED: Family = Family::gauge(
    "pci_link_max_speed_transfers_per_second",
    "",
    PCI,
    "Transfers a second of each lane that the device is capable of; the port above may not be",
)
.on_request();
pub static MAX_WIDTH: Family = Family::gauge(
    "pci_link_max_width",
    "",
    PCI,
    "Lanes that the device is capable of; the port above may have fewer",
)
.on_request();
pub static DEGRADED: Family = Family::gauge(
    "pci_link_degraded",
    "",
    &["pci", "what"],
    "Whether the link is narrower (width) or slower (speed) than both of its ends could be, for longer than training or saving power explains",
).unless_zero();
pub static AER_TOTAL: Family = Family::counter(
    "pci_aer_severity_errors_total",
    "",
    &["pci", "severity"],
    "Errors of the device in PCIe advanced error reporting, of any name, since it was added",
);
pub static AER: Family = Family::counter(
    "pci_aer_errors_total",
    "",
    &["pci", "severity", "error"],
    "The same by name, of those that happened; named as the kernel names them",
);

pub static FAMILIES: &[&Family] =
    &[&INFO, &SPEED, &WIDTH, &MAX_SPEED, &MAX_WIDTH, &DEGRADED, &AER_TOTAL, &AER];

/// The most devices of one node that are read, bridges included.
const MAX_DEVICES: usize = 512;
/// Seconds after which the list of devices is read again.
const INVENTORY_SECONDS: f64 = 300.0;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Addresses to leave out, as patterns with `*`.
    pub exclude: Vec<String>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval).patterns("exclude", &self.exclude)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(15), exclude: Vec::new() }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceKind {
    Gpu,
    Nic,
    Nvme,
    NvSwitch,
    Bridge,
}

impl DeviceKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Nic => "nic",
            Self::Nvme => "nvme",
            Self::NvSwitch => "nvswitch",
            Self::Bridge => "bridge",
        }
    }

    /// The kind by class code and vendor. The small graphics controller of a management board does
    /// not count as a GPU.
    fn from_class(class: u32, vendor: u32) -> Option<Self> {
        const NVIDIA: u32 = 0x10de;
        const AMD: u32 = 0x1002;
        match class >> 8 {
            0x0302 | 0x1200 => Some(Self::Gpu),
            0x0300 | 0x0380 if matches!(vendor, NVIDIA | AMD) => Some(Self::Gpu),
            0x0200 | 0x0207 => Some(Self::Nic),
            0x0108 => Some(Self::Nvme),
            0x0680 if vendor == NVIDIA => Some(Self::NvSwitch),
            _ => None,
        }
    }
}

/// The properties of a device that do not change.
#[derive(Debug, Clone)]
struct Device {
    address: String,
    dir: PathBuf,
    kind: DeviceKind,
    driver: String,
    numa_node: String,
    /// The bridge at the other end of its link; empty if unknown.
    upstream: String,
    /// Whether its link is evaluated here: this is its lower end, and no other function of the card
    /// represents it.
    judged: bool,
    gpu: String,
}

/// The state of a link, as far as it could be read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Link {
    speed: Option<f64>,
    width: Option<u32>,
    max_speed: Option<f64>,
    max_width: Option<u32>,
}

#[derive(Debug)]
pub struct PciReader {
    exclude: Vec<glob::Pattern>,
    devices: Vec<Device>,
    listed_at: f64,
    judge: Judge,
    work: Work,
}

impl PciReader {
    pub fn new(config: &Config) -> Self {
        let exclude = config.exclude.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self {
            exclude,
            devices: Vec::new(),
            listed_at: f64::NEG_INFINITY,
            judge: Judge::default(),
            work: Work::default(),
        }
    }

    fn inventory(&self, roots: &Roots) -> Result<Vec<Device>, CollectError> {
        let dir = roots.sys("bus/pci/devices");
        let addresses = match roots::list(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            addresses => addresses.map_err(|e| CollectError::read(&dir, e))?,
        };
        let uuids: BTreeMap<String, String> =
            gpus::inventory(roots).into_iter().map(|g| (g.pci, g.uuid)).collect();
        let mut found = BTreeMap::new();
        for address in addresses.iter().filter(|a| !self.exclude.iter().any(|p| p.matches(a))) {
            let dir = dir.join(address);
            let Some(kind) = kind(&dir) else { continue };
            let Some(place) = Place::of_device(roots, address) else { continue };
            if found.len() + place.bridges.len() >= MAX_DEVICES {
                break;
            }
            let mut device = Device::new(dir, address.clone(), kind, &place);
            device.gpu = uuids.get(address).cloned().unwrap_or_default();
            found.insert(address.clone(), device);
            self.add_bridges(roots, &place, &mut found);
        }
        let mut devices: Vec<Device> = found.into_values().collect();
        let first_functions: Vec<String> =
            devices.iter().filter(|d| d.address.ends_with(".0")).map(|d| d.address.clone()).collect();
        for device in &mut devices {
            let first = format!("{}.0", device.address.split('.').next().unwrap_or_default());
            device.judged &= device.address == first || !first_functions.contains(&first);
        }
        Ok(devices)
    }

    /// Adds the bridges above a device. On the way up, every other hop is a link: from a device to
    /// the port above it. The next hop, from that port to the upstream port of its switch, is
    /// inside the switch.
    fn add_bridges(&self, roots: &Roots, place: &Place, found: &mut BTreeMap<String, Device>) {
        for (hop, bridge) in place.bridges.iter().rev().enumerate() {
            if found.contains_key(bridge) || self.exclude.iter().any(|p| p.matches(bridge)) {
                continue;
            }
            let Some(place) = Place::of_device(roots, bridge) else { continue };
            let mut device = Device::new(
                roots.sys("bus/pci/devices").join(bridge),
                bridge.clone(),
                DeviceKind::Bridge,
                &place,
            );
            device.judged = hop % 2 == 1 && !device.upstream.is_empty();
            found.insert(bridge.clone(), device);
        }
    }

    fn pass(&mut self, now: f64, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        if !(0.0..INVENTORY_SECONDS).contains(&(now - self.listed_at)) {
            self.devices = self.inventory(cx.roots)?;
            self.listed_at = now;
            let devices = &self.devices;
            self.judge.retain(|address| devices.iter().any(|d| d.address == address));
        }
        let links: BTreeMap<&str, Link> =
            self.devices.iter().map(|d| (d.address.as_str(), Link::read(&d.dir))).collect();
        self.work.forget();
        for device in &self.devices {
            let look = Look { now, cx, device };
            let link = links[device.address.as_str()];
            write(device, link, out);
            if device.judged {
                let upstream = links.get(device.upstream.as_str()).copied().unwrap_or_default();
                let at_work = || self.work.is_at_work(now, cx, &device.address);
                let degraded = self.judge.link(look, link, upstream, at_work);
                for (what, is) in degraded {
                    out.maybe(&DEGRADED, &[&device.address, what], is);
                }
            }
            for severity in Severity::ALL {
                let Some(errors) = Aer::read(&device.dir, severity) else { continue };
                out.set(&AER_TOTAL, &[&device.address, severity.as_str()], errors.total);
                for (name, count) in errors.happened() {
                    out.set(&AER, &[&device.address, severity.as_str(), name], count);
                }
                self.judge.errors(look, severity, errors.total);
            }
        }
        Ok(())
    }
}

impl Device {
    fn new(dir: PathBuf, address: String, kind: DeviceKind, place: &Place) -> Self {
        Self {
            address,
            kind,
            driver: topology::target(&dir.join("driver")).unwrap_or_default(),
            numa_node: place.numa_node.map(|n| n.to_string()).unwrap_or_default(),
            upstream: place.bridges.last().cloned().unwrap_or_default(),
            judged: true,
            gpu: String::new(),
            dir,
        }
    }
}

impl Link {
    fn read(dir: &Path) -> Self {
        // Reading from a suspended device would wake it.
        if roots::read(&dir.join("power/runtime_status")).as_deref() == Some("suspended") {
            return Self::default();
        }
        let speed = |file: &str| roots::read(&dir.join(file)).and_then(|t| parse_speed(&t));
        let width = |file: &str| roots::read(&dir.join(file)).and_then(|t| parse_width(&t));
        Self {
            speed: speed("current_link_speed"),
            width: width("current_link_width"),
            max_speed: speed("max_link_speed"),
            max_width: width("max_link_width"),
        }
    }
}

/// The kind of device, if it is monitored. Virtual functions have no link of their own.
fn kind(dir: &Path) -> Option<DeviceKind> {
    let number = |file: &str| {
        let text = roots::read(&dir.join(file))?;
        u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    };
    let kind = DeviceKind::from_class(number("class")?, number("vendor").unwrap_or(0))?;
    (!dir.join("physfn").exists()).then_some(kind)
}

/// Parses `32.0 GT/s PCIe` into transfers a second; `None` for `Unknown`.
fn parse_speed(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let giga: f64 = number.parse().ok()?;
    (unit.starts_with("GT/s") && giga > 0.0 && giga < 1e4).then_some(giga * 1e9)
}

/// Parses the lanes. A missing link reads 0, and a missing device reads all ones.
fn parse_width(text: &str) -> Option<u32> {
    text.parse().ok().filter(|lanes| matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32))
}

fn write(device: &Device, link: Link, out: &mut Samples) {
    let labels: &[&str] = &[&device.address];
    let info = [
        &*device.address,
        device.kind.as_str(),
        &device.driver,
        &device.numa_node,
        &device.upstream,
        &device.gpu,
    ];
    out.set(&INFO, &info, 1u64);
    out.maybe(&SPEED, labels, link.speed);
    out.maybe(&WIDTH, labels, link.width);
    out.maybe(&MAX_SPEED, labels, link.max_speed);
    out.maybe(&MAX_WIDTH, labels, link.max_width);
}

/// Parses a file of a device, for the fuzzer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(text: &str) {
    let speed = parse_speed(text);
    assert!(speed.is_none_or(|speed| speed > 0.0 && speed.is_finite()), "{speed:?}");
    let _ = (parse_width(text), topology::is_address(text));
    if let Some(errors) = Aer::parse(text) {
        assert!(errors.happened().all(|(name, _)| !name.contains(char::is_whitespace)));
    }
}

impl Collector for PciReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let devices = self.inventory(cx.roots)?;
        if devices.is_empty() {
            return Ok(Support::Unsupported("no GPU, network card or NVMe disk on a PCI bus".into()));
        }
        let count = |kind: DeviceKind| devices.iter().filter(|d| d.kind == kind).count();
        let kinds =
            [DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Nvme, DeviceKind::NvSwitch, DeviceKind::Bridge];
        let found = kinds.iter().filter(|k| count(**k) > 0).map(|k| format!("{} {}", count(*k), k.as_str()));
        Ok(Support::Supported(found.collect::<Vec<_>>().join(", ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.pass(unix_now(), cx, out)
    }
}
