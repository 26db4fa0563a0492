//! Values of families at one moment, on their way to the page.
//!
//! Constant metrics, built afresh for every page: a run, a process or a device that is gone is simply not written
//! again, which a family that remembers its label sets cannot promise.

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
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<Sample>);

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
        self.0.push(Sample { family, labels, value });
    }

    /// Adds all of another source's.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub fn iter(&self) -> core::slice::Iter<'_, Sample> {
        self.0.iter()
    }

    pub fn into_vec(self) -> Vec<Sample> {
        self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All numbers of a family.
    pub fn rows(&self, family: &'static Family) -> impl Iterator<Item = Row<'_>> {
        self.0.iter().filter(|s| s.family.name == family.name).filter_map(|sample| match sample.value {
            Value::Number(value) => Some(Row { value, sample }),
            Value::Histogram(_) => None,
        })
    }

    /// The value of a series, for tests and for sources that read their own last page.
    pub fn get(&self, family: &Family, labels: &[&str]) -> Option<f64> {
        self.0.iter().rev().find_map(|s| match s.value {
            Value::Number(v)
                if s.family.name == family.name
                    && s.labels.iter().map(AsRef::as_ref).eq(labels.iter().copied()) =>
            {
                Some(v)
            }
            _ => None,
        })
    }
}

impl<'a> IntoIterator for &'a Samples {
    type Item = &'a Sample;
    type IntoIter = core::slice::Iter<'a, Sample>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
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

/// Samples of one source as the last successful collection left them.
pub type Shared = Arc<Samples>;
