//! The kernel's log, `/dev/kmsg`: errors of GPUs (XID) and NVSwitches (SXID) as true counters, and
//! every other fault that a training node reports there first: PCIe, disks, file systems, network
//! adapters, memory, processes that hang or are killed.
//!
//! The kernel's log is the one source that still works when the driver hangs, and that keeps what
//! happened while this exporter was down. The position in the log is saved, so that a record is
//! counted and published once across restarts. No XID of a burst is lost, whereas NVML's event
//! keeps only the last one.
//!
//! A pass waits in `poll` for a record until its interval ends, and publishes it at once:
//! milliseconds after the line, without needless wake-ups on a healthy node. So a pass takes as
//! long as the interval, and waits most of the time.

mod aside;
pub mod catalogue;
mod clock;
mod counts;
mod events;
mod families;
mod first_seen;
mod imports;
mod lines;
mod log;
mod nvidia;
mod patterns;
mod record;
pub mod recovery_action;
mod tracker;
mod xid_detail;

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use stepwatch_kit::config::Period;

use self::aside::Aside;
use self::clock::Clock;
use self::counts::{Counts, Said};
use self::families::KNOWN;
pub use self::families::{EVENTS, FAMILIES, LAST_XID, LOGGED_RECOVERY, MIG_XIDS, NONFATAL_XIDS, SXIDS, XIDS};
use self::first_seen::KnownMessages;
use self::imports::Imports;
use self::log::{Log, Next};
pub(crate) use self::patterns::{Fitness, Pattern};
use self::tracker::{NOT_YET, Tracker};
use crate::clock::unix_now;
use crate::collector::{CollectError, Collector, Context, Mistakes, Rhythm, Support};
use crate::family_filter::Metrics;
use crate::gpus::{self, Gpu};
use crate::origin::Origin;
use crate::persisted_state;
use crate::roots::{self, Roots};
use crate::samples::Samples;
use crate::stream::Mark;

pub const ABOUT: &str = "kernel log: XIDs, SXIDs, OOM kills, PCIe, disk, file system and network trouble";
pub const NEEDS: &str =
    "/dev/kmsg; CAP_SYSLOG where kernel.dmesg_restrict=1; in a container, privileged: true";
pub const COST: &str = "sleeps until the kernel logs something";

/// The name under which the collector saves its state and the stream keeps its position.
const NAME: &str = "kernel";
/// The file of the messages known on this node, in the state directory.
const KNOWN_FILE: &str = "kernel-messages.txt";
const LOCK_FILE: &str = "collector-kernel.lock";
/// The most records of one pass; the metrics page must not wait for a storm to end.
const MAX_RECORDS: usize = 65_536;
/// The number of records after which events are published.
const BATCH: usize = 1024;
/// After a crash, at most this much of the log is read again.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// How often the GPUs are listed, unless an unknown one appears.
const LIST_EVERY: Duration = Duration::from_mins(1);
/// The longest wait for the first list: a driver that hangs must not keep the log from being read.
const FIRST_LIST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub enabled: bool,
    /// The families that are on the metrics page.
    pub metrics: Metrics,
    /// The interval at which the metrics page is updated; events are streamed at once.
    pub interval: Period,
    /// A file of further known messages, one a line, such as `kernel-messages.txt` of another node.
    pub known_messages: Option<PathBuf>,
    /// A table of XIDs in the format of the built-in one. Its rows are added, or replace those of
    /// the same code.
    pub xids: Option<PathBuf>,
}

impl Config {
    pub(crate) fn check(&self) -> Mistakes {
        Mistakes::default().period("interval", self.interval).all(
            "xids",
            self.xids.as_deref().and_then(|path| catalogue::check(path).err()).unwrap_or_default(),
        )
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            metrics: Metrics::default(),
            interval: Period::secs(1),
            known_messages: None,
            xids: None,
        }
    }
}

pub fn rhythm(config: &Config) -> Rhythm {
    let interval = config.interval.into();
    Rhythm { interval, deadline: Duration::saturating_add(interval, Duration::from_secs(5)) }
}

#[derive(Debug)]
pub struct KernelLogReader {
    config: Config,
    open: Option<Open>,
}

/// The state of a log that is being read.
#[derive(Debug)]
struct Open {
    log: Log,
    tracker: Tracker,
    clock: Clock,
    /// Held while this reader owns the saved state: after a reload, the previous reader may still
    /// be in its last pass.
    lock: Option<Arc<File>>,
    /// Whether the first pass is not complete.
    first: bool,
    unsaved: bool,
    saved: Option<Instant>,
    save_failed: bool,
    saving: Aside<io::Result<()>>,
    listed: Instant,
    listing: Aside<Vec<Gpu>>,
    imports: Imports,
    said: Said,
    /// The part of the last pass that was spent waiting for a record.
    waited: Duration,
}

