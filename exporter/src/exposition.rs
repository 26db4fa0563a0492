//! The metrics page: rendered on a thread of its own, kept, and served as it is.
//!
//! A scrape never touches a source, a lock of the training state or the encoder. It gets the last
//! exposition, which contains its time, already encoded in the requested form. `scrape_phase`
//! decides when to render. The number of series is bounded; the others are left out and counted.

mod blocks;
mod scrape_phase;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use prometheus_client::registry::Registry;
use rustix::time::{ClockId, clock_gettime};
use stepwatch_kit::exposition::{Encoded, Form};
use stepwatch_kit::log_throttle::LogThrottle;
use stepwatch_kit::serve::ServeMetrics;
use tokio::sync::Notify;

use blocks::Blocks;
use scrape_phase::ScrapePhase;

use crate::background;
use crate::clock::unix_now;
use crate::family::Family;
use crate::hub::Hub;
use crate::lock::Locked as _;
use crate::samples::{Chunk, Samples};
use crate::schedule::Schedule;
use crate::stream::StreamState;

pub static RENDERED: Family = Family::gauge(
    "stepwatch_exporter_exposition_timestamp_seconds",
    "seconds",
    &[],
    "Unix time at which /metrics was rendered; the age of its values is the time of the scrape less this",
);
pub static RENDER_TIME: Family = Family::gauge(
    "stepwatch_exporter_exposition_render_duration_seconds",
    "seconds",
    &[],
    "How long the last rendering of /metrics took",
);
pub static SERIES: Family = Family::gauge(
    "stepwatch_exporter_exposition_series",
    "",
    &[],
    "Series on /metrics, the exporter's own aside",
);
pub static LEFT_OUT: Family = Family::counter(
    "stepwatch_exporter_exposition_series_left_out_total",
    "",
    &[],
    "Series that /metrics had no room for, added up over all renderings",
);
pub static START: Family = Family::gauge(
    "stepwatch_exporter_start_timestamp_seconds",
    "seconds",
    &[],
    "Unix time at which this exporter started",
);
pub static RESIDENT: Family = Family::gauge(
    "stepwatch_exporter_resident_memory_bytes",
    "bytes",
    &[],
    "Memory that this exporter holds",
);
pub static CPU: Family =
    Family::counter("stepwatch_exporter_cpu_seconds_total", "seconds", &[], "CPU time of this exporter");

pub static FAMILIES: &[&Family] = &[&RENDERED, &RENDER_TIME, &SERIES, &LEFT_OUT, &START, &RESIDENT, &CPU];

/// How long each exposition is encoded in a form after a request for it. Prometheus scrapes more
/// often.
const WANTED: Duration = Duration::from_mins(3);
/// How long an unexpected request waits for a new exposition, before it gets the last one.
const PATIENCE: Duration = Duration::from_millis(20);
/// The most runs that a log line names whose series found no room.
const RUNS_LOGGED: usize = 4;

/// Everything that writes series.
#[derive(Debug)]
pub struct Contents {
    pub hub: Hub,
    pub stream: StreamState,
    pub ingest: Arc<crate::ingest::Counts>,
    pub collectors: ArcSwap<Schedule>,
    /// The service kit's metrics about serving.
    pub serve: ServeMetrics,
    pub max_series: AtomicUsize,
    pub started: f64,
}

/// Renders expositions, and reuses parts of the previous one.
#[derive(Debug, Default)]
struct Maker {
    render_time: Option<Duration>,
    left_out: u64,
    /// The last samples of training and of the exporter itself.
    said: [Samples; 2],
    blocks: Blocks,
    usage: Usage,
    log: LogThrottle,
    /// When each form was last requested.
    asked: [Option<Instant>; Form::ALL.len()],
}

