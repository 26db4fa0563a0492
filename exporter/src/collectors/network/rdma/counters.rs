//! Maps the counters of ports to families, and limits the rates of errors.

use std::collections::BTreeMap;

use crate::family::Family;
use crate::link::Level::{self, Error, Warn};
use crate::link::rates::{self, Limit, Threshold};
use crate::samples::Samples;

const PORT: &[&str] = &["device", "port"];

macro_rules! counters {
    ($($id:ident $name:literal $unit:literal $help:literal: $($file:literal x $scale:literal),*;)*) => {
        $(pub static $id: Family = Family::counter($name, $unit, PORT, $help);)*
        /// Counters with a family of their own, by file, of InfiniBand and EFA.
        static FILES: &[(&str, &Family, f64)] = &[$($(($file, &$id, $scale),)*)*];
    };
}

// InfiniBand counts data in words of four bytes.
counters! {
    RECEIVE_BYTES "rdma_port_receive_bytes_total" "bytes" "Bytes received":
        "port_rcv_data" x 4.0, "rx_bytes" x 1.0;
    TRANSMIT_BYTES "rdma_port_transmit_bytes_total" "bytes" "Bytes sent":
        "port_xmit_data" x 4.0, "tx_bytes" x 1.0;
    RECEIVE_PACKETS "rdma_port_receive_packets_total" "" "Packets received":
        "port_rcv_packets" x 1.0, "rx_pkts" x 1.0;
    TRANSMIT_PACKETS "rdma_port_transmit_packets_total" "" "Packets sent":
        "port_xmit_packets" x 1.0, "tx_pkts" x 1.0;
    RECEIVE_UNICAST "rdma_port_receive_unicast_packets_total" "" "Packets received that were sent to one port":
        "unicast_rcv_packets" x 1.0;
    TRANSMIT_UNICAST "rdma_port_transmit_unicast_packets_total" "" "Packets sent to one port":
        "unicast_xmit_packets" x 1.0;
    RECEIVE_MULTICAST "rdma_port_receive_multicast_packets_total" "" "Packets received that were sent to several ports":
        "multicast_rcv_packets" x 1.0;
    TRANSMIT_MULTICAST "rdma_port_transmit_multicast_packets_total" "" "Packets sent to several ports":
        "multicast_xmit_packets" x 1.0;
    LINK_DOWNED "rdma_port_link_downed_total" "" "How often the link failed and went down":
        "link_downed" x 1.0;
    TRANSMIT_WAIT "rdma_port_transmit_wait_ticks_total" "" "Ticks of the port's own clock during which it had data to send and no credit to send it: congestion ahead":
        "port_xmit_wait" x 1.0;
}

pub static ERRORS: Family = Family::counter(
    "rdma_port_errors_total",
    "",
    &["device", "port", "kind"],
    "Errors by kind, named as the kernel names the counter",
);
pub static HARDWARE: Family = Family::counter(
    "rdma_hw_counter_total",
    "",
    &["device", "port", "counter"],
    "Counters of the driver by name, whichever it has; without a port they are of the device as a whole",
)
.unless_zero();

pub(super) static RESOURCES: Family = Family::gauge(
    "rdma_hw_resources",
    "",
    &["device", "port", "resource"],
    "Objects that the adapter holds now (`active_qps`, `active_mrs`, ...) or held at most (`watermark_qps`, ...), where its driver says so among its counters",
);

/// Written only while a counter is saturated: a 0 for each would add more series than there are
/// counters.
pub static SATURATED: Family = Family::gauge(
    "rdma_port_counter_saturated",
    "",
    &["device", "port", "counter"],
    "Counter that stands still at the highest value it can hold, so that it is not exported until it is cleared (on InfiniBand `perfquery -R`); 1 while it does, absent otherwise",
);

static KINDS: &[&str] = &[
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "rx_drops",
];
/// A file among the counters that is a setting: how long the driver caches their values.
const NO_COUNTER: &str = "lifespan";

/// Prefixes of files among the counters that may fall: the number of present objects, and its
/// maximum (`bnxt_re_stat_descs` of torvalds/linux, drivers/infiniband/hw/bnxt_re/hw_counters.c).
const GAUGES: [&str; 2] = ["active_", "watermark_"];

/// The counters of one port by file name.
pub(super) type Values = BTreeMap<String, u64>;

/// Adds the 64-bit counters that older kernels keep in a separate directory: those of the same name
/// in `standard` stop at 32 bits.
pub(super) fn widen(standard: &mut Values, wide: Values) {
    for (name, value) in wide {
        standard.insert(name.strip_suffix("_64").unwrap_or(&name).to_owned(), value);
    }
}

