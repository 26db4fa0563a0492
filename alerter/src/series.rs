//! The signals of all runs for charts: every step of about the last hour, and buckets of lowest and
//! highest values back to the first step.
//!
//! The runtime records the evaluated samples of each run, after its ranks were aligned. The API,
//! the pages and the messages read. A reader copies its data under a lock that is held for
//! microseconds, so that readers and writers do not wait for each other.
//!
//! A run is dropped [`KEEP`] after its last step. If there is no room for a new run, the longest
//! idle one is dropped earlier.

mod axis;
mod bucket;
mod clock;
pub mod exposed;
pub mod keeper;
mod pyramid;
mod run;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use stepwatch_detect::Expectation;
use stepwatch_model::time::{Span, Ts};

use crate::store::SeriesPart;
pub use pyramid::MAX_BYTES;
use run::RunSeries;
pub use run::{Mark, MarkKind};

/// The most runs whose series are kept.
pub const MAX_RUNS: usize = 2_000;
/// The most signals of one run.
pub const MAX_SIGNALS: usize = 24;
/// The most signals of all runs: 128 MiB at [`pyramid::MAX_BYTES`] each. Series of short runs are
/// smaller.
pub const MAX_SERIES: usize = 2_048;
/// How long a run is kept after its last step.
pub const KEEP: Span = Span::secs(7 * 86_400);
/// The time since its last step within which a run is not dropped for another one.
const BUSY: Span = Span::secs(3600);

/// The sample of one step, as the detectors evaluated it.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    pub run: &'a str,
    /// When the sample arrived, by the alerter's clock.
    pub now: Ts,
    pub attempt: u32,
    pub step: i64,
    /// When the step was made, by the trainer's clock.
    pub at: Ts,
    /// The checkpoint or evaluation that belongs to the step.
    pub mark: Option<MarkKind>,
    pub values: &'a [Value<'a>],
}

/// The value of one signal.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pub signal: &'a str,
    pub value: f64,
    /// The expectation, if it was computed for this sample.
    pub expectation: Option<Expectation>,
}

/// A range of one signal.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesWindow {
    pub run: String,
    pub signal: String,
    /// A number that rises with every step of the run.
    pub sequence: u64,
    pub points: Vec<SeriesPoint>,
    /// Restarts, checkpoints and evaluations in the range, in the order of steps.
    pub marks: Vec<Mark>,
}

/// One step, or several steps in one column of the chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesPoint {
    /// The first step.
    pub step: i64,
    /// When the step was made, by the trainer's clock; approximate for older than about 500 steps.
    pub at: Option<Ts>,
    /// The finite values; `None` if there are none.
    pub values: Option<Values>,
    /// The number of finite values, and of values that were NaN or infinite.
    pub count: u32,
    pub nonfinite: u32,
    /// The expectation of the detectors.
    pub band: Option<Expectation>,
}

/// The values of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values {
    pub min: f32,
    pub max: f32,
    pub last: f32,
    pub mean: f32,
}

/// The latest state of a signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Latest {
    pub signal: String,
    pub step: i64,
    /// The last finite value.
    pub value: Option<f64>,
    pub expectation: Option<Expectation>,
}

/// The numbers of dropped items since the start, because of limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Samples of runs without room.
    pub samples: u64,
    /// Values of signals without room.
    pub values: u64,
    /// Idle runs that were dropped for others.
    pub runs: u64,
}

#[derive(Debug, Default)]
pub struct SeriesTable {
    runs: RwLock<BTreeMap<String, Arc<Mutex<RunSeries>>>>,
    series: AtomicU64,
    dropped_samples: AtomicU64,
    dropped_values: AtomicU64,
    forgotten_runs: AtomicU64,
}

impl SeriesTable {
    /// Records the sample of a step.
    pub fn record(&self, sample: &Recorded<'_>) {
        let Some(run) = self.find(sample.run).or_else(|| self.admit(sample)) else {
            self.dropped_samples.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let room = (MAX_SERIES as u64).saturating_sub(self.series.load(Ordering::Relaxed));
        let mut run = lock(&run);
        let taken = run.record(sample, usize::try_from(room).unwrap_or(usize::MAX));
        drop(run);
        self.series.fetch_add(taken.added, Ordering::Relaxed);
        self.dropped_values.fetch_add(taken.dropped, Ordering::Relaxed);
    }

    /// The values of a signal from step `from` to step `to`, in at most `points` points; `None` if
    /// this signal is not kept. The first point may begin before `from`.
    pub fn window(
        &self,
        run: &str,
        signal: &str,
        from: Option<i64>,
        to: Option<i64>,
        points: usize,
    ) -> Option<SeriesWindow> {
        let found = self.find(run)?;
        let (from, to) = (from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX));
        let series = lock(&found);
        let points = series.points(signal, from, to, points)?;
        let (first, last) = (points.first().map_or(from, |p| p.step), to);
        let marks = series.marks(first, last);
        let sequence = series.sequence();
        Some(SeriesWindow { run: run.to_owned(), signal: signal.to_owned(), sequence, points, marks })
    }