impl Maker {
    fn make(&mut self, contents: &Contents) -> Encoded {
        let began = Instant::now();
        let [mut training, mut own] = [0, 1].map(|of| Samples::after(&self.said[of]));
        contents.hub.write(&mut training);
        let training = training.into_sealed();
        let mut node = Samples::default();
        contents.collectors.load().write(&mut node, &mut own);
        contents.stream.write(&mut own);
        contents.ingest.write(&mut own);
        let max = contents.max_series.load(Ordering::Relaxed);
        let Fitted { mut kept, series, left_out, .. } = fit(training.clone(), node, max);
        self.left_out += left_out.values().sum::<u64>();
        self.log_left_out(&left_out, max);
        own.set(&RENDERED, &[], unix_now());
        own.maybe(&RENDER_TIME, &[], self.render_time);
        own.set(&SERIES, &[], series);
        own.set(&LEFT_OUT, &[], self.left_out);
        own.set(&START, &[], contents.started);
        self.usage.write(&mut own);
        let own = own.into_sealed();
        self.said = [training, own.clone()];
        kept.extend(own.into_chunks());
        let mut registry = Registry::default();
        stepwatch_kit::build_info::register(&mut registry, "stepwatch_exporter");
        contents.serve.register(&mut registry, "stepwatch_exporter");
        let encoded = Encoded::new(&registry, self.blocks.render(&kept));
        self.render_time = Some(began.elapsed());
        encoded
    }

    fn log_left_out(&self, left_out: &BTreeMap<String, u64>, max: usize) {
        let series = left_out.values().sum();
        let Some(count) = self.log.count(series) else { return };
        let mut most: Vec<_> = left_out.iter().filter(|(run, _)| !run.is_empty()).collect();
        most.sort_by_key(|(_, series)| Reverse(**series));
        let runs: Vec<_> = most.iter().take(RUNS_LOGGED).map(|(run, n)| format!("{run}: {n}")).collect();
        let runs = runs.join(", ");
        tracing::warn!(
            count,
            max,
            runs,
            "series that had no room on the metrics page (exposition.max_series)"
        );
    }

    /// Encodes the forms that scrapers will request, so that none of them waits for it.
    fn prepare(&mut self, page: &Encoded, wanted: &Wanted) {
        for (form, asked) in Form::ALL.into_iter().zip(&mut self.asked) {
            if wanted.0[form.index()].swap(false, Ordering::Relaxed) {
                *asked = Some(Instant::now());
            }
            if asked.is_some_and(|at| at.elapsed() < WANTED) {
                page.form(form);
            }
        }
    }
}

/// The series for which there is room.
#[derive(Debug, Default)]
struct Fitted {
    kept: Vec<Arc<Chunk>>,
    series: usize,
    /// The room that they use.
    cost: usize,
    /// The number of series left out, by run; the name is empty for series of no run.
    left_out: BTreeMap<String, u64>,
}

/// Keeps as many series as there is room for, in the order in which they were written. Those of the
/// node come first, because any user can create any number of the others.
fn fit(training: Samples, node: Samples, max: usize) -> Fitted {
    let mut fitted = Fitted::default();
    fitted.add(node, max);
    let node = std::mem::take(&mut fitted.kept);
    fitted.add(training, max);
    fitted.kept.extend(node);
    fitted
}

impl Fitted {
    fn add(&mut self, samples: Samples, max: usize) {
        for chunk in samples.into_chunks() {
            if self.cost + chunk.cost() <= max {
                self.cost += chunk.cost();
                self.series += chunk.series();
                self.kept.push(chunk);
                continue;
            }
            let mut part = Vec::new();
            for sample in chunk.samples() {
                let (series, cost) = (sample.value.series(), sample.cost());
                if self.cost + cost <= max {
                    self.cost += cost;
                    self.series += series;
                    part.push(sample.clone());
                    continue;
                }
                let run =
                    if sample.family.labels.first() == Some(&"run") { sample.labels.get(0) } else { "" };
                match self.left_out.get_mut(run) {
                    Some(left_out) => *left_out += series as u64,
                    None => _ = self.left_out.insert(run.to_owned(), series as u64),
                }
            }
            self.kept.push(Arc::new(Chunk::new(part)));
        }
    }
}

/// The resource usage of this process, always from the real `/proc`.
#[derive(Debug, Default)]
struct Usage {
    /// The file stays open, because opening takes longer than reading.
    memory: Option<File>,
}

impl Usage {
    fn write(&mut self, out: &mut Samples) {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        out.set(&CPU, &[], spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9);
        let pages = self.resident_pages();
        out.maybe(&RESIDENT, &[], pages.map(|pages| pages * rustix::param::page_size() as f64));
    }

    fn resident_pages(&mut self) -> Option<f64> {
        if self.memory.is_none() {
            self.memory = File::open("/proc/self/statm").ok();
        }
        let mut text = [0; 128];
        let length = self.memory.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(text.get(..length)?).ok()?.split(' ').nth(1)?.parse().ok()
    }
}

