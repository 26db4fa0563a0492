//! One pass over all GPUs, on the thread of NVML, and what it leaves for the collector.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwatch_sys::nvml::Error;

use super::{nvlink, read};
use crate::clock::unix_now;
use crate::nvml::{Aside, Gpu, Heard, Identity, OpenError, Session};
use crate::samples::Samples;

pub(super) type Answer = Result<Reading, OpenError>;

/// The result of a pass, and whether all calls that concern no single GPU were quick.
pub(super) type Passed = (Answer, bool);

/// The values of all GPUs from one pass.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// Unix seconds.
    pub(super) time: f64,
    pub(super) driver: String,
    pub(super) cuda: String,
    pub(super) gpus: Vec<GpuReading>,
    /// GPUs that NVML counts and cannot use, by index, and why.
    pub(super) unusable: Vec<(u32, Error)>,
    /// XID errors since the reading before, where they were asked for.
    pub(super) heard: Option<Heard>,
}

/// What to read besides the values that change from second to second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Whether to read values that are expensive or change from day to day.
    pub(super) slow: bool,
    /// Then the histories of error correction too.
    pub(super) fec: bool,
    pub(super) xids: bool,
    /// The time that one GPU may take of the pass.
    pub(super) patience: Duration,
}

#[derive(Debug)]
pub(super) struct GpuReading {
    pub(super) id: Arc<Identity>,
    pub(super) at: Instant,
    /// Unix seconds.
    pub(super) time: f64,
    pub(super) lost: bool,
    /// The error that it answers everything with, if it is lost for that.
    pub(super) lost_with: Option<String>,
    pub(super) needs_reset: bool,
    /// It answers too slowly to be asked.
    pub(super) aside: Option<Aside>,
    pub(super) failures: u64,
    pub(super) fast: Samples,
    /// When it was its turn.
    pub(super) slow: Option<Samples>,
}

impl Reading {
    /// How many GPUs are as they should be.
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
    /// Whether it was read, so that its values count.
    pub(super) fn is_read(&self) -> bool {
        !self.lost && self.aside.is_none()
    }

    /// A call of it has not come back for so long.
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
    // GPUs that may take long come last, so that the values of the others are fresh.
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
    // First what is dear: it finds the instances that the rest is read of.
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
        // Values read before the failure mean little, and the state that they show is over.
        (reading.fast, reading.slow) = (Samples::default(), None);
    }
    reading
}
