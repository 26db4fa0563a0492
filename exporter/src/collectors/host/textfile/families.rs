//! Families that are defined by the contents of files. They are kept for the life of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use stepwatch_kit::exposition::read::{self, Dialect, Sample};
use stepwatch_wire::words;

use crate::family::{Family, FamilyType, Shown};
use crate::lock::Locked as _;
use crate::samples::{Distribution, Samples, Value};

/// The most families that files may define during the life of the process. Each is kept for ever,
/// once for every set of labels that it had.
const MAX_FAMILIES: usize = 2048;
const MAX_HELP: usize = 256;
const ENDINGS: [&str; 5] = ["_total", "_bucket", "_sum", "_count", "_created"];

type Labels = BTreeMap<String, String>;

/// One family in one file or in all of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Block {
    pub(super) kind: FamilyType,
    pub(super) help: String,
    /// Each series; `Err` has the reason if it cannot be exported.
    pub(super) series: BTreeMap<Labels, Result<Value, &'static str>>,
}

/// The samples of one histogram before they are merged.
#[derive(Debug, Default)]
struct Parts {
    sum: Option<f64>,
    count: Option<f64>,
    /// Upper bounds and the cumulative count of each.
    buckets: Vec<(f64, f64)>,
}

impl Block {
    pub(super) fn new(kind: FamilyType, help: String) -> Self {
        Self { kind, help, series: BTreeMap::new() }
    }
}

/// Checks that the names of a sample are valid in an exposition.
pub(super) fn check(sample: &Sample<'_>) -> Result<(), String> {
    let plain = |name: &str, colon: bool| {
        let byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || colon && b == b':';
        !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(byte)
    };
    if !plain(&sample.name, true) {
        return Err(format!("{:?} is no name of a metric", sample.name));
    }
    let mut seen = BTreeSet::new();
    for (name, _) in sample.labels.iter() {
        if !plain(&name, false) {
            return Err(format!("{name:?} is no name of a label"));
        }
        if !seen.insert(name.clone()) {
            return Err(format!("{} has the label {name:?} twice", sample.name));
        }
    }
    Ok(())
}

/// The name of a family without the suffixes of its samples.
pub(super) fn bare(name: &str) -> &str {
    ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// The families of an exposition by name.
pub(super) fn blocks(text: &str) -> BTreeMap<String, Block> {
    let helps = helps(text);
    let mut blocks: BTreeMap<String, Block> = BTreeMap::new();
    let mut histograms: BTreeMap<String, BTreeMap<Labels, Parts>> = BTreeMap::new();
    for sample in read::read(text, Dialect::Text).flatten() {
        let mut labels: Labels =
            sample.labels.iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect();
        if sample.kind == read::MetricType::Histogram {
            if let Some(base) = ["_bucket", "_sum", "_count"].iter().find_map(|e| sample.name.strip_suffix(e))
            {
                let bound = labels.remove("le");
                let parts = histograms.entry(base.to_owned()).or_default().entry(labels).or_default();
                parts.add(&sample.name[base.len()..], bound.as_deref(), sample.value);
                continue;
            }
        }
        let kind = match sample.kind {
            read::MetricType::Counter if sample.name.ends_with("_total") => FamilyType::Counter,
            read::MetricType::Gauge if !sample.name.ends_with("_total") => FamilyType::Gauge,
            // A summary is exported as single numbers, and so is a counter without the suffix of
            // one.
            _ => FamilyType::Unknown,
        };
        let value =
            if sample.value.is_finite() { Ok(Value::Number(sample.value)) } else { Err("not_finite") };
        let help = helps.get(&*sample.name).or_else(|| helps.get(bare(&sample.name)));
        let block = blocks
            .entry(sample.name.into_owned())
            .or_insert_with(|| Block::new(kind, help.cloned().unwrap_or_else(|| "From a file".into())));
        let twice = block.series.contains_key(&labels);
        block.series.insert(labels, if twice { Err("duplicate") } else { value });
    }
    for (name, series) in histograms {
        let help = helps.get(&*name).cloned().unwrap_or_else(|| "From a file".into());
        let series = series.into_iter().map(|(labels, parts)| (labels, parts.value().ok_or("malformed")));
        blocks.insert(name, Block { kind: FamilyType::Histogram, help, series: series.collect() });
    }
    blocks
}

/// The text of each `# HELP name text`, on one line and without characters that need escapes.
fn helps(text: &str) -> BTreeMap<&str, String> {
    let help = |line: &'_ str| -> Option<(usize, usize)> {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("HELP")?.trim_start();
        let (name, _) = rest.split_once([' ', '\t'])?;
        Some((line.len() - rest.len(), name.len()))
    };
    let clean = |text: &str| {
        let plain = text.replace("\\n", " ").replace('"', "'").replace('\\', "/");
        let plain: String = words::line(&plain).chars().take(MAX_HELP).collect();
        plain.trim().trim_end_matches('.').to_owned()
    };
    let found = text.lines().filter_map(|line| {
        let (at, length) = help(line)?;
        let rest = &line[at..];
        Some((&rest[..length], clean(&rest[length..])))
    });
    found.filter(|(_, help)| !help.is_empty()).collect()
}

