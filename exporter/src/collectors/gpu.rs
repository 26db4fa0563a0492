//! GPUs of NVIDIA: their use, their health, and the recovery actions that the driver requests.
//!
//! The values come from NVML, which is called on a thread of its own ([`crate::nvml`]). This
//! collector sends it a request, waits for a limited time, and publishes the values that it has.
//! While a driver call does not return, the values of the GPUs leave the metrics page. What needs
//! no call stays: the inventory of the kernel driver, which gives the peak for MFU, and the name of
//! the call.
//!
//! Values are read at two intervals: those that change every second, and those that are expensive
//! or change from day to day.

mod decode;
mod events;
mod expected_nvlinks;
pub(super) mod families;
mod gpm;
mod health;
mod history;
mod nvlink;
mod nvlink_errors;
mod pass;
mod read;
mod resets;
mod superchip;
mod unresponsive;
mod visibility;
mod xid;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_kit::config::Period;

pub use decode::GFM_DISCONNECTED;
use events::{Inventory, Useless};
pub use families::*;
use history::GpuHistory;
use pass::{Answer, Passed, Plan, Reading};
use unresponsive::Driver;
pub use visibility::Devices;

use super::kernel;
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family_filter::Metrics;
use crate::gpus::{self, driver_version, inventory};
use crate::nvml::{Call, Identity, Nvml, OpenError, Refused, Ticket};
use crate::samples::Samples;

pub const ABOUT: &str = "GPUs of the node, from the NVIDIA driver";
pub const NEEDS: &str = "libnvidia-ml.so.1 and /dev/nvidia*; any user; CAP_SYS_ADMIN for gpu_sram_ecc_* and, under MIG, for the instances where their devices are not given; what is refused stands in gpu_nvml_no_permission";
pub const COST: &str = "some 30 calls a GPU a second and 60 more each half minute, on one thread; none that waits, none that takes a context";

/// The wait for the first answer, so that the first exposition of a new process has it.
const FIRST_WAIT: Duration = Duration::from_secs(4);
/// The wait for later answers. A later pass takes those that come after it.
const WAIT: Duration = Duration::from_secs(1);
/// The deadline of a pass, which never waits for the driver for longer than the waits above.
const DEADLINE: Duration = Duration::from_secs(10);
/// Fast values older than this, or than three intervals, leave the metrics page.
const STALE: Duration = Duration::from_secs(10);
/// Running calls that take longer than this are exported.
const LONG_CALL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// The interval of values that change every second.
    pub interval: Period,
    /// The interval of values that are expensive or change from day to day.
    pub slow_interval: Period,
    /// A driver call that takes longer counts as stuck. A GPU whose answers take longer is set
    /// aside.
    pub stuck_after: Period,
    /// The GPUs of the node that count as missing if they do not answer.
    pub devices: Devices,
    /// The expected number of GPUs; by default, as many as the node had.
    pub expected: Option<usize>,
    /// The expected number of NVLinks that are up on each GPU; by default, the most that a GPU of
    /// the same model had.
    pub expected_nvlinks: Option<u32>,
    /// Whether to export, for each NVLink of the fifth generation, the number of blocks by
    /// corrected errors: 288 series a GPU.
    pub fec_history: bool,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default()
            .period("interval", self.interval)
            .period("slow_interval", self.slow_interval)
            .period("stuck_after", self.stuck_after)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(1),
            slow_interval: Period::secs(30),
            stuck_after: Period::secs(5),
            devices: Devices::Visible,
            expected: None,
            expected_nvlinks: None,
            fec_history: false,
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    Rhythm { interval: config.interval.into(), deadline: DEADLINE }
}

