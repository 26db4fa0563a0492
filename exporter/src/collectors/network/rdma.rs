//! RDMA ports, with the same families for InfiniBand, RoCE and EFA: state, rate, traffic, errors,
//! and links that drop, flap or slow down.
//!
//! There are two intervals: states are read every second and counters every ten, because each
//! counter of a port is a command to its firmware. `sysfs` limits the cost of each file, `device`
//! decides which ports are judged, `expect` what is expected of them, and `counters` which rates of
//! errors are too high. Every half minute a sample of each port is published for a comparison with
//! its peers.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Rhythm, Support};
use crate::condition::Conditions;
use crate::link::rates::{Limit, Rates};
use crate::link::watch::{Rule, Watch};
use crate::persisted_state;
use crate::roots::Dir;
use crate::samples::Samples;

mod band;
mod config;
mod count;
mod counters;
mod device;
mod expect;
mod judge;
mod saturation;
mod sysfs;
#[cfg(test)]
mod tests;
mod write;

use config::Patterns;
pub use config::{Config, Expectation};
use count::Counted;
pub use counters::{
    ERRORS, HARDWARE, LINK_DOWNED, RECEIVE_BYTES, RECEIVE_MULTICAST, RECEIVE_PACKETS, RECEIVE_UNICAST,
    SATURATED, TRANSMIT_BYTES, TRANSMIT_MULTICAST, TRANSMIT_PACKETS, TRANSMIT_UNICAST, TRANSMIT_WAIT,
};
pub(super) use device::Role;
use device::{Device, Port};
use expect::Known;
use judge::Pass;
use saturation::Saturation;
use sysfs::{PortState, Quarantine};
pub use write::{
    CONDITION, EXPECTED_RATE, FAMILIES, INFO, PHYSICAL_STATE, PORT_INFO, PORTS_EXPECTED, PORTS_UP,
    QUARANTINED, RATE, STATE, UP,
};

pub const ABOUT: &str = "RDMA ports (InfiniBand, RoCE, EFA): state, rate, traffic, errors, links";
pub const NEEDS: &str = "/sys/class/infiniband; any user";
pub const COST: &str = "states each second; some 50 counters a port each ten, each a command to its firmware";

/// The name of the saved state.
const STATE_NAME: &str = "rdma";
/// Seconds between saves if only times have changed.
const SAVE_SECONDS: f64 = 600.0;
/// Seconds after which the devices are listed again. It is sooner if a port could not be read, or a
/// device appeared or disappeared.
const INVENTORY_SECONDS: f64 = 60.0;
/// The kernel shows a device before it has created all its ports. So a new device is listed again
/// after this time, and repeatedly while it has no ports. It is well before a port that was merely
/// not seen yet counts as dropped.
const SETTLE_SECONDS: f64 = 10.0;
/// Seconds between samples for the comparison with peers.
const HEALTH_SECONDS: f64 = 30.0;

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: Duration::from_secs(10) }
}

#[derive(Debug)]
pub struct RdmaReader {
    config: Config,
    rule: Rule,
    limits: Vec<Limit>,
    include: Patterns,
    exclude: Patterns,
    management: Patterns,
    expected: Patterns,
    quarantine: Quarantine,
    /// `/sys/class/infiniband`; `None` until the first pass.
    class: Option<Dir>,
    names: Vec<String>,
    devices: Vec<Device>,
    /// The Unix time when the devices were listed. It is reset if something could not be read
    /// since.
    inventory_at: f64,
    /// The Unix time of the listing, if it was too early to be reliable.
    unsettled_at: Option<f64>,
    /// The directory of each port, by its path below that of all devices, and the values that were
    /// read there since the last slow pass.
    dirs: HashMap<String, (Dir, PortState)>,
    /// The directories of counters, with the same keys.
    folders: HashMap<String, Dir>,
    /// Interfaces of the default route.
    routed: Vec<String>,
    /// The values of the last slow pass; they are exported until the next one.
    counted: Counted,
    saturation: Saturation,
    /// The key is [`Device::key`].
    meters: BTreeMap<String, Meters>,
    /// `None` until the first pass.
    memory: Option<Memory>,
    /// Whether there are as many ports as the configuration expects.
    complete: Watch,
    unreadable: Conditions,
    health_at: f64,
    window_at: f64,
}

#[derive(Debug)]
struct Memory {
    known: Known,
    /// The Unix time from which the ports are judged.
    ready_at: f64,
    saved_at: f64,
    failing: bool,
}

