//! Values of families at one moment, on their way to the page.
//!
//! Constant metrics, built afresh for every page: a run, a process or a device that is gone is simply not written
//! again, which a family that remembers its label sets cannot promise.

use std::ops::Range;
use std::sync::Arc;

use crate::family::{Family, Kind};

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram(Distribution),
}

/// A histogram as it is exposed. `counts` has one entry a bound, not cumulative; the last bound is infinity.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    pub sum: f64,
    pub count: u64,
    pub buckets: Vec<(f64, u64)>,
}

#[derive(Debug, Clone)]
pub struct Sample {
    pub family: &'static Family,
    /// In the order of the family's label names.
    /// Shared: what a collector keeps goes onto every page.
    pub labels: Arc<[Box<str>]>,
    pub value: Value,
}

/// A number of a family, with its labels by name.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    pub value: f64,
    sample: &'a Sample,
}

impl<'a> Row<'a> {
    /// Empty when the family has no such label.
    pub fn label(&self, name: &str) -> &'a str {
        let at = self.sample.family.labels.iter().position(|l| *l == name);
        at.and_then(|at| self.sample.labels.get(at)).map_or("", AsRef::as_ref)
    }
}

/// What one source says of itself at one moment.
///
/// Most of it is what the source said a moment ago. So what is written can be sealed, and is then shared, not copied, by everybody
/// who passes it on.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    /// Written first, in this order.
    sealed: Vec<Arc<Chunk>>,
    open: Vec<Sample>,
}

/// Samples that were written one after the other, and change no more.
#[derive(Debug)]
pub struct Chunk {
    samples: Vec<Sample>,
    series: usize,
    /// Numbers of the samples, family by family, and where in there each family is.
    by_family: Vec<u32>,
    families: Vec<(&'static Family, Range<usize>)>,
}

/// What a chunk says of one family.
#[derive(Debug, Clone)]
pub struct Slice {
    chunk: Arc<Chunk>,
    nth: usize,
}

impl Samples {
    /// Adds a value; one that is not a finite number is absent (principle 6).
    pub fn set(&mut self, family: &'static Family, labels: &[&str], value: impl IntoNumber) {
        let value = value.into_number();
        debug_assert_ne!(family.kind, Kind::Histogram, "{}", family.name);
        if value.is_finite() {
            self.push(family, labels, Value::Number(value));
        }
    }

    /// As [`Samples::set`], where there is a value.
    pub fn maybe(&mut self, family: &'static Family, labels: &[&str], value: Option<impl IntoNumber>) {
        if let Some(value) = value {
            self.set(family, labels, value);
        }
    }

    pub fn distribution(&mut self, family: &'static Family, labels: &[&str], value: Distribution) {
        debug_assert_eq!(family.kind, Kind::Histogram, "{}", family.name);
        self.push(family, labels, Value::Histogram(value));
    }

    fn push(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(family.labels.len(), labels.len(), "labels of {}", family.name);
        let labels = labels.iter().map(|l| Box::from(*l)).collect();
        self.open.push(Sample { family, labels, value });
    }

    /// Ends what was written so far, such that it can be shared.
    pub fn seal(&mut self) {
        if !self.open.is_empty() {
            self.sealed.push(Arc::new(Chunk::new(std::mem::take(&mut self.open))));
        }
    }

    /// The same, of the last that was to be written.
    pub fn into_sealed(mut self) -> Self {
        self.seal();
        self
    }

    /// Adds all of another source's: what is sealed there is shared.
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

    /// All of it, sealed.
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

    /// The value of a series, for tests and for sources that read their own last page; of several the last one.
    pub fn get(&self, family: &Family, labels: &[&str]) -> Option<f64> {
        let of = |s: &Sample| match s.value {
            Value::Number(v)
                if s.family.name == family.name
                    && s.labels.iter().map(AsRef::as_ref).eq(labels.iter().copied()) =>
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
    pub fn new(mut samples: Vec<Sample>) -> Self {
        samples.shrink_to_fit();
        let place = |at: &u32| std::ptr::from_ref(samples[*at as usize].family).addr();
        let mut by_family: Vec<u32> = (0..samples.len() as u32).collect();
        by_family.sort_by_key(place);
        let (mut families, mut start) = (Vec::new(), 0);
        for same in by_family.chunk_by(|a, b| place(a) == place(b)) {
            let end = start + same.len();
            families.extend(same.first().map(|at| (samples[*at as usize].family, start..end)));
            start = end;
        }
        let series = samples.iter().map(|s| s.value.series()).sum();
        Self { samples, series, by_family, families }
    }

    /// Lines that all of it takes on the page.
    pub fn series(&self) -> usize {
        self.series
    }

    /// In the order in which they were written.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// What it says of each family.
    pub fn slices(self: &Arc<Self>) -> impl Iterator<Item = (&'static Family, Slice)> {
        let families = self.families.iter().enumerate();
        families.map(|(nth, (family, _))| (*family, Slice { chunk: Arc::clone(self), nth }))
    }
}

impl Slice {
    /// In the order in which they were written.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &Sample> {
        let range = self.chunk.families.get(self.nth).map(|(_, range)| range.clone()).unwrap_or_default();
        self.chunk.by_family[range].iter().map(|at| &self.chunk.samples[*at as usize])
    }

    /// The very same, so that nobody has to look.
    pub fn is(&self, other: &Self) -> bool {
        self.nth == other.nth && Arc::ptr_eq(&self.chunk, &other.chunk)
    }
}

impl Value {
    /// Lines that the value takes on the page, which is what a time series costs.
    pub fn series(&self) -> usize {
        match self {
            Self::Number(_) => 1,
            Self::Histogram(h) => h.buckets.len() + 2,
        }
    }
}

/// Everything a source counts in becomes the one number type of the page.
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
