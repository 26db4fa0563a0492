//! Selects the families of a collector that are exported: `collectors.X.metrics` of the
//! configuration.
//!
//! The metrics page of a node with eight GPUs has a budget of series. Families of little interest
//! are exported only on request, and series that are zero while nothing is wrong are left out
//! ([`Shown`]). All of it is still read: `check`, events and detectors use it.

use std::collections::HashMap;
use std::sync::Arc;

use glob::Pattern;

use crate::collector::Mistakes;
use crate::family::{Family, Shown};
use crate::samples::{Chunk, Sample, Samples, Value};

/// `metrics:` of a collector.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Patterns of families that are exported with all of their series, even those left out by
    /// default.
    pub include: Vec<String>,
    /// Patterns of families that are not exported, unless `include` names them.
    pub exclude: Vec<String>,
    /// Everything, for callers other than the exposition.
    #[serde(skip)]
    everything: bool,
}

impl Metrics {
    pub(crate) fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Checks the patterns against the collector's `families`; empty if those are unknown before
    /// reading.
    pub(crate) fn check(&self, families: &[&Family]) -> Mistakes {
        let mut mistakes = Mistakes::default();
        for (key, patterns) in [("metrics.include", &self.include), ("metrics.exclude", &self.exclude)] {
            mistakes = mistakes.patterns(key, patterns);
            let unknown = patterns.iter().filter_map(|pattern| unknown(pattern, families));
            mistakes = mistakes.all(key, unknown.collect());
        }
        mistakes
    }
}

/// The error for a pattern that matches no family of the collector.
fn unknown(pattern: &str, families: &[&Family]) -> Option<String> {
    let compiled = Pattern::new(pattern).ok()?;
    if families.is_empty() || families.iter().any(|family| compiled.matches(family.name)) {
        return None;
    }
    let nearest = families.iter().map(|family| family.name).min_by_key(|name| distance(pattern, name));
    let nearest = nearest.map(|name| format!("; the nearest is {name}")).unwrap_or_default();
    Some(format!("{pattern:?} is no family of this collector{nearest}"))
}

/// The number of characters to insert, remove or change to get from one text to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The part of a family that is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    NotZero,
    None,
}

/// Removes the samples of one collector that are not exported.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    everything: bool,
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    /// The key is the address of the family.
    parts: HashMap<usize, Part>,
    /// The chunks of the last pass, unfiltered and filtered; an unchanged one is not filtered
    /// again.
    last: Vec<(Arc<Chunk>, Arc<Chunk>)>,
}

