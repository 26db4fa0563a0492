//! Detects InfiniBand counters that have reached their highest value.
//!
//! Most of them are 4 to 32 bits wide, and none wraps: one that is all ones stays so until it is
//! cleared, whatever happens on the link. The kernel prints it like any other number, and its rate
//! is zero on the worst cable of the fleet. So it is no longer published as a number.
//!
//! The width in the table is that of the attribute by which the kernel queries. Drivers and later
//! kernels may have wider counters under the same name: a counter that ever exceeded its width
//! never counts as saturated.

use std::collections::{BTreeMap, BTreeSet};

use super::counters::Values;

/// The width in bits of the counters in `counters`.
static WIDTHS: &[(&str, u32)] = &[
    ("symbol_error", 16),
    ("link_error_recovery", 8),
    ("link_downed", 8),
    ("port_rcv_errors", 16),
    ("port_rcv_remote_physical_errors", 16),
    ("port_rcv_switch_relay_errors", 16),
    ("port_xmit_discards", 16),
    ("port_xmit_constraint_errors", 8),
    ("port_rcv_constraint_errors", 8),
    ("local_link_integrity_errors", 4),
    ("excessive_buffer_overrun_errors", 4),
    ("VL15_dropped", 16),
    ("port_xmit_data", 32),
    ("port_rcv_data", 32),
    ("port_xmit_packets", 32),
    ("port_rcv_packets", 32),
    ("port_xmit_wait", 32),
];

/// Ports with wide or saturated counters, by device and port.
#[derive(Debug, Default)]
pub(super) struct Saturation(BTreeMap<(String, String), Port>);

#[derive(Debug, Default)]
struct Port {
    /// Counters that have exceeded their assumed width.
    wide: BTreeSet<&'static str>,
    /// Counters whose saturation was logged.
    logged: BTreeSet<&'static str>,
}

impl Saturation {
    /// Removes the saturated counters of a port from `values` and returns them.
    pub(super) fn split(&mut self, device: &str, port: &str, values: &mut Values) -> Values {
        let (mut saturated, mut news) = (Values::new(), Vec::new());
        let key = (device.to_owned(), port.to_owned());
        for (name, bits) in WIDTHS {
            let Some(value) = values.get(*name).copied() else { continue };
            let most = (1u64 << bits) - 1;
            if value < most {
                if let Some(known) = self.0.get_mut(&key) {
                    known.logged.remove(name);
                }
                continue;
            }
            let known = self.0.entry(key.clone()).or_default();
            if value > most {
                known.wide.insert(name);
            }
            if known.wide.contains(name) {
                known.logged.remove(name);
                continue;
            }
            values.remove(*name);
            saturated.insert((*name).to_owned(), value);
            if known.logged.insert(name) {
                news.push(*name);
            }
        }
        if !news.is_empty() {
            warn(device, port, &news);
        }
        saturated
    }

    /// Forgets the devices that are gone.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|(device, _), _| keep(device));
    }
}

fn warn(device: &str, port: &str, counters: &[&str]) {
    let blind = if counters.contains(&"link_downed") {
        "what they count is not seen any more, nor that the link was down for less than `collectors.rdma.interval`"
    } else {
        "what they count is not seen any more"
    };
    tracing::warn!(
        device,
        port,
        counters = counters.join(" "),
        "counters of an RDMA port stand at the highest value that they can hold: {blind}; clear them, on InfiniBand with `perfquery -R -C {device} -P {port}`"
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(pairs: &[(&str, u64)]) -> Values {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    /// Splits the counters, and returns the remaining and the saturated ones.
    fn split(saturation: &mut Saturation, pairs: &[(&str, u64)]) -> (Values, Values) {
        let mut values = values(pairs);
        let saturated = saturation.split("mlx5_0", "1", &mut values);
        (values, saturated)
    }

    #[test]
    fn all_ones_of_the_width_of_the_counter_is_no_number() {
        let full = [
            ("symbol_error", 65_535),
            ("link_downed", 255),
            ("local_link_integrity_errors", 15),
            ("port_xmit_wait", 4_294_967_295),
        ];
        let others = [("link_error_recovery", 15), ("port_rcv_errors", 255), ("unicast_rcv_packets", 65_535)];
        let (left, saturated) = split(&mut Saturation::default(), &[&full[..], &others[..]].concat());
        assert_eq!((left, saturated), (values(&others), values(&full)));
    }

    #[test]
    fn a_counter_that_was_seen_beyond_its_width_is_wide() {
        let mut saturation = Saturation::default();
        for (value, stands) in
            [(255, true), (255, true), (256, false), (255, false), (3, false), (255, false)]
        {
            let (_, saturated) = split(&mut saturation, &[("link_downed", value)]);
            assert_eq!(!saturated.is_empty(), stands, "{value}");
        }
        saturation.retain(|device| device != "mlx5_0");
        assert_eq!(split(&mut saturation, &[("link_downed", 255)]).0, Values::new());
    }

    #[test]
    fn logged_once_and_again_after_it_was_cleared() {
        let mut saturation = Saturation::default();
        let logged = |saturation: &Saturation| saturation.0.values().map(|p| p.logged.len()).sum::<usize>();
        for (value, n) in
            [(Some(14), 0), (Some(15), 1), (Some(15), 1), (None, 1), (Some(0), 0), (Some(15), 1)]
        {
            let read: Vec<_> = value.map(|v| ("local_link_integrity_errors", v)).into_iter().collect();
            split(&mut saturation, &read);
            assert_eq!(logged(&saturation), n, "{value:?}");
        }
    }

    proptest! {
        /// Nothing is lost or invented, and no remaining counter is all ones unless it is known to
        /// be wide.
        #[test]
        fn every_counter_is_on_one_side(
            passes in prop::collection::vec(prop::collection::btree_map(0..WIDTHS.len(), prop_oneof![0u64..300, Just(u64::from(u16::MAX)), any::<u64>()], 0..6), 0..6)
        ) {
            let mut saturation = Saturation::default();
            for pass in passes {
                let read: Vec<(&str, u64)> = pass.iter().map(|(i, v)| (WIDTHS[*i].0, *v)).collect();
                let (left, saturated) = split(&mut saturation, &read);
                prop_assert_eq!(left.len() + saturated.len(), read.len());
                for (name, value) in read {
                    let bits = WIDTHS.iter().find(|(n, _)| *n == name).unwrap().1;
                    prop_assert_eq!(left.get(name).or(saturated.get(name)), Some(&value));
                    prop_assert!(!saturated.contains_key(name) || value == (1 << bits) - 1);
                    prop_assert!(value != (1 << bits) - 1 || saturated.contains_key(name) || saturation.0.values().any(|p| p.wide.contains(name)));
                }
            }
        }
    }
}
