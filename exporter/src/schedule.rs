//! Runs the collectors: each on its own OS thread, isolated from panics, with a deadline.
//!
//! A read of a kernel file or a driver may never return, and a thread that waits in the kernel
//! cannot be ended. So no thread waits for one: the exposition uses the last samples of each
//! collector, leaves them out when they are too old, and shows the collector as stuck. A stuck
//! thread is not replaced, because the next one would get stuck as well.

mod ticks;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::background;
use crate::clock::unix_now;
use crate::collector::{Access, CollectError, Collector, Rhythm, Support};
use crate::collectors::{CollectorsConfig, Entry};
use crate::family::Family;
use crate::family_filter::Filter;
use crate::lock::Locked as _;
use crate::samples::Samples;
use ticks::Ticks;

const COLLECTOR: &[&str] = &["collector"];

pub static STATE: Family = Family::gauge(
    "stepwatch_exporter_collector_state",
    "",
    &["collector", "state"],
    "State of the collector (starting, healthy, unsupported, disabled, failed, stuck); always 1",
);
pub static SUCCESS: Family = Family::gauge(
    "stepwatch_exporter_collector_success",
    "",
    COLLECTOR,
    "Whether the last collection succeeded; absent for a collector that is unsupported or disabled",
);
pub static DURATION: Family = Family::gauge(
    "stepwatch_exporter_collector_duration_seconds",
    "seconds",
    COLLECTOR,
    "How long the last collection worked; time spent waiting for something to happen, such as a line of the kernel log, is left out",
);
pub static LAST_SUCCESS: Family = Family::gauge(
    "stepwatch_exporter_collector_last_success_timestamp_seconds",
    "seconds",
    COLLECTOR,
    "Unix time of the last collection that succeeded",
);
pub static COLLECTIONS: Family = Family::counter(
    "stepwatch_exporter_collector_collections_total",
    "",
    COLLECTOR,
    "Collections that ended, whatever came of them",
);
pub static FAILURES: Family = Family::counter(
    "stepwatch_exporter_collector_failures_total",
    "",
    &["collector", "how"],
    "Collections that failed or panicked",
);
pub static STUCK: Family = Family::gauge(
    "stepwatch_exporter_collector_stuck_seconds",
    "seconds",
    COLLECTOR,
    "How long the running collection is over its deadline; 0 when it is not",
);

pub static LEFT_OUT: Family = Family::gauge(
    "stepwatch_exporter_collector_series_left_out",
    "",
    COLLECTOR,
    "Series that the last collection read and that are not on the page: zero while nothing is wrong, or of families that collectors.X.metrics does not ask for",
);

pub static FAMILIES: &[&Family] =
    &[&STATE, &SUCCESS, &DURATION, &LAST_SUCCESS, &COLLECTIONS, &FAILURES, &STUCK, &LEFT_OUT];

/// The wait before an unsupported collector is probed again.
const PROBE_AGAIN: Duration = Duration::from_mins(1);
/// Values older than this, or than three intervals, leave the metrics page.
const MIN_STALE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The collector has not been probed yet.
    Starting,
    Healthy,
    Unsupported,
    Disabled,
    Failed,
    Stuck,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unsupported => "unsupported",
            Self::Disabled => "disabled",
            Self::Failed => "failed",
            Self::Stuck => "stuck",
        }
    }
}

/// The state of a collector.
#[derive(Debug, Clone)]
pub struct Status {
    pub name: &'static str,
    pub state: State,
    /// The result of the probe, the reason for no support, or the error.
    pub detail: String,
}

