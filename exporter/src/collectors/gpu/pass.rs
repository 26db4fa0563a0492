//! One pass over all GPUs on the NVML thread, and its result for the collector.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::Error;

use super::{nvlink, read};
use crate::clock::unix_now;
use crate::nvml::{Aside, Gpu, Heard, Identity, OpenError, Session};
use crate::samples::Samples;

pub(super) type Answer = Result<Reading, OpenError>;

/// The result of a pass, and whether all calls about the driver as a whole were quick.
pub(super) type Passed = (Answer, bool);

/// The values of all GPUs from one pass.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// The Unix time in seconds.
    pub(super) time: f64,
    pub(super) driver: String,
    pub(super) cuda: String,
    pub(super) gpus: Vec<GpuReading>,
    /// The GPUs that NVML counts but cannot use: index and error.
    pub(super) unusable: Vec<(u32, Error)>,
    /// XID errors since the previous reading, if they were requested.
    pub(super) heard: Option<Heard>,
}

/// The values to read besides the fast ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Whether to read values that are expensive or change from day to day.
    pub(super) slow: bool,
    /// Whether to read the histories of error correction with them.
    pub(super) fec: bool,
    pub(super) xids: bool,
    /// The time in a pass that one GPU may take.
    pub(super) patience: Duration,
}

#[derive(Debug)]
pub(super) struct GpuReading {
    pub(super) id: Arc<Identity>,
    pub(super) at: Instant,
    /// The Unix time in seconds.
    pub(super) time: f64,
    pub(super) lost: bool,
    /// The error that it returns for everything, if that is why it counts as lost.
    pub(super) lost_with: Option<String>,
    pub(super) needs_reset: bool,
    /// Set if it answers too slowly to be read.
    pub(super) aside: Option<Aside>,
    pub(super) failures: u64,
    pub(super) fast: Samples,
    /// The slow values, if it was their turn.
    pub(super) slow: Option<Samples>,
}

impl Reading {
    /// The number of GPUs that answer and need no reset.
    pub(super) fn answering(&self) -> usize {
        self.gpus.iter().filter(|gpu| !gpu.lost && !gpu.needs_reset && gpu.aside.is_none()).count()
    }

    /// Drops values older than `stale`. Returns whether no value is left.
    pub(super) fn expire(&mut self, stale: Duration) -> bool {
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.at.elapsed() > stale) {
            gpu.fast = Samples::default();
        }
        let newest = self.gpus.iter().map(|gpu| gpu.at).max().unwrap_or(self.at);
        newest.elapsed() > stale
    }
}

impl GpuReading {
    /// Whether the GPU was read, so that its values are valid.
    pub(super) fn is_read(&self) -> bool {
        !self.lost && self.aside.is_none()
    }

    /// Sets the GPU aside because one of its calls does not return, and drops its values.
    pub(super) fn hangs(&mut self, aside: Aside) {
        self.aside.get_or_insert(aside);
        (self.fast, self.slow) = (Samples::default(), None);
    }
}

pub(super) fn pass(session: &mut Session, plan: Plan) -> Passed {
    session.begin(plan.patience);
    let answer = read(session, plan);
    (answer, session.is_quick())
}

fn read(session: &mut Session, plan: Plan) -> Answer {
    // A driver that was just opened has given no values yet.
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
        live.retry_unusable(plan.patience);
    }
    let (at, time) = (Instant::now(), unix_now());
    // GPUs that may be slow come last, so that the values of the others are fresh.
    let mut turns: Vec<&mut Gpu> = live.gpus.iter_mut().collect();
    turns.sort_by_key(|gpu| gpu.aside().is_some());
    let mut gpus: Vec<GpuReading> =
        turns.into_iter().map(|gpu| read_gpu(gpu, Instant::now(), slow, plan.fec)).collect();
    gpus.sort_by_key(|gpu| gpu.id.index);
    let heard = plan.xids.then(|| live.xids());
    Ok(Reading {
        at,
        time,
        driver: live.driver.clone(),
        cuda: live.cuda.clone(),
        gpus,
        unusable: live.unusable.clone(),
        heard,
    })
}

fn read_gpu(gpu: &mut Gpu, now: Instant, slow: bool, fec: bool) -> GpuReading {
    let slow = gpu.begin(now) || slow;
    if slow {
        gpu.sign_of_life();
        gpu.ask_again(now);
    }
    let mut reading = GpuReading {
        id: Arc::clone(&gpu.id),
        at: now,
        time: unix_now(),
        lost: false,
        lost_with: None,
        needs_reset: false,
        aside: None,
        failures: 0,
        fast: Samples::after(&gpu.published),
        slow: None,
    };
    // The expensive values come first, because they find the instances for the others.
    if slow {
        let mut out = Samples::default();
        read::slow(gpu, &mut out);
        if fec {
            nvlink::read_fec_history(gpu, &mut out);
        }
        reading.slow = Some(out.into_sealed());
    }
    read::fast(gpu, &mut reading.fast);
    reading.fast = reading.fast.into_sealed();
    gpu.published.clone_from(&reading.fast);
    gpu.end();
    (reading.lost, reading.needs_reset, reading.failures) = (gpu.lost, gpu.needs_reset, gpu.failures);
    (reading.lost_with, reading.aside) = (gpu.lost_with.clone(), gpu.aside().cloned());
    if !reading.is_read() {
        // After a failure, the values read before it are unreliable.
        (reading.fast, reading.slow) = (Samples::default(), None);
    }
    reading
}
