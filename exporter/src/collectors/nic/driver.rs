//! What the driver of an interface counts, which is more than the kernel's own statistics: pauses, and errors of the wire.
//!
//! A driver has hundreds of counters, most of them of queues: only those on an allow-list are kept. The driver is asked by name, and a name
//! may be another interface's in the network that this process sees; so it is asked only where the kernel's number of the name is the one that
//! `/sys` tells. In a container without its host's network there is then nothing, which is better than somebody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use stepwatch_sys::ethtool::{Driver, Ethtool};

use crate::family::Family;
use crate::samples::Samples;

pub static STATS: Family = Family::counter(
    "nic_ethtool_total",
    "",
    &["device", "stat"],
    "Counters of the driver, as `ethtool -S` shows them, that are on the allow-list",
);
pub static DRIVER: Family = Family::gauge(
    "nic_driver_info",
    "",
    &["device", "driver", "version", "firmware"],
    "Driver and firmware of the interface, as `ethtool -i` shows them; always 1",
);
pub static LEFT_OUT: Family = Family::gauge(
    "nic_ethtool_left_out",
    "",
    &["device"],
    "Counters on the allow-list that there was no room for",
);

/// What is kept unless the configuration says otherwise: pauses, storms of them, errors of the wire, room that ran out, and what a
/// cloud's network refused.
pub(super) static ALLOWED: &[&str] = &[
    "[rt]x_prio*_pause",
    "[rt]x_prio*_pause_duration",
    "[rt]x_global_pause",
    "[rt]x_global_pause_duration",
    "[rt]x_pause_storm_*_events",
    "[rt]x_pause_ctrl_phy",
    "[rt]x_discards_phy",
    "[rt]x_errors_phy",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "rx_corrected_bits_phy",
    "rx_crc_errors_phy",
    "rx_out_of_buffer",
    "link_down_events_phy",
    "*_allowance_exceeded",
];

/// Counters kept of one interface.
const MAX_STATS: usize = 128;

/// Who is asked; tests answer themselves.
pub(super) trait Ask: Send + std::fmt::Debug {
    fn index(&self, device: &str) -> io::Result<u32>;
    fn driver(&self, device: &str) -> io::Result<Driver>;
    fn stats(&self, device: &str) -> io::Result<Vec<(String, u64)>>;
}

impl Ask for Ethtool {
    fn index(&self, device: &str) -> io::Result<u32> {
        self.index(device)
    }

    fn driver(&self, device: &str) -> io::Result<Driver> {
        self.driver(device)
    }

    fn stats(&self, device: &str) -> io::Result<Vec<(String, u64)>> {
        self.stats(device)
    }
}

/// What a driver said of one interface.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    driver: Driver,
    pub(super) stats: Vec<(String, u64)>,
    left_out: usize,
}

#[derive(Debug)]
pub(super) struct Drivers {
    allowed: Vec<glob::Pattern>,
    ask: Option<Box<dyn Ask>>,
    /// Numbers of interfaces whose driver counts nothing.
    silent: BTreeSet<u32>,
    answers: BTreeMap<String, Answer>,
}

impl Drivers {
    pub(super) fn new(allowed: &[String], ask: Option<Box<dyn Ask>>) -> Self {
        let allowed = allowed.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self { allowed, ask, silent: BTreeSet::new(), answers: BTreeMap::new() }
    }

    pub(super) fn of_this_machine(allowed: &[String]) -> Self {
        let open = || Ethtool::open().ok().map(|e| Box::new(e) as Box<dyn Ask>);
        Self::new(allowed, if allowed.is_empty() { None } else { open() })
    }

    /// Asks about these interfaces, each with its number as `/sys` has it.
    pub(super) fn ask(&mut self, devices: &[(&str, Option<u32>)]) {
        self.answers.clear();
        let Some(ask) = &self.ask else { return };
        for (device, index) in devices {
            let Some(index) = index.filter(|i| !self.silent.contains(i)) else { continue };
            if ask.index(device).ok() != Some(index) {
                continue;
            }
            let driver = ask.driver(device).unwrap_or_default();
            let stats = match ask.stats(device) {
                Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                    self.silent.insert(index);
                    Vec::new()
                }
                stats => stats.unwrap_or_default(),
            };
            self.answers.insert((*device).to_owned(), self.keep(driver, stats));
        }
    }

    fn keep(&self, driver: Driver, mut stats: Vec<(String, u64)>) -> Answer {
        stats.retain(|(name, _)| self.allowed.iter().any(|p| p.matches(name)));
        let left_out = stats.len().saturating_sub(MAX_STATS);
        stats.truncate(MAX_STATS);
        Answer { driver, stats, left_out }
    }

    pub(super) fn answer(&self, device: &str) -> Option<&Answer> {
        self.answers.get(device)
    }

    pub(super) fn write(&self, device: &str, out: &mut Samples) {
        let Some(Answer { driver, stats, left_out }) = self.answers.get(device) else { return };
        if !driver.name.is_empty() {
            out.set(&DRIVER, &[device, &driver.name, &driver.version, &driver.firmware], 1u64);
        }
        for (stat, value) in stats {
            out.set(&STATS, &[device, stat], *value);
        }
        if !stats.is_empty() {
            out.set(&LEFT_OUT, &[device], *left_out);
        }
    }
}

impl Answer {
    /// Microseconds for which the far end paused this interface (`r`), or this interface the far end (`t`), over all priorities.
    pub(super) fn paused(&self, direction: char) -> Option<u64> {
        let duration = |name: &str| name.starts_with(direction) && name.ends_with("_pause_duration");
        let all: Vec<u64> = self.stats.iter().filter(|(name, _)| duration(name)).map(|(_, v)| *v).collect();
        (!all.is_empty()).then(|| all.iter().fold(0u64, |sum, n| sum.saturating_add(*n)))
    }
}