/// The running collectors. Dropping it ends their threads without waiting for them.
#[derive(Debug)]
pub struct Schedule {
    slots: Vec<Arc<Slot>>,
    stop: Arc<Stop>,
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

#[derive(Debug)]
struct Slot {
    name: &'static str,
    rhythm: Rhythm,
    now: Mutex<Progress>,
    /// Notified after each pass.
    passed: Condvar,
}

#[derive(Debug)]
struct Progress {
    state: State,
    detail: String,
    /// Sealed samples, because many expositions share them.
    samples: Samples,
    /// The number of series that were read and left out.
    left_out: usize,
    /// When the samples were read.
    read: Option<Instant>,
    last_success: Option<f64>,
    busy_since: Option<Instant>,
    /// By how much a call that the collector waits for has exceeded its deadline.
    over: Duration,
    duration: Option<Duration>,
    errors: u64,
    panics: u64,
    passes: u64,
}

impl Schedule {
    pub fn start(
        entries: impl IntoIterator<Item = &'static Entry>,
        config: &CollectorsConfig,
        access: &Access,
    ) -> Self {
        let stop = Arc::new(Stop::default());
        let start = |(i, entry): (usize, &'static Entry)| {
            let Some((collector, rhythm)) = (entry.build)(config) else {
                let rhythm = Rhythm { interval: Duration::MAX, deadline: Duration::MAX };
                return Arc::new(Slot::new(entry.name, rhythm, State::Disabled));
            };
            let slot = Arc::new(Slot::new(entry.name, rhythm, State::Starting));
            let worker = Worker {
                entry,
                config: config.clone(),
                collector,
                supported: false,
                found: String::new(),
                filter: Filter::new((entry.metrics)(config)),
                whole: Samples::default(),
                access: access.clone(),
                ticks: Ticks::new(rhythm.interval, i, Instant::now()),
                slot: Arc::clone(&slot),
                stop: Arc::clone(&stop),
            };
            let thread = std::thread::Builder::new().name(format!("collect-{}", entry.name));
            if let Err(error) = thread.spawn(move || worker.run()) {
                slot.now.locked().fail(format!("cannot start a thread: {error}"));
            }
            slot
        };
        Self { slots: entries.into_iter().enumerate().map(start).collect(), stop }
    }

    /// Waits until every collector has made a pass, or its deadline has passed.
    pub fn wait_first_pass(&self) {
        self.wait_first_pass_until(None);
    }

