//! Ethernet interfaces, from `/sys/class/net`: traffic, errors, speed and links that come and go.
//!
//! Only interfaces with a device behind them: bridges, bonds, tunnels and the thousand veth pairs of a container host say
//! nothing about a cable. InfiniBand shows itself elsewhere. What the driver counts beyond that, pauses above all, is in
//! `driver`; links that go down, drop, flap or slow down are told in the stream by `judge`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::family::Family;
use crate::hub::unix_now;
use crate::link::rates::{self, Threshold};
use crate::link::watch::Rule;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::topology::{self, target};

mod driver;
mod judge;
#[cfg(test)]
mod tests;

use driver::{ALLOWED, Drivers};
pub use driver::{DRIVER, LEFT_OUT, STATS};
use judge::{Judge, Look};

pub const ABOUT: &str = "Ethernet interfaces: traffic, errors, links";

const DEVICE: &[&str] = &["device"];

macro_rules! nic_counters {
    ($($id:ident $file:literal $name:literal $unit:literal $help:literal;)*) => {
        $(pub static $id: Family = Family::counter($name, $unit, DEVICE, $help);)*
        /// Files under `statistics/` and what they are.
        static STATISTICS: &[(&str, &Family)] = &[$(($file, &$id)),*];
        pub static FAMILIES: &[&Family] = &[&UP, &ADMIN_UP, &SPEED, &MTU, &CARRIER, &CONDITION, &INFO, &STATS, &DRIVER, &LEFT_OUT, $(&$id),*];
    };
}

nic_counters! {
    RX_BYTES "rx_bytes" "nic_receive_bytes_total" "bytes" "Bytes received";
    TX_BYTES "tx_bytes" "nic_transmit_bytes_total" "bytes" "Bytes sent";
    RX_PACKETS "rx_packets" "nic_receive_packets_total" "" "Packets received";
    TX_PACKETS "tx_packets" "nic_transmit_packets_total" "" "Packets sent";
    RX_ERRORS "rx_errors" "nic_receive_errors_total" "" "Bad packets received";
    TX_ERRORS "tx_errors" "nic_transmit_errors_total" "" "Packets that could not be sent";
    RX_DROPPED "rx_dropped" "nic_receive_drops_total" "" "Packets received and dropped for want of room or of a taker";
    TX_DROPPED "tx_dropped" "nic_transmit_drops_total" "" "Packets dropped on their way out";
}

pub static UP: Family = Family::gauge(
    "nic_up",
    "",
    DEVICE,
    "Whether the interface can pass traffic (its operational state is up)",
);
pub static ADMIN_UP: Family = Family::gauge(
    "nic_admin_up",
    "",
    DEVICE,
    "Whether the interface is meant to be up; one that is not may well be unplugged",
);
pub static SPEED: Family = Family::gauge(
    "nic_speed_bytes_per_second",
    "",
    DEVICE,
    "Speed that the link has negotiated; absent while it is down or does not tell",
);
pub static MTU: Family = Family::gauge("nic_mtu_bytes", "bytes", DEVICE, "Largest packet of the interface");
pub static CARRIER: Family =
    Family::counter("nic_carrier_changes_total", "", DEVICE, "How often the link came or went");
pub static INFO: Family = Family::gauge(
    "nic_info",
    "",
    &["device", "driver", "pci", "numa_node"],
    "Interface with what is behind it; always 1",
);

pub static CONDITION: Family = Family::gauge(
    "nic_condition",
    "",
    &["device", "condition"],
    "What is wrong with a link that has been up: 1 for what holds, 0 for the others",
);

/// `type` of an Ethernet interface.
const ARPHRD_ETHER: u32 = 1;
/// Bit of `flags` that says the interface is meant to be up.
const IFF_UP: u32 = 1;
const MAX_DEVICES: usize = 256;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    pub interval: Period,
    /// Names to leave out; `*` stands for anything.
    pub exclude: Vec<String>,
    /// Also bridges, bonds, veth pairs and the like.
    pub include_virtual: bool,
    /// Counters of drivers to keep; `*` stands for anything, and an empty list asks no driver.
    pub ethtool: Vec<String>,
    /// How often drivers are asked: it takes a command to the firmware.
    pub ethtool_interval: Period,
    /// A link that is down for longer has dropped.
    pub drop_after: Period,
    /// Errors that are too many, by name of the driver's counter, where the defaults do not fit.
    pub thresholds: BTreeMap<String, Threshold>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Period::secs(1),
            exclude: Vec::new(),
            include_virtual: false,
            ethtool: ALLOWED.iter().map(|p| (*p).to_owned()).collect(),
            ethtool_interval: Period::secs(10),
            drop_after: Period::secs(240),
            thresholds: BTreeMap::new(),
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(5) }
}

#[derive(Debug)]
pub struct Reader {
    exclude: Vec<glob::Pattern>,
    include_virtual: bool,
    drivers: Drivers,
    ask_every: f64,
    asked_at: f64,
    judge: Judge,
}

/// One interface at one moment, as far as it could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub device: String,
    pub up: Option<bool>,
    pub admin_up: Option<bool>,
}

