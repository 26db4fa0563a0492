//! Converts an exposition into reports: chooses the series, and finds their run and rank.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use stepwatch_kit::exposition::read::{self, Labels, MetricType, Sample};
use stepwatch_wire::{Event, Kind};

use super::client::Fetched;
use super::preset::Preset;
use super::{LabelConfig, Wanted};
use crate::readings::{Meaning, Reading, Report, Value, Who};

/// The most series taken from one exposition.
const MAX_SERIES: usize = 4096;
/// The most bytes of labels in the name of a metric.
const MAX_LABELS: usize = 96;
/// The state of Ray's controller: one series for each state, of which the current one is 1.
const RAY_STATE: &str = "ray_train_controller_state";
/// The event published for a change of it.
const RAY_EVENT: &str = "ray_train_state";
/// The most runs whose controllers are followed.
const MAX_STATES: usize = 256;

const RUN: &[&str] = &["run", "run_name", "run_id"];
const RANK: &[&str] = &["rank", "global_rank", "world_rank"];
/// Suffixes of the series of a histogram or summary.
const SUM: &str = "_sum";
const COUNT: &str = "_count";

/// The series of an exposition that are wanted.
#[derive(Debug, Default)]
pub(super) struct Page<'a> {
    pub(super) preset: Option<&'static Preset>,
    series: Vec<Series<'a>>,
    /// The run and state of each of Ray's controllers.
    ray: Vec<(String, String)>,
    pub(super) unmatched: u64,
    pub(super) malformed: u64,
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Series<'a> {
    name: Cow<'a, str>,
    value: Value,
    labels: Labels<'a>,
    run: Option<String>,
    rank: Option<u32>,
    time: Option<f64>,
}

pub(super) fn read<'a>(fetched: &'a Fetched, preset: Option<&'static Preset>, wanted: &Wanted) -> Page<'a> {
    let mut page = Page { preset, ..Page::default() };
    if page.preset.is_none() {
        let samples = read::read(&fetched.text, fetched.dialect).flatten();
        page.preset = samples.map(|s| s.name).find_map(|name| Preset::of_series(&name));
    }
    // One half of each distribution (sum or count), until the other one is read.
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for sample in read::read(&fetched.text, fetched.dialect) {
        match sample {
            Ok(sample) => page.sample(sample, wanted, &mut sums),
            Err(_) => page.malformed += 1,
        }
    }
    page
}

