//! An open GPU of NVML: its identity, its refusals and its instances.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::{Ask, Device, Error, GpmSample, Number, Platform};

use super::heartbeat::Heartbeat;
use super::numbering::Numbering;
use super::quarantine::Quarantine;
use super::standing::Tally;
use crate::samples::Samples;

/// Refused queries are repeated after this time, because some depend on the state of the GPU.
pub(super) const REFUSED_FOR: Duration = Duration::from_hours(1);
/// The most processes of a GPU that are read.
const MAX_PROCESSES: u32 = 256;

/// The identity of a GPU while NVML is open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    /// The PCI address, such as `0000:1b:00.0`.
    pub pci: String,
    pub serial: String,
    pub vbios: String,
    pub minor: String,
    pub gsp_firmware: String,
    /// The place in its rack, on platforms that report it.
    pub platform: Option<Platform>,
}

/// A GPU and its refusals, which are remembered because a refusal costs as much as an answer.
#[derive(Debug)]
pub struct Gpu {
    pub id: Arc<Identity>,
    /// Whether the GPU fell off the bus or answers only with errors. Then it is only probed.
    pub lost: bool,
    /// The error with which it was lost.
    pub lost_with: Option<String>,
    /// Whether the GPU has to be reset before it answers again.
    pub needs_reset: bool,
    /// The number of errors other than lack of support.
    pub failures: u64,
    pub instances: Vec<Mig>,
    /// The last sample of the GPU, or of each of its instances.
    pub(crate) samples: BTreeMap<Option<u32>, (Instant, GpmSample)>,
    /// The samples that were last published for it.
    pub(crate) published: Samples,
    pub(super) device: Device,
    refused: BTreeSet<(&'static str, u32)>,
    refused_fields: BTreeSet<Ask>,
    /// Functions refused for lack of permission, which other users may have.
    pub denied: BTreeSet<&'static str>,
    /// When the first of the present refusals occurred.
    refused_since: Instant,
    /// The NVLinks that were up in the last pass.
    links_up: BTreeSet<u32>,
    numbering: Numbering,
    /// Whether NVML itself reported that it is gone.
    pub(super) down: bool,
    pub(super) quarantine: Quarantine,
    pub(super) beat: Arc<Heartbeat>,
    pub(super) tally: Tally,
    /// Whether its identity is incomplete.
    pub(super) half_known: bool,
}

/// A compute instance of a partitioned GPU.
#[derive(Debug, Clone)]
pub struct Mig {
    pub gpu_instance: u32,
    pub compute_instance: u32,
    pub uuid: String,
    /// The profile, such as `1g.10gb`.
    pub profile: String,
    pub device: Device,
}

impl Gpu {
    pub(super) fn new(
        device: Device,
        numbering: Numbering,
        beat: &Arc<Heartbeat>,
        quarantine: Duration,
    ) -> Result<Self, Error> {
        let index = device.index();
        let (id, half_known) = Identity::read(&device, || beat.spent(Some(index)).total > quarantine)?;
        let mut gpu = Self {
            id: Arc::new(id),
            lost: false,
            lost_with: None,
            needs_reset: false,
            failures: 0,
            instances: Vec::new(),
            samples: BTreeMap::new(),
            published: Samples::default(),
            device,
            refused: BTreeSet::new(),
            refused_fields: BTreeSet::new(),
            denied: BTreeSet::new(),
            refused_since: Instant::now(),
            links_up: BTreeSet::new(),
            numbering,
            down: false,
            quarantine: Quarantine::new(quarantine),
            beat: Arc::clone(beat),
            tally: Tally::default(),
            half_known,
        };
        gpu.judge();
        Ok(gpu)
    }

    /// The answer of a query that this GPU has not refused. A refusal is remembered by `what` and
    /// `which`.
    pub fn ask<T>(
        &mut self,
        what: &'static str,
        which: u32,
        ask: impl FnOnce(&Device) -> Result<T, Error>,
    ) -> Option<T> {
        let answer = self.ask_for(what, which, ask);
        // Calls that the library answers from its own memory do not show whether the GPU answers.
        self.tally.answers += u32::from(answer.is_some() && !what.starts_with("gpm"));
        answer
    }