#[derive(Debug)]
pub struct GpuReader {
    config: Config,
    listed: Listed,
    /// The request that is not answered yet.
    pending: Option<Ticket<Passed>>,
    /// Whether the last answer came without a slow call about the driver as a whole.
    quick: bool,
    /// UUID of the GPU whose call does not return.
    hanging: Option<String>,
    /// Whether the collector of the kernel log is enabled.
    kernel: bool,
    /// The last answer; `None` while NVML does not answer.
    reading: Option<Reading>,
    /// The last values of the slow interval, by UUID.
    slow: BTreeMap<String, Samples>,
    slow_asked: Option<Instant>,
    /// Whether `slow` has not been processed yet.
    slow_new: bool,
    /// The error with which NVML failed to open.
    closed: Option<OpenError>,
    waited: bool,
    /// The GPUs that this node has had.
    known: GpuHistory,
    remembered: bool,
    /// PCI addresses at which the kernel driver has ever listed a GPU given to this process.
    most: BTreeSet<String>,
    /// PCI addresses of the GPUs that are given to other containers.
    others: BTreeSet<String>,
    watch: events::Watcher,
    expected_nvlinks: expected_nvlinks::ExpectedNvlinks,
    nvlink_errors: nvlink_errors::NvlinkErrors,
    health: health::Health,
    resets: resets::Resets,
    xids: xid::Xids,
}

/// The files of the kernel driver, which need no call into it.
#[derive(Debug, Default)]
struct Listed {
    gpus: Vec<gpus::Gpu>,
    addresses: Vec<String>,
    /// PCI addresses of the GPUs whose devices this process may not open.
    withheld: BTreeSet<String>,
    /// PCI addresses of the GPUs that the driver could not initialise.
    unborn: BTreeSet<String>,
    driver: Option<String>,
    /// GPUs on the bus that no other driver uses; counted only while NVIDIA's is not loaded.
    idle: usize,
    /// The number of IMEX channels that may be opened here; `None` if the driver offers none.
    imex_channels: Option<usize>,
    /// Whether the kernel log is read for XID errors.
    log: bool,
    read: Option<Instant>,
}

impl GpuReader {
    pub fn new(config: &Config, kernel: &kernel::Config) -> Self {
        Self {
            config: config.clone(),
            kernel: kernel.enabled,
            listed: Listed::default(),
            pending: None,
            quick: true,
            hanging: None,
            reading: None,
            slow: BTreeMap::new(),
            slow_asked: None,
            slow_new: false,
            closed: None,
            waited: false,
            known: GpuHistory::default(),
            remembered: false,
            most: BTreeSet::new(),
            others: BTreeSet::new(),
            watch: events::Watcher::default(),
            expected_nvlinks: expected_nvlinks::ExpectedNvlinks::new(config.expected_nvlinks),
            nvlink_errors: nvlink_errors::NvlinkErrors::default(),
            health: health::Health::default(),
            resets: resets::Resets::default(),
            xids: xid::Xids::default(),
        }
    }

    /// Reads the files of the kernel driver, at the slow interval.
    fn list(&mut self, cx: &Context<'_>) {
        let every = self.config.slow_interval.as_duration();
        if self.listed.read.is_some_and(|read| read.elapsed() < every) {
            return;
        }
        let driver = driver_version(cx.roots);
        let addresses = gpus::addresses(cx.roots);
        let withheld = self.withheld(cx.roots, &addresses);
        self.listed = Listed {
            gpus: inventory(cx.roots),
            withheld,
            unborn: gpus::unborn(cx.roots, &addresses),
            addresses,
            idle: if driver.is_none() { gpus::idle(cx.roots) } else { 0 },
            driver,
            imex_channels: gpus::imex_channels(cx.roots),
            log: self.kernel && is_log(&cx.roots.kmsg),
            read: Some(Instant::now()),
        };
        let ours = self.listed.addresses.iter().filter(|pci| !self.listed.withheld.contains(*pci));
        self.most.extend(ours.cloned());
        self.find_others();
    }

    /// Loads the saved GPUs, unless the configuration gives the expected number.
    fn remember(&mut self, cx: &Context<'_>) {
        if !std::mem::replace(&mut self.remembered, true) && self.config.expected.is_none() {
            self.known = GpuHistory::load(unix_now(), cx);
        }
    }