impl<'a> Page<'a> {
    fn sample(&mut self, sample: Sample<'a>, wanted: &Wanted, sums: &mut BTreeMap<String, f64>) {
        let distribution = matches!(sample.kind, MetricType::Histogram | MetricType::Summary);
        let base = || sample.name.strip_suffix(SUM).or_else(|| sample.name.strip_suffix(COUNT));
        let name: Cow<'a, str> = match base().filter(|_| distribution) {
            Some(base) => Cow::Owned(base.to_owned()),
            // Buckets, quantiles and times of creation are not read.
            None if distribution || sample.name.ends_with("_created") => return,
            None => sample.name.clone(),
        };
        if !self.wants(&name, wanted) {
            self.unmatched += 1;
            return;
        }
        if self.series.len() >= MAX_SERIES || sums.len() >= MAX_SERIES {
            self.dropped += 1;
            return;
        }
        let (run, rank) = self.whose(sample.labels, &wanted.config.labels);
        if sample.name == RAY_STATE {
            if let Some(state) = sample.labels.get(RAY_STATE).filter(|_| sample.value == 1.0) {
                let run = run.unwrap_or_else(|| wanted.config.address());
                self.ray.push((run, state.into_owned()));
            }
            return;
        }
        let value = match (sample.kind, distribution) {
            (_, true) => {
                // Labels are written the same in both halves.
                let key = format!("{name}{:?}", sample.labels);
                let is_sum = sample.name.ends_with(SUM);
                let Some(other) = sums.remove(&key) else {
                    sums.insert(key, sample.value);
                    return;
                };
                let (sum, count) = if is_sum { (sample.value, other) } else { (other, sample.value) };
                Value::Durations { count, sum, cumulative: true, start: None }
            }
            (MetricType::Counter, _) => Value::Total { total: sample.value, start: None },
            _ => Value::Gauge(sample.value),
        };
        self.series.push(Series { name, value, labels: sample.labels, run, rank, time: sample.time });
    }

    fn wants(&self, name: &str, wanted: &Wanted) -> bool {
        wanted.asked(name).unwrap_or_else(|| {
            let preset = self.preset.is_some_and(|p| p.takes(name));
            preset || name == RAY_STATE || wanted.names.known(name, "").is_some_and(|m| m != Meaning::Drop)
        })
    }

    /// The run and rank in the labels.
    fn whose(&self, labels: Labels<'_>, configured: &LabelConfig) -> (Option<String>, Option<u32>) {
        let preset = |of: fn(&Preset) -> Option<&'static str>| self.preset.and_then(of);
        let get = |configured: &Option<String>, preset: Option<&str>, usual: &[&str]| match configured
            .as_deref()
            .or(preset)
        {
            Some(label) => labels.get(label),
            None => usual.iter().find_map(|label| labels.get(label)),
        };
        let run = get(&configured.run, preset(|p| p.run), RUN).filter(|run| !run.is_empty());
        let rank = get(&configured.rank, preset(|p| p.rank), RANK);
        (run.map(Cow::into_owned), rank.and_then(|r| r.parse().ok()))
    }

    /// A hash of the values: two expositions with the same one show the same values.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for series in &self.series {
            (&series.name, series.labels).hash(&mut hasher);
            series.value.fingerprint(&mut hasher);
        }
        self.ray.hash(&mut hasher);
        hasher.finish()
    }

    /// The report of each rank in the exposition.
    pub(super) fn reports<'p>(&'p self, wanted: &'p Wanted) -> Vec<(Who, Report<'p>)> {
        let config = &wanted.config;
        let whose = |s: &Series<'_>| {
            let run = config.run.clone().or_else(|| s.run.clone()).unwrap_or_else(|| config.address());
            (run, config.rank.or(s.rank).unwrap_or(0))
        };
        let mut reports: BTreeMap<(String, u32), (Report<'p>, Vec<&'p Series<'a>>)> = BTreeMap::new();
        for series in &self.series {
            let (report, all) = reports.entry(whose(series)).or_default();
            report.only_with_steps = self.preset.is_some_and(|p| p.only_with_steps);
            if series.time > report.time {
                report.time = series.time;
            }
            all.push(series);
        }
        let reports = reports.into_iter().map(|((run, rank), (mut report, all))| {
            let mut same: BTreeMap<&str, usize> = BTreeMap::new();
            all.iter().for_each(|series| *same.entry(&series.name).or_default() += 1);
            let alone = |series: &Series<'_>| same.get(&*series.name) == Some(&1);
            report.readings = all.iter().map(|series| reading(series, alone(series), wanted)).collect();
            (Who { run, rank, certain: true, ..Who::default() }, report)
        });
        reports.collect()
    }

    /// Events about Ray's controllers whose state has changed.
    pub(super) fn states(&self, last: &mut BTreeMap<String, String>) -> Vec<Event> {
        let mut changed = Vec::new();
        for (run, state) in &self.ray {
            let before = last.get(run);
            if before == Some(state) || before.is_none() && last.len() >= MAX_STATES {
                continue;
            }
            changed.push(ray_event(run, state, before.map(String::as_str)));
            last.insert(run.clone(), state.clone());
        }
        changed
    }
}

/// Adds the labels to the name if several series share it, because it is unknown which is the loss.
fn reading<'p>(series: &'p Series<'_>, alone: bool, wanted: &'p Wanted) -> Reading<'p> {
    if alone || wanted.names.has(&series.name) {
        return wanted.names.reading(&series.name, "", series.value);
    }
    let mut name = series.name.clone().into_owned();
    for (i, (label, value)) in series.labels.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(name, "{}{label}={value}", if i == 0 { '{' } else { ',' });
    }
    if name.len() > series.name.len() + MAX_LABELS {
        name.truncate(name.floor_char_boundary(series.name.len() + MAX_LABELS));
    }
    name.push('}');
    Reading { meaning: Meaning::Metric(name.into(), 1.0), known: false, value: series.value }
}

fn ray_event(run: &str, state: &str, before: Option<&str>) -> Event {
    let level = match state {
        "ERRORED" | "ABORTED" => "error",
        "RESTARTING" | "RESIZING" => "warn",
        _ => "info",
    };
    let was = before.map_or_else(String::new, |before| format!(", after {before}"));
    Event {
        run: Some(run.to_owned()),
        name: Some(RAY_EVENT.into()),
        level: Some(level.into()),
        text: Some(format!("the Ray Train controller is {state}{was}")),
        ..Event::new(Kind::Event)
    }
}
