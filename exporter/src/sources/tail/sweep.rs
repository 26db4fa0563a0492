//! Removes the saved positions of files that are gone. A tail removes those of files that it
//! follows; this removes those of files that were displaced, or that no tail follows any more.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use stepwatch_kit::shutdown::Shutdown;

use super::follow::DRAIN;
use super::state::{Saved, Store};
use crate::clock::unix_now;
use crate::origin::{Origin, Priority, Via};
use crate::principal::Principal;
use crate::sources::sink::{Sink, Surroundings};
use crate::stream::Mark;

/// How often all saved positions are checked.
pub(super) const EVERY: Duration = Duration::from_hours(1);
/// The number of positions after each of which there is a pause.
const PART: usize = 512;
const PAUSE: Duration = Duration::from_secs(5);
/// How long a position is kept if the file system may merely not be mounted.
const UNSURE: Duration = Duration::from_hours(7 * 24);

/// Repeated passes over the directory of saved positions.
pub(super) struct Sweep {
    dir: PathBuf,
    sink: Box<dyn Sink>,
    entries: Option<fs::ReadDir>,
    /// When the next pass begins.
    next: Option<Instant>,
}

impl Sweep {
    pub(super) fn new(state_dir: &Path, sink: Box<dyn Sink>) -> Self {
        Self { dir: state_dir.join("tails"), sink, entries: None, next: None }
    }

    /// Checks the next part if a pass is due.
    pub(super) fn go_on(&mut self, now: Instant, unix: f64) {
        if self.entries.is_none() {
            if self.next.is_some_and(|at| now < at) {
                return;
            }
            self.entries = fs::read_dir(&self.dir).ok();
            self.next = Some(now + EVERY);
        }
        for _ in 0..PART {
            let Some(entry) = self.entries.as_mut().and_then(Iterator::next) else {
                self.entries = None;
                return;
            };
            let Some(store) = entry.ok().and_then(|entry| Store::of(entry.path())) else { continue };
            self.look_at(&store, unix);
        }
    }

    fn look_at(&self, store: &Store, unix: f64) {
        let Some(age) = store.saved_at().map(|at| unix - at) else { return };
        let over = age > UNSURE.as_secs_f64();
        if age < DRAIN.as_secs_f64() || !store.load_any().map_or(over, |saved| is_gone(&saved, over)) {
            return;
        }
        store.forget();
        if self.sink.mark(store.key()).is_some() {
            let origin = Origin::said_by(Via::Tail, &"".into(), Priority::Log, Principal::Exporter);
            self.sink.publish_all(&origin, &mut Vec::new(), Mark { key: store.key(), value: "" });
        }
    }
}

/// Whether the file is gone for good: its directory, or the nearest parent that exists, is on the
/// same file system as the file was.
fn is_gone(saved: &Saved, unsure: bool) -> bool {
    let missing = |path: &Path| {
        let found = fs::symlink_metadata(path);
        found.is_err_and(|err| err.kind() == std::io::ErrorKind::NotFound)
    };
    if !missing(&saved.path) {
        return false;
    }
    let left = saved.path.ancestors().skip(1).find(|dir| !missing(dir));
    let dev = left.and_then(|dir| fs::metadata(dir).ok()).map(|meta| meta.dev());
    unsure || saved.files.iter().any(|file| Some(file.dev) == dev)
}

/// Runs until `shutdown` on a thread that is not joined, because a hung file system may hold it for
/// ever.
pub(in crate::sources) fn start(around: &Surroundings, shutdown: Shutdown) {
    let mut sweep = Sweep::new(&around.state_dir, Box::new(around.hub.clone()));
    let (stop, stopped) = channel::<()>();
    let work = move || {
        loop {
            sweep.go_on(Instant::now(), unix_now());
            if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    if let Err(err) = std::thread::Builder::new().name("tails".into()).spawn(work) {
        tracing::error!(%err, "cannot start the thread that removes the positions of files that are gone");
        return;
    }
    tokio::spawn(async move {
        shutdown.wait().await;
        drop(stop);
    });
}