    /// The signals of a run, by name; empty if none is kept.
    pub fn signals(&self, run: &str) -> Vec<String> {
        self.latest(run).into_iter().map(|latest| latest.signal).collect()
    }

    /// The latest state of a run's signals, by name.
    pub fn latest(&self, run: &str) -> Vec<Latest> {
        self.find(run).map_or_else(Vec::new, |run| lock(&run).latest())
    }

    /// A number that rises with every step of the run.
    pub fn sequence(&self, run: &str) -> Option<u64> {
        self.find(run).map(|run| lock(&run).sequence())
    }

    /// The runs whose series are kept, by name.
    pub fn runs(&self) -> Vec<String> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Drops the runs that have not stepped for [`KEEP`], and returns their names.
    pub fn forget_idle(&self, now: Ts) -> Vec<String> {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let idle = |run: &Arc<Mutex<RunSeries>>| now - lock(run).last_at() > KEEP;
        let idle: Vec<String> =
            runs.iter().filter(|(_, run)| idle(run)).map(|(name, _)| name.clone()).collect();
        for name in &idle {
            self.remove(&mut runs, name);
        }
        idle
    }

    /// The changed parts that were not written for `every`: at most `most`, those that waited
    /// longest first. They count as written unless they are passed to [`Self::unwritten`].
    pub fn take_parts(&self, now: Ts, every: Span, most: usize) -> Vec<SeriesPart> {
        let mut due: Vec<(Ts, String, String)> = Vec::new();
        for (name, run) in &*self.runs.read().unwrap_or_else(PoisonError::into_inner) {
            let parts = lock(run);
            due.extend(parts.due(now, every).map(|(at, signal)| (at, name.clone(), signal.to_owned())));
        }
        due.sort_unstable();
        let take = |(_, run, signal): &(Ts, String, String)| {
            self.find(run).and_then(|found| lock(&found).take_part(run, signal, now))
        };
        due.iter().take(most).filter_map(take).collect()
    }

    /// Marks parts that the store did not accept as changed.
    pub fn unwritten(&self, parts: &[SeriesPart]) {
        for part in parts {
            if let Some(run) = self.find(&part.run) {
                lock(&run).unwritten(&part.signal);
            }
        }
    }

    /// Restores stored parts, and returns the number of those that are unreadable or have no room.
    pub fn restore(&self, parts: &[SeriesPart]) -> usize {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        for part in parts {
            let known = runs.contains_key(&part.run);
            if !known && runs.len() >= MAX_RUNS || self.len() >= MAX_SERIES {
                left_out += 1;
                continue;
            }
            let run = Arc::clone(runs.entry(part.run.clone()).or_default());
            let mut run = lock(&run);
            let before = run.len();
            if before >= MAX_SIGNALS || !run.restore(part) {
                left_out += 1;
            }
            self.series.fetch_add((run.len() - before) as u64, Ordering::Relaxed);
        }
        left_out
    }

    /// The size of the signals of all runs in bytes.
    pub fn bytes(&self) -> usize {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        runs.values().map(|run| lock(run).bytes()).sum()
    }

    pub fn dropped(&self) -> Dropped {
        Dropped {
            samples: self.dropped_samples.load(Ordering::Relaxed),
            values: self.dropped_values.load(Ordering::Relaxed),
            runs: self.forgotten_runs.load(Ordering::Relaxed),
        }
    }

    /// The number of signals of all runs.
    pub fn len(&self) -> usize {
        self.series.load(Ordering::Relaxed) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, run: &str) -> Option<Arc<Mutex<RunSeries>>> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).get(run).map(Arc::clone)
    }

    /// Adds a new run, if there is or can be made room.
    fn admit(&self, sample: &Recorded<'_>) -> Option<Arc<Mutex<RunSeries>>> {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        while runs.len() >= MAX_RUNS || self.len() + sample.values.len() > MAX_SERIES {
            let last = |run: &Arc<Mutex<RunSeries>>| lock(run).last_at();
            let idle = runs.iter().map(|(name, run)| (last(run), name)).min()?;
            if sample.now - idle.0 <= BUSY {
                return None;
            }
            let name = idle.1.clone();
            self.remove(&mut runs, &name);
            self.forgotten_runs.fetch_add(1, Ordering::Relaxed);
        }
        let new = Arc::<Mutex<RunSeries>>::default();
        runs.insert(sample.run.to_owned(), Arc::clone(&new));
        Some(new)
    }

    fn remove(&self, runs: &mut BTreeMap<String, Arc<Mutex<RunSeries>>>, name: &str) {
        if let Some(run) = runs.remove(name) {
            self.series.fetch_sub(lock(&run).len() as u64, Ordering::Relaxed);
        }
    }
}

fn lock(run: &Mutex<RunSeries>) -> MutexGuard<'_, RunSeries> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}
