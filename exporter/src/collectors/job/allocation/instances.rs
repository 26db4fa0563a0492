//! Resolves MIG devices to their GPU and GPU instance: schedulers and Kubernetes name them by UUIDs
//! of their own, which only NVML can resolve.
//!
//! NVML is queried at a low rate, when an unknown name of this kind occurs. Its answer is valid
//! until the GPU is repartitioned.

use std::time::{Duration, Instant};

use super::devices::MigDevice;
use crate::collector::Context;
use crate::nvml::{Gpu, Mig, Session};

/// How often NVML is queried for a MIG device that it did not know.
const INSTANCES_AGAIN: Duration = Duration::from_mins(1);
const NVML_WAIT: Duration = Duration::from_secs(2);

/// The MIG devices that NVML lists.
#[derive(Debug, Default)]
pub(super) struct Instances {
    known: Vec<MigDevice>,
    asked: Option<Instant>,
}

impl Instances {
    pub(super) fn known(&self) -> Vec<MigDevice> {
        self.known.clone()
    }

    /// Queries NVML if a `wanted` device is unknown, and NVML is in use and idle; the next pass has
    /// the answer.
    pub(super) fn look(&mut self, cx: &Context<'_>, wanted: bool, now: Instant) {
        if !wanted || self.asked.is_some_and(|at| now.saturating_duration_since(at) < INSTANCES_AGAIN) {
            return;
        }
        self.asked = Some(now);
        let instances = |session: &mut Session| {
            // This does not open NVML, because the configuration may forbid it.
            let live = session.is_open().then(|| session.live().ok()).flatten()?;
            let of_gpu = |gpu: &Gpu| {
                let device = |mig: &Mig| MigDevice {
                    uuid: mig.uuid.clone(),
                    gpu: gpu.id.uuid.clone(),
                    gi: mig.gpu_instance,
                };
                gpu.instances.iter().map(device).collect::<Vec<_>>()
            };
            Some(live.gpus.iter().flat_map(of_gpu).collect())
        };
        let answer = cx.nvml.ask(cx.roots.nvml_library.as_deref(), NVML_WAIT, instances).flatten();
        self.known = answer.unwrap_or_default();
    }
}
