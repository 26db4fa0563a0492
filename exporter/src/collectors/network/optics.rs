//! Transceivers and cables in the Ethernet ports: their temperature, received light and alarms.
//! Fading light shows days before the link goes down.
//!
//! Modules of InfiniBand ports are not read: their drivers do not offer them to ethtool, and
//! `mlxlink` reads the adapter's registers, which takes root.

mod module;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

use stepwatch_kit::config::Period;
use stepwatch_sys::ethtool::Ethtool;
use stepwatch_sys::module_eeprom::{Half, Modules};
use stepwatch_wire::conditions::NodeCondition;
use stepwatch_wire::{Event, Kind, Value};

use self::module::{Flag, Grade, Module};
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::condition::Conditions;
use crate::family::Family;
use crate::family_filter::Metrics;
use crate::link::Level;
use crate::roots::{self, Roots};
use crate::samples::Samples;

pub const ABOUT: &str = "transceivers and cables of Ethernet ports: temperature, light, alarms";
pub const NEEDS: &str = "generic netlink in the network namespace of the host, from Linux 5.13 on; CAP_NET_ADMIN, although it only reads; what is refused stands in nic_module_unreadable";
pub const COST: &str =
    "two to four reads of 128 bytes a module each minute, through the firmware of its adapter";

const DEVICE: &[&str] = &["device"];
const LANE: &[&str] = &["device", "lane"];

pub static INFO: Family = Family::gauge(
    "nic_module_info",
    "",
    &["device", "form", "vendor", "part", "serial"],
    "Transceiver or cable in the port of the interface; always 1",
);
pub static TEMPERATURE: Family =
    Family::gauge("nic_module_temperature_celsius", "celsius", DEVICE, "Temperature of the transceiver");
pub static SUPPLY: Family =
    Family::gauge("nic_module_supply_volts", "volts", DEVICE, "Voltage that the transceiver gets");
pub static RECEIVED: Family =
    Family::gauge("nic_module_receive_power_watts", "watts", LANE, "Light that the transceiver receives");
pub static SENT: Family =
    Family::gauge("nic_module_transmit_power_watts", "watts", LANE, "Light that the transceiver sends");
pub static BIAS: Family =
    Family::gauge("nic_module_bias_amperes", "amperes", LANE, "Current through the laser of the lane");
pub static FLAG: Family = Family::gauge(
    "nic_module_flag",
    "",
    &["device", "flag", "grade", "lane"],
    "Limit that the transceiver says was crossed since the last look (grade alarm or warning; lane 0 is the module): 1 while it does, absent otherwise",
);
pub static UNREADABLE: Family = Family::gauge(
    "nic_module_unreadable",
    "",
    DEVICE,
    "Interface whose transceiver this exporter may not read (it needs CAP_NET_ADMIN); 1 while it is so",
);

pub static FAMILIES: &[&Family] =
    &[&INFO, &TEMPERATURE, &SUPPLY, &RECEIVED, &SENT, &BIAS, &FLAG, &UNREADABLE];

/// The `type` of an Ethernet interface.
const ARPHRD_ETHER: u32 = 1;
/// The most ports of one node.
const MAX_DEVICES: usize = 64;
/// The most flags that a text names.
const NAMED: usize = 3;
/// Passes after which a lasting alarm is reported: a flag stays set until it is read, so the first
/// pass may find an old one.
const LOOKS: u32 = 2;

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// The interval of queries to modules, each of which takes some commands to the adapter's
    /// firmware.
    pub interval: Period,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, metrics: Metrics::default(), interval: Period::secs(60) }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_mins(1) }
}

/// The source of the data, which tests replace.
trait Ask: Send + Debug {
    fn index(&self, device: &str) -> io::Result<u32>;
    fn half(&mut self, device: &str, half: Half) -> io::Result<Vec<u8>>;
}

#[derive(Debug)]
struct Kernel {
    ethtool: Ethtool,
    modules: Modules,
}

impl Ask for Kernel {
    fn index(&self, device: &str) -> io::Result<u32> {
        self.ethtool.index(device)
    }

    fn half(&mut self, device: &str, half: Half) -> io::Result<Vec<u8>> {
        self.modules.read(device, half)
    }
}

#[derive(Debug)]
pub struct OpticsReader {
    ask: Option<Box<dyn Ask>>,
    conditions: Conditions,
    /// The indices of interfaces whose driver cannot read modules.
    without: Vec<u32>,
    /// Consecutive passes in which each module had an alarm.
    alarmed: BTreeMap<String, u32>,
}

impl OpticsReader {
    pub fn new(_: &Config) -> Self {
        Self { ask: None, conditions: Conditions::default(), without: Vec::new(), alarmed: BTreeMap::new() }
    }

