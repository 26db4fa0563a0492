//! Readings of a node's GPUs and RDMA ports, in the form in which they are compared with those of
//! the other nodes of a run, and how far each is out of line.
//!
//! A clock is compared as a ratio, a temperature as it is, a counter by the logarithm of its rate.
//! GPUs are compared while they are at work, not while they are idle. The comparison is with the
//! peers of the same moment, never with the past, so that no device stands out by what happens to
//! the whole run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stepwatch_wire::Event;

use super::conditions::word;
use super::liveness::Liveness;
use crate::run::{Peers, Usual};
use crate::stats::drift::Drift;
use stepwatch_model::{Observation, ReadingUnit};

use stepwatch_model::time::{Span, Ts};

/// The most devices kept for a node.
const MAX_DEVICES: usize = 64;
/// A reading older than this is not compared.
pub(crate) const FRESH: Span = Span::secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Gpu,
    Port,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    Ratio,
    Plain,
    /// A counter. Its rate matters from this many a second on.
    Rate(f64),
}

/// A reading that all devices of a kind have.
#[derive(Debug, Clone, Copy)]
pub struct PeerMetric {
    pub of: Of,
    /// The name of the metric in the event.
    name: &'static str,
    /// The name for people.
    pub words: &'static str,
    scale: Scale,
    /// Low values are bad, not high ones.
    low: bool,
    /// The smallest standard deviation that is used, in the unit of the comparison.
    floor: f64,
    /// The smallest excess that matters, in the same unit.
    pub gate: f64,
    /// Prior of this metric as the root cause of a fault of a run.
    pub prior: f64,
}

/// ln 5: five times the rate that matters, if the peers have none.
const MANY: f64 = 1.6;

/// For a ratio the low side is bad, for anything else the high one. If the peers agree, the gate
/// decides and not the sigmas: it lies at 6.25, 6 and 8 of the smallest standard deviations.
const fn peer_metric(
    of: Of,
    name: &'static str,
    words: &'static str,
    scale: Scale,
    prior: f64,
) -> PeerMetric {
    let (low, floor, gate) = match scale {
        Scale::Ratio => (true, 0.008, 0.05),
        Scale::Plain => (false, 2.0, 12.0),
        Scale::Rate(_) => (false, 0.2, MANY),
    };
    PeerMetric { of, name, words, scale, low, floor, gate, prior }
}

pub static PEER_METRICS: [PeerMetric; 20] = [
    peer_metric(Of::Gpu, "sm_clock_hertz", "SM clock", Scale::Ratio, 1.5),
    peer_metric(Of::Gpu, "memory_clock_hertz", "memory clock", Scale::Ratio, 1.5),
    peer_metric(Of::Gpu, "power_limit_watts", "power limit", Scale::Ratio, 1.5),
    peer_metric(Of::Gpu, "temperature_celsius", "temperature", Scale::Plain, 1.5),
    peer_metric(Of::Gpu, "memory_temperature_celsius", "memory temperature", Scale::Plain, 1.5),
    peer_metric(Of::Gpu, "ecc_corrected", "corrected memory errors", Scale::Rate(0.02), 2.5),
    peer_metric(Of::Gpu, "ecc_uncorrected", "uncorrected memory errors", Scale::Rate(0.001), 3.0),
    peer_metric(Of::Gpu, "pcie_replays", "PCIe replays", Scale::Rate(1.0), 1.5),
    peer_metric(Of::Gpu, "nvlink_errors", "NVLink errors", Scale::Rate(0.1), 2.0),
    peer_metric(Of::Port, "rate_bytes_per_second", "link speed", Scale::Ratio, 2.0),
    peer_metric(Of::Port, "errors", "errors", Scale::Rate(0.1), 2.0),
    peer_metric(Of::Port, "link_downed", "link downs", Scale::Rate(0.001), 2.0),
    peer_metric(Of::Port, "symbol_errors", "symbol errors", Scale::Rate(0.1), 2.0),
    peer_metric(Of::Port, "link_error_recoveries", "link recoveries", Scale::Rate(0.01), 2.0),
    peer_metric(Of::Port, "transmit_discards", "discarded packets", Scale::Rate(1.0), 2.0),
    peer_metric(Of::Port, "out_of_sequence", "packets out of sequence", Scale::Rate(1.0), 2.0),
    peer_metric(Of::Port, "ack_timeouts", "acknowledgement timeouts", Scale::Rate(0.1), 2.0),
    peer_metric(Of::Port, "retransmitted_packets", "retransmitted packets", Scale::Rate(1.0), 2.0),
    peer_metric(Of::Port, "receive_drops", "dropped packets", Scale::Rate(1.0), 2.0),
    // Evidence about which node waits, not a fault.
    PeerMetric {
        low: true,
        gate: f64::INFINITY,
        ..peer_metric(Of::Port, "transmit_bytes", "traffic", Scale::Rate(1e6), 0.0)
    },
];