impl Reader {
    pub fn new(config: &Config) -> Self {
        let exclude = config.exclude.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        let rule = Rule::drop_after(config.drop_after.as_duration().as_secs_f64());
        Self {
            exclude,
            include_virtual: config.include_virtual,
            drivers: Drivers::of_this_machine(&config.ethtool),
            ask_every: config.ethtool_interval.as_duration().as_secs_f64(),
            asked_at: f64::NEG_INFINITY,
            judge: Judge::new(rule, rates::limits(judge::limits(), &config.thresholds)),
        }
    }

    fn devices(&self, roots: &Roots) -> Result<Vec<String>, CollectError> {
        let dir = roots.sys("class/net");
        let names = match roots::list(&dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|e| CollectError::read(&dir, e))?,
        };
        let wanted = |name: &String| {
            let path = dir.join(name);
            roots::read_number(&path.join("type")) == Some(ARPHRD_ETHER)
                && (self.include_virtual || path.join("device").exists())
                && !self.exclude.iter().any(|p| p.matches(name))
        };
        Ok(names.into_iter().filter(wanted).take(MAX_DEVICES).collect())
    }

    fn pass(&mut self, now: f64, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let dir = cx.roots.sys("class/net");
        let looked: Vec<Looked> =
            self.devices(cx.roots)?.into_iter().map(|d| Looked::at(dir.join(&d), d)).collect();
        let due = !(0.0..self.ask_every).contains(&(now - self.asked_at));
        if due {
            self.asked_at = now;
            let index = |l: &Looked| roots::read_number(&l.path.join("ifindex"));
            let devices: Vec<_> = looked.iter().map(|l| (l.link.device.as_str(), index(l))).collect();
            self.drivers.ask(&devices);
        }
        let answer = |device: &str| self.drivers.answer(device).filter(|_| due);
        let looks: Vec<Look<'_>> = looked.iter().map(|l| l.look(answer(&l.link.device))).collect();
        self.judge.pass(now, cx, &looks);
        for seen in &looked {
            seen.write(out);
            let device = &seen.link.device;
            self.drivers.write(device, out);
            for (state, holds) in self.judge.conditions(device).into_iter().flatten() {
                out.set(&CONDITION, &[device, state.as_str()], holds);
            }
        }
        Ok(())
    }
}

/// An interface, with what was read of it for more than one purpose.
#[derive(Debug)]
struct Looked {
    path: PathBuf,
    link: Link,
    /// Bytes a second.
    speed: Option<f64>,
    carrier_changes: Option<u64>,
    /// How often the carrier was lost.
    downs: Option<u64>,
    pci: String,
}

impl Looked {
    fn at(path: PathBuf, device: String) -> Self {
        // Megabits; -1 stands for unknown, and reading it of a link that is down is an error.
        let speed = roots::read_number::<i64>(&path.join("speed")).filter(|s| *s > 0 && *s != 0xffff_ffff);
        let carrier_changes = roots::read_number::<u64>(&path.join("carrier_changes"));
        let counted = roots::read_number::<u64>(&path.join("carrier_down_count"));
        Self {
            link: link(&path, device),
            speed: speed.map(|megabits| megabits as f64 * 125_000.0),
            carrier_changes,
            // Each loss is followed by a return; a kernel that counts losses apart is believed.
            downs: counted.or(carrier_changes.map(|n| n / 2)),
            pci: target(&path.join("device")).filter(|t| topology::is_address(t)).unwrap_or_default(),
            path,
        }
    }

    fn look<'a>(&'a self, answer: Option<&'a driver::Answer>) -> Look<'a> {
        Look { link: &self.link, speed: self.speed, downs: self.downs, pci: &self.pci, answer }
    }

    fn write(&self, out: &mut Samples) {
        let labels: &[&str] = &[&self.link.device];
        out.maybe(&UP, labels, self.link.up);
        out.maybe(&ADMIN_UP, labels, self.link.admin_up);
        out.maybe(&SPEED, labels, self.speed);
        out.maybe(&MTU, labels, roots::read_number::<u64>(&self.path.join("mtu")));
        out.maybe(&CARRIER, labels, self.carrier_changes);
        for (file, family) in STATISTICS {
            out.maybe(family, labels, roots::read_number::<u64>(&self.path.join("statistics").join(file)));
        }
        let device = self.path.join("device");
        let numa = topology::numa_node(&device).map(|n| n.to_string()).unwrap_or_default();
        let driver = target(&device.join("driver")).unwrap_or_default();
        let parent = target(&device).unwrap_or_default();
        out.set(&INFO, &[&self.link.device, &driver, &parent, &numa], 1u64);
    }
}

impl Collector for Reader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let devices = self.devices(cx.roots)?;
        if devices.is_empty() {
            return Ok(Support::Unsupported("no Ethernet interface with a device behind it".into()));
        }
        Ok(Support::Supported(devices.join(" ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.pass(unix_now(), cx, out)
    }
}

fn link(path: &Path, device: String) -> Link {
    let flags = roots::read(&path.join("flags"));
    let flags = flags.and_then(|f| u32::from_str_radix(f.trim_start_matches("0x"), 16).ok());
    // Drivers that do not track the state say unknown; the carrier then has the word.
    let up = match roots::read(&path.join("operstate")).as_deref() {
        Some("up") => Some(true),
        None | Some("unknown") => roots::read_number::<u8>(&path.join("carrier")).map(|c| c == 1),
        Some(_) => Some(false),
    };
    Link { device, up, admin_up: flags.map(|f| f & IFF_UP != 0) }
}
