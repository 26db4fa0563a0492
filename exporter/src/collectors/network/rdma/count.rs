//! Reads all counters of all ports in one pass.

use std::collections::BTreeMap;

use super::counters::{self, Values};
use super::{Look, RdmaReader, sysfs};
use crate::collector::Context;
use crate::roots::Dir;
use crate::samples::Samples;

/// The values of the last slow pass.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) at: Option<f64>,
    pub(super) samples: Samples,
    pub(super) ports: BTreeMap<String, Values>,
    /// Saturated counters, which have reached their highest value and are not among `ports`.
    pub(super) saturated: BTreeMap<String, Values>,
}

impl RdmaReader {
    /// Reads all counters.
    pub(super) fn count(&mut self, now: f64, cx: &Context<'_>, looks: &[Look]) {
        let root = cx.roots.sys("class/infiniband");
        let samples = Samples::after(&self.counted.samples);
        let mut counted = Counted { at: Some(now), samples, ..Counted::default() };
        let (folders, quarantine) = (&mut self.folders, &mut self.quarantine);
        let mut read = |section: String| -> Values {
            let folder = folders.entry(section.clone()).or_insert_with(|| Dir::new(root.join(&section)));
            sysfs::counters(folder, &section, now, quarantine).values.into_iter().collect()
        };
        for device in &self.devices {
            let own = read(format!("{}/hw_counters", device.name));
            counters::write(&device.name, "", &Values::new(), &own, &mut counted.samples);
        }
        for look in looks {
            let device = &self.devices[look.device];
            let port = &device.ports[look.port].number;
            let mut section = |name: &str| read(format!("{}/ports/{port}/{name}", device.name));
            let mut standard = section("counters");
            counters::widen(&mut standard, section("counters_ext"));
            let saturated = self.saturation.split(&device.name, port, &mut standard);
            counters::write_saturated(&device.name, port, &saturated, &mut counted.samples);
            let hardware = section("hw_counters");
            counters::write(&device.name, port, &standard, &hardware, &mut counted.samples);
            standard.extend(hardware);
            counted.ports.insert(look.key.clone(), standard);
            counted.saturated.insert(look.key.clone(), saturated);
        }
        self.saturation.retain(|device| self.names.iter().any(|name| name == device));
        self.meters.retain(|key, _| counted.ports.contains_key(key));
        counted.samples.seal();
        self.counted = counted;
    }
}

impl Counted {
    /// The counters of a port, including saturated ones: their values are real, but do not rise any
    /// more.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = (&str, u64)> {
        let ports = [&self.ports, &self.saturated].into_iter().filter_map(|ports| ports.get(key));
        ports.flatten().map(|(name, value)| (name.as_str(), *value))
    }
}
