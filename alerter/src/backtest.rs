//! Replays recorded runs through the engine, with files in place of streams, and shows what the
//! alerter would have reported.
//!
//! A file is CSV with a header, JSON lines of events, or any format of [`stepwatch_formats`]: a
//! training log, an event file of TensorBoard, a `.wandb` file, `trainer_state.json`. The format is
//! recognised by the file's name and contents. The time is that of the recording; if it has none,
//! the time advances by the step times. No message is sent. Only the detectors, the hold, the
//! routes and the policies of a configuration are used; receivers are only names.

mod csv;
mod files;
mod html;
mod input;
mod labels;
mod picture;
mod progress;
mod records;
mod replay;
mod report;
mod signals;
mod story;
#[cfg(test)]
mod tests;
mod trade_off;
mod tune;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use indicatif::ProgressBar;
use stepwatch_engine::EngineConfig;
use stepwatch_kit::build_info;
use stepwatch_kit::config::ConfigError;
use stepwatch_respond::config::ResponderConfig;

use crate::config::Config;
use crate::config::sensitivity::{SENSITIVITY, Sensitivity};
use input::{Input, InputError};
use labels::Labels;
pub use labels::{EARLY, LATE, LATE_PART, LabelsError};
use replay::Replay;
use report::{Counts, Style};
use tune::Tune;

/// The most bad lines of a file that are printed; the others are counted.
const MAX_PRINTED: u64 = 20;
/// The receivers if no configuration names any.
const EVERYBODY: &str = "every receiver";
/// The argument that selects all detectors that can be tuned.
const ALL: &str = "all";