    /// As [`Self::wait_first_pass`], but no longer than until `end`.
    pub fn wait_first_pass_until(&self, end: Option<Instant>) {
        for slot in &self.slots {
            let waits = |p: &mut Progress| p.state == State::Starting && p.passes == 0;
            let left = end.map_or(PROBE_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            let guard = slot.now.locked();
            drop(slot.passed.wait_timeout_while(guard, slot.rhythm.deadline.min(left), waits));
        }
    }

    pub fn status(&self) -> Vec<Status> {
        let status = |slot: &Arc<Slot>| {
            let now = slot.now.locked();
            Status { name: slot.name, state: slot.state(&now), detail: now.detail.clone() }
        };
        self.slots.iter().map(status).collect()
    }

    /// Writes the samples of the collectors, and their states.
    pub fn write(&self, out: &mut Samples, own: &mut Samples) {
        for slot in &self.slots {
            slot.write(out, own);
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        *self.stop.asked.locked() = true;
        self.stop.wake.notify_all();
    }
}

impl Slot {
    fn new(name: &'static str, rhythm: Rhythm, state: State) -> Self {
        let progress = Progress {
            state,
            detail: String::new(),
            samples: Samples::default(),
            left_out: 0,
            read: None,
            last_success: None,
            busy_since: None,
            over: Duration::ZERO,
            duration: None,
            errors: 0,
            panics: 0,
            passes: 0,
        };
        Self { name, rhythm, now: Mutex::new(progress), passed: Condvar::new() }
    }

    fn overdue(&self, now: &Progress) -> Duration {
        let busy = now.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        busy.saturating_sub(self.rhythm.deadline).max(now.over)
    }

    fn state(&self, now: &Progress) -> State {
        if self.overdue(now) > Duration::ZERO { State::Stuck } else { now.state }
    }

    fn write(&self, out: &mut Samples, own: &mut Samples) {
        let now = self.now.locked();
        let current = self.state(&now);
        own.set(&STATE, &[self.name, current.as_str()], true);
        if matches!(current, State::Unsupported | State::Disabled) {
            return;
        }
        let labels: &[&str] = &[self.name];
        own.set(&SUCCESS, labels, current == State::Healthy);
        own.maybe(&DURATION, labels, now.duration);
        own.maybe(&LAST_SUCCESS, labels, now.last_success);
        own.set(&COLLECTIONS, labels, now.passes);
        own.set(&FAILURES, &[self.name, "error"], now.errors);
        own.set(&FAILURES, &[self.name, "panic"], now.panics);
        own.set(&STUCK, labels, self.overdue(&now));
        own.set(&LEFT_OUT, labels, now.left_out);
        let stale = MIN_STALE.max(self.rhythm.interval.saturating_mul(3));
        if now.read.is_some_and(|read| read.elapsed() < stale) {
            out.extend(&now.samples);
        }
    }
}

impl Progress {
    fn fail(&mut self, detail: String) {
        self.state = State::Failed;
        self.detail = detail;
    }
}

struct Worker {
    entry: &'static Entry,
    config: CollectorsConfig,
    collector: Box<dyn Collector>,
    supported: bool,
    /// The description that the probe returned.
    found: String,
    /// Selects the exported families.
    filter: Filter,
    /// All samples of the last pass.
    whole: Samples,
    access: Access,
    ticks: Ticks,
    slot: Arc<Slot>,
    stop: Arc<Stop>,
}

/// The exported samples, and the number of the other series.
struct Shown {
    samples: Samples,
    left_out: usize,
}

/// The result of one pass.
enum Pass {
    Read(Shown),
    /// The samples that could be read, and the error.
    Partly(Shown, CollectError),
    Unsupported(String),
}

impl Worker {
    fn run(mut self) {
        background::yield_to_others();
        loop {
            let began = Instant::now();
            self.slot.now.locked().busy_since = Some(began);
            let result = catch_unwind(AssertUnwindSafe(|| self.pass()));
            let wait = match self.settle(began, result) {
                State::Unsupported => PROBE_AGAIN,
                _ => self.ticks.wait(Instant::now()),
            };
            let asked = self.stop.asked.locked();
            let stopped = self.stop.wake.wait_timeout_while(asked, wait, |asked| !*asked);
            if stopped.is_ok_and(|(asked, _)| *asked) {
                return;
            }
        }
    }

    fn pass(&mut self) -> Result<Pass, CollectError> {
        let cx = self.access.context();
        if !self.supported {
            match self.collector.probe(&cx)? {
                Support::Unsupported(why) => return Ok(Pass::Unsupported(why)),
                Support::Supported(found) => {
                    tracing::info!(collector = self.entry.name, found, "collecting");
                    self.supported = true;
                    let mut now = self.slot.now.locked();
                    if now.state == State::Starting {
                        now.detail.clone_from(&found);
                    }
                    self.found = found;
                }
            }
        }
        let mut samples = Samples::after(&self.whole);
        let collected = self.collector.collect(&cx, &mut samples);
        self.whole = samples.into_sealed();
        let (samples, left_out) = self.filter.apply(self.whole.clone());
        let shown = Shown { samples, left_out };
        Ok(match collected {
            Ok(()) => Pass::Read(shown),
            Err(error) => Pass::Partly(shown, error),
        })
    }

    fn settle(&mut self, began: Instant, result: std::thread::Result<Result<Pass, CollectError>>) -> State {
        let mut now = self.slot.now.locked();
        let before = now.state;
        now.busy_since = None;
        now.over = Duration::ZERO;
        now.duration = Some(began.elapsed().saturating_sub(self.collector.waited()));
        now.passes += 1;
        match result {
            Ok(Ok(Pass::Read(shown))) => {
                now.state = State::Healthy;
                now.detail.clone_from(&self.found);
                (now.samples, now.left_out) = (shown.samples, shown.left_out);
                now.read = Some(began);
                now.last_success = Some(unix_now());
            }
            Ok(Ok(Pass::Partly(shown, error))) => {
                // New samples replace the old ones; without any, the old ones stay until they
                // expire.
                if !self.whole.is_empty() {
                    (now.samples, now.left_out) = (shown.samples, shown.left_out);
                    now.read = Some(began);
                }
                if let CollectError::Stuck { what, over } = error {
                    (now.state, now.detail, now.over) = (State::Stuck, what, over);
                } else {
                    now.errors += 1;
                    now.fail(chain(&error));
                }
            }
            Ok(Ok(Pass::Unsupported(why))) => {
                now.state = State::Unsupported;
                now.detail = why;
            }
            Ok(Err(error)) => {
                now.errors += 1;
                now.fail(chain(&error));
            }
            Err(panic) => {
                now.panics += 1;
                now.fail(format!("panicked: {}", message(&*panic)));
                // After a panic, the collector is built anew.
                if let Some((fresh, _)) = (self.entry.build)(&self.config) {
                    self.collector = fresh;
                    self.supported = false;
                }
            }
        }
        let (state, name, detail) = (now.state, self.entry.name, now.detail.clone());
        drop(now);
        self.slot.passed.notify_all();
        match state {
            State::Failed if before != State::Failed => {
                tracing::warn!(collector = name, detail, "collector failed")
            }
            State::Stuck if before != State::Stuck => {
                tracing::warn!(collector = name, detail, "collector stuck")
            }
            State::Unsupported if before != State::Unsupported => {
                tracing::info!(collector = name, detail, "collector unsupported here");
            }
            State::Healthy if matches!(before, State::Failed | State::Stuck) => {
                tracing::info!(collector = name, "collector recovered")
            }
            _ => {}
        }
        state
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests;
