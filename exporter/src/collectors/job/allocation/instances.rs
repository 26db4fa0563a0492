//! Which GPU, and which instance of it, a MIG device is part of: schedulers and Kubernetes name it
//! by a UUID of its own, which only NVML can resolve.
//!
//! NVML is asked when an unknown name of this kind turns up, and then seldom: its answer is valid
//! until the GPU is partitioned anew.

use std::time::{Duration, Instant};

use super::devices::MigDevice;
use crate::collector::Context;
use crate::nvml::{Gpu, Mig, Session};

/// How often NVML is asked for a MIG device that it did not know.
const INSTANCES_AGAIN: Duration = Duration::from_mins(1);
const NVML_WAIT: Duration = Duration::from_secs(2);

/// GPU instances by the UUIDs of their MIG devices, from NVML.
#[derive(Debug, Default)]
pub(super) struct Instances {
    known: Vec<MigDevice>,
    asked: Option<Instant>,
}

impl Instances {
    pub(super) fn known(&self) -> Vec<MigDevice> {
        self.known.clone()
    }

    /// Asks for them when one is `wanted` that is not known, if NVML is in use and has nothing
    /// better to do; the next pass has the answer.
    pub(super) fn look(&mut self, cx: &Context<'_>, wanted: bool, now: Instant) {
        if !wanted || self.asked.is_some_and(|at| now.saturating_duration_since(at) < INSTANCES_AGAIN) {
            return;
        }
        self.asked = Some(now);
        let instances = |session: &mut Session| {
            // NVML is not opened for this: the configuration may forbid it.
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