/// One GPU or port.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Device {
    pub at: Ts,
    /// By index in [`PEER_METRICS`]; metrics of the other kind of device are absent.
    signs: BTreeMap<u8, Sign>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Sign {
    /// The reading in the unit of the comparison; `None` while it is not comparable.
    x: Option<f64>,
    /// The counter as last read, and when.
    counted: Option<(f64, Ts)>,
    pub drift: Drift,
    /// The last reading that was compared with those of the peers.
    seen: Option<Seen>,
}

/// A reading, and the usual one of its peers then.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Seen {
    x: f64,
    usual: f64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PeerMetrics {
    pub devices: BTreeMap<String, Device>,
    /// The number of readings ever taken; `dropped` counts those of devices beyond the limit.
    pub readings: u64,
    pub dropped: u64,
    /// When any GPU, and any port, was read.
    heard: [Liveness; 2],
}

/// A device that deviates from its peers.
#[derive(Debug, Clone, Copy)]
pub struct Outlier<'a> {
    pub device: &'a str,
    /// When the device was last read.
    at: Ts,
    pub peer_metric: &'static PeerMetric,
    pub sign: &'a Sign,
}

/// The usual readings of a run's devices, from the values of every `peer_metric` over all of them.
pub(crate) fn peers(now: Ts, mut values: Vec<Vec<f64>>) -> Peers {
    let usual = values
        .iter_mut()
        .zip(&PEER_METRICS)
        .map(|(values, peer_metric)| Usual::from_values(values, peer_metric.floor));
    Peers::new(now, usual.collect())
}

impl PeerMetric {
    /// How far a reading is on the bad side of its peers.
    fn excess(&self, x: f64, usual: f64) -> f64 {
        if self.low { usual - x } else { x - usual }
    }

    /// A value in the unit in which people read it.
    pub fn shown(&self, x: f64) -> (f64, ReadingUnit) {
        match (self.scale, self.name) {
            (Scale::Rate(unit), _) => (unit * (x.exp() - 1.0).max(0.0), ReadingUnit::PerSecond),
            (Scale::Plain, _) => (x, ReadingUnit::Celsius),
            (Scale::Ratio, name) if name.ends_with("hertz") => (x.exp() / 1e9, ReadingUnit::Gigahertz),
            (Scale::Ratio, name) if name.ends_with("watts") => (x.exp(), ReadingUnit::Watts),
            (Scale::Ratio, _) => (8.0 * x.exp() / 1e9, ReadingUnit::GigabitsPerSecond),
        }
    }
}

impl PeerMetrics {
    /// Records a reading of a GPU or a port; true if the event has one. `loaded`: the GPU is at
    /// work.
    pub(crate) fn take(&mut self, now: Ts, e: &Event, loaded: bool, peers: Option<&Peers>) -> bool {
        let (of, key) = match e.name.as_deref() {
            Some("gpu") => (Of::Gpu, word(e, "gpu")),
            Some("rdma") => (Of::Port, format!("{}/{}", word(e, "device"), word(e, "port"))),
            _ => return false,
        };
        if !self.devices.contains_key(&key) {
            if self.devices.len() >= MAX_DEVICES && !self.make_room(now) {
                self.dropped += 1;
                return false;
            }
            self.devices.insert(key.clone(), Device::default());
        }
        let Some(device) = self.devices.get_mut(&key) else { return false };
        device.at = now;
        self.readings += 1;
        self.heard[of as usize].hear(now);
        for (i, peer_metric) in PEER_METRICS.iter().enumerate().filter(|(_, v)| v.of == of) {
            let Some(v) = e.m.get(peer_metric.name).filter(|v| v.is_finite()) else { continue };
            let sign = device.signs.entry(i as u8).or_default();
            sign.read(now, peer_metric, v, loaded || of == Of::Port);
            if let Some((x, usual)) = sign.x.zip(peers.and_then(|p| p.get(i))) {
                sign.seen = Some(Seen { x, usual: usual.median });
                sign.drift.add(now.0, peer_metric.excess(x, usual.median), usual.sigma);
            }
        }
        true
    }

