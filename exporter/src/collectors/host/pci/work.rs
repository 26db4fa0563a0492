//! Which GPUs are at work, and so have no reason to slow their links down.
//!
//! A job may have part of the node only, and a process opens every GPU that it may see, whether it
//! uses it or not: so the utilization from NVML decides. Without one, because the GPU is
//! partitioned or NVML is not open, a GPU is at work when a training process has it open. A GPU
//! whose users may not be inspected counts as idle: nothing shows that its link should be fast.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepwatch_sys::nvml::Device;

use crate::collector::Context;
use crate::gpus;
use crate::nvml::Session;
use crate::processes;

/// A GPU that is busy for less than this share of the time is not at work.
const BUSY_PERCENT: u32 = 10;
const NVML_WAIT: Duration = Duration::from_secs(2);
/// How long the list of open GPUs of the same processes is reused: making it costs a call for each
/// of their files.
const OPEN_SECONDS: f64 = 60.0;
/// Training processes whose open files are looked at.
const MAX_PROCESSES: usize = 64;

/// Whether a GPU is busy, by address on the bus, as far as it is known.
pub(super) type Busy = BTreeMap<String, bool>;

#[derive(Debug)]
pub(super) struct Work {
    pub(super) ask: fn(&Context<'_>) -> Busy,
    busy: Option<Busy>,
    open: Option<Open>,
}

/// GPUs that training processes had open.
#[derive(Debug)]
struct Open {
    at: f64,
    processes: BTreeSet<u32>,
    gpus: BTreeSet<String>,
}

impl Default for Work {
    fn default() -> Self {
        Self { ask: ask_nvml, busy: None, open: None }
    }
}

impl Work {
    /// Another pass: what was busy may not be any more.
    pub(super) fn forget(&mut self) {
        self.busy = None;
    }

    /// Asked only of GPUs whose link is slow: mostly there is none.
    pub(super) fn is_at_work(&mut self, now: f64, cx: &Context<'_>, pci: &str) -> bool {
        let busy = self.busy.get_or_insert_with(|| (self.ask)(cx));
        if let Some(busy) = busy.get(pci) {
            return *busy;
        }
        let training = cx.hub.processes();
        let processes: BTreeSet<u32> = training.iter().map(|p| p.pid).take(MAX_PROCESSES).collect();
        let holds =
            |open: &Open| open.processes == processes && (0.0..OPEN_SECONDS).contains(&(now - open.at));
        if !self.open.as_ref().is_some_and(holds) {
            let gpus = gpus_open(cx, &processes);
            self.open = Some(Open { at: now, processes, gpus });
        }
        self.open.as_ref().is_some_and(|open| open.gpus.contains(pci))
    }
}

fn gpus_open(cx: &Context<'_>, processes: &BTreeSet<u32>) -> BTreeSet<String> {
    let minors = processes.iter().flat_map(|pid| processes::open_gpus(cx.roots, *pid));
    let minors: BTreeSet<String> = minors.map(|minor| minor.to_string()).collect();
    if minors.is_empty() {
        return BTreeSet::new();
    }
    let gpus = gpus::inventory(cx.roots).into_iter();
    gpus.filter(|gpu| minors.contains(&gpu.minor)).map(|gpu| gpu.pci).collect()
}

fn ask_nvml(cx: &Context<'_>) -> Busy {
    let busy = |session: &mut Session| {
        // NVML is not opened for this: the configuration may forbid it.
        let live = session.is_open().then(|| session.live().ok()).flatten()?;
        let of_gpu = |gpu: &mut crate::nvml::Gpu| {
            let (busy, _) = gpu.ask("utilization", 0, Device::utilization)?;
            Some((gpu.id.pci.clone(), busy >= BUSY_PERCENT))
        };
        Some(live.gpus.iter_mut().filter_map(of_gpu).collect())
    };
    cx.nvml.ask(cx.roots.nvml_library.as_deref(), NVML_WAIT, busy).flatten().unwrap_or_default()
}
