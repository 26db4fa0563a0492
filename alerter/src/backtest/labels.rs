//! Labels of recorded runs: the intervals with real problems.
//!
//! CSV with a header, or JSON lines; `file` and `start_step` are required, `end_step` and
//! `severity` (`info`: known and harmless) are not. The output of `backtest --format json` is such
//! a file: delete the false lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;

/// The number of samples before a label within which an alarm belongs to it.
pub const EARLY: usize = 5;
/// The number of samples after its end within which it does, or this fraction of its length if that
/// is more.
pub const LATE: usize = 20;
pub const LATE_PART: usize = 10;

/// The longest line in bytes, and the most labels.
const MAX_LINE_BYTES: u64 = 64 * 1024;
const MAX_LABELS: usize = 100_000;

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Label {
    file: String,
    #[serde(rename = "start_step")]
    pub(super) start: i64,
    #[serde(default, rename = "end_step")]
    pub(super) end: Option<i64>,
    #[serde(default)]
    severity: Option<String>,
}

#[derive(Debug)]
pub(super) struct Labels(Vec<Label>);

#[derive(Debug, thiserror::Error)]
pub enum LabelsError {
    #[error("cannot read the labels")]
    Io(#[from] io::Error),
    #[error("{file}:{line}: {reason}")]
    Line { file: String, line: usize, reason: String },
}

impl Label {
    /// Whether the label must be detected; a harmless one need not.
    pub(super) fn counts(&self) -> bool {
        !matches!(self.severity.as_deref(), Some("info" | "benign" | "none"))
    }
}

impl Labels {
    pub(super) fn read(path: &Path) -> Result<Self, LabelsError> {
        Self::parse(&path.display().to_string(), BufReader::new(File::open(path)?))
    }

    fn parse(name: &str, source: impl BufRead) -> Result<Self, LabelsError> {
        let mut labels = Vec::new();
        let mut header: Option<Vec<String>> = None;
        let mut source = source;
        for line in 1.. {
            let bad = |reason: String| LabelsError::Line { file: name.to_owned(), line, reason };
            let mut bytes = Vec::new();
            let n = (&mut source).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
            if n == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_start_matches('\u{feff}').trim();
            if text.is_empty() {
                continue;
            }
            let label = if text.starts_with('{') {
                object(text).map_err(bad)?
            } else if let Some(header) = &header {
                Some(row(header, text).map_err(bad)?)
            } else {
                header = Some(columns(text).map_err(bad)?);
                None
            };
            labels.extend(label);
            if labels.len() > MAX_LABELS {
                return Err(bad(format!("more than {MAX_LABELS} labels")));
            }
        }
        Ok(Self(labels))
    }

    /// The labels of a file, by its full name or by its base name.
    pub(super) fn of_file<'a>(&'a self, file: &'a str) -> impl Iterator<Item = &'a Label> {
        fn base(name: &str) -> &str {
            name.rsplit('/').next().unwrap_or(name)
        }
        fn stem(name: &str) -> &str {
            base(name).rsplit_once('.').map_or(base(name), |(stem, _)| stem)
        }
        self.0.iter().filter(move |l| l.file == file || base(&l.file) == base(file) || l.file == stem(file))
    }
}

/// Parses a line of JSON. `None` for a backtest summary, which is no label.
fn object(text: &str) -> Result<Option<Label>, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if value.get("summary").is_some() || value.get("tune").is_some() {
        return Ok(None);
    }
    serde_json::from_value(value).map(Some).map_err(|e| e.to_string())
}

fn columns(text: &str) -> Result<Vec<String>, String> {
    let columns: Vec<String> = text.split(',').map(|c| c.trim().to_ascii_lowercase()).collect();
    match ["file", "start_step"].iter().find(|needed| !columns.iter().any(|c| c == *needed)) {
        Some(needed) => Err(format!(
            "expected JSON lines, or CSV with the columns file, start_step, end_step, severity; there is no {needed}"
        )),
        None => Ok(columns),
    }
}

fn row(header: &[String], text: &str) -> Result<Label, String> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    let cell = |name: &str| {
        let at = header.iter().position(|c| c == name)?;
        cells.get(at).copied().filter(|c| !c.is_empty())
    };
    let step = |name: &str| {
        cell(name).map(|c| c.parse().map_err(|_| format!("{name} is not an integer: {c:?}"))).transpose()
    };
    Ok(Label {
        file: cell("file").ok_or("no file")?.to_owned(),
        start: step("start_step")?.ok_or("no start_step")?,
        end: step("end_step")?,
        severity: cell("severity").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_incidents_are_labels() {
        let csv = "file,start_step,end_step,severity\nruns/a.csv,10,20,page\nb,5,,info\n";
        let labels = Labels::parse("l.csv", csv.as_bytes()).unwrap();
        let a: Vec<_> = labels.of_file("/data/a.csv").collect();
        assert_eq!((a.len(), a[0].start, a[0].end, a[0].counts()), (1, 10, Some(20), true));
        let b: Vec<_> = labels.of_file("b.log").collect();
        assert!(!b[0].counts());
        let json = "{\"file\":\"a.csv\",\"kind\":\"hang\",\"severity\":\"page\",\"start_step\":3,\"end_step\":null}\n{\"summary\":{}}\n";
        let labels = Labels::parse("l.jsonl", json.as_bytes()).unwrap();
        assert_eq!(labels.of_file("a.csv").count(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            ("file,start_step\na,x\n", "l:2: start_step is not an integer: \"x\""),
            (
                "a,b\n",
                "l:1: expected JSON lines, or CSV with the columns file, start_step, end_step, severity; there is no file",
            ),
            ("{\"file\":1}\n", "l:1: invalid type"),
        ] {
            let e = Labels::parse("l", text.as_bytes()).unwrap_err().to_string();
            assert!(e.starts_with(want), "{e}");
        }
    }
}