#[derive(Debug, Default)]
struct Meters {
    rates: Rates,
    /// The counter that last exceeded its limit the most.
    worst: String,
    traffic: band::Meter,
    /// The Unix time since which it has been slower than expected.
    slow_since: Option<f64>,
    /// How far it is below its band, as text; `None` if it is not.
    short: Option<String>,
}

/// The state of a port.
#[derive(Debug)]
struct Look {
    device: usize,
    port: usize,
    key: String,
    state: PortState,
    role: Role,
}

impl RdmaReader {
    pub fn new(config: &Config) -> Self {
        Self {
            rule: Rule::drop_after(config.drop_after.as_duration().as_secs_f64()),
            limits: counters::limits(&config.thresholds),
            include: Patterns::new(&config.include),
            exclude: Patterns::new(&config.exclude),
            management: Patterns::new(&config.management),
            expected: Patterns::new(&config.expected.devices),
            config: config.clone(),
            quarantine: Quarantine::default(),
            class: None,
            names: Vec::new(),
            devices: Vec::new(),
            inventory_at: f64::NEG_INFINITY,
            unsettled_at: None,
            dirs: HashMap::new(),
            folders: HashMap::new(),
            routed: Vec::new(),
            counted: Counted::default(),
            saturation: Saturation::default(),
            meters: BTreeMap::new(),
            memory: None,
            complete: Watch::default(),
            unreadable: Conditions::default(),
            health_at: f64::NEG_INFINITY,
            window_at: f64::NEG_INFINITY,
        }
    }

    fn wanted(&self, name: &str) -> bool {
        self.include.allow(name) && !self.exclude.matches(name)
    }

    fn names(&mut self, cx: &Context<'_>) -> Result<Vec<String>, CollectError> {
        let class = self.class.get_or_insert_with(|| Dir::new(cx.roots.sys("class/infiniband")));
        let mut names = match class.names() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(CollectError::read(class.path(), e)),
            Ok(names) => names.iter().take(device::MAX_DEVICES).cloned().collect(),
        };
        names.retain(|name| self.wanted(name));
        Ok(names)
    }

    /// One pass at Unix time `now`.
    fn pass(&mut self, now: f64, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let names = self.names(cx)?;
        let mut memory = self.memory.take().unwrap_or_else(|| Memory {
            known: persisted_state::load(cx.roots.state.as_deref(), STATE_NAME),
            ready_at: now + self.config.grace.as_duration().as_secs_f64(),
            saved_at: now,
            failing: false,
        });
        let due = self.config.counters_interval.as_duration().as_secs_f64();
        let renamed = names != self.names;
        let slow = renamed || !self.counted.at.is_some_and(|at| (0.0..due).contains(&(now - at)));
        let unsettled = self.unsettled_at.is_some_and(|at| !(0.0..SETTLE_SECONDS).contains(&(now - at)));
        let old = slow && !(0.0..INVENTORY_SECONDS).contains(&(now - self.inventory_at));
        if renamed || unsettled || old {
            self.devices = device::inventory(cx.roots, &names);
            self.inventory_at = now;
            let settled = !renamed && self.devices.iter().all(Device::is_complete);
            self.unsettled_at = (!settled).then_some(now);
            self.dirs.clear();
            self.folders.clear();
            self.quarantine.retain(|device| names.iter().any(|n| n == device));
            memory.known.settle(now, &self.devices);
            self.names = names;
        }
        if slow || unsettled {
            self.dirs.values_mut().for_each(|(_, before)| *before = PortState::default());
            self.routed = device::management_interfaces(cx.roots);
        }
        let mut looks = self.look(now, cx);
        let news = self.assign_roles(now, &mut memory.known, &mut looks);
        if slow {
            self.count(now, cx, &looks);
        }
        let published = self.judge(Pass::new(now, slow, &memory), cx, &mut memory, &looks);
        self.write(&memory.known, &looks, out);
        memory.save(now, cx, news || published);
        self.memory = Some(memory);
        Ok(())
    }

    fn look(&mut self, now: f64, cx: &Context<'_>) -> Vec<Look> {
        let root = cx.roots.sys("class/infiniband");
        let mut looks = Vec::new();
        for (d, device) in self.devices.iter().enumerate() {
            for (p, port) in device.ports.iter().enumerate() {
                let section = format!("{}/ports/{}", device.name, port.number);
                let new = || (Dir::new(root.join(&section)), PortState::default());
                let (dir, before) = self.dirs.entry(section.clone()).or_insert_with(new);
                let state = sysfs::port_state(dir, before, &section, now, &mut self.quarantine);
                before.clone_from(&state);
                if state.state.is_none() {
                    self.inventory_at = f64::NEG_INFINITY;
                }
                looks.push(Look {
                    device: d,
                    port: p,
                    key: device.key(port),
                    state,
                    role: Role::Unprovisioned,
                });
            }
        }
        looks
    }

    /// The role of each device by name; it is the fabric if any port is. This is one reading
    /// without saved state, for callers that do not judge the ports.
    pub(super) fn roles(&mut self, cx: &Context<'_>) -> Result<BTreeMap<String, Role>, CollectError> {
        let now = unix_now();
        // Directories of removed devices must not be kept open.
        self.dirs.clear();
        self.devices = device::inventory(cx.roots, &self.names(cx)?);
        self.routed = device::management_interfaces(cx.roots);
        let mut known: Known = persisted_state::load(cx.roots.state.as_deref(), STATE_NAME);
        known.settle(now, &self.devices);
        let mut looks = self.look(now, cx);
        self.assign_roles(now, &mut known, &mut looks);
        let role = |d: usize| {
            let mut roles = [Role::Fabric, Role::Unprovisioned, Role::Management].into_iter();
            let has = |role: &Role| looks.iter().any(|look| look.device == d && look.role == *role);
            roles.find(has).unwrap_or(Role::Auxiliary)
        };
        let devices = self.devices.iter().enumerate();
        Ok(devices.map(|(d, device)| (device.name.clone(), role(d))).collect())
    }

    /// Sets the roles. Returns whether a port was seen up for the first time.
    fn assign_roles(&self, now: f64, known: &mut Known, looks: &mut [Look]) -> bool {
        let before = known.0.len();
        let apart = |look: &Look| {
            let (device, port) = self.at(look);
            if device.pci.is_empty() || device.virtual_function {
                Some(Role::Auxiliary)
            } else {
                self.management.matches(&device.name).then_some(Role::Management).or_else(|| {
                    let routed = port.link_layer == "Ethernet" && self.routed.contains(&port.netdev);
                    routed.then_some(Role::Management)
                })
            }
        };
        let kinds: Vec<Option<Role>> = looks.iter().map(apart).collect();
        // If the only ports are those of the default route, the fabric runs over them.
        let others = kinds.iter().any(Option::is_none);
        for (look, apart) in looks.iter_mut().zip(kinds) {
            let (device, port) = self.at(look);
            let named = self.management.matches(&device.name);
            let apart = apart.filter(|role| *role == Role::Auxiliary || others || named);
            if apart.is_none() && look.state.up() == Some(true) {
                known.was_up(now, device, port);
            }
            look.role = apart.unwrap_or(if known.0.contains_key(&look.key) {
                Role::Fabric
            } else {
                Role::Unprovisioned
            });
        }
        known.0.len() != before
    }

    fn at(&self, look: &Look) -> (&Device, &Port) {
        let device = &self.devices[look.device];
        (device, &device.ports[look.port])
    }
}

