//! From recordings to incidents, by the shipped program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde::Deserialize;
use stepwatch_alerter::backtest;

/// Files replayed by one call.
const BATCH: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    Ticket,
    Page,
}

/// One line of `backtest --format json`, as far as it is scored.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Incident {
    pub file: String,
    pub kind: String,
    pub severity: Severity,
    /// The step at which it was first announced.
    pub opened_step: Option<i64>,
    /// The step at which it reached its severity.
    pub detected_step: i64,
    /// `None`: still open at the end.
    pub end_step: Option<i64>,
}

impl Incident {
    /// Somebody was notified.
    pub fn is_loud(&self) -> bool {
        self.severity > Severity::Info
    }
}

/// By the name of the recording; one without incidents is there too, and one that was not replayed
/// is not.
pub type Incidents = BTreeMap<String, Vec<Incident>>;

/// The command line of `backtest`, so that what runs here is what a person would have typed.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: backtest::Args,
}

/// Replays the files with default settings, on two threads.
pub fn files(files: &[PathBuf]) -> anyhow::Result<Incidents> {
    let (left, right) = files.split_at(files.len() / 2);
    let said = thread::scope(|scope| {
        let other = scope.spawn(|| batches(right));
        let mut said = batches(left)?;
        said += &other.join().map_err(|_| anyhow::anyhow!("the replay of a file panicked"))??;
        anyhow::Ok(said)
    })?;
    parse(&said)
}

fn batches(files: &[PathBuf]) -> anyhow::Result<String> {
    let mut out = Vec::new();
    for batch in files.chunks(BATCH) {
        let mut err = Vec::new();
        let words = ["backtest", "--format", "json"].map(Into::into).into_iter();
        let cli = Cli::try_parse_from(words.chain(batch.iter().map(|f| f.clone().into_os_string())))?;
        let ok = backtest::run(&cli.args, &mut out, &mut err).context("backtest failed")?;
        ensure!(ok && err.is_empty(), "backtest: {}", String::from_utf8_lossy(&err));
    }
    String::from_utf8(out).context("backtest wrote no text")
}

/// Reads the lines that `backtest`, or another detector, has written.
pub fn parse(lines: &str) -> anyhow::Result<Incidents> {
    let mut found = Incidents::new();
    for line in lines.lines().filter(|l| !l.trim().is_empty()) {
        let value: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        if let Some(summary) = value.get("summary") {
            found.entry(name(Path::new(summary["file"].as_str().unwrap_or_default()))).or_default();
            continue;
        }
        let incident: Incident =
            serde_json::from_value(value).with_context(|| format!("no incident: {line}"))?;
        found.entry(name(Path::new(&incident.file))).or_default().push(incident);
    }
    Ok(found)
}

/// The name of a recording: its file without directory and extension.
pub fn name(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_go_to_their_run_and_summaries_contain_quiet_ones() {
        let lines = r#"{"file":"/x/a.csv","kind":"loss_spike","severity":"page","signal":"loss","start_step":1,"opened_step":2,"detected_step":3,"end_step":null,"value":1.0}
{"summary":{"file":"/x/a.csv","samples":9}}
{"summary":{"file":"/x/quiet.csv","samples":9}}
"#;
        let found = parse(lines).unwrap();
        let incident = &found["a"][0];
        assert_eq!((incident.opened_step, incident.detected_step, incident.end_step), (Some(2), 3, None));
        assert!(incident.is_loud() && found["quiet"].is_empty() && found.len() == 2);
        assert!(parse("not JSON").is_err());
        assert!(parse("{\"kind\":\"loss_spike\"}").is_err());
    }
}