    fn write(&mut self, cx: &Context<'_>, device: &str, module: &Module, out: &mut Samples) {
        let Module { form, vendor, part, serial, .. } = module;
        out.set(&INFO, &[device, form, vendor, part, serial], 1u64);
        out.maybe(&TEMPERATURE, &[device], module.celsius);
        out.maybe(&SUPPLY, &[device], module.volts);
        for (family, lanes) in [(&RECEIVED, &module.received), (&SENT, &module.sent), (&BIAS, &module.bias)] {
            for (lane, value) in (1..).zip(lanes) {
                let lane: u32 = lane;
                out.set(family, &[device, &lane.to_string()], *value);
            }
        }
        for Flag { grade, name, lane } in &module.flags {
            out.set(&FLAG, &[device, name, grade.as_str(), &lane.to_string()], 1u64);
        }
        let alarms: Vec<&Flag> = module.flags.iter().filter(|flag| flag.grade == Grade::Alarm).collect();
        let looks = self.alarmed.entry(device.to_owned()).or_default();
        *looks = if alarms.is_empty() { 0 } else { looks.saturating_add(1) };
        let holds = *looks >= LOOKS;
        let event = || event(device, module, &alarms);
        self.conditions.report(cx, NodeCondition::TransceiverAlarm, device, holds, event);
    }

    /// Ends the conditions of interfaces that have no module any more.
    fn forget(&mut self, cx: &Context<'_>, seen: &[String]) {
        self.alarmed.retain(|device, _| seen.contains(device));
        for device in self.conditions.keys(NodeCondition::TransceiverAlarm) {
            if !seen.contains(&device) {
                let gone = || event(&device, &Module::default(), &[]);
                self.conditions.report(cx, NodeCondition::TransceiverAlarm, &device, false, gone);
            }
        }
    }
}

impl Collector for OpticsReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let devices = devices(cx.roots).len();
        if devices == 0 {
            return Ok(Support::Unsupported("no Ethernet interface has a device".into()));
        }
        if self.ask.is_none() {
            let (Ok(ethtool), Ok(modules)) = (Ethtool::open(), Modules::open()) else {
                return Ok(Support::Unsupported("the kernel reads no transceivers (before 5.13)".into()));
            };
            self.ask = Some(Box::new(Kernel { ethtool, modules }));
        }
        Ok(Support::Supported(format!("{devices} interfaces")))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let mut seen = Vec::new();
        for (device, index) in devices(cx.roots) {
            let Some(ask) = &mut self.ask else { break };
            // In the network namespace of this process, the name may mean another interface.
            if self.without.contains(&index) || ask.index(&device).ok() != Some(index) {
                continue;
            }
            match module::read(|half| ask.half(&device, half)) {
                Ok(Some(module)) => {
                    self.write(cx, &device, &module, out);
                    seen.push(device);
                }
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    out.set(&UNREADABLE, &[&device], true);
                }
                Err(error) if error.kind() == io::ErrorKind::Unsupported => self.without.push(index),
                // The cage is empty, or the module does not answer.
                Err(error) => tracing::debug!(device, %error, "cannot read the module"),
            }
        }
        self.forget(cx, &seen);
        Ok(())
    }
}

/// Ethernet interfaces with a device, with the kernel's indices.
fn devices(roots: &Roots) -> Vec<(String, u32)> {
    let class = roots.sys("class/net");
    let names = roots::list(&class).unwrap_or_default().into_iter();
    let found = names.filter_map(|name| {
        let dir = class.join(&name);
        let is_port =
            roots::read_number(&dir.join("type")) == Some(ARPHRD_ETHER) && dir.join("device").exists();
        let index = roots::read_number(&dir.join("ifindex")).filter(|_| is_port)?;
        Some((name, index))
    });
    found.take(MAX_DEVICES).collect()
}

fn event(device: &str, module: &Module, alarms: &[&Flag]) -> Event {
    let named: Vec<String> = alarms.iter().take(NAMED).map(|flag| flag.text()).collect();
    let more = alarms.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let text = if alarms.is_empty() {
        format!("{device}: the transceiver has no alarm")
    } else {
        let part = [module.vendor.as_str(), module.part.as_str()].join(" ");
        format!("{device}: the transceiver {} has an alarm: {}{more}", part.trim(), named.join(", "))
    };
    let mut event = Event {
        ts: Some(unix_now()),
        level: Some(Level::Warn.as_str().to_owned()),
        text: Some(text),
        ..Event::new(Kind::Hw)
    };
    event.extra.insert("device".into(), Value::Text(device.to_owned()));
    event
}

