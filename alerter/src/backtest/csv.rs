//! CSV with a header: one row a step, an empty cell where something was not logged. Columns have our names or those of frameworks, and
//! are parted by commas, semicolons or tabs.

use stepwatch_formats::{Resolution, canonical};
use stepwatch_wire::names::metric;
use stepwatch_wire::{Event, Value, num};

/// Rows longer than this many cells are not ours.
const MAX_CELLS: usize = 256;
/// Characters of a bad cell that are shown.
const SHOWN: usize = 32;
/// What may part the columns.
const SEPARATORS: [char; 3] = [',', '\t', ';'];

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
}

impl Column {
    fn of(name: &str) -> Self {
        let name = name.trim().trim_matches('"');
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
    /// What they are called.
    names: Vec<String>,
    separator: char,
}

impl Header {
    /// `None` if the line is no header of ours: it needs `step` and something measured.
    pub(super) fn parse(line: &str) -> Option<Self> {
        SEPARATORS.into_iter().find_map(|separator| Self::parted(line, separator))
    }

    fn parted(line: &str, separator: char) -> Option<Self> {
        let columns: Vec<_> = line.split(separator).take(MAX_CELLS).map(Column::of).collect();
        let measured =
            columns.iter().any(|c| matches!(c, Column::Metric(..) | Column::Part(_) | Column::Timestamp));
        // Of two columns for the step, as exports have them, one is enough.
        (columns.contains(&Column::Step) && measured).then(|| {
            let names = line.split(separator).map(|name| name.trim().trim_matches('"').to_owned());
            let names = names.take(columns.len()).collect();
            Self { columns, names, separator }
        })
    }

    /// Every column is one that we know.
    pub(super) fn is_all_ours(&self) -> bool {
        !self.columns.contains(&Column::Other)
    }
}

#[derive(Debug)]
pub(super) struct Rows {
    header: Header,
    resolution: Resolution,
}

impl Rows {
    pub(super) fn new(header: Header) -> Self {
        Self { header, resolution: Resolution::default() }
    }

    pub(super) fn event(&mut self, line: &str) -> Result<Event, String> {
        let mut event = Event::step("", 0);
        (event.run, event.step) = (None, None);
        let mut cells = 0;
        let columns = self.header.columns.iter().zip(&self.header.names);
        for ((column, name), cell) in columns.zip(line.split(self.header.separator)) {
            cells += 1;
            let cell = cell.trim().trim_matches('"').trim();
            if !cell.is_empty() {
                match column {
                    Column::Other => own(&mut event, name, cell),
                    column => take(&mut event, *column, cell, &mut self.resolution)?,
                }
            }
        }
        if event.step.is_none() {
            return Err(format!("no step in {cells} cells"));
        }
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
            event.ts =
                Some(timestamp(cell).ok_or_else(|| {
                    format!("timestamp is neither Unix seconds nor RFC 3339: {:?}", shown())
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
        Column::Other => {}
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
    unix.or_else(|| cell.parse::<jiff::Timestamp>().ok().map(|t| t.as_millisecond() as f64 / 1000.0))
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

    #[test]
    fn columns_of_other_names_are_series_where_they_are_numbers() {
        let mut rows = Rows::new(Header::parse("step,loss,\"rollout/reward\",note").unwrap());
        let e = rows.event("7,2.5,-0.5,fine").unwrap();
        assert_eq!(e.m.iter().collect::<Vec<_>>(), [("loss", 2.5), ("rollout/reward", -0.5)]);
    }

    #[test]
    fn reads_what_the_header_names() {
        let header =
            Header::parse("step,loss,mystery,grad_norm,step_time_seconds,timestamp,rank,node").unwrap();
        let mut rows = Rows::new(header);
        let e = rows.event("12.0,2.5,x,,0.25,2026-11-21T02:16:56.5Z,3,node007").unwrap();
        assert_eq!((e.step, e.rank, e.node.as_deref()), (Some(12), Some(3), Some("node007")));
        assert_eq!(
            (e.m.get("loss"), e.m.get("grad_norm"), e.m.get("step_time")),
            (Some(2.5), None, Some(0.25))
        );
        assert_eq!(e.ts, Some(1_795_227_416.5));
        assert_eq!(e.q.iter().collect::<Vec<_>>(), [("loss", 0.1), ("step_time", 0.01)]);
        let e = rows.event("13,-inf,,nan").unwrap();
        assert_eq!(e.m.get("loss"), Some(f64::NEG_INFINITY));
        assert!(e.m.get("grad_norm").unwrap().is_nan());
    }

    #[test]
    fn reads_what_a_rank_did() {
        let mut rows = Rows::new(Header::parse("step,rank,stage,forward_compute,gc").unwrap());
        let e = rows.event("16,4,1,17.5,0").unwrap();
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
        let e = rows.event("7\t2.5\t3e-4\t250").unwrap();
        assert_eq!((e.step, e.m.get("loss"), e.m.get("lr")), (Some(7), Some(2.5), Some(3e-4)));
        assert_eq!(e.m.get("step_time"), Some(0.25));
        let mut rows = Rows::new(Header::parse("\"Step\";\"loss\"").unwrap());
        assert_eq!(rows.event("\"8\";\"2.5\"").unwrap().step, Some(8));
    }

    #[test]
    fn says_what_is_wrong() {
        let mut rows = Rows::new(Header::parse("step,loss").unwrap());
        for (line, reason) in [
            ("1.5,2", "step is not an integer: \"1.5\""),
            ("1,two", "loss is not a number: \"two\""),
            (",2", "no step in 2 cells"),
        ] {
            assert_eq!(rows.event(line).unwrap_err(), reason);
        }
        for no_header in ["loss,lr", "step", "1,2,3", "iteration 5 | loss 2, step 3"] {
            assert!(Header::parse(no_header).is_none(), "{no_header}");
        }
    }
}
