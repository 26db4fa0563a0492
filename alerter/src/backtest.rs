//! What the alerter would have said about recorded runs: the same engine, fed from files instead of streams.
//!
//! A file is CSV with a header, JSON lines of events, or anything that [`stepwatch_formats`] reads: a training log, an event file of
//! TensorBoard, a `.wandb` file, `trainer_state.json`; which one is found out from its name and what stands in it. Time is the recording's own where it has one, else it passes by the step times. Nothing is sent to anybody and no
//! receiver is needed: of a configuration only the detectors and the hold count.

mod csv;
mod input;
mod records;
mod replay;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use stepwatch_engine::config::EngineConfig;
use stepwatch_kit::config::{self, ConfigError};

use crate::config::File;
use input::{Input, InputError};
use replay::Replay;

/// Bad lines told one by one, a file; the rest is counted.
const MAX_TOLD: u64 = 20;

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Recorded runs: CSV, JSON lines, training logs, event files of TensorBoard, .wandb files, trainer_state.json, metrics.csv
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Take the settings of the detectors from this configuration
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
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
    #[error("cannot write")]
    Write(#[from] io::Error),
}

/// Replays every file. False if one of them could not be read or held no steps; the others are replayed all the same.
pub fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<bool, BacktestError> {
    let engine = settings(args.config.as_deref())?;
    let mut ok = true;
    for path in &args.files {
        match replay(path, engine.clone(), err)? {
            Ok(replay) => report::write(&path.to_string_lossy(), &replay, args.format, out)?,
            Err(e) => {
                writeln!(err, "{}: {e}", path.display())?;
                ok = false;
            }
        }
    }
    Ok(ok)
}

fn settings(config: Option<&Path>) -> Result<EngineConfig, ConfigError> {
    let Some(path) = config else { return Ok(EngineConfig::default()) };
    let file: File = config::load(path)?;
    Ok(EngineConfig {
        resolve_after: file.resolve_after,
        detectors: file.detectors,
        ..EngineConfig::default()
    })
}

fn replay(path: &Path, engine: EngineConfig, err: &mut dyn Write) -> io::Result<Result<Replay, InputError>> {
    let mut input = match Input::open(path) {
        Ok(input) => input,
        Err(e) => return Ok(Err(e)),
    };
    let name = path.file_stem().map_or_else(|| "run".into(), |n| n.to_string_lossy().into_owned());
    let mut replay = Replay::new(engine, name);
    let mut bad = 0;
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    loop {
        match input.next() {
            Ok(Some(events)) => {
                for event in events {
                    *found.entry(event.kind.as_str()).or_default() += 1;
                    replay.feed(event);
                }
            }
            Ok(None) => break,
            Err(InputError::Line { line, reason }) => {
                bad += 1;
                if bad <= MAX_TOLD {
                    writeln!(err, "{}:{line}: {reason}", path.display())?;
                }
            }
            Err(InputError::Records(reason)) => writeln!(err, "{}: {reason}", path.display())?,
            Err(e) => return Ok(Err(e)),
        }
    }
    if bad > MAX_TOLD {
        writeln!(err, "{}: {} bad lines in all", path.display(), bad)?;
    }
    if replay.samples() > 0 {
        return Ok(Ok(replay));
    }
    let listed: Vec<_> = found.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let found = if listed.is_empty() { "nothing".to_owned() } else { listed.join(", ") };
    Ok(Err(input.format().map_or(InputError::NoSteps, |format| InputError::Known { format, found })))
}
