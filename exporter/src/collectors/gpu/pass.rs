//! One pass over all GPUs, on the thread of NVML, and what it leaves for the collector.

use std::sync::Arc;
use std::time::Instant;

use super::{nvlink, read};
use crate::hub::unix_now;
use crate::nvml::{Gpu, Identity, OpenError, Session, Xid};
use crate::samples::Samples;

pub(super) type Answer = Result<Reading, OpenError>;

/// What was read of all GPUs.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// Unix seconds.
    pub(super) time: f64,
    pub(super) driver: String,
    pub(super) cuda: String,
    pub(super) gpus: Vec<GpuReading>,
    /// GPUs that NVML counts and cannot use, by index, and why.
    pub(super) unusable: Vec<(u32, String)>,
    /// Since the reading before, where they were asked for.
    pub(super) xids: Vec<Xid>,
}

/// What to read beside what changes from second to second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// What is dear or changes from day to day.
    pub(super) slow: bool,
    /// Then the histories of error correction too.
    pub(super) fec: bool,
    pub(super) xids: bool,
}

#[derive(Debug)]
pub(super) struct GpuReading {
    pub(super) id: Arc<Identity>,
    /// Unix seconds.
    pub(super) time: f64,
    pub(super) lost: bool,
    pub(super) needs_reset: bool,
    pub(super) failures: u64,
    pub(super) fast: Samples,
    /// When it was its turn.
    pub(super) slow: Option<Samples>,
}

impl Reading {
    /// How many GPUs are as they should be.
    pub(super) fn answering(&self) -> usize {
        self.gpus.iter().filter(|gpu| !gpu.lost && !gpu.needs_reset).count()
    }
}

pub(super) fn read(session: &mut Session, plan: Plan) -> Answer {
    // A driver that was just opened has told nothing yet.
    let slow = plan.slow || !session.is_open();
    if slow && session.is_open() {
        let live = session.live()?;
        let known = live.gpus.len() + live.unusable.len();
        if live.count().is_none_or(|count| count as usize != known) {
            tracing::warn!(known, "the driver has other GPUs than before; opening NVML anew");
            session.close();
        }
    }
    let live = session.live()?;
    if slow {
        live.retry_unusable();
    }
    let (at, time) = (Instant::now(), unix_now());
    let gpus = live.gpus.iter_mut().map(|gpu| read_gpu(gpu, at, slow, plan.fec)).collect();
    let xids = if plan.xids { live.xids() } else { Vec::new() };
    Ok(Reading {
        at,
        time,
        driver: live.driver.clone(),
        cuda: live.cuda.clone(),
        gpus,
        unusable: live.unusable.clone(),
        xids,
    })
}

fn read_gpu(gpu: &mut Gpu, now: Instant, slow: bool, fec: bool) -> GpuReading {
    if slow {
        gpu.sign_of_life();
        gpu.ask_again(now);
    }
    let mut reading = GpuReading {
        id: Arc::clone(&gpu.id),
        time: unix_now(),
        lost: false,
        needs_reset: false,
        failures: 0,
        fast: Samples::after(&gpu.told),
        slow: None,
    };
    // First what is dear: it finds the instances that the rest is read of.
    if slow {
        let mut out = Samples::default();
        read::slow(gpu, &mut out);
        if fec {
            nvlink::read_fec_history(gpu, &mut out);
        }
        reading.slow = Some(out.into_sealed());
    }
    read::fast(gpu, now, &mut reading.fast);
    reading.fast = reading.fast.into_sealed();
    gpu.told.clone_from(&reading.fast);
    if gpu.lost {
        // What was read before it fell off says little, and what it said before that is over.
        (reading.fast, reading.slow) = (Samples::default(), None);
    }
    (reading.lost, reading.needs_reset, reading.failures) = (gpu.lost, gpu.needs_reset, gpu.failures);
    reading
}