impl Grade {
    fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Alarm => "alarm",
        }
    }
}

impl Flag {
    fn text(&self) -> String {
        let name = self.name.replace('_', " ");
        if self.lane == 0 { name } else { format!("{name} of lane {}", self.lane) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::module::tests::{half, put};
    use super::*;
    use crate::lock::Locked as _;
    use crate::testing::Bench;

    /// The lower half of the module's memory in `eth0`; the driver of `eth1` reads none.
    #[derive(Debug, Clone)]
    struct Port(Arc<Mutex<Result<Vec<u8>, io::ErrorKind>>>);

    impl Ask for Port {
        fn index(&self, device: &str) -> io::Result<u32> {
            Ok(if device == "eth0" { 2 } else { 3 })
        }

        fn half(&mut self, device: &str, of: Half) -> io::Result<Vec<u8>> {
            if device != "eth0" {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let lower = self.0.locked().clone().map_err(io::Error::from)?;
            let mut upper = half();
            put(&mut upper, 148, b"Mellanox        ");
            put(&mut upper, 168, b"MMA1B00-C100D   ");
            Ok(if of == Half::Lower { lower } else { upper })
        }
    }

    fn lower(los: u8) -> Vec<u8> {
        let mut lower = half();
        put(&mut lower, 0, &[0x11]);
        put(&mut lower, 22, &[0x23, 0x80]);
        put(&mut lower, 3, &[los]);
        lower
    }

    fn node() -> (tempfile::TempDir, Bench, OpticsReader, Port) {
        let dir = tempfile::tempdir().unwrap();
        for (device, index) in [("eth0", "2"), ("eth1", "3"), ("eth9", "9")] {
            let path = dir.path().join("class/net").join(device);
            std::fs::create_dir_all(path.join("device")).unwrap();
            std::fs::write(path.join("type"), "1\n").unwrap();
            std::fs::write(path.join("ifindex"), format!("{index}\n")).unwrap();
        }
        let bench = Bench::new(Roots { sysfs: dir.path().into(), ..Roots::default() });
        let port = Port(Arc::new(Mutex::new(Ok(lower(0)))));
        let mut reader = OpticsReader::new(&Config::default());
        reader.ask = Some(Box::new(port.clone()));
        assert!(matches!(reader.probe(&bench.context()), Ok(Support::Supported(_))));
        (dir, bench, reader, port)
    }

    #[test]
    fn a_transceiver_and_its_alarm() {
        let (_dir, bench, mut reader, port) = node();
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&TEMPERATURE, &["eth0"]), Some(35.5));
        assert_eq!(page.get(&INFO, &["eth0", "QSFP28", "Mellanox", "MMA1B00-C100D", ""]), Some(1.0));
        assert_eq!(page.get(&RECEIVED, &["eth0", "4"]), Some(0.0));
        assert_eq!(reader.without, [3], "its driver is not asked again");
        *port.0.locked() = Ok(lower(0b0000_0010));
        let page = bench.collect(&mut reader);
        assert_eq!(page.get(&FLAG, &["eth0", "receive_los", "alarm", "2"]), Some(1.0));
        assert!(bench.published().is_empty(), "it may be one of long ago");
        bench.collect(&mut reader);
        let text = "eth0: the transceiver Mellanox MMA1B00-C100D has an alarm: receive los of lane 2";
        let said: Vec<_> = bench.published().into_iter().map(|e| (e.code, e.text.unwrap())).collect();
        assert_eq!(said, [(Some(1), text.to_owned())]);
        *port.0.locked() = Ok(lower(0));
        assert_eq!(bench.collect(&mut reader).rows(&FLAG).count(), 0);
        let said: Vec<_> = bench.published().into_iter().map(|e| (e.code, e.text.unwrap())).collect();
        assert_eq!(said, [(Some(0), "eth0: the transceiver has no alarm".to_owned())]);
    }

    #[test]
    fn a_transceiver_that_may_not_be_read_or_was_taken_out() {
        let (_dir, bench, mut reader, port) = node();
        *port.0.locked() = Ok(lower(1));
        bench.collect(&mut reader);
        bench.collect(&mut reader);
        assert_eq!(bench.published().len(), 1);
        *port.0.locked() = Err(io::ErrorKind::TimedOut);
        assert_eq!(bench.collect(&mut reader).rows(&INFO).count(), 0);
        assert_eq!(bench.published()[0].code, Some(0), "what is gone has no alarm");
        *port.0.locked() = Err(io::ErrorKind::PermissionDenied);
        assert_eq!(bench.collect(&mut reader).get(&UNREADABLE, &["eth0"]), Some(1.0));
    }
}