/// Writes the counters of a port, or of a device if `port` is empty.
pub(super) fn write(device: &str, port: &str, standard: &Values, hardware: &Values, out: &mut Samples) {
    let labels: &[&str] = &[device, port];
    let family = |name: &str| FILES.iter().find(|(file, ..)| *file == name);
    for (name, value) in standard {
        if let Some((_, family, scale)) = family(name) {
            out.set(family, labels, *value as f64 * scale);
        } else if KINDS.contains(&name.as_str()) {
            out.set(&ERRORS, &[device, port, name], *value);
        } else {
            out.set(&HARDWARE, &[device, port, name], *value);
        }
    }
    for (name, value) in hardware.iter().filter(|(name, _)| *name != NO_COUNTER) {
        if GAUGES.iter().any(|gauge| name.starts_with(gauge)) {
            out.set(&RESOURCES, &[device, port, name], *value);
            continue;
        }
        out.set(&HARDWARE, &[device, port, name], *value);
        // These are counters of EFA without another family.
        match family(name) {
            Some((_, family, scale)) if !port.is_empty() && out.get(family, labels).is_none() => {
                out.set(family, labels, *value as f64 * scale);
            }
            None if !port.is_empty() && KINDS.contains(&name.as_str()) => {
                out.set(&ERRORS, &[device, port, name], *value);
            }
            _ => {}
        }
    }
}

/// Writes the saturated counters of a port.
pub(super) fn write_saturated(device: &str, port: &str, saturated: &Values, out: &mut Samples) {
    for counter in saturated.keys() {
        out.set(&SATURATED, &[device, port, counter], 1u64);
    }
}

/// The sum of the errors among the counters of a port.
pub(super) fn errors<'a>(counters: impl IntoIterator<Item = (&'a str, u64)>) -> u64 {
    let errors = counters.into_iter().filter(|(name, _)| KINDS.contains(name));
    errors.fold(0, |sum, (_, n)| sum.saturating_add(n))
}

/// The bytes of a family, from its first file that exists.
pub(super) fn bytes(values: &Values, family: &Family) -> Option<f64> {
    let mut files = FILES.iter().filter(|(_, f, _)| f.name == family.name);
    files.find_map(|(file, _, scale)| Some(*values.get(*file)? as f64 * scale))
}

