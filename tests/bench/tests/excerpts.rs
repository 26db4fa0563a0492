//! The budget of excerpts: parts of real runs, replayed with default settings. Fails when a label
//! is missed, a page label is not paged, or a false page appears. The excerpts have fewer signals
//! than the full runs that `budget.rs` replays, so each detector has to find its fault without the
//! help of another.
//!
//! The origin of the data is in `tests/data/excerpts/SOURCES.md`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use stepwatch_bench::curves::Runs;
use stepwatch_bench::replay::{self, Severity};
use stepwatch_bench::score::Tally;
use stepwatch_bench::{cases, label};

/// Tickets that touch no label, over all runs.
const FALSE_TICKETS: usize = 6;
/// Excerpts, labels that must be noticed, and those of them that must be paged.
const ALL: (usize, usize, usize) = (16, 25, 8);

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/excerpts")
}

fn recordings() -> Vec<PathBuf> {
    cases::files(&data(), &label::read(&data().join(label::FILE)).unwrap()).unwrap()
}

/// The tally of these recordings; `what` they are.
fn judge(what: &str, files: &[PathBuf]) -> Tally {
    let runs = Runs::read(files, &data().join(label::FILE)).unwrap();
    let found = replay::files(files).unwrap();
    assert_eq!(found.len(), files.len(), "{what}: every excerpt was replayed");
    let t = runs.judge(&found);
    assert_eq!((files.len(), t.labels, t.page_labels), ALL, "{what}: labels or excerpts are gone");
    t
}

/// Fails if more labels than this were missed, or not paged, or if there is more that is false than
/// allowed.
fn within_the_budget(what: &str, files: &[PathBuf], missed_at_most: usize) {
    let t = judge(what, files);
    let missed = [t.missed, t.unpaged].concat();
    assert!(missed.len() <= missed_at_most, "{what}: missed or not paged: {missed:#?}");
    assert!(t.false_pages_at.is_empty(), "{what}: false pages: {:#?}", t.false_pages_at);
    assert!(t.false_tickets <= FALSE_TICKETS, "{what}: {} false tickets", t.false_tickets);
}

#[test]
fn real_runs_within_the_budget() {
    within_the_budget("as recorded", &recordings(), 0);
}

/// The same runs as a framework prints them that keeps so many digits, or decimals.
fn printed(digits: Digits, dir: &Path) -> Vec<PathBuf> {
    const MEASURED: [&str; 5] = ["loss", "grad_norm", "step_time_seconds", "tokens_per_second", "mfu"];
    let print = |recording: &Path| {
        let text = fs::read_to_string(recording).unwrap();
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap().split(',').collect();
        let mut out = header.join(",") + "\n";
        for line in lines {
            let cells = line.split(',').zip(&header).map(|(cell, name)| match cell.parse::<f64>() {
                Ok(v) if v.is_finite() && MEASURED.contains(name) => digits.print(v),
                _ => cell.to_owned(),
            });
            out += &(cells.collect::<Vec<_>>().join(",") + "\n");
        }
        let path = dir.join(recording.file_name().unwrap());
        fs::write(&path, out).unwrap();
        path
    };
    recordings().iter().map(|r| print(r)).collect()
}

#[derive(Debug, Clone, Copy)]
enum Digits {
    Significant(usize),
    Decimals(usize),
}

impl Digits {
    fn print(self, v: f64) -> String {
        match self {
            Self::Significant(n) => {
                let rounded: f64 = format!("{v:.*e}", n - 1).parse().unwrap();
                rounded.to_string()
            }
            Self::Decimals(n) => format!("{v:.n$}"),
        }
    }
}

/// nanotron prints three digits, MaxText three decimals, others four: a step of the printer is no
/// anomaly, and an anomaly is still one.
#[test]
fn rounded_runs_within_the_budget() {
    use Digits::{Decimals, Significant};
    for (digits, missed_at_most) in
        [(Significant(4), 0), (Significant(3), 0), (Decimals(3), 0), (Decimals(2), 0), (Significant(2), 4)]
    {
        let dir = tempfile::tempdir().unwrap();
        within_the_budget(&format!("{digits:?}"), &printed(digits, dir.path()), missed_at_most);
    }
}

/// BLOOM-176B, steps 31214 to 31222: gradient norm and loss as its chronicle gives them
/// (BigScience, 2022-04-12, CC-BY-4.0).
const BLOOM: [(f64, f64); 9] = [
    (0.242, 2.198845),
    (0.947, 2.220424),
    (2.390, 2.595213),
    (15.886, 2.241558),
    (145.119, 2.345279),
    (960.351, 5.098124),
    (353.201, 3.492029),
    (379.330, 3.213059),
    (650.246, 2.804948),
];

#[test]
fn blooms_spike_is_one_page_before_the_loss_jumps() {
    let mut text = "step,loss,grad_norm,lr,step_time_seconds\n".to_owned();
    for step in 30_800..31_400_i64 {
        let wave = (step as f64 * 1.7).sin() + (step as f64 * 0.61).cos();
        let usual = (0.24 + 0.015 * wave, 2.22 + 0.012 * wave);
        let (grad, loss) =
            usize::try_from(step - 31_214).ok().and_then(|i| BLOOM.get(i)).copied().unwrap_or(usual);
        writeln!(text, "{step},{loss},{grad},5.28e-5,{}", 106.3 + 0.2 * wave).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bloom.csv");
    fs::write(&path, text).unwrap();
    let found = replay::files(&[path]).unwrap();
    let incidents = &found["bloom"];
    assert_eq!(incidents.len(), 1, "one episode, one incident: {incidents:?}");
    let i = &incidents[0];
    assert_eq!((i.severity, i.detected_step), (Severity::Page, 31_217), "the loss jumps at 31219");
    assert!(i.end_step.is_some(), "it recovers");
}