#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  stepwatch-alerter backtest train.log
  stepwatch-alerter backtest --config alerter.yml --html report.html logs/
  stepwatch-alerter backtest --tune loss_spike --labels labels.csv runs/*.csv")]
pub struct Args {
    /// Recorded runs: CSV, JSON lines, training logs, event files of TensorBoard, .wandb files,
    /// trainer_state.json, metrics.csv; a directory stands for the runs in it
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Take detectors, routes and policies from this configuration; no secret is read and nothing
    /// is sent
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write a page with the pictures of every incident, its evidence and who would have been
    /// notified
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show what the sensitivity of this detector costs and gains on these runs
    #[arg(long, value_name = "DETECTOR", value_parser = PossibleValuesParser::new(SENSITIVITY.iter().map(|s| s.detector).chain([ALL])))]
    pub tune: Option<String>,
    /// What is known to have been wrong with these runs: CSV or JSON lines with file, start_step,
    /// end_step, severity
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub labels: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Text,
    /// One object a line: the incidents of a file, then its summary
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum BacktestError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Labels(#[from] LabelsError),
    #[error("cannot write {path}")]
    Page { path: String, source: io::Error },
    #[error("cannot write")]
    Write(#[from] io::Error),
}

/// The replay of one file.
#[derive(Debug)]
struct Replayed {
    name: String,
    replay: Replay,
    /// Notes about the file for the reader of the report.
    notes: Vec<String>,
}

/// Replays every file. False if one of them could not be read or contained no steps; the others are
/// replayed nevertheless.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<bool, BacktestError> {
    let config = settings(args.config.as_deref())?;
    let labels = args.labels.as_deref().map(Labels::read).transpose()?;
    let mut tunes = tunes(args, &config);
    let style = Style { format: args.format, config: &config.responder };
    let (found, errors) = files::expand(&args.files);
    let mut failed: Vec<String> = errors.iter().map(|(p, e)| format!("{}: {e}", progress::name(p))).collect();
    for e in &failed {
        writeln!(err, "{e}")?;
    }
    let (mut kept, mut totals, mut passed_over) = (Vec::new(), Vec::new(), 0);
    let progress = progress::of(&found);
    for file in &found {
        let first = Replay::new(config.clone());
        let mut replays = vec![if args.html.is_some() { first.drawing() } else { first }];
        replays.extend(tunes.iter().flat_map(Tune::replays));
        let name = progress::name(&file.path);
        progress.set_message(name.clone());
        match feed(&file.path, file.named, &mut replays, &progress, err)? {
            Ok(notes) => {
                let mut rest = replays.split_off(1);
                for tune in &mut tunes {
                    let others = rest.split_off(tune.settings.len().min(rest.len()));
                    tune.add(&name, &rest, labels.as_ref());
                    rest = others;
                }
                for replay in replays {
                    progress.suspend(|| report::write(&name, &replay, style, out))?;
                    totals
                        .push((Counts::from_replay(&replay), words::weeks(std::iter::once(replay.lasted()))));
                    if args.html.is_some() {
                        kept.push(Replayed { name: name.clone(), replay, notes: notes.clone() });
                    }
                }
            }
            Err(_) if !file.named => passed_over += 1,
            Err(e) => {
                progress.suspend(|| writeln!(err, "{name}: {e}"))?;
                failed.push(format!("{name}: {e}"));
            }
        }
    }
    progress.finish_and_clear();
    if totals.is_empty() && passed_over > 0 {
        failed.push(format!("no training run in {passed_over} files"));
        writeln!(err, "no training run in {passed_over} files")?;
    }
    tunes.iter_mut().for_each(Tune::finish);
    conclude(args, &totals, &tunes, out)?;
    if let Some(path) = &args.html {
        let more: String = tunes.iter().map(trade_off::html).collect();
        let page = html::Page {
            files: &kept,
            failed: &failed,
            config: &config.responder,
            more: &more,
            version: build_info::VERSION,
        };
        let unwritten = |source| BacktestError::Page { path: path.display().to_string(), source };
        fs::write(path, page.to_string()).map_err(unwritten)?;
    }
    Ok(failed.is_empty())
}

fn conclude(args: &Args, totals: &[(Counts, f64)], tunes: &[Tune], out: &mut dyn Write) -> io::Result<()> {
    if args.format == Format::Json {
        return tunes.iter().try_for_each(|t| trade_off::json(t, out));
    }
    if totals.len() > 1 {
        report::total(totals, out)?;
    }
    for tune in tunes {
        writeln!(out)?;
        trade_off::text(tune, out)?;
    }
    Ok(())
}

fn settings(config: Option<&Path>) -> Result<EngineConfig, ConfigError> {
    match config {
        Some(path) => Config::for_replay(path),
        None => {
            Ok(ResponderConfig { receivers: vec![EVERYBODY.into()], ..ResponderConfig::default() }.into())
        }
    }
}

fn tunes(args: &Args, config: &EngineConfig) -> Vec<Tune> {
    let wanted = |s: &&Sensitivity| args.tune.as_deref().is_some_and(|t| t == ALL || t == s.detector);
    let all = SENSITIVITY.iter().filter(wanted);
    all.filter_map(|s| Tune::new(s, config, args.labels.is_some())).collect()
}

/// Feeds a file to all replays, and returns the notes about it.
fn feed(
    path: &Path,
    named: bool,
    replays: &mut [Replay],
    progress: &ProgressBar,
    err: &mut dyn Write,
) -> io::Result<Result<Vec<String>, InputError>> {
    let mut input = match Input::open(path, progress) {
        Ok(input) => input,
        Err(e) => return Ok(Err(e)),
    };
    let run = path
        .file_stem()
        .map_or_else(|| "run".into(), |n| stepwatch_wire::words::into_line(n.to_string_lossy().into_owned()));
    let mut bad = 0;
    let mut notes = Vec::new();
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    loop {
        match input.next() {
            Ok(Some(events)) => {
                for mut event in events {
                    *found.entry(event.kind.as_str()).or_default() += 1;
                    event.run.get_or_insert_with(|| run.clone());
                    replays.iter_mut().for_each(|r| r.feed(&event));
                }
            }
            Ok(None) => break,
            Err(InputError::Line { line, reason }) => {
                bad += 1;
                if bad <= MAX_PRINTED && named {
                    progress.suspend(|| writeln!(err, "{}:{line}: {reason}", progress::name(path)))?;
                }
            }
            Err(InputError::Records(reason)) => {
                progress.suspend(|| writeln!(err, "{}: {reason}", progress::name(path)))?;
                notes.push(reason);
            }
            Err(e) => return Ok(Err(e)),
        }
    }
    if bad > 0 {
        notes.push(format!("{bad} bad lines were left out"));
    }
    if bad > MAX_PRINTED {
        progress.suspend(|| writeln!(err, "{}: {} bad lines in all", progress::name(path), bad))?;
    }
    if replays.first().is_some_and(|r| r.samples() > 0) {
        return Ok(Ok(notes));
    }
    let listed: Vec<_> = found.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let found = if listed.is_empty() { "nothing".to_owned() } else { listed.join(", ") };
    Ok(Err(input.format().map_or(InputError::NoSteps, |format| InputError::Known { format, found })))
}