    /// Sends a request to the NVML thread, and takes an answer that has arrived.
    fn ask(&mut self, cx: &Context<'_>) -> Option<Refused> {
        let nvml = cx.nvml;
        if self.pending.is_none() {
            let every = self.config.slow_interval.as_duration();
            let slow = self.slow_asked.is_none_or(|asked| asked.elapsed() >= every);
            let (fec, xids) = (self.config.fec_history, !self.listed.log);
            let plan = Plan { slow, fec, xids, patience: self.config.stuck_after.as_duration() };
            match nvml.submit(cx.roots.nvml_library.as_deref(), move |session| pass::pass(session, plan)) {
                Ok(ticket) => {
                    self.pending = Some(ticket);
                    if slow {
                        self.slow_asked = Some(Instant::now());
                    }
                }
                Err(refused) => return Some(refused),
            }
        }
        let wait = if self.waited { WAIT } else { FIRST_WAIT };
        self.waited = true;
        let Some(ticket) = &self.pending else { return None };
        match ticket.wait(wait) {
            Some((answer, quick)) => {
                self.pending = None;
                self.quick = quick;
                self.take(answer, cx);
            }
            None if ticket.is_void() => self.pending = None,
            None => {}
        }
        None
    }

    fn take(&mut self, answer: Answer, cx: &Context<'_>) {
        match answer {
            Ok(mut reading) => {
                self.closed = None;
                for gpu in &mut reading.gpus {
                    self.name_half_known(&mut gpu.id);
                    if !gpu.is_read() {
                        self.slow.remove(&gpu.id.uuid);
                    } else if let Some(slow) = gpu.slow.take() {
                        self.slow.insert(gpu.id.uuid.clone(), slow);
                        self.slow_new = true;
                    }
                }
                self.known.see(unix_now(), cx, reading.gpus.iter().map(|gpu| &gpu.id));
                self.slow.retain(|uuid, _| reading.gpus.iter().any(|gpu| gpu.id.uuid == *uuid));
                self.want_resets(&reading);
                self.resets.look(cx, &reading);
                self.reading = Some(reading);
                self.find_others();
            }
            Err(error) => {
                self.forget();
                self.closed = Some(error);
            }
        }
    }

    /// Drops all values: the state of the GPUs is unknown now.
    fn forget(&mut self) {
        self.reading = None;
        self.slow.clear();
        self.slow_asked = None;
    }

    /// The error that keeps the GPUs from being read, if any.
    fn trouble(&mut self, nvml: &Nvml) -> Option<CollectError> {
        let deadline = self.config.stuck_after.as_duration();
        self.hanging = None;
        if let Some(call) = nvml.stuck(deadline) {
            self.hangs(call);
            self.expire();
            let over = call.since.elapsed().saturating_sub(deadline);
            return Some(CollectError::Stuck { what: format!("waiting for {call}"), over });
        }
        self.expire();
        if self.reading.is_some() {
            return None;
        }
        let call = nvml.call().map(|call| format!("waiting for {call}"));
        let useless = self.useless().and_then(Useless::mismatch);
        let why = useless.or_else(|| self.closed.as_ref().map(ToString::to_string)).or(call);
        Some(CollectError::Other(why.unwrap_or_else(|| "NVML has not answered yet".into())))
    }

    /// Handles a call that does not return: drops the values of its GPU, and keeps the last values
    /// of the others until they expire.
    fn hangs(&mut self, call: Call) {
        self.quick &= call.gpu.is_some();
        let whose = unresponsive::whose(call, self.reading.as_ref(), self.known.gpus());
        self.hanging = whose.map(|id| id.uuid.clone());
        for gpu in self.reading.iter_mut().flat_map(|reading| &mut reading.gpus) {
            if Some(gpu.id.index) == call.gpu {
                gpu.hangs(unresponsive::hanging(call));
                self.slow.remove(&gpu.id.uuid);
            }
        }
    }

    /// Drops values that are too old.
    fn expire(&mut self) {
        let stale = STALE.max(self.config.interval.as_duration() * 3);
        if self.reading.as_mut().is_some_and(|reading| reading.expire(stale)) {
            self.forget();
        }
    }

