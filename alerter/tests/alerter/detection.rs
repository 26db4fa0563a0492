//! The budget: real runs, labelled by hand, replayed with default settings. Fails when a page is
//! missed or a false one appears.
//!
//! `data/SOURCES.md` lists where the data come from.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stepwatch_alerter::backtest::{self, Args, Format};

/// Tickets that touch no label, over all runs.
const FALSE_TICKETS: usize = 6;
/// An alarm this many samples before a label, or after its end, still belongs to it.
const EARLY: usize = 5;
const LATE: usize = 20;

#[derive(Debug)]
struct Label {
    class: String,
    start: i64,
    end: i64,
    severity: String,
}

#[derive(Debug)]
struct Incident {
    kind: String,
    severity: String,
    opened: i64,
    detected: i64,
    end: Option<i64>,
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn replay(files: Vec<PathBuf>) -> BTreeMap<String, Vec<Incident>> {
    let args = Args { files, format: Format::Json, ..Args::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ok = backtest::run(&args, &mut out, &mut err).unwrap();
    assert!(ok && err.is_empty(), "{}", String::from_utf8_lossy(&err));
    let mut found: BTreeMap<String, Vec<Incident>> = BTreeMap::new();
    for line in String::from_utf8(out).unwrap().lines() {
        let o: Value = serde_json::from_str(line).unwrap();
        let file = o["file"].as_str().or(o["summary"]["file"].as_str()).unwrap();
        let run = stem(Path::new(file));
        let incidents = found.entry(run).or_default();
        if o["summary"].is_null() {
            incidents.push(Incident {
                kind: o["kind"].as_str().unwrap().into(),
                severity: o["severity"].as_str().unwrap().into(),
                opened: o["opened_step"].as_i64().unwrap(),
                detected: o["detected_step"].as_i64().unwrap(),
                end: o["end_step"].as_i64(),
            });
        }
    }
    found
}

fn labels() -> BTreeMap<String, Vec<Label>> {
    let text = fs::read_to_string(data().join("labels.csv")).unwrap();
    let mut labels: BTreeMap<String, Vec<Label>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let [run, class, start, end, severity] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        labels.entry(run.into()).or_default().push(Label {
            class: class.into(),
            start: start.parse().unwrap(),
            end: end.parse().unwrap(),
            severity: severity.into(),
        });
    }
    labels
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Steps that the run logged.
fn steps(file: &Path) -> Vec<i64> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().skip(1).map(|l| l.split(',').next().unwrap().parse().unwrap()).collect()
}

/// The steps at which an alarm belongs to the label.
fn window(label: &Label, steps: &[i64]) -> (i64, i64) {
    let row = |step: i64| steps.partition_point(|s| *s < step);
    let (from, to) = (row(label.start), row(label.end));
    let late = LATE.max((to - from) / 10);
    (steps[from.saturating_sub(EARLY)], steps[(to + late).min(steps.len() - 1)])
}

fn concerns(kind: &str, class: &str) -> bool {
    let speed =
        ["mfu_droop", "throughput_drop", "step_time_jitter", "stall", "hang", "gc_tail"].contains(&kind);
    match class {
        "throughput_shift" | "droop" | "sawtooth_droop" | "gc_tail_growth" | "stall" | "restart"
        | "restart_or_ckpt" => speed,
        "nan" => kind == "nonfinite",
        _ => !speed,
    }
}

/// What became of labelled runs.
#[derive(Debug, Default)]
struct Judged {
    missed: Vec<String>,
    false_pages: Vec<String>,
    false_tickets: Vec<String>,
}

fn recordings() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(data()).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "csv") && !p.ends_with("labels.csv"));
    files.sort();
    files
}

fn judge(files: Vec<PathBuf>) -> Judged {
    let labels = labels();
    let logged: BTreeMap<String, Vec<i64>> = files.iter().map(|f| (stem(f), steps(f))).collect();
    let mut judged = Judged::default();
    for (run, incidents) in replay(files) {
        let steps = &logged[&run];
        let none = Vec::new();
        let labels = labels.get(&run).unwrap_or(&none);
        let loud = |i: &&Incident| i.severity != "info";
        for label in labels.iter().filter(|l| l.severity != "info") {
            let (from, to) = window(label, steps);
            let within = |step: i64| (from..=to).contains(&step);
            let noticed = incidents.iter().filter(loud).any(|i| {
                let there = within(i.detected)
                    || within(i.opened)
                    || (i.opened <= from && i.end.is_none_or(|e| e >= from));
                there && concerns(&i.kind, &label.class) && (label.severity != "page" || i.severity == "page")
            });
            if !noticed {
                judged.missed.push(format!("{run}: {label:?}"));
            }
        }
        for i in incidents.iter().filter(loud) {
            let touches = |info: bool| {
                labels.iter().filter(|l| info || l.severity != "info").any(|l| {
                    let (from, to) = window(l, steps);
                    (from..=to).contains(&i.detected)
                })
            };
            if i.severity == "page" && !touches(false) {
                judged.false_pages.push(format!("{run}: {i:?}"));
            } else if i.severity == "ticket" && !touches(true) {
                judged.false_tickets.push(format!("{run}: {i:?}"));
            }
        }
    }
    judged
}

#[test]
fn real_runs_within_the_budget() {
    let Judged { missed, false_pages, false_tickets } = judge(recordings());
    assert!(missed.is_empty(), "missed: {missed:#?}");
    assert!(false_pages.is_empty(), "false pages: {false_pages:#?}");
    assert!(false_tickets.len() <= FALSE_TICKETS, "false tickets: {false_tickets:#?}");
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
        let Judged { missed, false_pages, false_tickets } = judge(printed(digits, dir.path()));
        assert!(missed.len() <= missed_at_most, "{digits:?} missed: {missed:#?}");
        assert!(false_pages.is_empty(), "{digits:?} false pages: {false_pages:#?}");
        assert!(false_tickets.len() <= FALSE_TICKETS, "{digits:?} false tickets: {false_tickets:#?}");
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
    let found = replay(vec![path]);
    let incidents = &found["bloom"];
    assert_eq!(incidents.len(), 1, "one episode, one incident: {incidents:?}");
    let i = &incidents[0];
    assert_eq!((i.severity.as_str(), i.detected), ("page", 31_217), "the loss jumps at 31219");
    assert!(i.end.is_some(), "it recovers");
}
