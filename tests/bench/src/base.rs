//! The clean series that faults are injected into: half of them real, half made up.

use std::path::Path;

use crate::label::{self, Truths};
use crate::random::Random;
use crate::recording::{Column, Recording};
use crate::synthetic::Traits;

/// Rows of a series, at most.
pub const ROWS: usize = 2500;

/// Stretches of real runs without any label, not even a benign one.
#[derive(Debug)]
pub struct Clean {
    stretches: Vec<(String, Recording)>,
}

/// A series to inject into, and what it is.
#[derive(Debug, Clone)]
pub struct Base {
    pub name: String,
    pub recording: Recording,
}

impl Clean {
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        let truths: Truths = label::read(&dir.join(label::FILE))?;
        let mut stretches = Vec::new();
        for (run, truth) in &truths {
            let recording = Recording::read(&dir.join(format!("{run}.csv")))?;
            let mut marks: Vec<(usize, usize)> = truth
                .events
                .iter()
                .map(|e| (recording.row(e.start), recording.row(e.end) + 1))
                .chain([(recording.len(), recording.len())])
                .collect();
            marks.sort_unstable();
            let (mut free, mut longest) = (0, 0..0);
            for (start, end) in marks {
                if start > free && start - free > longest.len() {
                    longest = free..start;
                }
                free = free.max(end);
            }
            // What follows an event may still recover from it.
            let settled = if longest.start == 0 { 0 } else { longest.start + 100 };
            if settled < longest.end {
                stretches.push((run.clone(), recording.cut(settled..longest.end)));
            }
        }
        Ok(Self { stretches })
    }

    /// A series with these signals and at least so many rows: of even seeds a real one, as long as
    /// there is one.
    pub fn draw(&self, signals: &[&str], rows: usize, seed: u64, random: &mut Random) -> Base {
        let fit: Vec<_> = self
            .stretches
            .iter()
            .filter(|(_, r)| r.len() >= rows && signals.iter().all(|s| r.column(s).is_some_and(is_measured)))
            .collect();
        if seed % 2 == 1 || fit.is_empty() {
            let recording = Traits::draw(random).record(ROWS, random);
            return Base { name: "synthetic".into(), recording };
        }
        let (name, recording) = fit[(seed / 2) as usize % fit.len()];
        let spare = recording.len().saturating_sub(ROWS);
        let from = random.below(spare + 1);
        Base { name: name.clone(), recording: recording.cut(from..(from + ROWS).min(recording.len())) }
    }
}

/// Logged at nearly every step.
fn is_measured(column: &Column) -> bool {
    let finite = column.cells.iter().flatten().filter(|v| v.is_finite()).count();
    finite * 10 >= column.cells.len() * 9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{GRAD_NORM, LOSS, STEP_TIME};

    #[test]
    fn half_of_the_series_are_real_and_none_has_a_label() {
        let clean = Clean::read(&crate::real_runs()).unwrap();
        let draw = |signal, seed| clean.draw(&[signal], 1500, seed, &mut Random::new(seed));
        for signal in [LOSS, GRAD_NORM, STEP_TIME] {
            let real = (0..20).filter(|seed| draw(signal, *seed).name != "synthetic").count();
            assert_eq!(real, 10, "{signal}");
        }
        let truths = label::read(&crate::real_runs().join(label::FILE)).unwrap();
        for (run, r) in &clean.stretches {
            let (first, last) = (r.steps[0], r.steps[r.len() - 1]);
            let touches = truths[run].events.iter().any(|e| e.start <= last && e.end >= first);
            assert!(!touches, "{run}");
        }
    }
}
