//! Ethernet interfaces, from `/sys/class/net`: traffic, errors, speed and changes of the link.
//!
//! Only interfaces with a device are read: bridges, bonds, tunnels and the many veth pairs of a
//! container host have no cable. InfiniBand is read elsewhere. `driver` reads the driver's further
//! counters, mainly of pauses; `judge` publishes links that go down, drop, flap or slow down;
//! `traffic` publishes how much the busiest interfaces send.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use stepwatch_kit::config::Period;

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::is_set_up;
use crate::link::rates::{self, Threshold};
use crate::link::watch::Rule;
use crate::roots::{Dir, Roots};
use crate::samples::Samples;
use crate::topology::{self, target};

mod driver;
mod judge;
#[cfg(test)]
mod tests;
mod traffic;

use driver::{ALLOWED, Drivers};
pub use driver::{DRIVER, LEFT_OUT, STATS};
use judge::{Judge, Look};
use traffic::Traffic;

pub const ABOUT: &str = "Ethernet interfaces: traffic, errors, links";
pub const NEEDS: &str = "/sys/class/net and the ethtool ioctl in the network namespace of the host; any user";
pub const COST: &str = "some 15 small files an interface; the drivers' own statistics less often";

const DEVICE: &[&str] = &["device"];

macro_rules! nic_counters {
    ($($id:ident $file:literal $name:literal $unit:literal $help:literal;)*) => {
        $(pub static $id: Family = Family::counter($name, $unit, DEVICE, $help);)*
        /// Files under `statistics/` and their families.
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
    "Speed that the link has negotiated; absent while it is down or does not report it",
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
    "What is wrong with a link that has been up: 1 for what holds, and on request 0 for the others",
)
.unless_zero();

/// The `type` of an Ethernet interface.
const ARPHRD_ETHER: u32 = 1;
const MAX_DEVICES: usize = 256;
/// The most interfaces whose files stay open between passes, a dozen each. A container may open
/// about a thousand files, and a node with virtual functions has hundreds of interfaces.
const MAX_KEPT_OPEN: usize = 32;
/// Seconds after which the identity of an interface is read again.
const IDENTITY_SECONDS: f64 = 10.0;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    pub interval: Period,
    /// Patterns with `*` of names to leave out.
    pub exclude: Vec<String>,
    /// Whether to include bridges, bonds, veth pairs and other virtual interfaces.
    pub include_virtual: bool,
    /// Patterns with `*` of drivers' counters to keep; if empty, no driver is queried.
    pub ethtool: Vec<String>,
    /// The interval of queries to drivers, each of which is a command to the firmware.
    pub ethtool_interval: Period,
    /// A link that is down for longer counts as dropped.
    pub drop_after: Period,
    /// Limits of errors by the driver's name of the counter, where the defaults do not fit.
    pub thresholds: BTreeMap<String, Threshold>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("ethtool_interval", self.ethtool_interval)
            .patterns("exclude", &self.exclude)
            .patterns("ethtool", &self.ethtool)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
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
pub struct NicReader {
    exclude: Vec<glob::Pattern>,
    include_virtual: bool,
    /// `/sys/class/net`; `None` until the first pass.
    class: Option<Dir>,
    /// All interfaces of the class that are not excluded by name.
    interfaces: BTreeMap<String, Interface>,
    drivers: Drivers,
    ask_every: f64,
    asked_at: f64,
    judge: Judge,
    traffic: Traffic,
}

/// The state of one interface, as far as it could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub device: String,
    pub up: Option<bool>,
    pub admin_up: Option<bool>,
}

impl NicReader {
    pub fn new(config: &Config) -> Self {
        let exclude = config.exclude.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        let rule = Rule::drop_after(config.drop_after.as_duration().as_secs_f64());
        Self {
            exclude,
            include_virtual: config.include_virtual,
            class: None,
            interfaces: BTreeMap::new(),
            drivers: Drivers::of_this_machine(&config.ethtool),
            ask_every: config.ethtool_interval.as_duration().as_secs_f64(),
            asked_at: f64::NEG_INFINITY,
            judge: Judge::new(rule, rates::limits(judge::limits(), &config.thresholds)),
            traffic: Traffic::default(),
        }
    }

