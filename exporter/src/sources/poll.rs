//! Runs a source that reads files on a thread. The thread is not joined, because a hung file system
//! may hold it for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use stepwatch_kit::shutdown::Shutdown;

use crate::clock::unix_now;
use crate::source::SourceHandle;

/// A poll that takes this long counts as stuck in the file system.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// A source that is polled.
pub(super) trait Poll: Send + 'static {
    /// Reads new content. Returns true if there is more to read at once.
    fn poll(&mut self, now: Instant, unix: f64) -> bool;
}

/// The description of a source that is polled on a thread of its own.
pub(super) struct Polling {
    /// The kind of the source, for the name of the thread.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) health: SourceHandle,
    pub(super) interval: Duration,
}

/// Polls until `shutdown`. While the thread hangs, the source is marked as down.
pub(super) fn start(polling: Polling, mut polled: impl Poll, shutdown: Shutdown) {
    let Polling { kind, interval, .. } = polling;
    let (stop, stopped) = channel();
    let beat = Arc::new(AtomicU64::new(0));
    let pulse = Arc::clone(&beat);
    let work = move || run(&mut polled, interval, &stopped, &pulse);
    match std::thread::Builder::new().name(kind.into()).spawn(work) {
        Ok(_) => drop(tokio::spawn(watch(polling, beat, stop, shutdown))),
        Err(err) => tracing::error!(kind, name = polling.name, %err, "cannot start the thread of a source"),
    }
}

fn run(polled: &mut impl Poll, interval: Duration, stopped: &Receiver<()>, beat: &AtomicU64) {
    loop {
        let more = polled.poll(Instant::now(), unix_now());
        beat.fetch_add(1, Ordering::Relaxed);
        let pause = if more { Duration::ZERO } else { interval };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Marks the source as down while its thread hangs, which the thread itself cannot, and stops it at
/// shutdown.
async fn watch(polling: Polling, beat: Arc<AtomicU64>, stop: Sender<()>, shutdown: Shutdown) {
    let Polling { name, health, interval, .. } = polling;
    let mut last = None;
    let mut stuck = false;
    loop {
        tokio::select! {
            () = shutdown.wait() => break,
            () = tokio::time::sleep(STUCK_AFTER + interval) => {}
        }
        let now = beat.load(Ordering::Relaxed);
        let hangs = last == Some(now);
        last = Some(now);
        if hangs {
            health.up(false);
        }
        if hangs != stuck {
            stuck = hangs;
            tracing::warn!(name, stuck, "the file system of a source does not answer, or does again");
        }
    }
    drop(stop);
}
