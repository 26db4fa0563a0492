//! How much the interfaces of a node send, as a share of their speed, and for how much of the time
//! its disks are busy: the busiest one of each minute.
//!
//! Exporters publish the counters of RDMA ports, Ethernet interfaces and disks every half a minute.
//! They are read where saves may fill the way to the storage (`cause/saves.rs`): half an hour holds
//! a save and the time before it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use stepwatch_wire::Event;

use super::conditions::word;
use crate::stats::median::median;
use stepwatch_model::SavePart;
use stepwatch_model::time::{Span, Ts};

/// The most interfaces and disks of a node, and the most minutes.
const MAX_DEVICES: usize = 32;
const MINUTES: usize = 32;
/// One that was not read for this long is gone, and a reading after it says nothing of the
/// time between.
const GONE: Span = Span::secs(150);
/// Half of the time between two readings: a reading is of the time around the one that long before
/// it.
const HALF: Span = Span::secs(15);
/// The fewest minutes outside that tell what is usual.
const USUAL: usize = 3;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Counter {
    value: f64,
    at: Ts,
}

/// The busiest interface or disk of a minute.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Minute {
    at: Ts,
    share: f32,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Throughput {
    devices: BTreeMap<String, Counter>,
    /// By [`SavePart`].
    minutes: [VecDeque<Minute>; 2],
}

impl Throughput {
    /// Takes the counter of an RDMA port, an Ethernet interface or a disk.
    pub(crate) fn take(&mut self, now: Ts, e: &Event) {
        let positive = |name: &str| e.m.get(name).filter(|v| v.is_finite() && *v > 0.0);
        let (part, value, most) = if e.name.as_deref() == Some("disk") {
            (SavePart::Disk, positive("busy_seconds"), Some(1.0))
        } else {
            (SavePart::Interface, positive("transmit_bytes"), positive("rate_bytes_per_second"))
        };
        let (Some(value), Some(most)) = (value, most) else { return };
        let key = format!("{}/{}", word(e, "device"), word(e, "port"));
        if !self.devices.contains_key(&key) && self.devices.len() >= MAX_DEVICES {
            self.devices.retain(|_, had| now - had.at < GONE);
            if self.devices.len() >= MAX_DEVICES {
                return;
            }
        }
        let before = self.devices.insert(key, Counter { value, at: now });
        // A counter that fell was reset.
        let before = before.filter(|had| value >= had.value && now > had.at && now - had.at < GONE);
        if let Some(had) = before {
            let rate = (value - had.value) / (now - had.at).as_secs_f64();
            self.note(part, now, (rate / most) as f32);
        }
    }

    fn note(&mut self, part: SavePart, now: Ts, share: f32) {
        let minute = |at: Ts| at.0.div_euclid(60_000);
        let minutes = &mut self.minutes[part as usize];
        match minutes.back_mut() {
            Some(last) if minute(last.at) == minute(now) => {
                if share > last.share {
                    *last = Minute { at: now, share };
                }
            }
            _ => {
                if minutes.len() >= MINUTES {
                    minutes.pop_front();
                }
                minutes.push_back(Minute { at: now, share });
            }
        }
    }

    /// The share of the busiest such part between two times, and the usual share in the minutes
    /// outside. `None` unless both are known.
    pub(crate) fn busiest(&self, part: SavePart, from: Ts, to: Ts) -> Option<(f64, f64)> {
        let is_inside = |minute: &&Minute| (from..=to).contains(&minute.at.earlier(HALF));
        let (inside, outside): (Vec<&Minute>, Vec<&Minute>) =
            self.minutes[part as usize].iter().partition(is_inside);
        let most = inside.iter().map(|minute| minute.share).reduce(f32::max)?;
        let mut usual: Vec<f32> = outside.iter().map(|minute| minute.share).collect();
        (usual.len() >= USUAL).then(|| (f64::from(most), median(&mut usual)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwatch_wire::{Kind, Value};

    fn reading(device: &str, sent: f64) -> Event {
        let mut e = Event { name: Some("nic".into()), ..Event::new(Kind::Health) };
        e.extra.insert("device".into(), Value::Text(device.into()));
        e.m.set("rate_bytes_per_second", 12.5e9);
        e.m.set("transmit_bytes", sent);
        e
    }

    #[test]
    fn the_busiest_interface_counts_in_the_time_that_is_asked_for() {
        let (mut t, mut sent) = (Throughput::default(), 1e9);
        for half_minute in 0..20 {
            let now = Ts(30_000 * half_minute);
            // From 3 to 5 minutes it sends at 90 % of its speed, and else at 10 %.
            let share = if (7..=10).contains(&half_minute) { 0.9 } else { 0.1 };
            sent += share * 12.5e9 * 30.0;
            t.take(now, &reading("eth0", sent));
            t.take(now, &reading("eth1", 5e9));
        }
        let (most, usual) = t.busiest(SavePart::Interface, Ts(180_000), Ts(300_000)).unwrap();
        assert!((most - 0.9).abs() < 1e-6 && (usual - 0.1).abs() < 1e-6, "{most} {usual}");
        let (most, _) = t.busiest(SavePart::Interface, Ts(400_000), Ts(500_000)).unwrap();
        assert!((most - 0.1).abs() < 1e-6, "{most}");
        assert_eq!(t.busiest(SavePart::Interface, Ts(900_000), Ts(960_000)), None, "nothing was read then");
    }

    #[test]
    fn a_disk_counts_by_the_time_that_it_is_busy() {
        let (mut t, mut busy) = (Throughput::default(), 100.0);
        for half_minute in 0..12 {
            let mut e = reading("nvme0n1", 5e9);
            e.name = Some("disk".into());
            // In the first two minutes for 27 s of 30, and then for 3 s.
            busy += if half_minute <= 4 { 27.0 } else { 3.0 };
            e.m.set("busy_seconds", busy);
            t.take(Ts(30_000 * half_minute), &e);
        }
        let (most, usual) = t.busiest(SavePart::Disk, Ts(0), Ts(120_000)).unwrap();
        assert!((most - 0.9).abs() < 1e-6 && (usual - 0.1).abs() < 1e-6, "{most} {usual}");
        assert_eq!(t.busiest(SavePart::Interface, Ts(0), Ts(120_000)), None);
        assert_eq!(
            t.busiest(SavePart::Disk, Ts(0), Ts(400_000)),
            None,
            "nothing is known of the time outside"
        );
    }

    #[test]
    fn a_reset_a_long_gap_and_a_missing_speed_say_nothing() {
        let mut t = Throughput::default();
        t.take(Ts(1000), &reading("eth0", 9e12));
        t.take(Ts(31_000), &reading("eth0", 1e9));
        t.take(Ts(931_000), &reading("eth0", 9e12));
        let mut unknown = reading("eth0", 9.9e12);
        unknown.m.set("rate_bytes_per_second", 0.0);
        t.take(Ts(961_000), &unknown);
        t.take(Ts(991_000), &reading("eth1", f64::NAN));
        assert_eq!(t.busiest(SavePart::Interface, Ts(0), Ts(2_000_000)), None);
    }

    #[test]
    fn interfaces_and_minutes_are_bounded() {
        let mut t = Throughput::default();
        for n in 0..2000_i64 {
            let now = Ts(60_000 * n);
            t.take(now, &reading(&format!("veth{}", n % 100), 1e9 * (1 + n) as f64));
            t.take(now, &reading("eth0", 1e9 * (1 + n) as f64));
        }
        assert!(t.devices.len() <= MAX_DEVICES && t.minutes[0].len() == MINUTES);
    }
}