    /// Updates the known interfaces from those that exist.
    fn list(&mut self, now: f64, roots: &Roots) -> Result<(), CollectError> {
        let class = self.class.get_or_insert_with(|| Dir::new(roots.sys("class/net")));
        let path = class.path().to_owned();
        let names = match class.names() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => &[],
            names => names.map_err(|e| CollectError::read(&path, e))?,
        };
        self.interfaces.retain(|name, _| names.binary_search(name).is_ok());
        for name in names.iter().filter(|name| !self.exclude.iter().any(|p| p.matches(name))) {
            let known = self.interfaces.get(name);
            if !known.is_some_and(|known| (0.0..IDENTITY_SECONDS).contains(&(now - known.read_at))) {
                let interface = Interface::at(&path.join(name), now, self.include_virtual);
                self.interfaces.insert(name.clone(), interface);
            }
        }
        Ok(())
    }

    fn pass(&mut self, now: f64, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.list(now, cx.roots)?;
        let read = self.interfaces.iter_mut().filter(|(_, interface)| interface.wanted).take(MAX_DEVICES);
        let looked: Vec<Looked> = read
            .enumerate()
            .map(|(n, (name, interface))| {
                let looked = interface.look(name);
                if n >= MAX_KEPT_OPEN {
                    interface.close();
                }
                looked
            })
            .collect();
        let interfaces = &self.interfaces;
        let due = !(0.0..self.ask_every).contains(&(now - self.asked_at));
        if due {
            self.asked_at = now;
            let devices: Vec<_> = wanted(interfaces).map(|(name, i)| (name.as_str(), i.index)).collect();
            self.drivers.ask(&devices);
        }
        let answer = |device: &str| self.drivers.answer(device).filter(|_| due);
        let looks: Vec<Look<'_>> = wanted(interfaces)
            .zip(&looked)
            .map(|((name, interface), looked)| looked.look(interface, answer(name)))
            .collect();
        self.judge.pass(now, cx, &looks);
        self.traffic.pass(now, cx, &looked);
        for ((device, interface), seen) in wanted(interfaces).zip(&looked) {
            interface.write(device, out);
            seen.write(out);
            self.drivers.write(device, out);
            for (state, holds) in self.judge.conditions(device).into_iter().flatten() {
                out.set(&CONDITION, &[device, state.as_str()], holds);
            }
        }
        Ok(())
    }
}

/// The interfaces to read.
fn wanted(interfaces: &BTreeMap<String, Interface>) -> impl Iterator<Item = (&String, &Interface)> {
    interfaces.iter().filter(|(_, interface)| interface.wanted).take(MAX_DEVICES)
}

/// An interface, and its properties that do not change while its driver is loaded.
#[derive(Debug, Default)]
struct Interface {
    /// Whether the interface is Ethernet, and has a device if that is required.
    wanted: bool,
    index: Option<u32>,
    mtu: Option<u64>,
    driver: String,
    /// The device of the interface, which may be on a bus other than PCI.
    parent: String,
    numa_node: String,
    dir: Dir,
    statistics: Dir,
    read_at: f64,
    /// The last speed that was read, and the number of carrier changes at that time.
    speed: Option<(i64, u64)>,
}

impl Interface {
    fn at(path: &Path, now: f64, include_virtual: bool) -> Self {
        let (mut dir, device) = (Dir::new(path.to_owned()), path.join("device"));
        let ethernet = dir.read_number("type") == Some(ARPHRD_ETHER);
        let wanted = ethernet && (include_virtual || device.exists());
        let statistics = Dir::new(path.join("statistics"));
        if !wanted {
            // A host of containers has a thousand of these, so none is kept open.
            dir.reopen();
            return Self { wanted, dir, statistics, read_at: now, ..Self::default() };
        }
        Self {
            wanted,
            index: dir.read_number("ifindex"),
            mtu: dir.read_number("mtu"),
            driver: target(&device.join("driver")).unwrap_or_default(),
            parent: target(&device).unwrap_or_default(),
            numa_node: topology::numa_node(&device).map(|n| n.to_string()).unwrap_or_default(),
            dir,
            statistics,
            read_at: now,
            speed: None,
        }
    }

