//! CSV with a header: one row per step, and an empty cell for a value that was not logged. Columns
//! have our names or those of frameworks, and are separated by commas, semicolons or tabs.
//!
//! W&B's web export has a column for each metric of each run, `RUN - lm_loss`, and two with its
//! extremes. Runs are distinguished by the name. If the first column is a time, the rows of a run
//! are its steps.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use stepwatch_formats::{Absent, Nothing, Resolution, canonical, own_loss};
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Value, num};

/// The most cells of a row.
const MAX_CELLS: usize = 256;
/// The most characters of a bad cell in the error.
const SHOWN: usize = 32;
/// The possible separators of columns.
const SEPARATORS: [char; 3] = [',', '\t', ';'];
/// The first column of W&B's exports if it is not the step; one of them is the time of day.
const TIME_AXES: [&str; 3] = ["Relative Time (Process)", "Relative Time (Wall)", WALL_TIME];
const WALL_TIME: &str = "Wall Time";
/// The separator of run and metric in a column of W&B, and the suffixes of its extremes.
const OF_RUN: &str = " - ";
const EXTREMES: [&str; 2] = ["__MIN", "__MAX"];
/// How formats without NaN write a missing value.
const NOTHING: [&str; 6] = ["null", "none", "n/a", "na", "<na>", "-"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Step,
    Timestamp,
    Rank,
    Node,
    /// The pipeline stage.
    Stage,
    /// A part of the step on a rank. Only the compute time depends on the rank alone.
    Part(&'static str),
    /// A metric, and the divisor from the column's unit to ours.
    Metric(&'static str, f64),
    /// A column of another name, which becomes a series if it has numbers.
    Other,
    /// A column that is redundant next to another one.
    Skipped,
}

impl Column {
    fn from_name(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "step"
            | "_step"
            | "iteration"
            | "iter"
            | "global_step"
            | "train/global_step"
            | "trainer/global_step" => Self::Step,
            "timestamp" | "_timestamp" | "wall_time" => Self::Timestamp,
            "rank" => Self::Rank,
            "node" => Self::Node,
            "stage" => Self::Stage,
            "forward_compute" => Self::Part("forward_compute"),
            "backward_compute" => Self::Part("backward_compute"),
            "fwd_bwd" => Self::Part("fwd_bwd"),
            "data" => Self::Part("data"),
            "gc" => Self::Part("gc"),
            "loss" => Self::Metric(metric::LOSS, 1.0),
            "grad_norm" => Self::Metric(metric::GRAD_NORM, 1.0),
            "lr" => Self::Metric(metric::LR, 1.0),
            "step_time_seconds" => Self::Metric(metric::STEP_TIME, 1.0),
            "tokens_per_second" => Self::Metric(metric::TOKENS_PER_SECOND, 1.0),
            "mfu" => Self::Metric(metric::MFU, 1.0),
            _ => canonical(name).map_or(Self::Other, |(name, divisor)| Self::Metric(name, divisor)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Header {
    columns: Vec<Column>,
    /// The names of the columns, and in an export of several runs the run of each.
    names: Vec<String>,
    runs: Vec<Option<String>>,
    separator: char,
}

impl Header {
    /// Parses a header. `None` if the line is not one: a header needs `step` and a measured value.
    /// JSON has the same names in the same quotes, but with a colon after them.
    pub(super) fn parse(line: &str) -> Option<Self> {
        if line.trim_start().starts_with(['{', '[']) || line.contains("\":") || line.contains("\" :") {
            return None;
        }
        SEPARATORS.into_iter().find_map(|separator| Self::parted(line, separator))
    }

    fn parted(line: &str, separator: char) -> Option<Self> {
        let cells: Vec<_> = cells(line, separator).take(MAX_CELLS).map(|c| c.trim().to_owned()).collect();
        let exported = cells.iter().any(|c| c.contains(OF_RUN) && c.ends_with(EXTREMES[0]));
        let mut header = Self { columns: Vec::new(), names: Vec::new(), runs: Vec::new(), separator };
        let timed = exported && cells.iter().any(|c| TIME_AXES.contains(&c.as_str()));
        for cell in cells {
            let (run, name) = match cell.rsplit_once(OF_RUN).filter(|_| exported) {
                Some((run, name)) => (Some(run.to_owned()), name.to_owned()),
                None => (None, cell),
            };
            let skipped = run.is_some() && EXTREMES.iter().any(|e| name.ends_with(e));
            header.columns.push(match run {
                Some(_) if skipped => Column::Skipped,
                None if exported && name == WALL_TIME => Column::Timestamp,
                None if exported && TIME_AXES.contains(&name.as_str()) => Column::Skipped,
                _ => Column::from_name(&name),
            });
            header.names.push(name);
            header.runs.push(run);
        }
        header.find_losses();
        let columns = &header.columns;
        let measured =
            columns.iter().any(|c| matches!(c, Column::Metric(..) | Column::Part(_) | Column::Timestamp));
        // Exports have two columns for the step; one is enough.
        let stepped = columns.contains(&Column::Step) || timed;
        (stepped && (measured || exported)).then_some(header)
    }

    /// For each run without a loss, in an export or a plain table, uses the metric with the name
    /// closest to a loss.
    fn find_losses(&mut self) {
        let runs = self.runs();
        let named = runs.into_iter().map(Some);
        let of_all = if self.runs.iter().all(Option::is_none) { Some(None) } else { None };
        for run in named.chain(of_all) {
            let own = || (0..self.columns.len()).filter(|i| self.runs[*i] == run);
            let is_loss = |i: usize| matches!(self.columns[i], Column::Metric(metric::LOSS, _));
            let looks = |i: usize| Some((own_loss(&self.names[i])?, core::cmp::Reverse(i)));
            let best = own().filter(|i| self.columns[*i] == Column::Other).filter_map(looks).max();
            let best = best.map(|(_, core::cmp::Reverse(at))| at).filter(|_| !own().any(is_loss));
            if let Some(at) = best {
                self.columns[at] = Column::Metric(metric::LOSS, 1.0);
            }
        }
    }

    /// The runs of an export.
    fn runs(&self) -> Vec<String> {
        let mut runs: Vec<String> = self.runs.iter().flatten().cloned().collect();
        runs.sort();
        runs.dedup();
        runs
    }

    /// Whether the rows of a run are its steps, because it has no step column.
    fn counts_rows(&self, run: Option<&str>) -> bool {
        let own = |i: usize| self.runs[i].is_none() || self.runs[i].as_deref() == run;
        !(0..self.columns.len()).any(|i| self.columns[i] == Column::Step && own(i))
    }

    /// Whether every column is known.
    pub(super) fn is_all_ours(&self) -> bool {
        !self.columns.contains(&Column::Other)
    }
}

/// The cells of a line, without their quotes; separators within quotes do not count.
fn cells(line: &str, separator: char) -> impl Iterator<Item = Cow<'_, str>> {
    let mut rest = Some(line);
    core::iter::from_fn(move || {
        let text = rest?;
        let Some(mut quoted) = text.trim_start_matches(' ').strip_prefix('"') else {
            let (cell, after) = text.split_once(separator).map_or((text, None), |(c, a)| (c, Some(a)));
            rest = after;
            return Some(Cow::Borrowed(cell));
        };
        let mut cell = String::new();
        loop {
            let (part, after) = quoted.split_once('"').unwrap_or((quoted, ""));
            cell.push_str(part);
            let Some(more) = after.strip_prefix('"') else {
                rest = after.split_once(separator).map(|(_, after)| after);
                return Some(Cow::Owned(cell));
            };
            cell.push('"');
            quoted = more;
        }
    })
}

#[derive(Debug)]
pub(super) struct Rows {
    header: Header,
    /// The state of the whole table, or of each run of an export.
    runs: Vec<OfRun>,
}

/// One run, and the state of its rows so far.
#[derive(Debug)]
struct OfRun {
    name: Option<String>,
    resolution: Resolution,
    absent: Absent,
    /// The number of rows so far, if they are the steps.
    rows: Option<i64>,
    /// A hash of the non-numeric cells in the last row with a loss or a gradient norm.
    frame: u64,
}

impl OfRun {
    fn new(header: &Header, name: Option<String>) -> Self {
        let rows = header.counts_rows(name.as_deref()).then_some(0);
        Self { name, resolution: Resolution::default(), absent: Absent::of_rows(), rows, frame: 0 }
    }
}

impl Rows {
    pub(super) fn new(header: Header) -> Self {
        let named: Vec<_> = header.runs().into_iter().map(|run| OfRun::new(&header, Some(run))).collect();
        let runs = if named.is_empty() { vec![OfRun::new(&header, None)] } else { named };
        Self { header, runs }
    }

    /// The events of a row: a step for each run that has a value in it.
    pub(super) fn events(&mut self, line: &str) -> Result<Vec<Event>, String> {
        let cells: Vec<Cow<'_, str>> = cells(line, self.header.separator).take(MAX_CELLS).collect();
        let mut events = Vec::new();
        for run in &mut self.runs {
            events.extend(run.event(&self.header, &cells)?);
        }
        Ok(events)
    }
}

impl OfRun {
    fn event(&mut self, header: &Header, cells: &[Cow<'_, str>]) -> Result<Option<Event>, String> {
        let mut event = Event::step("", 0);
        (event.run, event.step) = (self.name.clone(), None);
        let mut nothing = Vec::new();
        let mut frame = DefaultHasher::new();
        for (i, cell) in cells.iter().enumerate().take(header.columns.len()) {
            let (column, name) = (header.columns[i], &header.names[i]);
            let cell = cell.trim();
            if cell.is_empty() || header.runs[i].is_some() && header.runs[i] != self.name {
                continue;
            }
            match column {
                Column::Other => own(&mut event, name, cell),
                Column::Metric(name, _) if NOTHING.iter().any(|n| cell.eq_ignore_ascii_case(n)) => {
                    nothing.push((name.to_owned(), Nothing::Null));
                }
                // A column that is a loss only by a guess from its name may have other values.
                Column::Metric(metric::LOSS, _)
                    if num::parse(cell).is_none() && canonical(name).is_none() => {}
                // The rows are counted as steps, so a bad time is no error.
                Column::Timestamp if self.rows.is_some() => event.ts = timestamp(cell),
                column => take(&mut event, column, cell, &mut self.resolution)?,
            }
            if !matches!(column, Column::Metric(..) | Column::Part(_)) {
                let said = if column == Column::Other { words(cell) } else { String::new() };
                (i, said).hash(&mut frame);
            }
        }
        let bare = event.m.is_empty() && event.t.is_empty() && nothing.is_empty();
        if bare && self.name.is_some() {
            return Ok(None); // a row of another run
        }
        if let Some(rows) = &mut self.rows {
            *rows += 1;
            event.step = Some(*rows);
        }
        if event.step.is_none() {
            return Err(format!("no step in {} cells", cells.len()));
        }
        self.judge(&mut event, &nothing, frame.finish());
        self.resolution.put_on(&mut event);
        Ok(Some(event))
    }

    /// Marks missing values. A row without numbers has another purpose if its other cells differ
    /// from those of the row before: a time is missing, or a text differs.
    fn judge(&mut self, event: &mut Event, nothing: &[(String, Nothing)], frame: u64) {
        let has = |name: &str| event.m.get(name).is_some();
        if has(metric::LOSS) || has(metric::GRAD_NORM) {
            self.frame = frame;
        }
        if frame == self.frame || !event.m.is_empty() || !event.t.is_empty() || !nothing.is_empty() {
            self.absent.judge(event, nothing);
        }
    }
}

/// A cell without its digits, because times and counters differ in every row.
fn words(cell: &str) -> String {
    cell.chars().filter(|c| !c.is_ascii_digit()).take(SHOWN).collect()
}

fn take(event: &mut Event, column: Column, cell: &str, resolution: &mut Resolution) -> Result<(), String> {
    let shown = || cell.chars().take(SHOWN).collect::<String>();
    let number =
        |name: &str| num::parse(cell).ok_or_else(|| format!("{name} is not a number: {:?}", shown()));
    match column {
        Column::Step => {
            event.step =
                Some(step(number("step")?).ok_or_else(|| format!("step is not an integer: {:?}", shown()))?)
        }
        Column::Timestamp => {
            event.ts = Some(timestamp(cell).ok_or_else(|| {
                let why = "timestamp is none of Unix seconds, RFC 3339, and YYYY-MM-DD HH:MM:SS in UTC";
                format!("{why}: {:?}", shown())
            })?)
        }
        Column::Rank => {
            let rank = cell.parse().map_err(|_| format!("rank is not a small integer: {:?}", shown()))?;
            event.rank = Some(rank);
        }
        Column::Node => event.node = Some(cell.chars().take(stepwatch_wire::MAX_TEXT).collect()),
        Column::Stage => {
            let stage =
                step(number("stage")?).ok_or_else(|| format!("stage is not an integer: {:?}", shown()))?;
            event.extra.insert("stage".into(), Value::Number(stage as f64));
        }
        Column::Part(name) => {
            event.t.set(name, number(name)?);
        }
        Column::Metric(name, divisor) => {
            event.m.set(name, number(name)? / divisor);
            // A number in another unit has an unknown printed resolution.
            if divisor == 1.0 {
                resolution.read(name, cell);
            }
        }
        Column::Other | Column::Skipped => {}
    }
    Ok(())
}

/// An integer step, which spreadsheets and data frames may write as `7.0`.
fn step(v: f64) -> Option<i64> {
    (v.fract() == 0.0 && v.abs() < 1e15).then_some(v as i64)
}

fn timestamp(cell: &str) -> Option<f64> {
    // The range is that of 64-bit milliseconds, with room for sums.
    let milliseconds = |t: f64| if t.abs() < 1e11 { t } else { t / 1e3 };
    let unix = num::parse(cell).map(milliseconds).filter(|t| t.is_finite() && t.abs() < 1e12);
    let instant = || cell.parse::<jiff::Timestamp>().ok();
    // The format of pandas and Python's logging has no zone and is read as UTC.
    let civil = || {
        let local: jiff::civil::DateTime = cell.replace(',', ".").parse().ok()?;
        Some(local.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    unix.or_else(|| instant().or_else(civil).map(|t| t.as_microsecond() as f64 / 1e6))
}

/// Adds any other numeric column; text is ignored.
fn own(event: &mut Event, name: &str, cell: &str) {
    if let Some(value) = num::parse(cell).filter(|_| !name.is_empty()) {
        event.m.set(name, value);
    }
}