impl KernelLogReader {
    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), open: None }
    }
}

impl Collector for KernelLogReader {
    fn probe(&mut self, cx: &Context<'_>) -> Result<Support, CollectError> {
        let path = &cx.roots.kmsg;
        let log = match Log::open(path) {
            Ok(log) => log,
            Err(e) => return refused(path, e),
        };
        let state = cx.roots.state.as_deref();
        let lock = state.map(lock).transpose().map_err(|e| CollectError::read(path, e))?;
        let mut tracker = remembered(cx);
        let own = state.map(|dir| dir.join(KNOWN_FILE));
        let (known, learned) = KnownMessages::load(own.as_deref(), self.config.known_messages.as_deref());
        (tracker.known, tracker.learning) = (known, !learned);
        let mut open = Open {
            log,
            tracker,
            clock: Clock::new(cx.roots),
            lock: lock.map(Arc::new),
            first: true,
            unsaved: true,
            saved: None,
            save_failed: false,
            saving: Aside::default(),
            listed: Instant::now(),
            listing: Aside::default(),
            imports: Imports::default(),
            said: Said::default(),
            waited: Duration::ZERO,
        };
        open.list(cx.roots);
        open.learn_gpus(FIRST_LIST);
        self.open = Some(open);
        Ok(Support::Supported(path.display().to_string()))
    }

    fn collect(&mut self, cx: &Context<'_>, out: &mut Samples) -> Result<(), CollectError> {
        let until = Instant::now() + Duration::from(self.config.interval);
        let Some(open) = &mut self.open else {
            return Err(CollectError::Other("the kernel log is not open".into()));
        };
        open.waited = Duration::ZERO;
        open.learn_gpus(Duration::ZERO);
        let mut left = MAX_RECORDS;
        loop {
            open.drain(cx, &mut left)?;
            let wait = until.saturating_duration_since(Instant::now());
            if open.first || left == 0 || wait.is_zero() || !open.wait(wait) {
                break;
            }
        }
        if open.listed.elapsed() >= LIST_EVERY || std::mem::take(&mut open.tracker.stranger) {
            open.list(cx.roots);
        }
        open.finish(cx);
        open.said.write(&open.tracker.counts, out);
        out.set(&KNOWN, &[], open.tracker.known.len());
        Ok(())
    }

    fn waited(&self) -> Duration {
        self.open.as_ref().map_or(Duration::ZERO, |open| open.waited)
    }
}

impl Open {
    /// Waits for a record. Returns whether there is one.
    fn wait(&mut self, most: Duration) -> bool {
        let began = Instant::now();
        let came = self.log.wait(most);
        self.waited += began.elapsed();
        came
    }

    /// Reads the available records and publishes their events.
    fn drain(&mut self, cx: &Context<'_>, left: &mut usize) -> Result<(), CollectError> {
        let mut batch = 0;
        while *left > 0 {
            match self.log.next().map_err(|e| CollectError::read(&cx.roots.kmsg, e))? {
                Next::Record(bytes) => {
                    let clock = &self.clock;
                    self.tracker.take(bytes, cx.roots, |micros| clock.time(micros, unix_now()));
                    self.unsaved = true;
                    (batch, *left) = (batch + 1, *left - 1);
                    if batch == BATCH {
                        batch = 0;
                        self.publish(cx);
                    }
                }
                Next::Overwritten => self.tracker.overwritten(),
                Next::Empty => {
                    self.clock.empty(unix_now());
                    break;
                }
            }
        }
        self.publish(cx);
        Ok(())
    }

    /// Publishes the events together with the position after them.
    fn publish(&mut self, cx: &Context<'_>) {
        // A published position means that everything before it was read, which is not true during
        // the first pass of a boot.
        if !self.tracker.events.is_empty() && self.tracker.publish_from != NOT_YET {
            self.mark(cx);
        }
    }

    fn mark(&mut self, cx: &Context<'_>) {
        let counts = &self.tracker.counts;
        let value = format!("{} {}", counts.boot, counts.next.unwrap_or_default());
        // These events belong to no run, so they never wait for room.
        cx.hub.publish_all(&Origin::Node, &mut self.tracker.events, Mark { key: NAME, value: &value });
    }

    /// Does the work at the end of a pass.
    fn finish(&mut self, cx: &Context<'_>) {
        // A pass that a storm cut short has not reached the end of the log.
        if self.first && self.clock.was_empty() {
            self.first = false;
            self.tracker.learning = false;
            if self.tracker.publish_from == NOT_YET {
                self.tracker.publish_from = 0;
            }
            // This also records for the next start that this boot was seen.
            self.mark(cx);
        }
        if !self.first {
            let now = unix_now();
            self.imports.ask(&mut self.tracker, cx.roots, now, Duration::ZERO);
            self.tracker.again(now);
            self.unsaved |= !self.tracker.events.is_empty();
            self.publish(cx);
        }
        self.save(cx);
    }

