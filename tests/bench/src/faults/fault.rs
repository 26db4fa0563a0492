//! A kind of fault: what it does to a recording, and from which size a person would look or act.

use std::ops::Range;

use crate::label::Urgency;
use crate::random::Random;
use crate::recording::Recording;

/// A kind of fault, and the sizes it is tried at.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    pub about: &'static str,
    /// Of the sizes.
    pub unit: &'static str,
    pub sizes: &'static [f64],
    /// Sizes from which a person would look, and act.
    pub warn: f64,
    pub page: f64,
    /// Class of its label.
    pub class: &'static str,
    pub make: Make,
}

/// How a recording with the fault is made.
#[derive(Debug, Clone, Copy)]
pub enum Make {
    /// By changing a clean series that has these signals and so many rows.
    Table { signals: &'static [&'static str], rows: usize, inject: Inject },
    /// As lines of events, where a row of numbers cannot express it.
    Events(fn(f64, &mut Random) -> EventLines),
}

/// Changes the series from a row on, at a size; returns which rows are wrong.
pub type Inject = fn(&mut Recording, usize, f64, &mut Random) -> Range<usize>;

/// Lines of events, and the steps of them that are wrong, both inclusive.
#[derive(Debug, Clone)]
pub struct EventLines {
    pub lines: Vec<String>,
    pub start: i64,
    pub end: i64,
}

/// Not at any size.
pub(super) const NEVER: f64 = f64::INFINITY;

impl Fault {
    pub fn urgency(&self, size: f64) -> Urgency {
        if size >= self.page {
            Urgency::Page
        } else if size >= self.warn {
            Urgency::Warn
        } else {
            Urgency::Info
        }
    }
}
