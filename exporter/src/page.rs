//! The metrics page: rendered on a thread of its own at a fixed rhythm, kept, and served as it is.
//!
//! A scrape never touches a source, a lock of the training state or the encoder: it gets the last page, whose time is on
//! it. How many series it holds is bounded; what does not fit is left out and counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use stepwatch_kit::exposition::Encoded;
use stepwatch_kit::serve::ServeMetrics;

use crate::collectors::process;
use crate::family::{Family, Kind};
use crate::hub::{Hub, unix_now};
use crate::roots::Roots;
use crate::samples::{Sample, Samples, Value};
use crate::schedule::Schedule;
use crate::stream::StreamState;

pub static RENDERED: Family = Family::gauge(
    "stepwatch_exporter_page_timestamp_seconds",
    "seconds",
    &[],
    "Unix time at which this page was made; the age of its values is the time of the scrape less this",
);
pub static RENDER_TIME: Family = Family::gauge(
    "stepwatch_exporter_page_render_duration_seconds",
    "seconds",
    &[],
    "How long the page before this one took to make",
);
pub static SERIES: Family =
    Family::gauge("stepwatch_exporter_page_series", "", &[], "Series on this page, the exporter's own aside");
pub static LEFT_OUT: Family = Family::counter(
    "stepwatch_exporter_page_series_left_out_total",
    "",
    &[],
    "Series that pages had no room for, added up over all pages",
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

/// One page's worth of constant metrics, in the order of the exposition.
#[derive(Debug)]
struct Page(Vec<Sample>);

impl Page {
    fn new(mut samples: Vec<Sample>) -> Self {
        samples.sort_by(|a, b| (a.family.name, &a.labels).cmp(&(b.family.name, &b.labels)));
        // Two sources of one name would spoil the page for both.
        samples.dedup_by(|a, b| a.family.name == b.family.name && a.labels == b.labels);
        Self(samples)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for group in self.0.chunk_by(|a, b| a.family.name == b.family.name) {
            let Some(Sample { family, .. }) = group.first() else { continue };
            let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.to_owned()));
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Unknown => MetricType::Unknown,
            };
            // The registry ends the help of its own metrics so.
            let help = format!("{}.", family.help);
            let mut metric = encoder.encode_descriptor(family.base_name(), &help, unit.as_ref(), kind)?;
            for sample in group {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(sample.labels.iter().map(AsRef::as_ref)).collect();
                if labels.is_empty() {
                    write_value(&mut metric, sample)?;
                } else {
                    write_value(&mut metric.encode_family(&labels)?, sample)?;
                }
            }
        }
        Ok(())
    }
}

fn write_value(metric: &mut MetricEncoder<'_>, sample: &Sample) -> Result<(), std::fmt::Error> {
    match &sample.value {
        // Whole numbers without a fraction: shorter, and what a person expects of a count.
        Value::Number(v) if v.fract() == 0.0 && v.abs() < EXACT => {
            write_number(metric, sample.family, *v as i64)
        }
        Value::Number(v) if sample.family.kind == Kind::Counter => {
            metric.encode_counter::<NoLabelSet, _, f64>(v, None)
        }
        Value::Number(v) => metric.encode_gauge(v),
        Value::Histogram(h) => metric.encode_histogram::<NoLabelSet>(h.sum, h.count, &h.buckets, None),
    }
}

/// Below this every whole number is exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn write_number(metric: &mut MetricEncoder<'_>, family: &Family, v: i64) -> Result<(), std::fmt::Error> {
    match (family.kind, u64::try_from(v)) {
        (Kind::Counter, Ok(v)) => metric.encode_counter::<NoLabelSet, _, f64>(&v, None),
        _ => metric.encode_gauge(&v),
    }
}

/// Everything that has something to say on the page.
#[derive(Debug)]
pub struct Contents {
    pub hub: Hub,
    pub stream: StreamState,
    pub ingest: Arc<crate::ingest::Counts>,
    pub collectors: ArcSwap<Schedule>,
    /// What the kit counts of serving.
    pub serve: ServeMetrics,
    pub max_series: AtomicUsize,
    pub started: f64,
}

/// Makes pages, remembering what one page says of the one before.
#[derive(Debug, Default)]
struct Maker {
    render_time: Option<Duration>,
    left_out: u64,
}

impl Maker {
    fn make(&mut self, contents: &Contents) -> Encoded {
        let began = Instant::now();
        let (mut samples, mut own) = (Samples::default(), Samples::default());
        contents.hub.write(&mut samples);
        contents.collectors.load().write(&mut samples, &mut own);
        contents.stream.write(&mut own);
        contents.ingest.write(&mut own);
        let max = contents.max_series.load(Ordering::Relaxed);
        let (mut kept, series, left_out) = fit(samples, max);
        self.left_out += left_out;
        own.set(&RENDERED, &[], unix_now());
        own.maybe(&RENDER_TIME, &[], self.render_time);
        own.set(&SERIES, &[], series);
        own.set(&LEFT_OUT, &[], self.left_out);
        own.set(&START, &[], contents.started);
        write_own_usage(&mut own);
        kept.extend(own.iter().cloned());
        let mut registry = Registry::default();
        stepwatch_kit::build_info::register(&mut registry, "stepwatch_exporter");
        contents.serve.register(&mut registry, "stepwatch_exporter");
        registry.register_collector(Box::new(Page::new(kept)));
        let encoded = Encoded::from_registry(&registry);
        self.render_time = Some(began.elapsed());
        encoded
    }
}

