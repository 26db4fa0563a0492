//! CSV with a header: one row a step, an empty cell where something was not logged. Columns have our names or those of frameworks, and
//! are parted by commas, semicolons or tabs.
//!
//! What the web page of W&B exports has a column for each metric of each run, `RUN - lm_loss`, and two with
//! its extremes; the runs are told apart.

use std::borrow::Cow;

use stepwatch_formats::{Absent, Nothing, Resolution, canonical, own_loss};
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Value, num};

/// Rows longer than this many cells are not ours.
const MAX_CELLS: usize = 256;
/// Characters of a bad cell that are shown.
const SHOWN: usize = 32;
/// What may part the columns.
const SEPARATORS: [char; 3] = [',', '\t', ';'];
/// Between run and metric in a column of W&B, and what the names of its extremes end with.
const OF_RUN: &str = " - ";
const EXTREMES: [&str; 2] = ["__MIN", "__MAX"];
/// How those who have no word for NaN write it.
const NOTHING: [&str; 6] = ["null", "none", "n/a", "na", "<na>", "-"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Step,
    Timestamp,
    Rank,
    Node,
    /// Of the pipeline.
    Stage,
    /// Where a rank spent the step; times of others than its computation say nothing of it alone.
    Part(&'static str),
    /// What the number must be divided by to be ours.
    Metric(&'static str, f64),
    /// Somebody's own: a series of its name, where it is a number.
    Other,
    /// Of no use beside another.
    Skipped,
}

impl Column {
    fn of(name: &str) -> Self {
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
    /// What they are called, and whose they are in an export of several runs.
    names: Vec<String>,
    runs: Vec<Option<String>>,
    separator: char,
}

impl Header {
    /// `None` if the line is no header of ours: it needs `step` and something measured.
    pub(super) fn parse(line: &str) -> Option<Self> {
        SEPARATORS.into_iter().find_map(|separator| Self::parted(line, separator))
    }

    fn parted(line: &str, separator: char) -> Option<Self> {
        let cells: Vec<_> = cells(line, separator).take(MAX_CELLS).map(|c| c.trim().to_owned()).collect();
        let exported = cells.iter().any(|c| c.contains(OF_RUN) && c.ends_with(EXTREMES[0]));
        let mut header = Self { columns: Vec::new(), names: Vec::new(), runs: Vec::new(), separator };
        for cell in cells {
            let (run, name) = match cell.rsplit_once(OF_RUN).filter(|_| exported) {
                Some((run, name)) => (Some(run.to_owned()), name.to_owned()),
                None => (None, cell),
            };
            let skipped = run.is_some() && EXTREMES.iter().any(|e| name.ends_with(e));
            header.columns.push(if skipped { Column::Skipped } else { Column::of(&name) });
            header.names.push(name);
            header.runs.push(run);
        }
        header.find_losses();
        let columns = &header.columns;
        let measured =
            columns.iter().any(|c| matches!(c, Column::Metric(..) | Column::Part(_) | Column::Timestamp));
        // Of two columns for the step, as exports have them, one is enough.
        (columns.contains(&Column::Step) && (measured || exported)).then_some(header)
    }

    /// A run of an export none of whose metrics is called as a loss usually is: the one that looks most like
    /// it stands for it.
    fn find_losses(&mut self) {
        for run in self.runs() {
            let own = || (0..self.columns.len()).filter(|i| self.runs[*i].as_deref() == Some(&*run));
            let is_loss = |i: usize| matches!(self.columns[i], Column::Metric(metric::LOSS, _));
            let looks = |i: usize| Some((own_loss(&self.names[i])?, core::cmp::Reverse(i)));
            let best = own().filter(|i| self.columns[*i] == Column::Other).filter_map(looks).max();
            let known = own().any(is_loss);
            if let Some((_, core::cmp::Reverse(at))) = best.filter(|_| !known) {
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

    /// Every column is one that we know.
    pub(super) fn is_all_ours(&self) -> bool {
        !self.columns.contains(&Column::Other)
    }
}

/// The cells of a line, without their quotes; a separator within quotes is none.
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
    /// Of the whole table, or of each run of an export.
    runs: Vec<OfRun>,
}

/// One run, and what its rows had so far.
#[derive(Debug)]
struct OfRun {
    name: Option<String>,
    resolution: Resolution,
    absent: Absent,
}

impl OfRun {
    fn new(name: Option<String>) -> Self {
        Self { name, resolution: Resolution::default(), absent: Absent::default() }
    }
}

impl Rows {
    pub(super) fn new(header: Header) -> Self {
        let named: Vec<_> = header.runs().into_iter().map(|run| OfRun::new(Some(run))).collect();
        let runs = if named.is_empty() { vec![OfRun::new(None)] } else { named };
        Self { header, runs }
    }

    /// The step of a row, of each run that has something in it.
    pub(super) fn events(&mut self, line: &str) -> Result<Vec<Event>, String> {
        let cells: Vec<Cow<'_, str>> = cells(line, self.header.separator).take(MAX_CELLS).collect();
        let mut events = Vec::new();
        for run in &mut self.runs {
            let event = run.event(&self.header, &cells)?;
            let told = !event.m.is_empty() || !event.missing.is_empty();
            events.extend((run.name.is_none() || told).then_some(event));
        }
        Ok(events)
    }
}

impl OfRun {
    fn event(&mut self, header: &Header, cells: &[Cow<'_, str>]) -> Result<Event, String> {
        let mut event = Event::step("", 0);
        (event.run, event.step) = (self.name.clone(), None);
        let mut nothing = Vec::new();
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
                column => take(&mut event, column, cell, &mut self.resolution)?,
            }
        }
        if event.step.is_none() {
            return Err(format!("no step in {} cells", cells.len()));
        }
        self.absent.judge(&mut event, &nothing);
        self.resolution.put_on(&mut event);
        Ok(event)
    }
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
            // Of a number in another unit it is not known how finely ours would be printed.
            if divisor == 1.0 {
                resolution.read(name, cell);
            }
        }
        Column::Other | Column::Skipped => {}
    }
    Ok(())
}

/// Spreadsheets and data frames write integers as `7.0`.
fn step(v: f64) -> Option<i64> {
    (v.fract() == 0.0 && v.abs() < 1e15).then_some(v as i64)
}

fn timestamp(cell: &str) -> Option<f64> {
    // The range is that of a 64-bit count of milliseconds, with room for sums.
    let unix = num::parse(cell).filter(|t| t.is_finite() && t.abs() < 1e12);
    let instant = || cell.parse::<jiff::Timestamp>().ok();
    // As pandas and Python's logging write it, who tell no zone: it is taken for UTC.
    let civil = || {
        let local: jiff::civil::DateTime = cell.replace(',', ".").parse().ok()?;
        Some(local.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    unix.or_else(|| instant().or_else(civil).map(|t| t.as_microsecond() as f64 / 1e6))
}

/// Whatever else the table holds: words are none of our business.
fn own(event: &mut Event, name: &str, cell: &str) {
    if let Some(value) = num::parse(cell).filter(|_| !name.is_empty()) {
        event.m.set(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(rows: &mut Rows, line: &str) -> Event {
        let mut events = rows.events(line).unwrap();
        assert_eq!(events.len(), 1, "{line}");
        events.remove(0)
    }

    #[test]
    fn reads_what_the_web_page_of_wandb_exports() {
        let header =
            r#""Step","proud-sun-7 - lm_loss","proud-sun-7 - lm_loss__MIN","proud-sun-7 - lm_loss__MAX""#;
        let mut rows = Rows::new(Header::parse(header).unwrap());
        let e = one(&mut rows, r#""100","2.5","2.5","2.5""#);
        assert_eq!((e.step, e.run.as_deref()), (Some(100), Some("proud-sun-7")));
        assert_eq!(e.m.iter().collect::<Vec<_>>(), [("loss", 2.5)]);
        assert!(one(&mut rows, r#""101","NaN","NaN","NaN""#).m.get("loss").unwrap().is_nan());
        let columns = |run: &str, name: &str| {
            format!(r#""{run} - {name}","{run} - {name}__MIN","{run} - {name}__MAX""#)
        };
        let header = format!(
            r#""trainer/global_step",{},{}"#,
            columns("a, b", "my_loss"),
            columns("c - d", "train/loss")
        );
        let mut rows = Rows::new(Header::parse(&header).unwrap());
        let both = rows.events(r#""5","1.5","1.5","1.5","2.5","2.5","2.5""#).unwrap();
        let seen: Vec<_> = both.iter().map(|e| (e.run.as_deref().unwrap(), e.m.get("loss"))).collect();
        assert_eq!(
            seen,
            [("a, b", Some(1.5)), ("c - d", Some(2.5))],
            "a loss with a name of its own is the loss"
        );
        assert_eq!(one(&mut rows, "6,,,,2.5,2.5,2.5").run.as_deref(), Some("c - d"));
        assert_eq!(rows.events("7,,,,,,"), Ok(vec![]));
    }

    #[test]
    fn takes_the_times_of_pandas_and_logging_for_utc() {
        let mut rows = Rows::new(Header::parse("step,loss,timestamp").unwrap());
        for (cell, want) in [
            ("2026-11-21 02:16:56", 1_795_227_416.0),
            ("2026-11-21 02:16:56.572", 1_795_227_416.572),
            ("2026-11-21 02:16:56.572118", 1_795_227_416.572_118),
            ("\"2026-11-21 02:16:56,572\"", 1_795_227_416.572),
            ("2026-11-21T02:16:56", 1_795_227_416.0),
            ("2026-11-21 03:16:56+01:00", 1_795_227_416.0),
        ] {
            assert_eq!(one(&mut rows, &format!("1,2.5,{cell}")).ts, Some(want), "{cell}");
        }
        for cell in ["yesterday", "2026-13-21 02:16:56", "02:16:56"] {
            let err = rows.events(&format!("1,2.5,{cell}")).unwrap_err();
            let why = "timestamp is none of Unix seconds, RFC 3339, and YYYY-MM-DD HH:MM:SS in UTC";
            assert_eq!(err, format!("{why}: {cell:?}"));
        }
    }

    #[test]
    fn a_loss_that_turns_into_nothing_is_missing() {
        for (nothing, known) in [("null", 3), ("None", 3), ("", 21)] {
            let mut rows = Rows::new(Header::parse("step,loss,lr,grad_norm").unwrap());
            for step in 1..known {
                assert_eq!(one(&mut rows, &format!("{step},2.5,0.1,0.5")).missing, [""; 0]);
            }
            let e = one(&mut rows, &format!("{known},{nothing},0.1,0.5"));
            assert_eq!((&e.missing[..], e.m.get("lr")), (&["loss".to_owned()][..], Some(0.1)), "{nothing:?}");
            assert_eq!(one(&mut rows, "100,,,").missing, [""; 0], "a row of something else");
        }
    }

    #[test]
    fn columns_of_other_names_are_series_where_they_are_numbers() {
        let mut rows = Rows::new(Header::parse("step,loss,\"rollout/reward\",note").unwrap());
        let e = one(&mut rows, "7,2.5,-0.5,fine");
        assert_eq!(e.m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("rollout/reward", -0.5)]);
    }

    #[test]
    fn reads_what_the_header_names() {
        let header =
            Header::parse("step,loss,mystery,grad_norm,step_time_seconds,timestamp,rank,node").unwrap();
        let mut rows = Rows::new(header);
        let e = one(&mut rows, "12.0,2.5,x,,0.25,2026-11-21T02:16:56.5Z,3,node007");
        assert_eq!((e.step, e.rank, e.node.as_deref()), (Some(12), Some(3), Some("node007")));
        assert_eq!(
            (e.m.get("loss"), e.m.get("grad_norm"), e.m.get("step_time")),
            (Some(2.5), None, Some(0.25))
        );
        assert_eq!(e.ts, Some(1_795_227_416.5));
        assert_eq!(e.q.iter().collect::<Vec<_>>(), [("loss", 0.1), ("step_time", 0.01)]);
        let e = one(&mut rows, "13,-inf,,nan");
        assert_eq!(e.m.get("loss"), Some(f64::NEG_INFINITY));
        assert!(e.m.get("grad_norm").unwrap().is_nan());
    }

    #[test]
    fn reads_what_a_rank_did() {
        let mut rows = Rows::new(Header::parse("step,rank,stage,forward_compute,gc").unwrap());
        let e = one(&mut rows, "16,4,1,17.5,0");
        assert_eq!(
            (e.step, e.rank, e.extra.get("stage").and_then(Value::as_f64)),
            (Some(16), Some(4), Some(1.0))
        );
        assert_eq!((e.t.get("forward_compute"), e.t.get("gc"), e.m.len()), (Some(17.5), Some(0.0), 0));
    }

    #[test]
    fn reads_what_others_export() {
        let mut rows =
            Rows::new(Header::parse("iteration\ttrain/loss\tlearning_rate\tstep_time_ms").unwrap());
        let e = one(&mut rows, "7\t2.5\t3e-4\t250");
        assert_eq!((e.step, e.m.get("loss"), e.m.get("lr")), (Some(7), Some(2.5), Some(3e-4)));
        assert_eq!(e.m.get("step_time"), Some(0.25));
        let mut rows = Rows::new(Header::parse("\"Step\";\"loss\"").unwrap());
        assert_eq!(one(&mut rows, "\"8\";\"2.5\"").step, Some(8));
    }

    #[test]
    fn says_what_is_wrong() {
        let mut rows = Rows::new(Header::parse("step,loss").unwrap());
        for (line, reason) in [
            ("1.5,2", "step is not an integer: \"1.5\""),
            ("1,two", "loss is not a number: \"two\""),
            (",2", "no step in 2 cells"),
        ] {
            assert_eq!(rows.events(line).unwrap_err(), reason);
        }
        for no_header in ["loss,lr", "step", "1,2,3", "iteration 5 | loss 2, step 3"] {
            assert!(Header::parse(no_header).is_none(), "{no_header}");
        }
    }
}
