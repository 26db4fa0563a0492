//! The values of families at one moment, for the exposition.
//!
//! They are built anew for every exposition: a run, process or device that is gone is simply not
//! written again, which a family that keeps its label sets cannot guarantee.

use std::ops::Range;
use std::sync::Arc;

use stepwatch_wire::words;

use crate::family::{Family, FamilyType};

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram(Distribution),
}

/// A histogram. `counts` has one entry a bound, not cumulative; the last bound is infinity.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    pub sum: f64,
    pub count: u64,
    pub buckets: Vec<(f64, u64)>,
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub family: &'static Family,
    /// The labels, which are shared by the collector and every exposition.
    pub labels: Labels,
    pub value: Value,
}

/// Values of labels in the order of their family's names. They are one text, so that a series costs
/// one allocation and a comparison is one of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<str>);

/// A number of a family, with access to its labels by name.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub value: f64,
    sample: &'a Sample,
}

impl<'a> Row<'a> {
    /// The value of a label; empty if the family has no such label.
    pub fn label(&self, name: &str) -> &'a str {
        let at = self.sample.family.labels.iter().position(|l| *l == name);
        at.map_or("", |at| self.sample.labels.get(at))
    }
}

/// The samples of one source at one moment.
///
/// Most of them equal the previous ones. So they can be sealed, and are then shared instead of
/// copied.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Sealed chunks, which come first, in this order.
    sealed: Vec<Arc<Chunk>>,
    open: Vec<Sample>,
    /// A buffer in which labels are joined.
    text: String,
    before: Before,
}

/// The samples of the source's last pass. It usually writes the same series in the same order, so
/// their labels are reused.
#[derive(Debug, Clone, Default)]
struct Before {
    chunks: Vec<Arc<Chunk>>,
    /// The chunk and the sample after the last one that was reused.
    next: (usize, usize),
}

/// The bytes of labels for which a series has room.
const USUAL_LABEL_BYTES: usize = 256;

/// Samples that were written in sequence and no longer change.
#[derive(Debug)]
pub struct Chunk {
    samples: Vec<Sample>,
    series: usize,
    cost: usize,
    index: Arc<Index>,
}

/// The positions of the families in a chunk. A source usually publishes the same families in the
/// same order, and then its chunks share one index.
#[derive(Debug)]
struct Index {
    /// The indices of the samples, grouped by family.
    by_family: Vec<u32>,
    /// Each family with its range in `by_family`.
    families: Vec<(&'static Family, Range<usize>)>,
}

/// The samples of one family in a chunk.
#[derive(Debug, Clone)]
pub struct Slice {
    chunk: Arc<Chunk>,
    nth: usize,
}

impl Sample {
    /// The room that it uses in the exposition: a series with long labels counts as several.
    pub fn cost(&self) -> usize {
        self.value.series() * (1 + self.labels.0.len() / USUAL_LABEL_BYTES)
    }
}

impl Labels {
    /// The terminator of each value. It sorts before every character, so that texts have the order
    /// of their values.
    const END: char = '\0';

    fn write(values: &[&str], text: &mut String) {
        text.clear();
        for value in values {
            // All paths and names of devices and processes pass through here. The terminator itself
            // is removed too.
            text.push_str(&words::clean(value));
            text.push(Self::END);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split_terminator(Self::END)
    }

    /// The value at a position; empty if there is none.
    pub fn get(&self, nth: usize) -> &str {
        self.iter().nth(nth).unwrap_or_default()
    }

    /// Whether both are the same allocation, which saves a comparison.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Before {
    /// The greatest shift in the order of series that is searched.
    const NEAR: usize = 8;

    fn labels(&mut self, family: &'static Family, text: &str) -> Option<Labels> {
        let (mut chunk, mut at) = self.next;
        for _ in 0..Self::NEAR {
            while at >= self.chunks.get(chunk)?.samples.len() {
                (chunk, at) = (chunk + 1, 0);
            }
            let sample = &self.chunks[chunk].samples[at];
            at += 1;
            if std::ptr::eq(sample.family, family) && *sample.labels.0 == *text {
                self.next = (chunk, at);
                return Some(sample.labels.clone());
            }
        }
        None
    }
}

impl Samples {
    /// Empty samples for the next pass of a source with these last ones.
    pub fn after(before: &Self) -> Self {
        let longest = before.sealed.iter().map(|chunk| chunk.samples.len()).max();
        Self {
            open: Vec::with_capacity(longest.unwrap_or_default()),
            before: Before { chunks: before.sealed.clone(), next: (0, 0) },
            ..Self::default()
        }
    }

