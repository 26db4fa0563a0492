//! `bench-detection`: writes recordings with injected faults, scores the incidents of recordings,
//! and writes the report.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::Serialize;
use stepwatch_bench::base::Clean;
use stepwatch_bench::curves::{Curve, Runs};
use stepwatch_bench::replay::Incidents;
use stepwatch_bench::score::Tally;
use stepwatch_bench::{cases, label, plots, real_runs, replay, tables, variants, vary};

/// What our own row is called.
const OURS: &str = "Stepwatch";
/// Of a directory of another detector's incidents: those on the real runs, and those on the
/// injected faults. A recording that it has not replayed is not counted.
const REAL: &str = "runs.jsonl";
const INJECTED: &str = "cases.jsonl";

/// How well training anomalies are detected, on real runs and on injected faults
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write recordings with injected faults, and their labels
    Cases {
        dir: PathBuf,
        /// Recordings for every fault and size
        #[arg(long, default_value_t = 20)]
        seeds: u64,
    },
    /// Count incidents against the labels of a directory of recordings
    Score {
        /// Holds recordings and labels.json
        dir: PathBuf,
        /// Lines of `backtest --format json`; absent: replay the recordings now
        #[arg(long, value_name = "FILE")]
        incidents: Option<PathBuf>,
    },
    /// Replay the runs of a directory as others would have recorded them
    Vary {
        /// Holds recordings and labels.json; absent: the real runs
        dir: Option<PathBuf>,
        /// Only variants whose name holds this
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
        /// Say what was missed, and paged for nothing
        #[arg(long)]
        details: bool,
    },
    /// Replay real runs and injected faults, and write tables, plots and report.json
    Report {
        /// Written by `cases`
        #[arg(long, value_name = "DIR")]
        cases: PathBuf,
        /// Holds a directory for each other detector, with runs.jsonl and cases.jsonl
        #[arg(long, value_name = "DIR")]
        baselines: Option<PathBuf>,
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// What is written as report.json.
#[derive(Debug, Serialize)]
struct Report {
    detector: String,
    real: Tally,
    injected: Tally,
    faults: Vec<Curve>,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Cases { dir, seeds } => {
            let files = cases::write(&dir, &Clean::read(&real_runs())?, seeds)?;
            say(&format!("{} recordings in {}\n", files.len(), dir.display()))
        }
        Command::Score { dir, incidents } => score(&dir, incidents.as_deref()),
        Command::Vary { dir, only, details } => {
            vary(&dir.unwrap_or_else(real_runs), only.as_deref(), details)
        }
        Command::Report { cases, baselines, out } => report(&cases, baselines.as_deref(), &out),
    }
}

fn score(dir: &Path, incidents: Option<&Path>) -> anyhow::Result<()> {
    let (files, runs) = open(dir)?;
    let found = match incidents {
        Some(path) => parse(path)?,
        None => replay::files(&files)?,
    };
    let tally = runs.judge(&found);
    let json = serde_json::to_string_pretty(&tally)?;
    say(&format!("{json}\n{}", tables::detectors(&[(OURS.into(), tally)])))
}

fn vary(dir: &Path, only: Option<&str>, details: bool) -> anyhow::Result<()> {
    let runs = vary::read(dir, &label::read(&dir.join(label::FILE))?)?;
    let wanted = variants::ALL.iter().filter(|v| only.is_none_or(|text| v.name.contains(text)));
    let outcomes = wanted.map(|v| vary::judge(v, &runs)).collect::<anyhow::Result<Vec<_>>>()?;
    say(&vary::table(&outcomes))?;
    if details { say(&vary::details(&outcomes)) } else { Ok(()) }
}

fn report(dir: &Path, baselines: Option<&Path>, out: &Path) -> anyhow::Result<()> {
    let (real_files, real) = open(&real_runs())?;
    let (files, injected) = open(dir)?;
    let mut reports =
        vec![judge(OURS, &real, &injected, &replay::files(&real_files)?, &replay::files(&files)?)];
    let mut others: Vec<PathBuf> = match baselines {
        Some(dir) => fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<anyhow::Result<_>>()?,
        None => Vec::new(),
    };
    others.sort();
    for other in others.iter().filter(|o| o.is_dir()) {
        let name = replay::name(other);
        let heard = |file: &str| {
            let path = other.join(file);
            if path.exists() { parse(&path) } else { Ok(Incidents::new()) }
        };
        let (on_real, on_injected) = (heard(REAL)?, heard(INJECTED)?);
        reports.push(judge(&name, &real, &injected, &on_real, &on_injected));
    }
    fs::create_dir_all(out)?;
    let put = |name: &str, text: &str| {
        fs::write(out.join(name), text).with_context(|| format!("cannot write {name}"))
    };
    put("report.json", &(serde_json::to_string(&reports)? + "\n"))?;
    put("faults.svg", &plots::faults(&reports[0].faults))?;
    let of = |tally: fn(&Report) -> &Tally| -> Vec<_> {
        let heard = reports.iter().filter(|r| tally(r).samples > 0);
        heard.map(|r| (r.detector.clone(), tally(r).clone())).collect()
    };
    let (on_real, on_injected) = (of(|r| &r.real), of(|r| &r.injected));
    put("real.svg", &plots::detectors("Real runs: what is noticed, and what for nothing", &on_real))?;
    put(
        "injected.svg",
        &plots::detectors("Injected faults: what is noticed, and what for nothing", &on_injected),
    )?;
    let curves: Vec<_> = reports.iter().map(|r| (r.detector.clone(), r.faults.clone())).collect();
    say(&format!(
        "Real runs: {} samples\n\n{}\nInjected faults: {} samples\n\n{}\n{}\n{}",
        reports[0].real.samples,
        tables::detectors(&on_real),
        reports[0].injected.samples,
        tables::detectors(&on_injected),
        tables::faults(&reports[0].faults),
        tables::matrix(&curves),
    ))
}

fn judge(name: &str, real: &Runs, injected: &Runs, on_real: &Incidents, on_injected: &Incidents) -> Report {
    Report {
        detector: name.into(),
        real: real.judge(on_real),
        injected: Tally { missed: Vec::new(), unpaged: Vec::new(), ..injected.judge(on_injected) },
        faults: injected.curves(on_injected),
    }
}

fn open(dir: &Path) -> anyhow::Result<(Vec<PathBuf>, Runs)> {
    let labels = dir.join(label::FILE);
    let files = cases::files(dir, &label::read(&labels)?)?;
    let runs = Runs::read(&files, &labels)?;
    Ok((files, runs))
}

fn parse(path: &Path) -> anyhow::Result<Incidents> {
    let lines = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    replay::parse(&lines)
}

fn say(text: &str) -> anyhow::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write")
}