    /// Completes the address of a GPU that is too slow to report it, from the file of the kernel
    /// driver.
    fn name_half_known(&self, id: &mut Arc<Identity>) {
        let listed = self.listed.gpus.iter().find(|gpu| gpu.uuid == id.uuid);
        if let Some(gpus::Gpu { name, pci, minor, vbios, .. }) = listed.filter(|_| id.pci.is_empty()) {
            let [name, pci, minor, vbios] = [name, pci, minor, vbios].map(String::clone);
            *id = Arc::new(Identity { name, pci, vbios, minor, ..(**id).clone() });
        }
    }

    fn write(&mut self, out: &mut Samples) {
        let driver = self.reading.as_ref().map(|r| r.driver.clone()).or_else(|| self.listed.driver.clone());
        let driver = driver.unwrap_or_default();
        let cuda = self.reading.as_ref().map(|r| r.cuda.as_str()).unwrap_or_default();
        let read = self.reading.iter().flat_map(|reading| &reading.gpus);
        for gpu in read.clone() {
            let Identity { index, uuid, name, pci, serial, vbios, minor, .. } = &*gpu.id;
            let labels = [uuid, &index.to_string(), pci, name, serial, vbios, &driver, cuda, minor];
            out.set(&INFO, &labels, 1u64);
            if let Some(platform) = &gpu.id.platform {
                superchip::write_platform(uuid, platform, out);
            }
            out.set(&LOST, &[uuid], gpu.lost || gpu.needs_reset);
            out.set(&UNRESPONSIVE, &[uuid], gpu.aside.is_some());
            out.set(&FAILURES, &[uuid], gpu.failures);
            self.resets.write(uuid, out);
        }
        if let Some(uuid) = self.hanging.as_ref().filter(|_| self.reading.is_none()) {
            out.set(&UNRESPONSIVE, &[uuid], true);
        }
        // While NVML does not answer, the listed GPUs are all that is known of the node.
        let anothers = |gpu: &gpus::Gpu| self.reading.is_some() && self.others.contains(&gpu.pci);
        let silent = |gpu: &&gpus::Gpu| read.clone().all(|r| r.id.uuid != gpu.uuid) && !anothers(gpu);
        for gpu in self.listed.gpus.iter().filter(silent) {
            let gpus::Gpu { uuid, name, pci, minor, vbios, .. } = gpu;
            out.set(&INFO, &[uuid, "", pci, name, "", vbios, &driver, cuda, minor], 1u64);
        }
        out.maybe(&IMEX_CHANNELS, &[], self.listed.imex_channels);
        if !driver.is_empty() {
            out.set(&DRIVER, &[&driver], 1u64);
        }
        if let Some(reading) = &self.reading {
            out.set(&COUNT, &[], reading.answering());
            self.write_missing(out);
            self.expected_nvlinks.write(reading, &self.slow, out);
        } else if self.useless().is_some() {
            out.set(&COUNT, &[], 0u64);
        }
        out.set(&EXPECTED, &[], self.expected());
        // These samples are sealed and shared. They come last, so that they do not split what is
        // written here.
        read.map(|gpu| &gpu.fast).chain(self.slow.values()).for_each(|sealed| out.extend(sealed));
    }

    /// The reason why no GPU can be used, if there should be GPUs and that is certain.
    fn useless(&self) -> Option<Useless> {
        let listed = self.listed.driver.is_some() || !self.listed.addresses.is_empty();
        let why = match &self.closed {
            Some(OpenError::Mismatch(why)) => {
                let loaded = self.listed.driver.as_ref().map(|v| format!(" (loaded is {v})"));
                Useless::Mismatch(format!("{why}{}", loaded.unwrap_or_default()))
            }
            Some(OpenError::NoLibrary(_) | OpenError::NoDriver(_)) if !listed => Useless::Driverless,
            _ => return None,
        };
        (self.reading.is_none() && self.expected() > 0).then_some(why)
    }

    /// The model of this node's GPUs, for the peak of MFU; `None` if the models differ.
    fn name(&self) -> Option<String> {
        let listed = self.listed.gpus.iter().map(|g| g.name.as_str());
        let mut names = listed.chain(self.had().map(|g| g.name.as_str())).filter(|n| !n.is_empty());
        let first = names.next()?;
        names.all(|name| name == first).then(|| first.to_owned())
    }
}

