//! Converts requests into reports: the points of metrics, and the events of spans by which newer
//! Megatrons report their losses.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::proto::{
    Any, DELTA, KeyValue, Metric, MetricsRequest, NO_RECORDED_VALUE, SpanEvent, TraceRequest, attribute,
};
use super::resource;
use crate::readings::{Meaning, Names, Reading, Report, Value, Who, whole};

/// Attributes of a point that give its step.
const STEP: &[&str] = &["step", "global_step", "iteration", "dl.iteration", "nv.dl.training.step"];
/// Prefixes of metrics about processes and libraries, which instrumentation adds by itself.
const INFRASTRUCTURE: &[&str] =
    &["process.", "system.", "http.", "rpc.", "otel.", "db.", "cpython.", "jvm.", "go."];
/// Events of spans that report on training.
const REPORTS: &str = "nv.dl.training.";
const OBJECTIVE: &str = "nv.dl.training.objective";
/// The most bytes of labels in the name of a metric.
const MAX_LABELS: usize = 96;

const NANO: f64 = 1e-9;

/// The readings of one rank and step, and where they come from.
pub(super) type OwnedReport<'a> = (Who, Report<'a>);

/// The readings by rank and step. Points without a step come last, when the given steps are known.
type Groups<'a> = BTreeMap<(u32, bool, Option<i64>), Report<'a>>;

struct Point<'a> {
    attributes: &'a [KeyValue],
    time: u64,
    flags: u32,
    value: Option<Value>,
}

pub(super) fn of_metrics<'a>(request: &'a MetricsRequest, names: &'a Names) -> Vec<OwnedReport<'a>> {
    let mut reports = Vec::new();
    for from in &request.resource_metrics {
        let mut groups = Groups::new();
        let who = resource::who(from.resource.as_ref());
        for metric in from.scope_metrics.iter().flat_map(|s| &s.metrics) {
            if names.has(&metric.name) || !INFRASTRUCTURE.iter().any(|p| metric.name.starts_with(p)) {
                take_metric(metric, names, &who, &mut groups);
            }
        }
        reports.extend(groups.into_iter().map(|((rank, ..), report)| (Who { rank, ..who.clone() }, report)));
    }
    reports
}

fn take_metric<'a>(metric: &'a Metric, names: &'a Names, who: &Who, groups: &mut Groups<'a>) {
    let all: Vec<_> = points(metric).into_iter().filter(|p| p.flags & NO_RECORDED_VALUE == 0).collect();
    let keys: Vec<_> = all.iter().map(|p| place(p.attributes, who.rank)).collect();
    let mut of_key = BTreeMap::<_, usize>::new();
    keys.iter().for_each(|key| *of_key.entry(key).or_default() += 1);
    for (point, key) in all.iter().zip(&keys) {
        let Some(value) = point.value else { continue };
        let report = groups.entry(*key).or_insert_with(|| Report { step: key.2, ..Report::default() });
        report.time = later(report.time, seconds(point.time));
        let alone = of_key.get(key) == Some(&1);
        let labels = if alone { String::new() } else { labels(point.attributes) };
        report.readings.push(if labels.is_empty() {
            names.reading(&metric.name, &metric.unit, value)
        } else {
            // The metric has several series, and it is unknown which of them is the loss.
            let meaning = Meaning::Metric(format!("{}{labels}", metric.name).into(), 1.0);
            Reading { meaning, known: false, value }
        });
    }
}

