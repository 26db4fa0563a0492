//! A table in CSV to which a trainer appends a row each step, under any name.
//!
//! The header says which columns are the step, the time and the metrics; it is read from the
//! beginning of the file also where reading goes on in the middle. A trainer that is started again
//! may write it once more, and from there on another run may have other columns. A row has a cell
//! for each number, so an empty one is a number that is missing.

use stepwatch_wire::{Event, Kind};

use crate::absent;
use crate::csv_cells::cells;
use crate::file_format::{Chunk, FileFormat, MAX_RECORD_BYTES, Pushed};
use crate::format::Out;
use crate::number;
use crate::scalars::{Gathered, Id, Printed, Scalars, is_of_training};
use crate::time::{self, Stamp};
use crate::word_meaning::{Meaning, meaning};

/// Columns that are read.
const MAX_COLUMNS: usize = 2048;
/// Bytes of the name of one.
const MAX_NAME: usize = 256;
/// Names of the time of a row.
const TIMES: &[&str] =
    &["timestamp", "_timestamp", "ts", "time", "datetime", "date", "created_at", "wall_time"];
/// Unix seconds that may be those of a row: the years 2001 to 2286.
const SECONDS: core::ops::Range<f64> = 1e9..1e10;

/// The meaning of each column, by the header.
#[derive(Debug)]
struct Columns {
    step: usize,
    time: Option<usize>,
    values: Vec<(usize, String, Id)>,
}

#[derive(Debug, Default)]
pub(crate) struct CsvLog {
    scalars: Scalars,
    columns: Option<Columns>,
    last_step: Option<i64>,
    /// The times of the rows have no zone.
    local_times: bool,
    offset: u64,
    /// The rest of a row that is too long is passed over.
    skipping: bool,
}

/// Whether a file is a table of training: its first line has a column for the step, and one for a
/// metric.
pub(crate) fn is_one(head: &[u8]) -> bool {
    first_line(head).is_some_and(|line| is_header(&line))
}

/// Whether one that is named as a table may be one: nothing says that it is not, or it is another
/// table, whose rows are no lines of a log.
pub(crate) fn may_be_one(head: &[u8]) -> bool {
    !head.contains(&b'\n') || head.split(|b| *b == b'\n').next().is_some_and(|line| line.contains(&b','))
}

fn first_line(head: &[u8]) -> Option<String> {
    let end = head.iter().position(|b| *b == b'\n')?;
    let line = core::str::from_utf8(head.get(..end)?).ok()?;
    Some(line.trim_start_matches('\u{feff}').trim_end().to_owned())
}

/// Whether a line gives the names of the columns.
pub(crate) fn is_header(line: &str) -> bool {
    let names: Vec<String> = cells(line).take(MAX_COLUMNS).collect();
    let is_name = |name: &String| {
        let number = stepwatch_wire::num::parse(name.trim()).is_some();
        !number && name.len() <= MAX_NAME && !name.contains([':', '=', '{', '}'])
    };
    names.len() > 1
        && names.iter().all(is_name)
        && step_of(&names).is_some()
        && names.iter().any(|name| is_of_training(name.trim()))
}

/// Which column counts the steps: of several, the one with the best name.
fn step_of(names: &[String]) -> Option<usize> {
    let quality = |name: &String| match meaning(name.trim(), true) {
        Meaning::Step(quality) => Some(quality),
        _ => None,
    };
    let steps = names.iter().enumerate().filter_map(|(at, name)| Some((quality(name)?, at)));
    steps.max_by_key(|(quality, at)| (*quality, core::cmp::Reverse(*at))).map(|(_, at)| at)
}

impl CsvLog {
    pub(crate) fn new(head: &[u8]) -> Self {
        let mut this = Self::default();
        if let Some(header) = first_line(head) {
            this.columns = this.columns(&header);
        }
        this
    }