/// Renders one exposition now.
pub fn once(contents: &Contents) -> Encoded {
    Maker::default().make(contents)
}

/// The forms that were requested since the last exposition.
#[derive(Debug, Default)]
struct Wanted([AtomicBool; Form::ALL.len()]);

/// The last exposition, which is rendered periodically until dropped.
#[derive(Debug)]
pub struct Exposition {
    shown: Arc<Shown>,
    /// Dropping it ends the thread.
    calls: mpsc::SyncSender<Call>,
}

/// The state that the rendering thread shares with requests.
#[derive(Debug)]
struct Shown {
    last: ArcSwap<Encoded>,
    wanted: Wanted,
    rhythm: Mutex<ScrapePhase>,
    /// Notified after each new exposition.
    news: Notify,
}

/// Messages to the rendering thread.
#[derive(Debug)]
enum Call {
    Interval(Duration),
    /// An unexpected request has arrived.
    Now,
}

impl Exposition {
    /// Starts the thread. The first exposition exists when this returns.
    pub fn start(contents: Arc<Contents>, interval: Duration) -> std::io::Result<Self> {
        let mut maker = Maker::default();
        let shown = Arc::new(Shown {
            last: ArcSwap::from_pointee(maker.make(&contents)),
            wanted: Wanted::default(),
            rhythm: Mutex::new(ScrapePhase::new(interval, Instant::now())),
            news: Notify::new(),
        });
        let (calls, called) = mpsc::sync_channel(1);
        let show = Arc::clone(&shown);
        std::thread::Builder::new().name("page".into()).spawn(move || {
            background::yield_to_others();
            let mut interval = interval;
            loop {
                match called.recv_timeout(interval) {
                    Ok(Call::Interval(changed)) => {
                        interval = changed;
                        show.rhythm.locked().set_interval(changed);
                    }
                    Ok(Call::Now) => show.make(&mut maker, &contents),
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        if show.rhythm.locked().due(Instant::now()) {
                            show.make(&mut maker, &contents);
                        }
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { shown, calls })
    }

    /// The last exposition in this form.
    pub async fn last(&self, form: Form) -> Arc<Encoded> {
        let shown = &*self.shown;
        shown.wanted.0[form.index()].store(true, Ordering::Relaxed);
        if !shown.rhythm.locked().ask(Instant::now()) {
            let news = shown.news.notified();
            // If a message is pending already, that suffices.
            let _ = self.calls.try_send(Call::Now);
            let _ = tokio::time::timeout(PATIENCE, news).await;
        }
        shown.last.load_full()
    }

    pub fn set_interval(&self, interval: Duration) {
        let _ = self.calls.try_send(Call::Interval(interval));
    }
}

impl Shown {
    fn make(&self, maker: &mut Maker, contents: &Contents) {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let page = maker.make(contents);
            maker.prepare(&page, &self.wanted);
            page
        }));
        if let Ok(page) = made {
            self.last.store(Arc::new(page));
        } else {
            // Its time shows that it is old.
            tracing::error!("rendering /metrics panicked; the last rendering stays");
        }
        self.rhythm.locked().made(Instant::now());
        self.news.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNT: Family = Family::counter("x_things_total", "", &["a", "b"], "Things");

    #[test]
    fn a_full_page_keeps_what_was_written_first() {
        let mut s = Samples::default();
        for i in 0..10 {
            s.set(&COUNT, &[&i.to_string(), ""], 1u64);
        }
        let mut node = Samples::default();
        node.set(&COUNT, &["node", ""], 1u64);
        let Fitted { kept, series, left_out, .. } = fit(s, node, 7);
        assert_eq!((kept[0].samples().len(), series, left_out[""]), (6, 7, 4));
        assert_eq!(kept[0].samples()[5].labels.get(0), "5");
        assert_eq!(kept[1].samples()[0].labels.get(0), "node");
    }

    #[test]
    fn a_series_with_long_labels_takes_the_room_of_several() {
        let mut s = Samples::default();
        s.set(&COUNT, &[&"x".repeat(1000), ""], 1u64);
        s.set(&COUNT, &["short", ""], 1u64);
        s.set(&COUNT, &[&"y".repeat(1000), ""], 1u64);
        let Fitted { kept, series, cost, left_out } = fit(s, Samples::default(), 6);
        assert_eq!((kept[0].samples().len(), series, cost, left_out[""]), (2, 2, 5, 1));
    }
}