    /// As [`Self::ask`], but the caller decides whether an error was an answer.
    fn ask_for<T>(
        &mut self,
        what: &'static str,
        which: u32,
        ask: impl FnOnce(&Device) -> Result<T, Error>,
    ) -> Option<T> {
        if !self.may_be_asked() || self.refused.contains(&(what, which)) {
            return None;
        }
        let answer = ask(&self.device);
        self.judge();
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.denied.extend(error.no_permission());
                if error.unsupported() {
                    self.tally.answers += u32::from(!error.is_missing());
                    self.refused.insert((what, which));
                } else {
                    self.failed(&error);
                }
                None
            }
        }
    }

    /// The values of fields in the order of `asked`, in one call for those that this GPU has not
    /// refused.
    pub fn fields(&mut self, asked: &[Ask]) -> Vec<Option<Number>> {
        let open = asked.iter().copied().filter(|a| !self.refused_fields.contains(a));
        let (open, wire): (Vec<Ask>, Vec<Ask>) =
            open.filter_map(|ask| Some((ask, self.numbering.wire(ask)?))).unzip();
        let answers = if open.is_empty() {
            Vec::new()
        } else {
            self.ask_for("fields", 0, |device| device.fields(&wire)).unwrap_or_default()
        };
        let mut values: BTreeMap<Ask, Number> = BTreeMap::new();
        for (ask, answer) in open.into_iter().zip(answers) {
            match answer {
                Ok(number) => {
                    self.tally.answers += 1;
                    values.insert(ask, number);
                }
                Err(error) if error.unsupported() => {
                    self.tally.answers += 1;
                    self.denied.extend(error.no_permission());
                    self.refused_fields.insert(ask);
                }
                Err(error) => self.failed(&error),
            }
        }
        asked.iter().map(|ask| values.get(ask).copied()).collect()
    }

    /// Processes that compute on it, or on its instances.
    pub fn processes(&mut self) -> Option<Vec<u32>> {
        if self.instances.is_empty() {
            return self.ask("processes", 0, |device| device.compute_processes(MAX_PROCESSES));
        }
        let instances: Vec<_> = self.instances.iter().map(|i| (i.key(), i.device.clone())).collect();
        let mut all: Option<BTreeSet<u32>> = None;
        for (key, device) in instances {
            let pids = self.ask("MIG processes", key, |_| device.compute_processes(MAX_PROCESSES));
            all = pids.map(|pids| pids.into_iter().chain(all.take().into_iter().flatten()).collect()).or(all);
        }
        all.map(|pids| pids.into_iter().collect())
    }

    /// Forgets refusals that are old enough, so that they are queried again.
    pub fn ask_again(&mut self, now: Instant) {
        if now.saturating_duration_since(self.refused_since) >= REFUSED_FOR {
            self.refused_since = now;
            self.refused.clear();
            self.refused_fields.clear();
            self.denied.clear();
        }
    }

    /// Records the state of a link. Fields that it refused while down may be available when it is
    /// up.
    pub fn link_is(&mut self, link: u32, up: bool, fields: impl Iterator<Item = u32>) {
        if !up {
            self.links_up.remove(&link);
        } else if self.links_up.insert(link) {
            for field in fields {
                self.refused_fields.remove(&Ask::scoped(field, link));
            }
        }
    }

    /// Reads the instances of the GPU; none if it is not partitioned.
    pub fn find_instances(&mut self) {
        let before = std::mem::take(&mut self.instances);
        self.look_for_instances();
        let uuids = |instances: &[Mig]| instances.iter().map(|i| i.uuid.clone()).collect::<Vec<_>>();
        if uuids(&before) != uuids(&self.instances) {
            // The numbers of refusing instances now belong to other ones.
            self.refused.retain(|(what, _)| !OF_INSTANCES.contains(what));
        }
    }

    fn look_for_instances(&mut self) {
        if self.ask("MIG mode", 0, Device::mig_enabled) != Some(true) {
            return;
        }
        for slot in 0..self.ask("MIG slots", 0, Device::mig_slots).unwrap_or(0).min(MAX_INSTANCES) {
            let found = self.ask("MIG device", slot, |gpu| gpu.mig_device(slot)).flatten();
            self.instances.extend(found.and_then(|device| Mig::new(device).ok()));
            self.judge();
        }
    }

    pub(super) fn failed(&mut self, error: &Error) {
        self.failures += 1;
        self.tally.errors += 1;
        self.tally.last_error = Some(error.to_string());
        if error.lost() && !self.lost {
            tracing::error!(gpu = self.id.uuid, pci = self.id.pci, %error, "GPU lost");
            self.lose(None);
        }
        self.needs_reset |= error.needs_reset();
        self.down |= error.down();
    }
}

impl Identity {
    /// The identity of a GPU, and whether it is incomplete: no further calls are made once it is
    /// `late`.
    pub(super) fn read(device: &Device, late: impl Fn() -> bool) -> Result<(Self, bool), Error> {
        let mut half = false;
        let uuid = device.uuid()?;
        let mut answer = |ask: &dyn Fn(&Device) -> Result<String, Error>| {
            half |= late();
            if half { String::new() } else { ask(device).unwrap_or_default() }
        };
        let mut id = Self {
            index: device.index(),
            uuid,
            pci: answer(&|d| Ok(short_address(&d.pci()?.bus_id))),
            name: answer(&Device::name),
            serial: answer(&Device::serial),
            vbios: answer(&Device::vbios),
            minor: answer(&|d| Ok(d.minor_number()?.to_string())),
            gsp_firmware: answer(&Device::gsp_firmware),
            platform: None,
        };
        half |= late();
        if !half {
            id.platform = device.platform().ok();
        }
        Ok((id, half))
    }
}

/// Queries of instances.
const OF_INSTANCES: &[&str] = &["MIG device", "MIG memory", "MIG processes", "gpm sample", "gpm metrics"];

/// The most instances; a GPU can be divided by seven.
const MAX_INSTANCES: u32 = 16;

impl Mig {
    /// A key that distinguishes it from the other instances of its GPU.
    pub fn key(&self) -> u32 {
        self.gpu_instance << 8 | self.compute_instance
    }

    fn new(device: Device) -> Result<Self, Error> {
        let name = device.name().unwrap_or_default();
        Ok(Self {
            gpu_instance: device.gpu_instance()?,
            compute_instance: device.compute_instance()?,
            uuid: device.uuid()?,
            // The name is like `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
            profile: name.rsplit_once("MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned(),
            device,
        })
    }
}

/// Converts NVML's address `00000000:1B:00.0` to the kernel's form `0000:1b:00.0`.
fn short_address(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    let parts = lower.split_once(':').and_then(|(d, rest)| Some((u32::from_str_radix(d, 16).ok()?, rest)));
    parts.map_or_else(|| lower.clone(), |(domain, rest)| format!("{domain:04x}:{rest}"))
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_kernel_does() {
        assert_eq!(short_address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(short_address("00010000:1B:00.0"), "10000:1b:00.0", "a domain that needs its digits");
        assert_eq!(short_address("?:1B:00.0"), "?:1b:00.0");
        assert_eq!(short_address("0000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(short_address(""), "");
    }

    proptest::proptest! {
        #[test]
        fn any_address(text: String) {
            let _ = short_address(&text);
        }
    }
}
