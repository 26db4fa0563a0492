//! The expected ports of this node: those that were up before and their rates, and the configured
//! ones.
//!
//! They are saved, so that a port that is missing or slower after a reboot is noticed. A port is
//! identified by its slot, or by its GUID if the slots were renumbered. A port that is missing or
//! slower for two weeks counts as changed on purpose, because it was reported for long enough.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::band::Band;
use super::device::{Device, Port};
use crate::link::pace::Pace;
use crate::link::watch::Watch;
use crate::link::{Medium, Standing};

/// The most ports kept; no node has as many.
const MAX_KNOWN: usize = 512;
const FORGET_SECONDS: f64 = 14.0 * 86_400.0;

/// The key is [`Device::key`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Known(pub(super) BTreeMap<String, Expected>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Expected {
    pub(super) device: String,
    pub(super) port: String,
    pub(super) guid: String,
    pub(super) pci: String,
    pub(super) netdev: String,
    medium: String,
    pub(super) pace: Pace,
    /// The Unix time when it was last up.
    up_at: f64,
    /// The band of rates that it reaches when busy.
    #[serde(default)]
    pub(super) band: Band,
    pub(super) watch: Watch,
    #[serde(skip)]
    pub(super) degraded: Standing,
    #[serde(skip)]
    pub(super) errors: Standing,
}

impl Expected {
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.device, self.port)
    }

    pub(super) fn medium(&self) -> Medium {
        [Medium::Infiniband, Medium::Roce, Medium::Efa]
            .into_iter()
            .find(|m| m.as_str() == self.medium)
            .unwrap_or(Medium::Infiniband)
    }

    /// Learns from a port that is up; `rate` is the negotiated one.
    pub(super) fn learn(&mut self, now: f64, rate: Option<f64>) {
        self.up_at = now;
        if let Some(rate) = rate {
            self.pace.learn(now, rate);
        }
    }
}

impl Known {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Updates the known ports for the present devices: slots and names may have changed in a
    /// reboot.
    pub(super) fn settle(&mut self, now: f64, devices: &[Device]) {
        self.0.retain(|_, known| now - known.up_at < FORGET_SECONDS);
        let here: Vec<(String, &Device, &Port)> =
            devices.iter().flat_map(|d| d.ports.iter().map(move |p| (d.key(p), d, p))).collect();
        let moved: Vec<(String, String)> = self
            .0
            .iter()
            .filter(|(key, known)| !known.guid.is_empty() && here.iter().all(|(k, ..)| k != *key))
            .filter_map(|(key, known)| {
                let same = |(k, d, p): &&(String, &Device, &Port)| {
                    d.guid == known.guid && p.number == known.port && !self.0.contains_key(k)
                };
                Some((key.clone(), here.iter().find(same)?.0.clone()))
            })
            .collect();
        for (from, to) in moved {
            if let Some(known) = self.0.remove(&from) {
                self.0.insert(to, known);
            }
        }
        for (key, known) in &mut self.0 {
            // Another device has its name now, but it keeps its place.
            let gone = here.iter().all(|(k, ..)| k != key);
            if gone && !known.pci.is_empty() && here.iter().any(|(_, d, _)| d.name == known.device) {
                known.device.clone_from(&known.pci);
            }
        }
        for (key, device, port) in here {
            if let Some(known) = self.0.get_mut(&key) {
                known.device.clone_from(&device.name);
                known.guid.clone_from(&device.guid);
                known.pci.clone_from(&device.pci);
                known.netdev.clone_from(&port.netdev);
                device.medium(port).as_str().clone_into(&mut known.medium);
            }
        }
    }

    /// Records that the port is up, so that it is expected to be from now on.
    pub(super) fn was_up(&mut self, now: f64, device: &Device, port: &Port) {
        if self.0.len() >= MAX_KNOWN {
            return;
        }
        self.0.entry(device.key(port)).or_insert_with(|| Expected {
            device: device.name.clone(),
            port: port.number.clone(),
            guid: device.guid.clone(),
            pci: device.pci.clone(),
            netdev: port.netdev.clone(),
            medium: device.medium(port).as_str().to_owned(),
            pace: Pace::default(),
            up_at: now,
            band: Band::default(),
            watch: Watch::default(),
            degraded: Standing::default(),
            errors: Standing::default(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, pci: &str, guid: &str) -> Device {
        let port = Port { number: "1".into(), link_layer: "InfiniBand".into(), netdev: String::new() };
        Device {
            name: name.into(),
            pci: pci.into(),
            guid: guid.into(),
            ports: vec![port],
            ..Device::default()
        }
    }

    fn learned(devices: &[Device]) -> Known {
        let mut known = Known::default();
        for d in devices {
            known.was_up(0.0, d, &d.ports[0]);
            known.0.get_mut(&d.key(&d.ports[0])).unwrap().learn(0.0, Some(50e9));
        }
        serde_json::from_str(&serde_json::to_string(&known).unwrap()).unwrap()
    }

    #[test]
    fn a_card_that_is_missing_is_missing_though_the_others_are_numbered_anew() {
        let mut known =
            learned(&[device("mlx5_0", "0000:1b:00.0", "a"), device("mlx5_1", "0000:2b:00.0", "b")]);
        known.settle(100.0, &[device("mlx5_0", "0000:2b:00.0", "b")]);
        let names: Vec<_> = known.0.iter().map(|(key, k)| (key.as_str(), k.device.as_str())).collect();
        assert_eq!(names, [("0000:1b:00.0/1", "0000:1b:00.0"), ("0000:2b:00.0/1", "mlx5_0")]);
    }

    #[test]
    fn a_card_is_known_by_its_guid_where_the_slots_are_numbered_anew_and_by_its_slot_when_replaced() {
        let mut known =
            learned(&[device("mlx5_0", "0000:1b:00.0", "a"), device("mlx5_1", "0000:2b:00.0", "b")]);
        known
            .settle(100.0, &[device("mlx5_0", "0000:1c:00.0", "a"), device("mlx5_1", "0000:2b:00.0", "new")]);
        let guids: Vec<_> = known.0.iter().map(|(key, k)| (key.as_str(), k.guid.as_str())).collect();
        assert_eq!(guids, [("0000:1c:00.0/1", "a"), ("0000:2b:00.0/1", "new")]);
        known.settle(FORGET_SECONDS, &[]);
        assert!(known.is_empty());
    }
}
