//! What is injected: one kind of fault a line, with the sizes it is tried at and what a person
//! would have wanted of each.
//!
//! Sizes run from what nobody should be notified of to what nobody could miss; the urgency of a
//! size follows the same policy as the labels of the real runs (`tests/data/runs/SOURCES.md`). A
//! size that nobody should be notified of has a label too, of urgency `info`: a page for it is
//! false.

mod events;
mod fault;
mod grads;
mod losses;
mod speeds;

pub use fault::{EventLines, Fault, Inject, Make};

/// Every kind, in the order of the report.
pub fn all() -> Vec<Fault> {
    [losses::FAULTS, grads::FAULTS, speeds::FAULTS, events::FAULTS].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
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
