//! The budget: what was reached on the labelled real runs with default settings must not get worse.
//!
//! The origin of the data is in `tests/data/runs/SOURCES.md`. A figure that got better belongs in
//! here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stepwatch_bench::curves::Runs;
use stepwatch_bench::label::{self, Family};
use stepwatch_bench::score::Tally;
use stepwatch_bench::{cases, real_runs, replay, tables};

/// What may be reached at worst; counts are of the runs of `tests/data/runs`, delays are medians in
/// samples.
fn budget(t: &Tally) -> [(&'static str, f64, f64); 8] {
    let delay = |family| t.delay(Some(family), 0.5).unwrap_or(f64::INFINITY);
    [
        ("page labels that were not paged", (t.page_labels - t.paged) as f64, 0.0),
        ("labels missed", t.missed.len() as f64, 1.0),
        ("false pages", t.false_pages as f64, 1.0),
        ("false tickets", t.false_tickets as f64, 40.0),
        ("delay of loss", delay(Family::Loss), 2.0),
        ("delay of gradients", delay(Family::Grad), 3.0),
        ("delay of NaN", delay(Family::Nonfinite), 2.0),
        ("delay of speed", delay(Family::Speed), 24.0),
    ]
}

#[test]
fn real_runs_stay_within_the_budget() {
    let labels = real_runs().join(label::FILE);
    let files = cases::files(&real_runs(), &label::read(&labels).unwrap()).unwrap();
    let runs = Runs::read(&files, &labels).unwrap();
    assert_eq!(runs.steps.len(), runs.truths.len(), "every labelled run is there");
    let t = runs.judge(&replay::files(&files).unwrap());
    assert!(t.page_labels >= 20 && t.labels >= 54 && t.samples > 147_000, "labels or runs are gone");
    let worse: Vec<_> = budget(&t).into_iter().filter(|(_, measured, limit)| measured > limit).collect();
    assert!(
        worse.is_empty(),
        "(figure, measured, budget): {worse:?}\n{}missed: {:#?}\nfalse pages: {:#?}",
        tables::detectors(&[("measured".into(), t.clone())]),
        t.missed,
        t.false_pages_at
    );
}
