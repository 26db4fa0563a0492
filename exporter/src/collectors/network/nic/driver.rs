//! Reads the counters of an interface's driver, which exceed the kernel's own statistics: pauses,
//! and errors of the wire.
//!
//! A driver has hundreds of counters, most of them of queues: only those on an allow-list are kept.
//! The driver is queried by the interface's name, which may mean another interface in the network
//! namespace of this process. So it is queried only if the kernel's index of the name is the one in
//! `/sys`. A container without its host's network then gets nothing, which is better than the
//! counters of another interface.

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
)
.unless_zero();
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

/// The counters that are kept by default: pauses, pause storms, errors of the wire, exhausted
/// buffers, and packets that a cloud's network refused. Every driver has its own names for them.
pub(super) static ALLOWED: &[&str] = &[
    // mlx5.
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
    // bnxt_en.
    "[rt]x_pause_frames",
    "[rt]x_pfc_ena_frames_pri*",
    "pfc_pri*_[rt]x_duration_us",
    "continuous_pause_events",
    "continuous_roce_pause_events",
    "[rt]x_fcs_err_frames",
    "rx_pcs_symbol_err",
    "rx_corrected_bits",
    "rx_fec_uncorrectable_blocks",
    "rx_stat_discard",
    "rx_buffer_passed_threshold",
    "link_down_events",
    // ice.
    "link_xoff_[rt]x.nic",
    "[rt]x_priority_*_xoff.nic",
    "rx_crc_errors.nic",
    "illegal_bytes.nic",
    "mac_*_faults.nic",
    "rx_dropped.nic",
    "tx_timeout.nic",
    // ena.
    "*_allowance_exceeded",
    "tx_timeout",
    "wd_expired",
];

/// The most counters kept of one interface.
const MAX_STATS: usize = 128;

/// The source of the counters, which tests replace.
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

/// The driver's answer for one interface.
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
    /// The indices of interfaces whose driver has no counters.
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

    /// Queries the drivers of these interfaces, each with its index from `/sys`.
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
    /// Microseconds for which the far end paused this interface (`r`), or this interface the far
    /// end (`t`), over all priorities.
    pub(super) fn paused(&self, direction: char) -> Option<u64> {
        let mlx5 = |name: &str| name.starts_with(direction) && name.ends_with("_pause_duration");
        let bnxt = |name: &str| {
            let rest = name.strip_prefix("pfc_pri").and_then(|rest| rest.strip_suffix("x_duration_us"));
            rest.is_some_and(|rest| rest.ends_with(direction))
        };
        self.sum(|name| mlx5(name) || bnxt(name))
    }

    /// The number of pause frames received or sent, if the driver does not report their duration.
    pub(super) fn pauses(&self, direction: char) -> Option<u64> {
        let ice = |name: &str| {
            let name = name.strip_suffix(".nic").unwrap_or_default();
            let whole = name.strip_prefix("link_xoff_").is_some_and(|rest| rest.starts_with(direction));
            whole || (name.starts_with(direction) && name.contains("_priority_") && name.ends_with("_xoff"))
        };
        self.sum(ice)
    }

    fn sum(&self, of: impl Fn(&str) -> bool) -> Option<u64> {
        let all = self.stats.iter().filter(|(name, _)| of(name)).map(|(_, value)| *value);
        all.reduce(u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(stats: &[(&str, u64)]) -> Answer {
        let allowed: Vec<String> = ALLOWED.iter().map(|p| (*p).to_owned()).collect();
        let stats = stats.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Drivers::new(&allowed, None).keep(Driver::default(), stats)
    }

    fn kept(names: &[&str]) -> Vec<String> {
        let stats: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
        answer(&stats).stats.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn what_is_kept_of_bnxt_ice_and_ena() {
        let of_worth = [
            "rx_pause_frames",
            "tx_pfc_ena_frames_pri3",
            "pfc_pri3_rx_duration_us",
            "pfc_pri7_tx_duration_us",
            "continuous_roce_pause_events",
            "rx_fcs_err_frames",
            "rx_pcs_symbol_err",
            "rx_fec_uncorrectable_blocks",
            "rx_stat_discard",
            "link_down_events",
            "link_xoff_rx.nic",
            "tx_priority_3_xoff.nic",
            "rx_crc_errors.nic",
            "illegal_bytes.nic",
            "mac_local_faults.nic",
            "rx_dropped.nic",
            "bw_in_allowance_exceeded",
            "wd_expired",
        ];
        assert_eq!(kept(&of_worth), of_worth);
        let of_none = [
            "[3]: rx_discards",
            "rx_ucast_frames",
            "rx_bytes_pri3",
            "pfc_pri3_rx_transitions",
            "resume_roce_pause_events",
            "rx_bits",
            "tx_queue_3_packets",
            "rx_size_64.nic",
            "rx_priority_3_xon.nic",
            "queue_1_tx_missed_tx",
        ];
        assert_eq!(kept(&of_none), Vec::<String>::new());
    }

    #[test]
    fn pauses_of_each_driver_by_direction() {
        let mlx5 =
            answer(&[("rx_prio3_pause_duration", 1), ("tx_prio3_pause_duration", 2), ("rx_prio3_pause", 9)]);
        let bnxt = answer(&[
            ("pfc_pri0_rx_duration_us", 10),
            ("pfc_pri3_rx_duration_us", 20),
            ("pfc_pri3_tx_duration_us", 40),
            ("rx_pfc_ena_frames_pri3", 9),
        ]);
        let ice = answer(&[
            ("link_xoff_rx.nic", 100),
            ("rx_priority_3_xoff.nic", 200),
            ("tx_priority_3_xoff.nic", 400),
            ("rx_crc_errors.nic", 9),
        ]);
        let said = |a: &Answer| (a.paused('r'), a.paused('t'), a.pauses('r'), a.pauses('t'));
        assert_eq!(said(&mlx5), (Some(1), Some(2), None, None));
        assert_eq!(said(&bnxt), (Some(30), Some(40), None, None));
        assert_eq!(said(&ice), (None, None, Some(300), Some(400)));
    }

    proptest! {
        /// No name from a driver causes a panic, and no counter belongs to both directions.
        #[test]
        fn a_counter_is_of_one_direction(name in "(rx|tx|pfc_pri3|link_xoff)?[a-z0-9_.é]{0,12}(_duration_us|_pause_duration|_xoff.nic|.nic)?") {
            let answer = Answer { stats: vec![(name, 1)], ..Answer::default() };
            prop_assert!(answer.paused('r').is_none() || answer.paused('t').is_none());
            prop_assert!(answer.pauses('r').is_none() || answer.pauses('t').is_none());
        }
    }
}