    /// Whether a device is still read, as others of its kind are.
    pub fn is_there(&self, device: &str) -> bool {
        let of = if device.starts_with("GPU-") { Of::Gpu } else { Of::Port };
        self.devices.get(device).is_some_and(|d| self.heard[of as usize].has(d.at))
    }

    fn make_room(&mut self, now: Ts) -> bool {
        let oldest = self.devices.iter().min_by_key(|(_, d)| d.at).filter(|(_, d)| now - d.at > FRESH);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return false };
        self.devices.remove(&key).is_some()
    }

    /// Adds the recent readings to the values of the run's devices.
    pub(crate) fn gather(&self, now: Ts, values: &mut [Vec<f64>]) {
        for device in self.devices.values().filter(|d| now - d.at < FRESH) {
            for (i, sign) in &device.signs {
                if let (Some(x), Some(values)) = (sign.x, values.get_mut(usize::from(*i))) {
                    values.push(x);
                }
            }
        }
    }

    /// The devices that deviate by more than their gate.
    pub fn outliers(&self) -> impl Iterator<Item = Outlier<'_>> {
        let signs = self
            .devices
            .iter()
            .flat_map(|(device, d)| d.signs.iter().map(move |(i, sign)| (device, d.at, *i, sign)));
        signs.filter_map(|(device, at, i, sign)| {
            let peer_metric = PEER_METRICS.get(usize::from(i))?;
            (sign.drift.level() > 0.0 && sign.drift.excess() >= peer_metric.gate).then_some(Outlier {
                device: device.as_str(),
                at,
                peer_metric,
                sign,
            })
        })
    }

    /// Bytes that the node's ports send in a second, all together, if any port reports them.
    pub fn traffic(&self, now: Ts) -> Option<f64> {
        let i = PEER_METRICS.iter().position(|v| v.name == "transmit_bytes")? as u8;
        let Scale::Rate(unit) = PEER_METRICS[usize::from(i)].scale else { return None };
        let fresh = self.devices.values().filter(|d| now - d.at < FRESH);
        fresh.filter_map(|d| d.signs.get(&i)?.x).map(|x| unit * (x.exp() - 1.0)).reduce(|a, b| a + b)
    }
}

impl Sign {
    fn read(&mut self, now: Ts, peer_metric: &PeerMetric, v: f64, counts: bool) {
        self.x = match peer_metric.scale {
            Scale::Ratio => (counts && v > 0.0).then(|| v.ln()),
            Scale::Plain => counts.then_some(v),
            Scale::Rate(unit) => {
                let before = self.counted.replace((v, now));
                // A counter that fell was reset.
                before.filter(|(had, at)| v >= *had && now > *at).map(|(had, at)| {
                    let rate = (v - had) / (now - at).as_secs_f64();
                    (1.0 + rate / unit).ln()
                })
            }
        };
    }
}

