//! A recorded run: steps, and a column of numbers for each signal.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, bail};

pub const LOSS: &str = "loss";
pub const GRAD_NORM: &str = "grad_norm";
pub const STEP_TIME: &str = "step_time_seconds";
pub const TIMESTAMP: &str = "timestamp";

#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    /// `None`: not logged at this step.
    pub cells: Vec<Option<f64>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recording {
    pub steps: Vec<i64>,
    pub columns: Vec<Column>,
}

impl Recording {
    /// Reads CSV with a header that has `step`.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let Some(step) = header.iter().position(|h| *h == "step") else {
            bail!("{}: the header has no step", path.display())
        };
        let column = |name: &&str| Column { name: (*name).to_owned(), cells: Vec::new() };
        let mut recording = Self { steps: Vec::new(), columns: header.iter().map(column).collect() };
        for line in lines.filter(|l| !l.is_empty()) {
            let mut cells = line.split(',');
            for column in &mut recording.columns {
                column.cells.push(cells.next().and_then(|c| c.trim().parse().ok()));
            }
            let at = recording.columns[step].cells.last().copied().flatten();
            let Some(at) = at.filter(|v| v.is_finite()) else {
                bail!("{}: no step in {line:?}", path.display())
            };
            recording.steps.push(at as i64);
        }
        recording.columns.remove(step);
        Ok(recording)
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let names: Vec<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        let mut text = format!("step,{}\n", names.join(","));
        for (row, step) in self.steps.iter().enumerate() {
            write!(text, "{step}")?;
            for column in &self.columns {
                text.push(',');
                if let Some(v) = column.cells[row] {
                    print(&mut text, &column.name, v)?;
                }
            }
            text.push('\n');
        }
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }

    /// The first row whose step is not before this one.
    pub fn row(&self, step: i64) -> usize {
        self.steps.partition_point(|s| *s < step)
    }

    /// Changes what was logged of a signal in these rows; the function gets how far into them it
    /// is.
    pub fn change(&mut self, name: &str, rows: Range<usize>, mut f: impl FnMut(usize, f64) -> f64) {
        let Some(column) = self.columns.iter_mut().find(|c| c.name == name) else { return };
        let rows = rows.start..rows.end.min(column.cells.len());
        for (i, cell) in column.cells[rows].iter_mut().enumerate() {
            if let Some(v) = cell {
                *v = f(i, *v);
            }
        }
    }

    pub fn cut(&self, rows: Range<usize>) -> Self {
        let column = |c: &Column| Column { name: c.name.clone(), cells: c.cells[rows.clone()].to_vec() };
        Self { steps: self.steps[rows.clone()].to_vec(), columns: self.columns.iter().map(column).collect() }
    }
}

/// Five significant digits, as most trainers print; what does not fit a float's digits is the
/// trainer's NaN or infinity.
fn print(text: &mut String, name: &str, v: f64) -> std::fmt::Result {
    if !v.is_finite() {
        let word = if v.is_nan() {
            "nan"
        } else if v > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        return text.write_str(word);
    }
    if name == TIMESTAMP {
        return write!(text, "{v:.3}");
    }
    let digits = if v == 0.0 { 1.0 } else { v.abs().log10().floor() + 1.0 };
    if (-3.0..=6.0).contains(&digits) {
        write!(text, "{v:.*}", (5.0 - digits).max(0.0) as usize)
    } else {
        write!(text, "{v:.4e}")
    }
}

/// The steps of a recording, CSV or lines of events, in the order in which they came.
pub fn steps(path: &Path) -> anyhow::Result<Vec<i64>> {
    if path.extension().is_some_and(|e| e == "csv") {
        return Ok(Recording::read(path)?.steps);
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut steps = Vec::new();
    for line in text.lines() {
        let event: serde_json::Value = serde_json::from_str(line)?;
        if event["k"] == "step" {
            steps.extend(event["step"].as_i64());
        }
    }
    steps.dedup();
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_it_writes() {
        let column = |name: &str, cells: &[f64]| Column {
            name: name.into(),
            cells: cells.iter().map(|v| Some(*v)).collect(),
        };
        let mut r = Recording {
            steps: vec![5, 10, 15],
            columns: vec![
                column(LOSS, &[2.3457, f64::INFINITY, 0.0]),
                column(GRAD_NORM, &[123_456_789.0, 1.25e-7, 0.5]),
            ],
        };
        r.columns[1].cells[2] = None;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.csv");
        r.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "step,loss,grad_norm\n5,2.3457,1.2346e8\n10,inf,1.2500e-7\n15,0.0000,\n");
        let back = Recording::read(&path).unwrap();
        assert_eq!((&back.steps, back.columns[0].cells[0]), (&r.steps, Some(2.3457)));
        assert_eq!(back.columns[1].cells[2], None);
        assert_eq!(steps(&path).unwrap(), r.steps);
    }

    #[test]
    fn changes_only_the_given_rows() {
        let cells = vec![Some(1.0), None, Some(1.0), Some(1.0)];
        let mut r = Recording { steps: vec![1, 2, 3, 4], columns: vec![Column { name: LOSS.into(), cells }] };
        r.change(LOSS, 1..3, |i, v| v + i as f64);
        assert_eq!(r.columns[0].cells, [Some(1.0), None, Some(2.0), Some(1.0)]);
        assert_eq!((r.row(3), r.cut(1..3).steps), (2, vec![2, 3]));
    }
}