    fn save(&mut self, cx: &Context<'_>) {
        if let Some(result) = self.saving.finished(Duration::ZERO) {
            if let Err(error) = &result {
                cx.hub.state_not_saved();
                self.unsaved = true;
                self.tracker.known.not_saved();
                if !self.save_failed {
                    tracing::error!(%error, "cannot save the position in the kernel log; trying again");
                }
            }
            self.save_failed = result.is_err();
        }
        let due = self.saved.is_none_or(|saved| saved.elapsed() >= SAVE_EVERY);
        let (Some(lock), Some(dir)) = (&self.lock, &cx.roots.state) else { return };
        // Until the first pass is complete, the position would claim that earlier records were
        // published.
        if !self.unsaved || !due || self.first || self.saving.busy() {
            return;
        }
        let (lock, dir) = (Arc::clone(lock), dir.clone());
        let (counts, known) = (self.tracker.counts.clone(), self.tracker.known.changed());
        let began = self.saving.start("kernel-save", move || {
            let _ours = lock;
            save(&dir, &counts, known)
        });
        if began {
            (self.unsaved, self.saved) = (false, Some(Instant::now()));
        }
    }

    fn list(&mut self, roots: &Roots) {
        let roots = roots.clone();
        self.listed = Instant::now();
        self.listing.start("kernel-gpus", move || gpus::inventory(&roots));
    }

    fn learn_gpus(&mut self, most: Duration) {
        for gpu in self.listing.finished(most).unwrap_or_default() {
            self.tracker.counts.learn(&gpu.pci, &gpu.uuid);
        }
    }
}

/// The result for a log that cannot be opened. A missing log is unsupported, a forbidden one is a
/// failure.
fn refused(path: &Path, error: io::Error) -> Result<Support, CollectError> {
    let path_shown = path.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::IsADirectory => Ok(Support::Unsupported(format!(
            "there is no {path_shown}; in a container, mount that of the host"
        ))),
        ErrorKind::PermissionDenied => Err(CollectError::Other(format!(
            "{path_shown} may not be read, so its hardware errors go unseen: give this program CAP_SYSLOG (AmbientCapabilities= of systemd), and its container `privileged: true`"
        ))),
        _ => Err(CollectError::read(path, error)),
    }
}

/// Loads the state of this boot, or an empty one.
fn remembered(cx: &Context<'_>) -> Tracker {
    let boot = roots::read(&cx.roots.proc("sys/kernel/random/boot_id")).unwrap_or_default();
    let saved: Counts = persisted_state::load(cx.roots.state.as_deref(), NAME);
    let counts = if saved.boot == boot { saved } else { Counts::of_boot(&boot) };
    let mark = cx.hub.mark(NAME);
    let published = mark.as_deref().and_then(|m| m.split_once(' ')).filter(|(of, _)| *of == boot);
    let published = published.and_then(|(_, next)| next.parse().ok());
    // The position in the stream is never behind the saved one, unless the stream has no journal.
    let publish_from = counts.next.max(published).unwrap_or(NOT_YET);
    Tracker::new(counts, publish_from)
}

fn lock(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    let file = persisted_state::open_private(&dir.join(LOCK_FILE), &mut options)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn save(dir: &Path, counts: &Counts, known: Option<String>) -> io::Result<()> {
    if let Some(known) = known {
        persisted_state::replace(&dir.join(KNOWN_FILE), known.as_bytes())?;
    }
    persisted_state::save(Some(dir), NAME, counts)
}

/// Reads arbitrary bytes as a log, for the fuzz target.
#[cfg(any(test, feature = "fuzz"))]
pub fn fuzz(data: &[u8]) -> Vec<stepwatch_wire::Event> {
    let mut tracker = Tracker::default();
    let roots = Roots { sysfs: "/nonexistent".into(), ..Roots::default() };
    for record in data.split(|b| *b == 0) {
        tracker.take(record, &roots, |micros| micros as f64 / 1e6);
    }
    // The data is also read as lines of a plain file, and as lines without prefixes.
    for line in data.split(|b| *b == b'\n') {
        tracker.take(line, &roots, |micros| micros as f64 / 1e6);
        let _ = lines::recognise(&String::from_utf8_lossy(line));
    }
    tracker.again(1e9);
    tracker.again(1e9 + tracker::HOLDS_SECONDS);
    let mut out = Samples::default();
    tracker.counts.write(&mut out);
    tracker.events
}

#[cfg(test)]
mod tests;