    /// Adds a value; one that is not finite is left out (principle 6).
    pub fn set(&mut self, family: &'static Family, labels: &[&str], value: impl IntoNumber) {
        let value = value.into_number();
        debug_assert_ne!(family.kind, FamilyType::Histogram, "{}", family.name);
        if value.is_finite() {
            self.push(family, labels, Value::Number(value));
        }
    }

    /// As [`Samples::set`], if there is a value.
    pub fn maybe(&mut self, family: &'static Family, labels: &[&str], value: Option<impl IntoNumber>) {
        if let Some(value) = value {
            self.set(family, labels, value);
        }
    }

    pub fn distribution(&mut self, family: &'static Family, labels: &[&str], value: Distribution) {
        debug_assert_eq!(family.kind, FamilyType::Histogram, "{}", family.name);
        self.push(family, labels, Value::Histogram(value));
    }

    fn push(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(family.labels.len(), labels.len(), "labels of {}", family.name);
        Labels::write(labels, &mut self.text);
        let before = self.before.labels(family, &self.text);
        let labels = before.unwrap_or_else(|| Labels(self.text.as_str().into()));
        self.open.push(Sample { family, labels, value });
    }

    /// Seals what was written so far, so that it can be shared.
    pub fn seal(&mut self) {
        if !self.open.is_empty() {
            let before = self.before.chunks.get(self.sealed.len());
            self.sealed.push(Chunk::after(before, std::mem::take(&mut self.open)));
        }
    }

    /// Seals the samples, after the last one was written.
    pub fn into_sealed(mut self) -> Self {
        self.seal();
        Self { sealed: self.sealed, ..Self::default() }
    }

    /// Adds the samples of another source; its sealed chunks are shared.
    pub fn extend(&mut self, other: &Self) {
        if !other.sealed.is_empty() {
            self.seal();
            self.sealed.extend_from_slice(&other.sealed);
        }
        self.open.extend_from_slice(&other.open);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.sealed.iter().flat_map(|chunk| &chunk.samples).chain(&self.open)
    }

    /// Samples of sealed chunks.
    pub fn from_chunks(sealed: Vec<Arc<Chunk>>) -> Self {
        Self { sealed, ..Self::default() }
    }

    /// All samples as sealed chunks.
    pub fn into_chunks(self) -> Vec<Arc<Chunk>> {
        self.into_sealed().sealed
    }

    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.open.is_empty()
    }

    /// All numbers of a family.
    pub fn rows(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.iter().filter(|s| s.family.name == family.name).filter_map(|sample| match sample.value {
            Value::Number(value) => Some(Row { value, sample }),
            Value::Histogram(_) => None,
        })
    }

    /// The value of a series; the last one if there are several. For tests, and for sources that
    /// read their own last samples.
    pub fn get(&self, family: &Family, labels: &[&str]) -> Option<f64> {
        let of = |s: &Sample| match s.value {
            Value::Number(v)
                if s.family.name == family.name && s.labels.iter().eq(labels.iter().copied()) =>
            {
                Some(v)
            }
            _ => None,
        };
        let sealed = self.sealed.iter().rev();
        self.open.iter().rev().chain(sealed.flat_map(|chunk| chunk.samples.iter().rev())).find_map(of)
    }
}

impl Chunk {
    pub fn new(samples: Vec<Sample>) -> Self {
        let index = Arc::new(Index::from_samples(&samples));
        Self::indexed(samples, index)
    }