/// The limits, which good links do not reach, unless the configuration sets others.
///
/// One symbol error in thirty seconds is the bit error rate that InfiniBand allows; ten a second
/// mean a link that mostly repeats itself. Overruns, integrity errors and exhausted retries do not
/// happen on a healthy link: a single one is reported. A receiver that is not ready is flow
/// control: the sender waits for two thirds of a millisecond, as collectives set it, and tries
/// again. At a hundred a second that is up to four seconds of a minute.
pub(super) fn limits(own: &BTreeMap<String, Threshold>) -> Vec<Limit> {
    const CABLE: &str = "clean or replace cable and transceiver";
    const AHEAD: &str = "look for congestion or a fault on the way";
    const LOST: &str = "a connection was given up; the job that had it is failing";
    const SLOW: &str = "the other end was not ready to receive, and this port had to wait and send again; look for a slow or busy process there";
    const HOUR: f64 = 3600.0;
    const TEN_MINUTES: f64 = 600.0;
    const MINUTE: f64 = 60.0;
    let defaults: &[(&str, f64, u64, Level, &'static str)] = &[
        ("symbol_error", HOUR, 120, Warn, CABLE),
        ("symbol_error", MINUTE, 600, Error, CABLE),
        ("link_error_recovery", MINUTE, 5, Error, CABLE),
        ("local_link_integrity_errors", TEN_MINUTES, 0, Error, CABLE),
        ("excessive_buffer_overrun_errors", TEN_MINUTES, 0, Error, "flow control with the switch is broken"),
        ("port_rcv_errors", MINUTE, 600, Warn, CABLE),
        ("port_xmit_discards", MINUTE, 6000, Warn, AHEAD),
        ("local_ack_timeout_err", MINUTE, 60, Warn, AHEAD),
        ("roce_slow_restart", MINUTE, 600, Warn, AHEAD),
        ("rnr_nak_retry_err", MINUTE, 6000, Warn, SLOW),
        ("req_rnr_retries_exceeded", TEN_MINUTES, 0, Error, LOST),
        ("req_transport_retries_exceeded", TEN_MINUTES, 0, Error, LOST),
        // These are counters of EFA.
        ("unresponsive_remote_events", MINUTE, 6000, Warn, AHEAD),
        ("impaired_remote_conn_events", MINUTE, 6000, Warn, AHEAD),
        ("retrans_pkts", MINUTE, 60_000, Warn, AHEAD),
        ("retrans_bytes", MINUTE, 60_000_000, Warn, AHEAD),
    ];
    let default = |(counter, window, most, level, meaning): &(&str, f64, u64, Level, &'static str)| {
        Limit::new(counter, *window, *most, *level, meaning)
    };
    rates::limits(defaults.iter().map(default), own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, u64)]) -> Values {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn words_are_bytes_and_unknown_counters_are_kept() {
        let mut out = Samples::default();
        let standard =
            values(&[("port_rcv_data", 10), ("symbol_error", 2), ("link_downed", 1), ("brand_new", 5)]);
        write("mlx5_0", "1", &standard, &values(&[("out_of_sequence", 3), ("lifespan", 10)]), &mut out);
        let port = ["mlx5_0", "1"];
        assert_eq!((out.get(&RECEIVE_BYTES, &port), out.get(&LINK_DOWNED, &port)), (Some(40.0), Some(1.0)));
        assert_eq!(out.get(&ERRORS, &["mlx5_0", "1", "symbol_error"]), Some(2.0));
        assert_eq!(out.get(&HARDWARE, &["mlx5_0", "1", "brand_new"]), Some(5.0));
        assert_eq!(out.get(&HARDWARE, &["mlx5_0", "1", "out_of_sequence"]), Some(3.0));
        assert_eq!(out.iter().count(), 5, "lifespan is a setting");
        assert_eq!(bytes(&standard, &RECEIVE_BYTES), Some(40.0));
    }

    #[test]
    fn a_wide_counter_stands_for_the_one_that_stops() {
        let mut standard = values(&[("port_rcv_data", u64::from(u32::MAX)), ("symbol_error", 2)]);
        widen(&mut standard, values(&[("port_rcv_data_64", 1 << 40), ("port_multicast_rcv_packets", 3)]));
        assert_eq!(
            standard,
            values(&[("port_rcv_data", 1 << 40), ("symbol_error", 2), ("port_multicast_rcv_packets", 3)])
        );
    }

    /// The names are those of `bnxt_re_stat_descs` (torvalds/linux,
    /// drivers/infiniband/hw/bnxt_re/hw_counters.c).
    #[test]
    fn what_a_driver_holds_now_is_no_counter() {
        let mut out = Samples::default();
        let hardware = values(&[("active_qps", 12), ("watermark_qps", 40), ("resize_cq_cnt", 3)]);
        write("bnxt_re0", "1", &Values::new(), &hardware, &mut out);
        assert_eq!(out.get(&RESOURCES, &["bnxt_re0", "1", "active_qps"]), Some(12.0));
        assert_eq!(out.get(&RESOURCES, &["bnxt_re0", "1", "watermark_qps"]), Some(40.0));
        assert_eq!(out.get(&HARDWARE, &["bnxt_re0", "1", "active_qps"]), None);
        assert_eq!(out.get(&HARDWARE, &["bnxt_re0", "1", "resize_cq_cnt"]), Some(3.0));
    }

    #[test]
    fn efa_has_the_same_names() {
        let mut out = Samples::default();
        let hardware = values(&[("tx_bytes", 7), ("rx_drops", 1), ("rdma_read_bytes", 9)]);
        write("rdmap0s6", "1", &Values::new(), &hardware, &mut out);
        assert_eq!(out.get(&TRANSMIT_BYTES, &["rdmap0s6", "1"]), Some(7.0));
        assert_eq!(out.get(&ERRORS, &["rdmap0s6", "1", "rx_drops"]), Some(1.0));
        assert_eq!(out.get(&HARDWARE, &["rdmap0s6", "1", "rdma_read_bytes"]), Some(9.0));
        assert_eq!(bytes(&hardware, &TRANSMIT_BYTES), Some(7.0));
        assert_eq!(errors(hardware.iter().map(|(name, n)| (name.as_str(), *n))), 1);
    }

    #[test]
    fn a_receiver_that_is_not_ready_is_slow_and_one_that_is_given_up_is_lost() {
        let limits = limits(&BTreeMap::new());
        let said = |counter: &str, n: u64| {
            let mut rates = rates::Rates::default();
            rates.take(0.0, &limits, &[(counter, 7)]);
            rates.take(10.0, &limits, &[(counter, 7 + n)]);
            rates.excesses(10.0, &limits).first().map(|e| (e.limit.level, e.text()))
        };
        assert_eq!(said("rnr_nak_retry_err", 6000), None, "flow control");
        let slow = said("rnr_nak_retry_err", 6001).unwrap();
        assert_eq!(slow.0, Warn);
        assert!(
            slow.1.contains("rose by 6001 within 60 s (a good link stays under 6000); the other end"),
            "{}",
            slow.1
        );
        for exhausted in ["req_rnr_retries_exceeded", "req_transport_retries_exceeded"] {
            let lost = said(exhausted, 1).unwrap();
            assert!(lost.0 == Error && lost.1.ends_with("the job that had it is failing"), "{lost:?}");
        }
        for recovered in ["local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "out_of_sequence"]
        {
            assert_eq!(said(recovered, 60), None, "{recovered}");
        }
    }
}
