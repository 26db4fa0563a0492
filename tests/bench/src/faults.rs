//! What is injected: one kind of fault a line, with the sizes it is tried at and what a person
//! would have wanted of each.
//!
//! Sizes run from what nobody should be notified of to what nobody could miss; the urgency of a
//! size follows the same policy as the labels of the real runs (`tests/data/runs/SOURCES.md`). A
//! size that nobody should be notified of has a label too, of urgency `info`: a page for it is
//! false.

mod events;
mod grads;
mod losses;
mod speeds;

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
const NEVER: f64 = f64::INFINITY;

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

/// Every kind, in the order of the report.
pub fn all() -> Vec<Fault> {
    [losses::FAULTS, grads::FAULTS, speeds::FAULTS, events::FAULTS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::TIMESTAMP;
    use crate::synthetic::Traits;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_wrong_is_within_the_label() {
        let mut random = Random::new(1);
        let clean = Traits::draw(&mut random).record(2500, &mut random);
        for fault in all() {
            let Make::Table { inject, .. } = fault.make else { continue };
            let mut faulty = clean.clone();
            let size = fault.sizes[fault.sizes.len() - 1];
            let wrong = inject(&mut faulty, 1000, size, &mut random);
            let rows: Vec<_> = (0..clean.len())
                .filter(|row| {
                    let cells = clean.columns.iter().zip(&faulty.columns);
                    cells.into_iter().any(|(a, b)| a.cells[*row] != b.cells[*row])
                })
                .collect();
            let clock = faulty.column(TIMESTAMP).is_some();
            assert!(clock || !rows.is_empty(), "{}", fault.name);
            assert!(rows.iter().all(|row| wrong.contains(row)), "{}: {rows:?} of {wrong:?}", fault.name);
        }
    }

    #[test]
    fn names_are_unique_and_sizes_rise() {
        let names: BTreeSet<_> = all().iter().map(|f| f.name).collect();
        assert_eq!(names.len(), all().len());
        for fault in all() {
            assert!(fault.sizes.is_sorted_by(|a, b| a < b), "{}", fault.name);
            assert!(fault.warn <= fault.page, "{}", fault.name);
        }
    }
}