    /// The next chunk of a source. If the samples are equal it is the previous one itself, which
    /// saves later comparisons.
    pub fn after(before: Option<&Arc<Self>>, samples: Vec<Sample>) -> Arc<Self> {
        let Some(before) = before.filter(|before| before.samples.len() == samples.len()) else {
            return Arc::new(Self::new(samples));
        };
        let pairs = || before.samples.iter().zip(&samples);
        if !pairs().all(|(a, b)| std::ptr::eq(a.family, b.family)) {
            return Arc::new(Self::new(samples));
        }
        if pairs().all(|(a, b)| a.labels.is(&b.labels) && a.value == b.value) {
            return Arc::clone(before);
        }
        Arc::new(Self::indexed(samples, Arc::clone(&before.index)))
    }

    fn indexed(mut samples: Vec<Sample>, index: Arc<Index>) -> Self {
        samples.shrink_to_fit();
        let series = samples.iter().map(|s| s.value.series()).sum();
        let cost = samples.iter().map(Sample::cost).sum();
        Self { samples, series, cost, index }
    }

    /// The room that it uses in the exposition.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// The number of its lines in the exposition.
    pub fn series(&self) -> usize {
        self.series
    }

    /// The samples in the order in which they were written.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    pub fn families(&self) -> impl Iterator<Item = &'static Family> {
        self.index.families.iter().map(|(family, _)| *family)
    }

    /// Its samples by family.
    pub fn slices(self: &Arc<Self>) -> impl Iterator<Item = (&'static Family, Slice)> {
        let families = self.index.families.iter().enumerate();
        families.map(|(nth, (family, _))| (*family, Slice { chunk: Arc::clone(self), nth }))
    }
}

impl Index {
    fn from_samples(samples: &[Sample]) -> Self {
        let place = |at: &u32| std::ptr::from_ref(samples[*at as usize].family).addr();
        let mut by_family: Vec<u32> = (0..samples.len() as u32).collect();
        by_family.sort_by_key(place);
        let (mut families, mut start) = (Vec::new(), 0);
        for same in by_family.chunk_by(|a, b| place(a) == place(b)) {
            let end = start + same.len();
            families.extend(same.first().map(|at| (samples[*at as usize].family, start..end)));
            start = end;
        }
        Self { by_family, families }
    }
}

impl Slice {
    /// The samples in the order in which they were written.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &Sample> {
        let index = &*self.chunk.index;
        let range = index.families.get(self.nth).map(|(_, range)| range.clone()).unwrap_or_default();
        index.by_family[range].iter().map(|at| &self.chunk.samples[*at as usize])
    }

    /// Whether both are the same slice, which saves a comparison.
    pub fn is(&self, other: &Self) -> bool {
        self.nth == other.nth && Arc::ptr_eq(&self.chunk, &other.chunk)
    }
}

impl Value {
    /// The number of lines of the value in the exposition, which is its number of time series.
    pub fn series(&self) -> usize {
        match self {
            Self::Number(_) => 1,
            Self::Histogram(h) => h.buckets.len() + 2,
        }
    }
}

/// A type that converts to the exposition's number type.
pub trait IntoNumber {
    fn into_number(self) -> f64;
}

macro_rules! numbers {
    ($($t:ty)*) => { $(impl IntoNumber for $t {
        fn into_number(self) -> f64 { self as f64 }
    })* };
}

numbers!(f64 u64 i64 u32 i32 usize);

impl IntoNumber for bool {
    fn into_number(self) -> f64 {
        f64::from(u8::from(self))
    }
}