impl Collector for GpuReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        self.listed.read = None;
        self.remember(cx);
        self.list(cx);
        self.ask(cx);
        let read = self.reading.as_ref().map(|r| r.gpus.len() + r.unusable.len());
        let count = read.unwrap_or(0).max(self.ours().1.len());
        Ok(match (self.name(), self.closed.as_ref()) {
            (_, closed) if count == 0 && self.expected() > 0 && self.pending.is_none() => {
                let why = closed.map(|e| format!(": {e}")).unwrap_or_default();
                Support::Supported(format!("none of {} GPUs{why}", self.expected()))
            }
            _ if count == 0 && self.config.expected.is_none() && self.pending.is_none() => {
                let driver = self.listed.driver.is_some() || self.reading.is_some();
                let why = self.closed.as_ref().filter(|e| driver && !matches!(e, OpenError::NoLibrary(_)));
                let why = why.map(|e| format!(" ({e})")).unwrap_or_default();
                Support::Unsupported(format!("no NVIDIA kernel driver with a GPU{why}"))
            }
            (name, closed) => {
                let name = name.map(|n| format!(" x {n}")).unwrap_or_else(|| " GPUs".into());
                let closed = closed.map(|e| format!("; the inventory alone: {e}")).unwrap_or_default();
                Support::Supported(format!("{count}{name}{closed}"))
            }
        })
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let nvml = cx.nvml;
        self.remember(cx);
        self.list(cx);
        let refused = self.ask(cx);
        write_costs(nvml, out);
        if let Some(Refused::Released(release)) = refused {
            self.forget();
            self.closed = None;
            self.pending = None;
            out.set(&RELEASED_UNTIL, &[], release.until);
            self.write(out);
            self.watch.released(cx, true);
            return Ok(());
        }
        self.watch.released(cx, false);
        if let Some(heard) = self.reading.as_mut().and_then(|reading| reading.heard.take()) {
            self.xids.take(cx, heard);
        }
        self.xids.write(out);
        let trouble = self.trouble(nvml);
        if let Some(reading) = self.reading.as_ref().filter(|_| self.slow_new) {
            self.expected_nvlinks.look(unix_now(), cx, reading, &self.slow);
        }
        self.write(out);
        cx.hub.set_detected_gpu(self.name());
        let call = nvml.stuck(self.config.stuck_after.as_duration());
        let driver = Driver { call, quick: self.quick };
        self.watch.unresponsive(cx, driver, self.reading.as_ref(), self.known.gpus());
        let expected = self.expected();
        self.watch.useless(cx, self.useless(), expected);
        if let Some(reading) = &self.reading {
            let (seen, listed) = self.ours();
            self.watch.look(cx, reading, &Inventory { seen, listed, expected });
            if std::mem::take(&mut self.slow_new) {
                self.watch.look_closely(cx, reading, &self.slow, &mut self.known);
                self.nvlink_errors.look(unix_now(), cx, reading, &self.slow);
            }
            self.health.report(cx, reading, &self.slow);
        }
        trouble.map_or(Ok(()), Err)
    }
}

/// Whether the file is a readable log.
fn is_log(path: &Path) -> bool {
    let kind = std::fs::File::open(path).and_then(|file| file.metadata());
    kind.is_ok_and(|found| !found.is_dir())
}

/// Writes the cost of NVML calls, and whether they are suspended.
fn write_costs(nvml: &Nvml, out: &mut Samples) {
    for (function, cost) in nvml.costs() {
        out.set(&CALL_SECONDS, &[function], cost.total);
        out.set(&CALL_LONGEST, &[function], cost.longest);
    }
    if let Some(call) = nvml.call().filter(|call| call.since.elapsed() > LONG_CALL) {
        out.set(&CALL_RUNNING, &[call.function], call.since.elapsed());
    }
    out.set(&RELEASED, &[], nvml.released().is_some());
}

#[cfg(test)]
mod tests;