/// As many series as there is room for, in the order in which they were written; how many, and how many were left out.
fn fit(samples: Samples, max: usize) -> (Vec<Sample>, usize, u64) {
    let (mut used, mut left_out) = (0, 0);
    let mut kept = Vec::new();
    for sample in samples.into_vec() {
        let series = sample.value.series();
        if used + series <= max {
            used += series;
            kept.push(sample);
        } else {
            left_out += series as u64;
        }
    }
    (kept, used, left_out)
}

/// This process's own use, from the real `/proc` wherever the collectors look.
fn write_own_usage(out: &mut Samples) {
    let (roots, pid) = (Roots::default(), std::process::id());
    out.maybe(&CPU, &[], process::read_stat(&roots, pid).map(|s| s.user_seconds + s.system_seconds));
    out.maybe(&RESIDENT, &[], process::status_bytes(&roots, pid, "VmRSS:"));
}

/// One page, now.
pub fn once(contents: &Contents) -> Encoded {
    Maker::default().make(contents)
}

/// The last page, made anew at a rhythm for as long as this lives.
#[derive(Debug)]
pub struct Pages {
    last: Arc<ArcSwap<Encoded>>,
    /// Sent a new interval on reload; dropped to end the thread.
    interval: mpsc::SyncSender<Duration>,
}

impl Pages {
    /// The first page is there when this returns.
    pub fn start(contents: Arc<Contents>, interval: Duration) -> std::io::Result<Self> {
        let mut maker = Maker::default();
        let last = Arc::new(ArcSwap::from_pointee(maker.make(&contents)));
        let (sender, changes) = mpsc::sync_channel(1);
        let pages = Arc::clone(&last);
        std::thread::Builder::new().name("page".into()).spawn(move || {
            let mut interval = interval;
            loop {
                match changes.recv_timeout(interval) {
                    Ok(changed) => interval = changed,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        // The page before stays, and its time shows that it does.
                        let made = catch_unwind(AssertUnwindSafe(|| maker.make(&contents)));
                        let Ok(page) = made else {
                            tracing::error!("making the page panicked; the one before stays");
                            continue;
                        };
                        pages.store(Arc::new(page));
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { last, interval: sender })
    }

    pub fn last(&self) -> Arc<Encoded> {
        self.last.load_full()
    }

    pub fn set_interval(&self, interval: Duration) {
        let _ = self.interval.try_send(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Distribution;

    static COUNT: Family = Family::counter("x_things_total", "", &["a", "b"], "Things");
    static BYTES: Family = Family::gauge("x_size_bytes", "bytes", &[], "Size");
    static TIME: Family = Family::histogram("x_time_seconds", "seconds", &["a"], "Time");

    fn text(samples: Vec<Sample>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page::new(samples)));
        Encoded::from_registry(&registry).openmetrics().to_owned()
    }

    #[test]
    fn one_block_a_family_whatever_the_order() {
        let mut s = Samples::default();
        s.set(&COUNT, &["2", "quote \" slash \\ line\n"], 2u64);
        s.set(&BYTES, &[], 1.5);
        s.set(&COUNT, &["1", ""], 1u64);
        s.set(&COUNT, &["1", ""], 99u64);
        s.set(&BYTES, &[], f64::NAN);
        let buckets = vec![(0.5, 1), (f64::INFINITY, 2)];
        s.distribution(&TIME, &["x"], Distribution { sum: 9.0, count: 3, buckets });
        insta::assert_snapshot!(text(s.into_vec()), @r#"
        # HELP x_size_bytes Size.
        # TYPE x_size_bytes gauge
        # UNIT x_size_bytes bytes
        x_size_bytes 1.5
        # HELP x_things Things.
        # TYPE x_things counter
        x_things_total{a="1",b=""} 1
        x_things_total{a="2",b="quote \" slash \\ line\n"} 2
        # HELP x_time_seconds Time.
        # TYPE x_time_seconds histogram
        # UNIT x_time_seconds seconds
        x_time_seconds_sum{a="x"} 9.0
        x_time_seconds_count{a="x"} 3
        x_time_seconds_bucket{le="0.5",a="x"} 1
        x_time_seconds_bucket{le="+Inf",a="x"} 3
        # EOF
        "#);
    }

    #[test]
    fn a_full_page_keeps_what_was_written_first() {
        let mut s = Samples::default();
        for i in 0..10 {
            s.set(&COUNT, &[&i.to_string(), ""], 1u64);
        }
        let (kept, series, left_out) = fit(s, 7);
        assert_eq!((kept.len(), series, left_out), (7, 7, 3));
        assert_eq!(&*kept[6].labels[0], "6");
    }
}