impl Parts {
    fn add(&mut self, ending: &str, bound: Option<&str>, value: f64) {
        match (ending, bound.and_then(|b| b.parse::<f64>().ok())) {
            ("_sum", _) => self.sum = Some(value),
            ("_count", _) => self.count = Some(value),
            ("_bucket", Some(bound)) => self.buckets.push((bound, value)),
            _ => {}
        }
    }

    /// Converts cumulative counts to one for each bucket; `None` if they are invalid.
    fn value(mut self) -> Option<Value> {
        let whole = |v: f64| (v >= 0.0 && v.fract() == 0.0 && v < 9e15).then_some(v as u64);
        let count = whole(self.count?)?;
        let sum = self.sum.filter(|sum| sum.is_finite())?;
        self.buckets.retain(|(bound, _)| *bound < f64::INFINITY);
        self.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.buckets.push((f64::INFINITY, count as f64));
        let mut below = 0;
        let mut buckets = Vec::with_capacity(self.buckets.len());
        for (bound, cumulative) in self.buckets {
            let cumulative = whole(cumulative)?;
            buckets.push((bound, cumulative.checked_sub(below)?));
            below = cumulative;
        }
        Some(Value::Histogram(Distribution { sum, count, buckets }))
    }
}

/// Writes a family. Returns whether there was room for it.
pub(super) fn write(name: &str, block: &Block, out: &mut Samples) -> bool {
    let labels: BTreeSet<&str> = block.series.keys().flat_map(|l| l.keys().map(String::as_str)).collect();
    let labels: Vec<&str> = labels.into_iter().collect();
    let Some(family) = interned(name, block.kind, &labels, &block.help) else { return false };
    for (its, value) in &block.series {
        // An empty label is the same as an absent one.
        let values: Vec<&str> = labels.iter().map(|l| its.get(*l).map_or("", String::as_str)).collect();
        match value {
            Ok(Value::Number(value)) => out.set(family, &values, *value),
            Ok(Value::Histogram(value)) => out.distribution(family, &values, value.clone()),
            Err(_) => {}
        }
    }
    true
}

/// The static family of this name, kind, labels and help.
fn interned(name: &str, kind: FamilyType, labels: &[&str], help: &str) -> Option<&'static Family> {
    static ALL: Mutex<Vec<&'static Family>> = Mutex::new(Vec::new());
    let mut all = ALL.locked();
    let same =
        |f: &&&'static Family| f.name == name && f.kind == kind && f.labels == labels && f.help == help;
    if let Some(family) = all.iter().find(same) {
        return Some(family);
    }
    if all.len() >= MAX_FAMILIES {
        return None;
    }
    let keep = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let labels: Vec<&'static str> = labels.iter().map(|l| keep(l)).collect();
    let family = Family {
        name: keep(name),
        kind,
        unit: "",
        labels: Box::leak(labels.into_boxed_slice()),
        help: keep(help),
        shown: Shown::Always,
    };
    let family: &'static Family = Box::leak(Box::new(family));
    all.push(family);
    Some(family)
}