impl Memory {
    /// Saves the state that must survive a restart: at once after a change, otherwise now and then.
    fn save(&mut self, now: f64, cx: &Context<'_>, news: bool) {
        if !news && (0.0..SAVE_SECONDS).contains(&(now - self.saved_at)) {
            return;
        }
        self.saved_at = now;
        let saved = persisted_state::save(cx.roots.state.as_deref(), STATE_NAME, &self.known);
        if let Err(error) = &saved
            && !self.failing
        {
            tracing::warn!(%error, "cannot save which RDMA ports this node has; a restart will not know");
        }
        self.failing = saved.is_err();
    }
}

/// Parses a file of a device or a routing table, for the fuzzer.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn fuzz(text: &str) {
    let rate = sysfs::parse_rate(text);
    assert!(rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()), "{rate:?}");
    let _ = (sysfs::parse_state(text), sysfs::parse_counter(text));
    let _ = (device::default_route(text), device::default_route_v6(text));
}

impl Collector for RdmaReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let names = self.names(cx)?;
        if !names.is_empty() {
            return Ok(Support::Supported(names.join(" ")));
        }
        if self.config.expected.ports.is_some_and(|n| n > 0) {
            return Ok(Support::Supported("no RDMA device, though ports are expected".into()));
        }
        let known: Known = persisted_state::load(cx.roots.state.as_deref(), STATE_NAME);
        if !known.is_empty() {
            return Ok(Support::Supported("no RDMA device, though there were some before".into()));
        }
        Ok(Support::Unsupported("no RDMA device".into()))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        self.pass(unix_now(), cx, out)
    }
}
