//! Determines which GPUs are at work, so that their links should be fast.
//!
//! A job may use only part of the node, and a process opens every visible GPU, used or not. So
//! NVML's utilization decides. Without it, because the GPU is partitioned or NVML is not open, a
//! GPU is at work if a training process has it open. A GPU whose users may not be inspected counts
//! as idle: nothing shows that its link should be fast.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stepwatch_sys::nvml::Device;

use crate::collector::Context;
use crate::gpus;
use crate::nvml::Session;
use crate::processes;

/// The utilization in percent from which a GPU is at work.
const BUSY_PERCENT: u32 = 10;
const NVML_WAIT: Duration = Duration::from_secs(2);
/// Seconds for which the list of GPUs that the same processes have open is reused: it takes a call
/// for each of their files.
const OPEN_SECONDS: f64 = 60.0;
/// The most training processes whose open files are inspected.
const MAX_PROCESSES: usize = 64;

/// Whether each GPU is busy, by PCI address, as far as it is known.
pub(super) type Busy = BTreeMap<String, bool>;

#[derive(Debug)]
pub(super) struct Work {
    pub(super) ask: fn(&Context<'_>) -> Busy,
    busy: Option<Busy>,
    open: Option<Open>,
}

/// The GPUs that training processes had open.
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
    /// Forgets the utilization at the start of a pass.
    pub(super) fn forget(&mut self) {
        self.busy = None;
    }

    /// Whether a GPU is at work. It is called only for GPUs with a slow link, of which there are
    /// few.
    pub(super) fn is_at_work(&mut self, now: f64, cx: &Context<'_>, pci: &str) -> bool {
        let busy = self.busy.get_or_insert_with(|| (self.ask)(cx));
        if let Some(busy) = busy.get(pci) {
            return *busy;
        }
        let training = cx.hub.processes(cx.roots);
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
        // This does not open NVML, because the configuration may forbid it.
        let live = session.is_open().then(|| session.live().ok()).flatten()?;
        let of_gpu = |gpu: &mut crate::nvml::Gpu| {
            let (busy, _) = gpu.ask("utilization", 0, Device::utilization)?;
            Some((gpu.id.pci.clone(), busy >= BUSY_PERCENT))
        };
        Some(live.gpus.iter_mut().filter_map(of_gpu).collect())
    };
    cx.nvml.ask(cx.roots.nvml_library.as_deref(), NVML_WAIT, busy).flatten().unwrap_or_default()
}
