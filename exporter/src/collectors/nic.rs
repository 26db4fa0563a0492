//! Ethernet interfaces, from `/sys/class/net`: traffic, errors, speed and links that come and go.
//!
//! Only interfaces with a device behind them: bridges, bonds, tunnels and the thousand veth pairs of a container host say
//! nothing about a cable. InfiniBand shows itself elsewhere. A link that goes down or up is also an event in the stream,
//! at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use stepwatch_kit::config::Period;
use stepwatch_wire::{Event, Kind};

use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::family::Family;
use crate::hub::Origin;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "Ethernet interfaces: traffic, errors, links";

const DEVICE: &[&str] = &["device"];

macro_rules! nic_counters {
    ($($id:ident $file:literal $name:literal $unit:literal $help:literal;)*) => {
        $(pub static $id: Family = Family::counter($name, $unit, DEVICE, $help);)*
        /// Files under `statistics/` and what they are.
        static STATISTICS: &[(&str, &Family)] = &[$(($file, &$id)),*];
        pub static FAMILIES: &[&Family] = &[&UP, &ADMIN_UP, &SPEED, &MTU, &CARRIER, &INFO, $(&$id),*];
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
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, interval: Period::secs(1), exclude: Vec::new(), include_virtual: false }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(5) }
}

#[derive(Debug)]
pub struct Reader {
    exclude: Vec<glob::Pattern>,
    include_virtual: bool,
    /// Whether each link was up when it was last read.
    links: BTreeMap<String, bool>,
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
        Self { exclude, include_virtual: config.include_virtual, links: BTreeMap::new() }
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

    /// The links of the node, for the self-check.
    pub fn links(&self, roots: &Roots) -> Result<Vec<Link>, CollectError> {
        let dir = roots.sys("class/net");
        Ok(self.devices(roots)?.into_iter().map(|device| link(&dir.join(&device), device)).collect())
    }

    fn announce(&mut self, cx: &Context<'_>, device: &str, up: bool) {
        let before = self.links.insert(device.to_owned(), up);
        if before.is_some_and(|before| before != up) {
            let (state, level) = if up { ("up", "info") } else { ("down", "warning") };
            tracing::warn!(device, state, "link changed");
            let event = Event {
                name: Some(device.to_owned()),
                text: Some(format!("Ethernet link {device} went {state}")),
                level: Some(level.into()),
                code: Some(i64::from(up)),
                ..Event::new(Kind::Link)
            };
            cx.hub.publish(Origin::Node, event);
        }
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
        let devices = self.devices(cx.roots)?;
        self.links.retain(|name, _| devices.contains(name));
        for device in devices {
            let path = cx.roots.sys("class/net").join(&device);
            let link = link(&path, device.clone());
            read_device(&path, &link, out);
            if let Some(up) = link.up {
                self.announce(cx, &device, up);
            }
        }
        Ok(())
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

fn read_device(path: &Path, link: &Link, out: &mut Samples) {
    let labels: &[&str] = &[&link.device];
    out.maybe(&UP, labels, link.up);
    out.maybe(&ADMIN_UP, labels, link.admin_up);
    // Megabits; -1 stands for unknown, and reading it of a link that is down is an error.
    let speed = roots::read_number::<i64>(&path.join("speed")).filter(|s| *s > 0 && *s != 0xffff_ffff);
    out.maybe(&SPEED, labels, speed.map(|megabits| megabits as f64 * 125_000.0));
    out.maybe(&MTU, labels, roots::read_number::<u64>(&path.join("mtu")));
    out.maybe(&CARRIER, labels, roots::read_number::<u64>(&path.join("carrier_changes")));
    for (file, family) in STATISTICS {
        out.maybe(family, labels, roots::read_number::<u64>(&path.join("statistics").join(file)));
    }
    let device = path.join("device");
    let numa = roots::read_number::<i32>(&device.join("numa_node")).filter(|n| *n >= 0);
    let numa = numa.map(|n| n.to_string()).unwrap_or_default();
    out.set(&INFO, &[&link.device, &target(&device.join("driver")), &target(&device), &numa], 1u64);
}

/// The last part of what a symbolic link points to: the address of a device, the name of its driver.
fn target(link: &Path) -> String {
    let path = std::fs::read_link(link).ok();
    path.and_then(|p| Some(p.file_name()?.to_str()?.to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use std::fs;

    fn interface(root: &Path, name: &str, physical: bool, files: &[(&str, &str)]) {
        let dir = root.join("class/net").join(name);
        fs::create_dir_all(dir.join("statistics")).unwrap();
        if physical {
            fs::create_dir_all(dir.join("device")).unwrap();
        }
        for (file, text) in [("type", "1"), ("flags", "0x1003"), ("operstate", "up")].iter().chain(files) {
            fs::write(dir.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn reads_what_is_there_and_leaves_out_what_is_not() {
        let dir = tempfile::tempdir().unwrap();
        interface(dir.path(), "eth0", true, &[("speed", "100000"), ("statistics/rx_bytes", "123")]);
        interface(dir.path(), "eth1", true, &[("operstate", "down"), ("speed", "-1"), ("flags", "0x1002")]);
        interface(dir.path(), "veth9", false, &[]);
        interface(dir.path(), "ib0", true, &[("type", "32")]);
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = Reader::new(&Config::default());
        assert_eq!(reader.probe(&bench.context()).unwrap(), Support::Supported("eth0 eth1".into()));
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&SPEED, &["eth0"]), Some(12.5e9));
        assert_eq!(page.get(&RX_BYTES, &["eth0"]), Some(123.0));
        assert_eq!(page.get(&TX_BYTES, &["eth0"]), None);
        assert_eq!((page.get(&UP, &["eth0"]), page.get(&UP, &["eth1"])), (Some(1.0), Some(0.0)));
        assert_eq!((page.get(&ADMIN_UP, &["eth1"]), page.get(&SPEED, &["eth1"])), (Some(0.0), None));
        assert!(page.iter().all(|s| ["eth0", "eth1"].contains(&&*s.labels[0])), "{page:?}");
        let mut picky = Reader::new(&Config { exclude: vec!["eth*".into()], ..Config::default() });
        assert!(matches!(picky.probe(&bench.context()), Ok(Support::Unsupported(_))));
    }

    #[test]
    fn a_link_that_goes_down_is_an_event_at_once() {
        let dir = tempfile::tempdir().unwrap();
        interface(dir.path(), "eth0", true, &[]);
        let bench = testing::Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let mut reader = Reader::new(&Config::default());
        bench.collect(&mut reader);
        assert_eq!(bench.published(), Vec::<Event>::new());
        interface(dir.path(), "eth0", true, &[("operstate", "down")]);
        bench.collect(&mut reader);
        bench.collect(&mut reader);
        let [event] = &bench.published()[..] else { panic!() };
        assert_eq!((event.kind, event.name.as_deref(), event.code), (Kind::Link, Some("eth0"), Some(0)));
    }
}