    fn columns(&mut self, header: &str) -> Option<Columns> {
        if !is_header(header) {
            return None;
        }
        let names: Vec<String> = cells(header).take(MAX_COLUMNS).collect();
        let step = step_of(&names)?;
        let time = names.iter().position(|n| TIMES.iter().any(|t| t.eq_ignore_ascii_case(n.trim())));
        let mut values = Vec::new();
        for (at, name) in names.iter().enumerate().filter(|(at, _)| *at != step && Some(*at) != time) {
            let name = name.trim();
            if let Some(id) = self.scalars.id(name) {
                values.push((at, name.to_owned(), id));
            }
        }
        Some(Columns { step, time, values })
    }

    fn line(&mut self, line: &str, pushed: &mut Pushed, out: &mut Out<'_>) {
        let line = line.trim_start_matches('\u{feff}').trim_end();
        if line.is_empty() {
            return;
        }
        if is_header(line) {
            if self.columns.is_some() && self.last_step.is_some() {
                self.scalars.begin_anew();
                self.last_step = None;
            }
            self.columns = self.columns(line);
            return;
        }
        let Some(columns) = self.columns.take() else {
            pushed.unmatched += 1;
            return;
        };
        self.row(line, &columns, pushed, out);
        self.columns = Some(columns);
    }

    fn row(&mut self, row: &str, columns: &Columns, pushed: &mut Pushed, out: &mut Out<'_>) {
        let cells: Vec<String> = cells(row).take(MAX_COLUMNS).collect();
        let cell = |at: usize| cells.get(at).map_or("", |c| c.trim());
        let Some(step) = stepwatch_wire::num::parse(cell(columns.step)).and_then(number::whole) else {
            pushed.bad_records += 1;
            return;
        };
        let time = columns.time.and_then(|at| instant(cell(at)));
        self.local_times = matches!(time, Some(Stamp::Local(_)));
        // As pandas and Python's logging write it, without a zone: it is taken for UTC.
        let ts = time.map(|stamp| stamp.unix(0.0));
        let (mut values, mut nulls) = (Vec::new(), Vec::new());
        for (at, name, id) in &columns.values {
            match stepwatch_wire::num::parse(cell(*at)) {
                Some(value) => values.push((*id, value)),
                None if absent::is_nothing(cell(*at)) => nulls.push(name.as_str()),
                None => {}
            }
        }
        out.begins_record();
        self.scalars.nulls(nulls.into_iter(), &values, out);
        // With no number but its step it is a step only if it lacks what the rows before had.
        if values.is_empty() {
            let e = Event { step: Some(step), ts, ..Event::new(Kind::Step) };
            let next = self.last_step.is_some_and(|last| last < step);
            if next && (out.misses(&e) || out.has_lost(&e)) {
                out.push(e);
            }
        } else {
            pushed.unmatched += self.scalars.give(&Gathered { step, ts, values }, Printed::AsText, out);
        }
        self.last_step = Some(step);
    }
}

/// The time of a row.
fn instant(cell: &str) -> Option<Stamp> {
    let seconds = || stepwatch_wire::num::parse(cell).filter(|at| SECONDS.contains(at)).map(Stamp::Exact);
    time::lead(cell).map(|(stamp, _)| stamp).or_else(seconds)
}

impl FileFormat for CsvLog {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn has_rows(&self) -> bool {
        true
    }

    fn has_local_times(&self) -> bool {
        self.local_times
    }

    fn local_stamp(&self, row: &str) -> Option<f64> {
        let cell = cells(row).nth(self.columns.as_ref()?.time?)?;
        if let Some(Stamp::Local(at)) = instant(cell.trim()) { Some(at) } else { None }
    }