fn points(metric: &Metric) -> Vec<Point<'_>> {
    let mut all = Vec::new();
    for p in metric.gauge.iter().flat_map(|g| &g.data_points) {
        let value = p.as_double.or(p.as_int.map(|n| n as f64)).map(Value::Gauge);
        all.push(Point { attributes: &p.attributes, time: p.time_unix_nano, flags: p.flags, value });
    }
    if let Some(sum) = &metric.sum {
        for p in &sum.data_points {
            let start = seconds(p.start_time_unix_nano);
            let value =
                p.as_double.or(p.as_int.map(|n| n as f64)).map(|v| match sum.aggregation_temporality {
                    DELTA => Value::Increment(v),
                    // A sum that may fall is a gauge.
                    _ if !sum.is_monotonic => Value::Gauge(v),
                    _ => Value::Total { total: v, start },
                });
            all.push(Point { attributes: &p.attributes, time: p.time_unix_nano, flags: p.flags, value });
        }
    }
    macro_rules! distributions {
        ($family:expr, $temporality:expr) => {
            for p in $family.iter().flat_map(|h| &h.data_points) {
                let cumulative = $temporality != DELTA;
                let start = seconds(p.start_time_unix_nano);
                let value =
                    p.sum.map(|sum| Value::Durations { count: p.count as f64, sum, cumulative, start });
                all.push(Point { attributes: &p.attributes, time: p.time_unix_nano, flags: p.flags, value });
            }
        };
    }
    distributions!(metric.histogram, metric.histogram.as_ref().map_or(0, |h| h.aggregation_temporality));
    distributions!(metric.exponential, metric.exponential.as_ref().map_or(0, |h| h.aggregation_temporality));
    distributions!(metric.summary, 0);
    all
}

/// Unix seconds; zero means that there is no time.
fn seconds(nano: u64) -> Option<f64> {
    (nano > 0).then_some(nano as f64 * NANO)
}

pub(super) fn later(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    if b > a { b } else { a }
}

/// The rank, whether the step is missing, and the step of a point.
fn place(attributes: &[KeyValue], rank: u32) -> (u32, bool, Option<i64>) {
    let step = STEP.iter().find_map(|key| whole(attribute(attributes, key)?.number()?));
    (resource::rank(attributes).unwrap_or(rank), step.is_none(), step)
}

/// Formats the attributes that are neither rank nor step, as `{group=0,kind=aux}`.
fn labels(attributes: &[KeyValue]) -> String {
    let mut out = String::new();
    for attribute in attributes {
        let key = attribute.key.as_str();
        let value = attribute.value.as_ref().and_then(|v| v.value.as_ref());
        let Some(value) = value.filter(|_| !STEP.contains(&key) && !resource::is_rank(key)) else { continue };
        let open = if out.is_empty() { '{' } else { ',' };
        // Writing to a string cannot fail.
        let _ = write!(out, "{open}{key}={value}");
    }
    if out.len() > MAX_LABELS {
        out.truncate(out.floor_char_boundary(MAX_LABELS));
    }
    if !out.is_empty() {
        out.push('}');
    }
    out
}

pub(super) fn of_spans<'a>(request: &'a TraceRequest, names: &'a Names) -> Vec<OwnedReport<'a>> {
    let mut reports = Vec::new();
    for from in &request.resource_spans {
        let mut groups = Groups::new();
        let who = resource::who(from.resource.as_ref());
        let spans = from.scope_spans.iter().flat_map(|s| &s.spans);
        for event in spans.flat_map(|s| &s.events).filter(|e| e.name.starts_with(REPORTS)) {
            take_event(event, names, &who, &mut groups);
        }
        reports.extend(groups.into_iter().map(|((rank, ..), report)| (Who { rank, ..who.clone() }, report)));
    }
    reports
}

fn take_event<'a>(event: &'a SpanEvent, names: &'a Names, who: &Who, groups: &mut Groups<'a>) {
    let key = place(&event.attributes, who.rank);
    let report = groups.entry(key).or_insert_with(|| Report { step: key.2, ..Report::default() });
    report.time = later(report.time, seconds(event.time_unix_nano));
    let get = |name: &str| attribute(&event.attributes, name);
    if event.name == OBJECTIVE {
        let name = get("nv.dl.training.objective.name").and_then(Any::text);
        let value = get("nv.dl.training.objective.value").and_then(Any::number);
        if let Some((name, value)) = name.zip(value) {
            report.readings.push(names.reading(name, "", Value::Measured(value)));
        }
        return;
    }
    for attribute in event.attributes.iter().filter(|a| a.key.starts_with(REPORTS)) {
        let value = attribute.value.as_ref().and_then(|v| v.value.as_ref()).and_then(Any::number);
        if let Some(value) = value.filter(|_| !STEP.contains(&attribute.key.as_str())) {
            report.readings.push(names.reading(&attribute.key, "", Value::Measured(value)));
        }
    }
}
