//! A recording as it was printed: cells of text, because how finely a number was printed is part of
//! what was recorded.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

/// The columns that give how fast a run is.
pub const SPEEDS: [&str; 3] = ["step_time_seconds", "tokens_per_second", "mfu"];
pub const TIMESTAMP: &str = "timestamp";
/// Steps of this many times the usual length are pauses.
const PAUSE: f64 = 1.5;

/// Its first column is the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut lines = text.lines().map(|l| l.split(',').map(str::to_owned).collect::<Vec<_>>());
        let header = lines.next().unwrap_or_default();
        ensure!(header.first().is_some_and(|h| h == "step"), "{}: no step comes first", path.display());
        let rows: Vec<_> = lines.filter(|row| row.len() == header.len()).collect();
        Ok(Self { header, rows })
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let lines = std::iter::once(&self.header).chain(&self.rows).map(|row| row.join(",") + "\n");
        fs::write(path, lines.collect::<String>()).with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|h| h == name)
    }

    pub fn step(&self, row: usize) -> i64 {
        number(&self.rows[row][0]).map_or(0, |v| v as i64)
    }

    /// Steps, in order, each once.
    pub fn steps(&self) -> Vec<i64> {
        let mut steps: Vec<i64> = (0..self.rows.len()).map(|row| self.step(row)).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    /// Changes the steps.
    pub fn renumber(&mut self, f: impl Fn(usize, i64) -> i64) {
        for row in 0..self.rows.len() {
            self.rows[row][0] = f(row, self.step(row)).to_string();
        }
    }

    /// Changes every number of a column, if there is one.
    pub fn change(&mut self, name: &str, mut f: impl FnMut(&str, f64) -> String) {
        let Some(at) = self.column(name) else { return };
        for row in &mut self.rows {
            if let Some(v) = number(&row[at]) {
                row[at] = f(&row[at], v);
            }
        }
    }

    /// Leaves out what `keep` does not want; false if nothing but steps is left.
    pub fn keep(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let kept: Vec<bool> = self.header.iter().map(|h| h == "step" || keep(h)).collect();
        let of = |row: &Vec<String>| -> Vec<String> {
            row.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(cell, _)| cell.clone()).collect()
        };
        self.header = of(&self.header);
        self.rows.iter_mut().for_each(|row| *row = of(row));
        self.header.len() > 1
    }

    /// Gives every line a time, worked out of the step times where there is none; false if that
    /// cannot be.
    pub fn add_time(&mut self) -> bool {
        if self.column(TIMESTAMP).is_some() {
            return true;
        }
        let Some(at) = self.column(SPEEDS[0]) else { return false };
        let mut known: Vec<f64> = self.rows.iter().filter_map(|r| number(&r[at])).collect();
        known.sort_by(f64::total_cmp);
        let Some(median) = known.get(known.len() / 2).copied() else { return false };
        // Where most lines have no step time, that of one does not predict the next.
        let dense = 2 * known.len() > self.rows.len();
        let (mut now, mut usual, mut last) = (1.7e9, median, None);
        for row in 0..self.rows.len() {
            let (step, took) = (self.step(row), number(&self.rows[row][at]));
            usual = took.filter(|t| dense && *t < PAUSE * median).unwrap_or(usual);
            let missed = last.map_or(0, |last| step - last - 1).max(0) as f64;
            now += took.unwrap_or(usual) + usual * missed;
            last = Some(step);
            self.rows[row].push(format!("{now:.3}"));
        }
        self.header.push(TIMESTAMP.into());
        true
    }
}

/// A number that was printed and is one.
pub fn number(cell: &str) -> Option<f64> {
    cell.trim().parse().ok().filter(|v: &f64| v.is_finite())
}

/// Significant digits of a printed number.
pub fn digits(cell: &str) -> usize {
    let mantissa = cell.split(['e', 'E']).next().unwrap_or_default();
    mantissa.chars().filter(char::is_ascii_digit).skip_while(|c| *c == '0').count().max(1)
}

/// Prints a number with so many significant digits.
pub fn print(v: f64, digits: usize) -> String {
    if v == 0.0 {
        return "0".into();
    }
    let places = digits as i32 - 1 - v.abs().log10().floor() as i32;
    if places >= 0 {
        return format!("{v:.*}", places as usize);
    }
    let unit = 10f64.powi(-places);
    format!("{:.0}", (v / unit).round() * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_finely_as_they_were_logged() {
        assert_eq!([digits("0.0518"), digits("2.340"), digits("1.50e-7"), digits("0")], [3, 4, 3, 1]);
        let printed =
            [(2.345678, 3), (0.012345, 2), (123_456.0, 2), (0.0, 4), (9.99, 2)].map(|(v, d)| print(v, d));
        assert_eq!(printed, ["2.35", "0.012", "120000", "0", "10.0"]);
    }

    #[test]
    fn time_runs_through_lines_that_were_not_logged_and_a_pause_is_paid_once() {
        let rows = [["1", "2.0"], ["2", ""], ["5", "90"], ["10", "2.0"]];
        let rows = rows.map(|r| r.map(str::to_owned).to_vec()).to_vec();
        let mut table = Table { header: vec!["step".into(), SPEEDS[0].into()], rows };
        assert!(table.add_time());
        let at: Vec<f64> = table.rows.iter().map(|r| r[2].parse::<f64>().unwrap() - 1.7e9).collect();
        assert_eq!(at, [2.0, 4.0, 98.0, 108.0]);
    }
}