impl Filter {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let compiled = |patterns: &[String]| patterns.iter().filter_map(|p| Pattern::new(p).ok()).collect();
        Self {
            everything: metrics.everything,
            include: compiled(&metrics.include),
            exclude: compiled(&metrics.exclude),
            ..Self::default()
        }
    }

    /// The exported part of `samples`, and the number of the other series.
    pub(crate) fn apply(&mut self, samples: Samples) -> (Samples, usize) {
        if self.everything {
            return (samples, 0);
        }
        let before = std::mem::take(&mut self.last);
        let mut left_out = 0;
        let mut chunks = Vec::new();
        for (nth, chunk) in samples.into_chunks().into_iter().enumerate() {
            let same =
                before.iter().find(|(of, _)| Arc::ptr_eq(of, &chunk)).map(|(_, kept)| Arc::clone(kept));
            let kept = same.unwrap_or_else(|| self.keep(&chunk, before.get(nth).map(|(_, kept)| kept)));
            left_out += chunk.series() - kept.series();
            self.last.push((chunk, Arc::clone(&kept)));
            chunks.push(kept);
        }
        (Samples::from_chunks(chunks), left_out)
    }

    fn keep(&mut self, chunk: &Arc<Chunk>, before: Option<&Arc<Chunk>>) -> Arc<Chunk> {
        if chunk.samples().iter().all(|sample| self.keeps(sample)) {
            return Arc::clone(chunk);
        }
        let kept = chunk.samples().iter().filter(|sample| self.keeps(sample)).cloned().collect();
        Chunk::after(before, kept)
    }

    fn keeps(&mut self, sample: &Sample) -> bool {
        let family = sample.family;
        let Self { include, exclude, parts, .. } = self;
        let part = *parts.entry(std::ptr::from_ref(family).addr()).or_insert_with(|| {
            let named = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(family.name));
            match family.shown {
                _ if named(include) => Part::All,
                _ if named(exclude) => Part::None,
                Shown::Always => Part::All,
                Shown::UnlessZero => Part::NotZero,
                Shown::OnRequest => Part::None,
            }
        });
        match part {
            Part::All => true,
            Part::NotZero => !matches!(sample.value, Value::Number(0.0)),
            Part::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PLAIN: Family = Family::gauge("gpu_power_watts", "watts", &["gpu"], "x");
    static STATE: Family = Family::gauge("gpu_throttle_active", "", &["gpu", "reason"], "x").unless_zero();
    static DETAIL: Family = Family::gauge("gpu_clock_max_hertz", "hertz", &["gpu"], "x").on_request();

    fn samples(watts: f64, heat: bool) -> Samples {
        let mut samples = Samples::default();
        samples.set(&PLAIN, &["a"], watts);
        samples.set(&STATE, &["a", "heat"], heat);
        samples.set(&STATE, &["a", "power"], false);
        samples.set(&DETAIL, &["a"], 2e9);
        samples.into_sealed()
    }

    fn shown(metrics: &Metrics) -> (Vec<&'static str>, usize) {
        let (kept, left_out) = Filter::new(metrics).apply(samples(5.0, true));
        (kept.iter().map(|sample| sample.family.name).collect(), left_out)
    }

    fn metrics(include: &[&str], exclude: &[&str]) -> Metrics {
        let list = |patterns: &[&str]| patterns.iter().map(|p| (*p).to_owned()).collect();
        Metrics { include: list(include), exclude: list(exclude), everything: false }
    }

    #[test]
    fn include_goes_first_then_exclude_then_the_default() {
        let (plain, state, detail) = (PLAIN.name, STATE.name, DETAIL.name);
        assert_eq!(shown(&metrics(&[], &[])), (vec![plain, state], 2));
        assert_eq!(shown(&metrics(&["*"], &[])), (vec![plain, state, state, detail], 0));
        assert_eq!(shown(&metrics(&["gpu_clock_*"], &["*"])), (vec![detail], 3));
        assert_eq!(shown(&metrics(&[], &["gpu_throttle_*"])), (vec![plain], 3));
        assert_eq!(shown(&Metrics::everything()).1, 0);
    }

    #[test]
    fn what_did_not_change_is_the_same_chunk() {
        let mut filter = Filter::new(&Metrics::default());
        let same = samples(5.0, true);
        let first = filter.apply(same.clone()).0.into_chunks();
        let again = filter.apply(same).0.into_chunks();
        assert!(Arc::ptr_eq(&first[0], &again[0]));
        // Series that are left out may change without changing the exposition.
        let mut other = samples(5.0, true);
        other.set(&DETAIL, &["b"], 1.0);
        let changed = filter.apply(other.into_sealed()).0.into_chunks();
        assert_eq!(changed[0].samples().len(), first[0].samples().len());
    }

    #[test]
    fn a_name_that_no_family_has_is_a_mistake_with_the_nearest() {
        let families: &[&Family] = &[&PLAIN, &STATE, &DETAIL];
        let said =
            |metrics: &Metrics, families| metrics.check(families).under("collectors.gpu").collect::<Vec<_>>();
        assert!(said(&metrics(&["gpu_clock_*", "*"], &["gpu_power_watts"]), families).is_empty());
        assert_eq!(
            said(&metrics(&["gpu_pwer_watts"], &["a["]), families),
            [
                r#"collectors.gpu.metrics.include: "gpu_pwer_watts" is no family of this collector; the nearest is gpu_power_watts"#,
                r#"collectors.gpu.metrics.exclude: "a[" is not a pattern: Pattern syntax error near position 1: invalid range pattern"#,
            ]
        );
        assert!(said(&metrics(&["anything"], &[]), &[]).is_empty(), "names that are not known before");
    }

    #[test]
    fn distances() {
        assert_eq!([distance("", "abc"), distance("kitten", "sitting"), distance("a", "a")], [3, 3, 0]);
    }
}