impl Outlier<'_> {
    /// Whether the device was still apart when it was read last. Nodes are read seconds after each
    /// other, so that what happens to all of them sets each apart for a moment; an error
    /// counter is apart in the readings in which it rises.
    pub(crate) fn is_still(&self) -> bool {
        matches!(self.peer_metric.scale, Scale::Rate(_)) || self.seen_apart().is_some()
    }

    /// Whether it was read recently: a device that was replaced stays known for a while.
    pub(crate) fn is_fresh(&self, now: Ts) -> bool {
        now - self.at < FRESH
    }

    /// As `is_still`, against the present readings of the peers, which may be later than its last
    /// one.
    pub(crate) fn is_apart_from(&self, peers: &Peers) -> bool {
        let now =
            PEER_METRICS.iter().position(|v| core::ptr::eq(v, self.peer_metric)).and_then(|i| peers.get(i));
        let alike =
            |(seen, now): (Seen, Usual)| self.peer_metric.excess(seen.x, now.median) < self.peer_metric.gate;
        self.is_still()
            && (matches!(self.peer_metric.scale, Scale::Rate(_))
                || !self.sign.seen.zip(now).is_some_and(alike))
    }

    fn seen_apart(&self) -> Option<Seen> {
        self.sign.seen.filter(|seen| self.peer_metric.excess(seen.x, seen.usual) >= self.peer_metric.gate)
    }

    /// `SM clock 1.2 GHz, its peers 1.98 GHz`: as last read, or, of a counter that rests just then,
    /// the mean since it began.
    pub fn seen(&self) -> Observation {
        let usual = self.sign.seen.map_or(0.0, |seen| seen.usual);
        let mean = usual + if self.peer_metric.low { -1.0 } else { 1.0 } * self.sign.drift.excess();
        let (x, mean) = match (self.seen_apart().or(self.sign.seen), self.peer_metric.scale) {
            (Some(seen), Scale::Ratio | Scale::Plain) => (seen.x, false),
            (Some(seen), _) if self.seen_apart().is_some() => (seen.x, false),
            _ => (mean, true),
        };
        let (value, unit) = self.peer_metric.shown(x);
        let expected = self.peer_metric.shown(usual).0.into();
        Observation::Reading {
            metric: self.peer_metric.words.to_owned(),
            value: value.into(),
            expected,
            unit,
            mean,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_of_the_devices_may_be_anything() {
        let mut values = vec![1.0, 1.01, 0.99, 1.0, 1e9, f64::MAX];
        let usual = Usual::from_values(&mut values, 0.008);
        assert!((usual.median - 1.0).abs() < 0.02 && usual.sigma < 0.1, "{usual:?}");
    }

    /// Reads a GPU's SM clock beside peers that have this one.
    fn read(v: &mut PeerMetrics, at: i64, clock: f64, others: f64) -> Peers {
        let mut e = Event { name: Some("gpu".into()), ..Event::new(stepwatch_wire::Kind::Health) };
        e.extra.insert("gpu".into(), stepwatch_wire::Value::Text("GPU-1".into()));
        e.m.set("sm_clock_hertz", clock);
        let mut values = vec![Vec::new(); PEER_METRICS.len()];
        values[0] = vec![others.ln(); 8];
        let peers = peers(Ts(at), values);
        v.take(Ts(at), &e, true, Some(&peers));
        peers
    }

    #[test]
    fn a_device_reads_what_it_was_read_at_and_is_apart_while_it_is() {
        let mut v = PeerMetrics::default();
        read(&mut v, 0, 1.75e9, 1.75e9);
        (1..6).for_each(|at| drop(read(&mut v, 10_000 * at, 0.8e9, 1.75e9)));
        let early = peers(Ts(0), vec![vec![1.75e9_f64.ln(); 8]]);
        let later = peers(Ts(0), vec![vec![0.8e9_f64.ln(); 8]]);
        let o = v.outliers().next().expect("it is slow");
        assert_eq!(o.seen().to_string(), "SM clock 0.8 GHz, its peers 1.75 GHz");
        assert!(o.is_still() && o.is_apart_from(&early) && !o.is_apart_from(&later));
        // The others are as slow now.
        let now = read(&mut v, 60_000, 0.8e9, 0.8e9);
        let o = v.outliers().next().expect("the sum falls one reading at a time");
        assert_eq!(o.seen().to_string(), "SM clock 0.8 GHz, its peers 0.8 GHz");
        assert!(!o.is_still() && !o.is_apart_from(&now));
    }

    proptest! {
        #[test]
        fn the_order_of_devices_says_nothing(mut values in proptest::collection::vec(-1e6f64..1e6, 1..60)) {
            let forward = Usual::from_values(&mut values.clone(), 0.1);
            values.reverse();
            prop_assert_eq!(Usual::from_values(&mut values, 0.1), forward);
        }
    }
}