    /// A row without an end is being written.
    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        let mut pushed = Pushed::default();
        for line in chunk.bytes.split_inclusive(|b| *b == b'\n') {
            let ends = line.ends_with(b"\n");
            if !ends && line.len() < MAX_RECORD_BYTES && !self.skipping {
                break;
            }
            pushed.consumed += line.len();
            if !core::mem::replace(&mut self.skipping, !ends) {
                if ends && line.len() < MAX_RECORD_BYTES {
                    self.line(&String::from_utf8_lossy(line), &mut pushed, out);
                } else {
                    pushed.oversized += 1;
                }
            }
        }
        self.offset += pushed.consumed as u64;
        pushed
    }

    fn position(&self) -> u64 {
        self.offset
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        self.offset = position;
        if let Some(step) = last_step.filter(|_| position > 0) {
            self.scalars.axis.resume(step);
            self.last_step = Some(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::{FileKind, FileReader, kind_of, known_name};

    fn reader(head: &str) -> FileReader {
        FileReader::new(Path::new("runs/a/train_log.csv"), head.as_bytes()).unwrap()
    }

    fn push(r: &mut FileReader, text: &str) -> Vec<Event> {
        let mut out = Vec::new();
        assert_eq!(r.push(text.as_bytes(), false, &mut out).consumed, text.len(), "{text}");
        out
    }

    fn losses(events: &[Event]) -> Vec<(Kind, i64, Option<f64>)> {
        events.iter().map(|e| (e.kind, e.step.unwrap(), e.m.get("loss"))).collect()
    }

    #[test]
    fn which_files_are_tables() {
        let kind = |name: &str, head: &str| kind_of(Path::new(name), head.as_bytes());
        for header in [
            "step,loss",
            "epoch,step,lr,nll_loss",
            "iteration,train/loss,time",
            "global_step,grad_norm,lr",
            "Step,Train Loss",
            ",step,loss",
        ] {
            for name in ["train_log.csv", "log.txt", "history"] {
                assert_eq!(
                    kind(name, &format!("{header}\n1,2,3,4\n")),
                    FileKind::Records,
                    "{name}: {header}"
                );
            }
        }
        for head in [
            "epoch,loss\n1,2\n",
            "step,note\n",
            "1,2,3\n",
            "step 1, loss 2.5\n",
            "step: 1, loss: 2.5\n",
            "step,loss",
        ] {
            assert_eq!(kind("log.txt", head), FileKind::Lines, "{head}");
        }
        assert_eq!(kind("x.csv", "step: 1 loss: 2.5\n"), FileKind::Lines);
        assert_eq!(kind("x.csv", ""), FileKind::Records);
        assert_eq!(kind("metrics.csv", "epoch,step,train_loss\n"), FileKind::Whole);
        assert!(known_name(Path::new("runs/train_log.csv")));
    }

    #[test]
    fn rows_that_arrive_later() {
        let mut r = reader("");
        assert_eq!((r.kind(), r.name()), (FileKind::Records, "csv"));
        assert_eq!(push(&mut r, "epoch,step,loss,grad_norm,val_loss\n"), []);
        let first = push(&mut r, "0,1,2.5,1.0,\n0,2,nan,1.0,\n");
        assert_eq!(first[0].m.get("grad_norm"), Some(1.0));
        assert!(first[1].m.get("loss").unwrap().is_nan());
        let mut out = Vec::new();
        assert_eq!(r.push(b"0,3,2.25,", false, &mut out).consumed, 0, "it is being written");
        assert_eq!(losses(&push(&mut r, "0,3,2.25,1.0,\n")), [(Kind::Step, 3, Some(2.25))]);
        assert_eq!(losses(&push(&mut r, "0,3,,,3.5\n")), [(Kind::Eval, 3, Some(3.5))]);
    }

    #[test]
    fn it_goes_on_in_the_middle_by_the_header_of_the_file() {
        let head = "step,nll_loss,timestamp\n1,2.5,1780000000\n";
        let mut r = reader(head);
        r.resume(head.len() as u64, Some(1));
        let e = push(&mut r, "2,2.25,1780000010\n");
        assert_eq!(losses(&e), [(Kind::Step, 2, Some(2.25))], "a loss of its own");
        assert_eq!(e[0].ts, Some(1_780_000_010.0));
        assert_eq!(r.position(), (head.len() + 18) as u64);
    }

    #[test]
    fn a_time_without_a_zone_is_utc() {
        for (cell, local) in [
            ("2026-05-28 20:26:40", true),
            ("2026-05-28 20:26:40.000000", true),
            ("\"2026-05-28 20:26:40,000\"", true),
            ("2026-05-28T20:26:40", true),
            ("2026-05-28 20:26:40+00:00", false),
            ("1780000000", false),
        ] {
            let mut r = reader("step,loss,timestamp\n");
            let e = push(&mut r, &format!("step,loss,timestamp\n1,2.5,{cell}\n"));
            assert_eq!((e[0].ts, r.has_local_times()), (Some(1_780_000_000.0), local), "{cell}");
        }
        let mut r = reader("step,loss,timestamp\n");
        assert_eq!(push(&mut r, "step,loss,timestamp\n1,2.5,yesterday\n")[0].ts, None);
        assert_eq!(r.local_stamp("1,2.5,2026-05-28 20:26:40\n"), Some(1_780_000_000.0));
        assert_eq!(r.local_stamp("1,2.5,1780000000"), None);
        assert_eq!(r.local_stamp("1"), None);
    }

    #[test]
    fn a_header_that_is_repeated_begins_another_run() {
        let mut r = reader("");
        let first = (1..30).map(|n| format!("{n},2.5,0.1\n")).collect::<Vec<_>>().concat();
        assert_eq!(push(&mut r, &format!("step,loss,lr\n{first}")).len(), 29);
        let second = push(&mut r, "step,nll_loss,lr\n1,2.25,0.1\n2,nan,0.1\n");
        assert_eq!(second.iter().map(|e| e.step.unwrap()).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(second[0].m.get("loss"), Some(2.25));
        assert!(second[1].m.get("loss").unwrap().is_nan());
        assert_eq!(push(&mut r, "step,loss,lr\n1,2.5,0.1\n").len(), 1);
    }

    #[test]
    fn an_empty_cell_is_a_number_that_is_missing() {
        for (header, full, empty) in
            [("step,loss,lr", "2.5,0.1", ",0.1"), ("step,loss", "2.5", ""), ("step,loss", "2.5", "None")]
        {
            let mut r = reader("");
            let rows = (1..30).map(|n| format!("{n},{full}\n")).collect::<Vec<_>>().concat();
            assert!(push(&mut r, &format!("{header}\n{rows}")).iter().all(|e| e.missing.is_empty()));
            let e = push(&mut r, &format!("30,{empty}\n31,{empty}\n"));
            let missing: Vec<_> = e.iter().map(|e| (e.step.unwrap(), e.missing.clone())).collect();
            let loss = vec!["loss".to_owned()];
            assert_eq!(missing, [(30, loss.clone()), (31, loss)], "{header}: {empty}");
        }
        let mut r = reader("");
        let rows = (1..90).map(|n| format!("{n},2.5,\n{n},,0.1\n")).collect::<Vec<_>>().concat();
        assert!(push(&mut r, &format!("step,loss,lr\n{rows}")).iter().all(|e| e.missing.is_empty()));
    }

    #[test]
    fn other_tables_are_passed_over() {
        let mut r = reader("name,reward\n");
        assert_eq!(push(&mut r, "name,reward\nstep 1 loss: nan,2\n"), []);
        let mut out = Vec::new();
        let long = "x".repeat(MAX_RECORD_BYTES + 1);
        let mut r = reader("step,loss\n");
        let pushed = r.push(long.as_bytes(), false, &mut out);
        assert_eq!((pushed.consumed, pushed.oversized), (long.len(), 1));
        assert_eq!(push(&mut r, "its end\n1,2.5\n").len(), 1);
    }

    proptest! {
        #[test]
        fn never_panics(text in "(step|loss|[0-9.,\"\nénai-]){0,80}", at_rest: bool) {
            let mut out = Vec::new();
            reader("").push(text.as_bytes(), at_rest, &mut out);
            reader("step,loss\n").push(format!("step,loss\n{text}\n").as_bytes(), at_rest, &mut out);
        }
    }
}