    fn look(&mut self, device: &str) -> Looked {
        let dir = &mut self.dir;
        let link = link(dir, device.to_owned());
        if link.up.is_none() {
            // Another device of the same name may have replaced the interface.
            self.read_at = f64::NEG_INFINITY;
        }
        let carrier_changes = dir.watch_number::<u64>("carrier_changes");
        // The driver queries its firmware for the speed under the one lock of all interfaces. The
        // speed only changes when the carrier is lost.
        let known = self.speed.filter(|(_, at)| link.up == Some(true) && carrier_changes == Some(*at));
        let speed = known.map(|(speed, _)| speed).or_else(|| dir.read_number("speed"));
        self.speed = speed.zip(carrier_changes);
        // The speed is in megabits; -1 means unknown, and reading it while the link is down is an
        // error.
        let speed = speed.filter(|s| *s > 0 && *s != 0xffff_ffff);
        let counted = dir.watch_number::<u64>("carrier_down_count");
        Looked {
            link,
            speed: speed.map(|megabits| megabits as f64 * 125_000.0),
            carrier_changes,
            // Each loss is followed by a return. A kernel that counts losses separately is
            // preferred.
            downs: counted.or(carrier_changes.map(|n| n / 2)),
            statistics: STATISTICS.iter().map(|(file, _)| self.statistics.watch_number(file)).collect(),
        }
    }

    fn close(&mut self) {
        self.dir.reopen();
        self.statistics.reopen();
    }

    fn write(&self, device: &str, out: &mut Samples) {
        out.maybe(&MTU, &[device], self.mtu);
        out.set(&INFO, &[device, &self.driver, self.pci(), &self.numa_node], 1u64);
    }

    /// The PCI address, or empty: the device of an interface may be on another bus (`virtio3`).
    fn pci(&self) -> &str {
        Some(self.parent.as_str()).filter(|parent| topology::is_address(parent)).unwrap_or_default()
    }
}

/// Values of an interface that are used for several purposes.
#[derive(Debug)]
struct Looked {
    link: Link,
    /// The speed in bytes per second.
    speed: Option<f64>,
    carrier_changes: Option<u64>,
    /// How many times the carrier was lost.
    downs: Option<u64>,
    /// The values in the order of [`STATISTICS`].
    statistics: Vec<Option<u64>>,
}

impl Looked {
    fn look<'a>(&'a self, interface: &'a Interface, answer: Option<&'a driver::Answer>) -> Look<'a> {
        Look { link: &self.link, speed: self.speed, downs: self.downs, pci: interface.pci(), answer }
    }

    fn write(&self, out: &mut Samples) {
        let labels: &[&str] = &[&self.link.device];
        out.maybe(&UP, labels, self.link.up);
        out.maybe(&ADMIN_UP, labels, self.link.admin_up);
        out.maybe(&SPEED, labels, self.speed);
        out.maybe(&CARRIER, labels, self.carrier_changes);
        for ((_, family), count) in STATISTICS.iter().zip(&self.statistics) {
            out.maybe(family, labels, *count);
        }
    }
}

impl Collector for NicReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        self.list(unix_now(), cx.roots)?;
        let devices: Vec<&str> = wanted(&self.interfaces).map(|(name, _)| name.as_str()).collect();
        if devices.is_empty() {
            return Ok(Support::Unsupported("no Ethernet interface with a device behind it".into()));
        }
        Ok(Support::Supported(devices.join(" ")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.pass(unix_now(), cx, out)
    }
}

fn link(dir: &mut Dir, device: String) -> Link {
    let admin_up = dir.watch("flags").and_then(|flags| is_set_up(&flags));
    // Drivers that do not track the state report `unknown`. Then the carrier decides.
    let up = match dir.watch("operstate").as_deref() {
        Some("up") => Some(true),
        None | Some("unknown") => dir.watch_number::<u8>("carrier").map(|c| c == 1),
        Some(_) => Some(false),
    };
    Link { device, up, admin_up }
}
