//! A thousand ranks that make a step a second throughout a test.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::trainer::{Rank, healthy};

/// The number of ranks per run.
const RANKS_PER_RUN: u32 = 50;

/// A crowd that streams until it is dropped.
#[derive(Debug)]
pub struct Crowd {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    began: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Starts the crowd, in which each rank makes a step a second.
    pub fn start(ingest: &Path, ranks: u32) -> anyhow::Result<Self> {
        let runs = ranks.div_ceil(RANKS_PER_RUN);
        let join = |r| Rank::join(ingest, &format!("crowd-{}", r % runs), r / runs, RANKS_PER_RUN);
        let all = (0..ranks).map(join).collect::<anyhow::Result<Vec<_>>>()?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = std::thread::spawn(move || stream(&all, &stopped, &count));
        Ok(Self { stop, sent, began: Instant::now(), thread: Some(thread) })
    }

    /// The steps per second so far.
    pub fn pace(&self) -> f64 {
        self.sent.load(Ordering::Relaxed) as f64 / self.began.elapsed().as_secs_f64()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn stream(ranks: &[Rank], stop: &AtomicBool, sent: &AtomicU64) {
    let began = Instant::now();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (round, rank) = (n / ranks.len() + 1, &ranks[n % ranks.len()]);
        let (loss, grad_norm) = healthy(round as i64);
        let step = rank.step(round as i64, &[("loss", loss), ("grad_norm", grad_norm), ("lr", 3e-4)]);
        // The exporter has ended, so the crowd ends too.
        if step.is_err() {
            return;
        }
        sent.fetch_add(1, Ordering::Relaxed);
        let due = began + Duration::from_secs_f64(n as f64 / ranks.len() as f64);
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

/// Raises the limit of open files, because a thousand sockets exceed the usual soft limit.
pub fn raise_file_limit() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