impl IntoNumber for std::time::Duration {
    fn into_number(self) -> f64 {
        self.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static TWO: Family = Family::gauge("x_two", "", &["a", "b"], "Two");

    #[test]
    fn labels_are_used_again_where_series_come_and_go() {
        let page = |before: &Samples, series: &[&str]| {
            let mut now = Samples::after(before);
            series.iter().for_each(|name| now.set(&TWO, &[name, ""], 1u64));
            now.into_sealed()
        };
        let first = page(&Samples::default(), &["a", "b", "c", "d"]);
        for series in [&["a", "b", "c", "d"][..], &["b", "new", "d"], &["d"]] {
            let again = page(&first, series);
            let names: Vec<_> = again.iter().map(|s| s.labels.get(0)).collect();
            assert_eq!(names, series);
            let shared = again.iter().filter(|s| first.iter().any(|f| f.labels.is(&s.labels))).count();
            assert_eq!(shared, series.iter().filter(|name| **name != "new").count(), "{series:?}");
        }
    }

    #[test]
    fn what_a_source_says_again_is_the_same_chunk() {
        let sealed = |before: &Samples, values: &[(&'static Family, &str, f64)]| {
            let mut now = Samples::after(before);
            values.iter().for_each(|(family, label, value)| now.set(family, &[label, ""], *value));
            now.into_sealed().into_chunks().remove(0)
        };
        let one = |chunk: &Arc<Chunk>| Samples { sealed: vec![Arc::clone(chunk)], ..Samples::default() };
        static OTHER: Family = Family::gauge("x_other", "", &["a", "b"], "Other");
        let first = sealed(&Samples::default(), &[(&TWO, "a", 1.0), (&OTHER, "a", 2.0), (&TWO, "b", 3.0)]);
        let again = sealed(&one(&first), &[(&TWO, "a", 1.0), (&OTHER, "a", 2.0), (&TWO, "b", 3.0)]);
        assert!(Arc::ptr_eq(&first, &again));
        let next = sealed(&one(&first), &[(&TWO, "a", 1.0), (&OTHER, "a", 2.0), (&TWO, "b", 4.0)]);
        assert!(!Arc::ptr_eq(&first, &next) && Arc::ptr_eq(&first.index, &next.index));
        assert_eq!(next.samples[2].value, Value::Number(4.0));
        let renamed = sealed(&one(&first), &[(&TWO, "a", 1.0), (&OTHER, "a", 2.0), (&TWO, "c", 3.0)]);
        assert_eq!(renamed.samples[2].labels.get(0), "c");
        let turned = sealed(&one(&first), &[(&OTHER, "a", 1.0), (&TWO, "a", 2.0), (&TWO, "b", 3.0)]);
        let families: Vec<_> = turned.slices().map(|(f, slice)| (f.name, slice.samples().len())).collect();
        assert!(families.contains(&("x_other", 1)) && families.contains(&("x_two", 2)), "{families:?}");
    }

    fn labels(values: &[String]) -> Labels {
        let mut samples = Samples::default();
        samples.set(&TWO, &values.iter().map(String::as_str).collect::<Vec<_>>(), 1u64);
        samples.iter().next().unwrap().labels.clone()
    }

    #[test]
    fn a_value_with_the_end_of_one_in_it_stays_one_value() {
        let odd = labels(&["a\0b".into(), String::new()]);
        assert_eq!(odd.iter().collect::<Vec<_>>(), ["ab", ""]);
        assert_eq!((odd.get(0), odd.get(1), odd.get(2)), ("ab", "", ""));
    }

    proptest! {
        #[test]
        fn labels_are_as_their_values_are(a in prop::collection::vec("[ab\n]{0,3}", 2), b in prop::collection::vec("[ab\n]{0,3}", 2)) {
            let (one, other) = (labels(&a), labels(&b));
            prop_assert_eq!(one.cmp(&other), a.cmp(&b));
            prop_assert_eq!(one == other, a == b);
            prop_assert!(one.iter().eq(a.iter().map(String::as_str)));
        }
    }
}
