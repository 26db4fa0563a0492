//! The named numbers of an event.

use std::borrow::Cow;

use crate::names::metric;
use crate::words;

/// The most entries kept in each of `m` and `t`; the rest is dropped and counted.
pub const MAX_METRICS: usize = 256;
/// The most bytes kept of a name in `m` or `t`, because every rank keeps its own names.
pub const MAX_NAME_BYTES: usize = 128;
/// The usual number of metrics of a step.
const USUAL_METRICS: usize = 8;

/// The part of a name that is kept: at most [`MAX_NAME_BYTES`], cut between characters.
pub fn clip_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}

/// Named numbers in order of arrival. The list is short enough that a scan is faster than a map.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics(Vec<(Cow<'static, str>, f64)>);

impl Metrics {
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    /// Sets `name`. Returns false if the limit is reached and the value was not kept.
    pub fn set(&mut self, name: &str, value: f64) -> bool {
        let name = clip_name(name);
        if let Some(slot) = self.0.iter_mut().find(|(n, _)| n == name) {
            slot.1 = value;
            return true;
        }
        if self.0.len() >= MAX_METRICS {
            return false;
        }
        let name = match metric::ALL.iter().find(|known| **known == name) {
            Some(known) => Cow::Borrowed(*known),
            None => Cow::Owned(name.to_owned()),
        };
        if self.0.is_empty() {
            self.0.reserve(USUAL_METRICS);
        }
        self.0.push((name, value));
        true
    }

    /// Removes unsafe characters from the names. If two names become equal, the first one is kept.
    pub fn clean(&mut self) {
        if self.custom().all(|(name, _)| matches!(words::line(name), Cow::Borrowed(_))) {
            return;
        }
        for (name, value) in std::mem::take(&mut self.0) {
            let name = words::line(&name);
            if self.get(&name).is_none() {
                self.set(&name, value);
            }
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<f64> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(n, v)| (n.as_ref(), *v))
    }

    /// The custom metrics: those without a name in [`metric`].
    pub fn custom(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().filter_map(|(n, v)| match n {
            Cow::Owned(name) => Some((name.as_str(), *v)),
            Cow::Borrowed(_) => None,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'a> FromIterator<(&'a str, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (&'a str, f64)>>(iter: I) -> Self {
        let mut m = Self::default();
        for (name, value) in iter {
            m.set(name, value);
        }
        m
    }
}
