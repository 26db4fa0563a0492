//! `metrics.csv` of Lightning's `CSVLogger`.
//!
//! A file to be read as a whole and not line by line: when a metric appears that was not logged
//! before, Lightning writes all of it anew with a longer header, and a place in the old file means
//! nothing in the new one. What stays is the number of a row. It is written every hundred logs, so
//! reading it again costs little.

use std::io;

use crate::csv_cells::cells;
use crate::csv_log::is_header;
use crate::file_format::{Chunk, FileFormat, MAX_RECORD_BYTES, Pushed, TURN_EVENTS, Whole};
use crate::format::Out;
use crate::number;
use crate::scalars::{Gathered, Id, Printed, Scalars};

/// Columns that are read.
const MAX_COLUMNS: usize = 2048;

#[derive(Debug, Default)]
pub(crate) struct LightningCsv {
    scalars: Scalars,
    /// Rows that were published.
    published: usize,
    /// Where the last turn stopped.
    going: Going,
}

impl LightningCsv {
    pub(crate) fn new() -> Self {
        Self { scalars: Scalars::of_whole(), ..Self::default() }
    }
}

/// The file is gone through twice, so that nothing is published of one that is being rewritten.
#[derive(Debug, Default)]
struct Going {
    rows: Rows,
    columns: Option<Columns>,
    /// How many rows there are.
    found: Option<usize>,
}

/// The rows of a table, byte by byte.
#[derive(Debug)]
struct Rows {
    offset: u64,
    /// Lines that have ended and are not empty, the header too.
    lines: usize,
    line: Vec<u8>,
    /// Whether there is anything in the line, but for the `\r` of its end.
    filled: bool,
    /// The line is longer than what is kept of it.
    cut: bool,
    /// Bytes that are kept of a line.
    keeps: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self { offset: 0, lines: 0, line: Vec::new(), filled: false, cut: false, keeps: MAX_RECORD_BYTES }
    }
}

impl Rows {
    /// Takes the next byte. True where it ends a line: look at it, and go on with [`Self::next`].
    fn byte(&mut self, byte: u8) -> bool {
        self.offset += 1;
        if byte != b'\n' {
            // No writer has one within a line.
            self.filled |= byte != b'\r';
            self.cut |= self.line.len() >= self.keeps;
            if !self.cut {
                self.line.push(byte);
            }
            return false;
        }
        self.line.pop_if(|last| *last == b'\r');
        let ends = self.filled;
        self.lines += usize::from(ends);
        ends
    }

    fn next(&mut self) {
        self.line.clear();
        (self.filled, self.cut) = (false, false);
    }

    /// Goes back to where the line begins, so that it need not be held until the next turn. It is
    /// shorter than what is read in one, unless it is cut and nothing of it is wanted.
    fn rewind(&mut self) {
        if !self.cut {
            self.offset -= self.line.len() as u64;
            self.filled = false;
        }
        self.line = Vec::new();
    }
}

/// The meaning of each column, by the header.
#[derive(Debug)]
struct Columns {
    step: usize,
    values: Vec<(usize, Id)>,
}

impl Columns {
    /// Whether a row has the name of the step in the place of a step.
    fn is_step(&self, row: &str) -> bool {
        cells(row).nth(self.step).is_some_and(|cell| cell.trim() == "step")
    }
}

/// Whether a file begins as Lightning writes it: with a column for the step.
pub(crate) fn is_lightning(head: &[u8]) -> bool {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    core::str::from_utf8(line).is_ok_and(|line| cells(line.trim_end()).any(|c| c == "step"))
}

impl LightningCsv {
    fn columns(&mut self, header: &str) -> Option<Columns> {
        let names: Vec<String> = cells(header).take(MAX_COLUMNS).collect();
        let step = names.iter().position(|n| n == "step")?;
        let others = names.iter().enumerate().filter(|(i, _)| *i != step);
        let values = others.filter_map(|(i, name)| Some((i, self.scalars.id(name)?))).collect();
        Some(Columns { step, values })
    }

    /// The header, or a row; false if the header is none.
    fn line(
        &mut self,
        rows: &Rows,
        columns: &mut Option<Columns>,
        pushed: &mut Pushed,
        out: &mut Out<'_>,
    ) -> bool {
        let text = String::from_utf8_lossy(&rows.line);
        match columns {
            None => {
                *columns = self.columns(&text);
                pushed.bad_records += u64::from(columns.is_none());
                columns.is_some()
            }
            Some(known) => {
                let new = rows.lines > self.published + 1;
                // Whoever appends to it may begin with the header again.
                if !rows.cut && known.is_step(&text) && is_header(text.trim_end()) {
                    if new {
                        self.published = rows.lines - 1;
                        self.scalars.begin_anew();
                    }
                    *columns = self.columns(&text);
                    return columns.is_some();
                }
                if new {
                    self.published = rows.lines - 1;
                    if rows.cut {
                        pushed.oversized += 1;
                    } else {
                        self.row(&text, known, pushed, out);
                    }
                }
                true
            }
        }
    }

    fn row(&mut self, row: &str, columns: &Columns, pushed: &mut Pushed, out: &mut Out<'_>) {
        let cells: Vec<String> = cells(row).take(MAX_COLUMNS).collect();
        let cell = |i: usize| cells.get(i).map_or("", |c| c.trim());
        let step = stepwatch_wire::num::parse(cell(columns.step)).and_then(number::whole);
        let Some(step) = step else {
            pushed.bad_records += 1;
            return;
        };
        let values: Vec<_> = columns
            .values
            .iter()
            .filter_map(|(i, id)| Some((*id, stepwatch_wire::num::parse(cell(*i))?)))
            .collect();
        pushed.unmatched += self.scalars.give(&Gathered { step, ts: None, values }, Printed::AsText, out);
    }
}

impl FileFormat for LightningCsv {
    fn name(&self) -> &'static str {
        "lightning-csv"
    }

    fn push(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Pushed {
        Whole::all(chunk, |whole| self.read(whole, out))
    }

    fn read(&mut self, whole: &Whole<'_>, out: &mut Out<'_>) -> io::Result<Pushed> {
        if whole.begins {
            self.going = Going::default();
        }
        let mut pushed = Pushed { more: true, ..Pushed::default() };
        let Some(found) = self.going.found else {
            let rows = &mut self.going.rows;
            let mut at = rows.offset;
            // They are only counted.
            rows.keeps = 0;
            let ended = whole.bytes(&mut at, |byte| {
                if rows.byte(byte) {
                    rows.next();
                }
                false
            })?;
            if ended {
                // What has no end yet is being written.
                let Some(found) = rows.lines.checked_sub(1) else { return Ok(Pushed::default()) };
                if found < self.published {
                    if !whole.at_rest {
                        return Ok(Pushed::default()); // caught while it is written anew
                    }
                    // Another run began in the same directory.
                    self.published = 0;
                    self.scalars.begin_anew();
                }
                self.going = Going { found: Some(found), ..Going::default() };
            }
            return Ok(pushed);
        };
        let Going { mut rows, mut columns, .. } = core::mem::take(&mut self.going);
        let (mut at, full) = (rows.offset, out.len() + TURN_EVENTS);
        let mut enough = false;
        let ended = whole.bytes(&mut at, |byte| {
            if rows.byte(byte) {
                enough = !self.line(&rows, &mut columns, &mut pushed, out) || rows.lines > found;
                rows.next();
            }
            enough || out.len() >= full
        })?;
        if ended || enough {
            (pushed.consumed, pushed.more) = (whole.len as usize, false);
        } else {
            rows.rewind();
            self.going = Going { rows, columns, found: Some(found) };
        }
        Ok(pushed)
    }

    /// Rows that were published.
    fn position(&self) -> u64 {
        self.published as u64
    }

    fn resume(&mut self, position: u64, last_step: Option<i64>) {
        self.published = usize::try_from(position).unwrap_or(0);
        if let Some(step) = last_step.filter(|_| position > 0) {
            self.scalars.axis.resume(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use stepwatch_wire::{Event, Kind};

    use super::*;
    use crate::{FileKind, FileReader};

    fn reader() -> FileReader {
        FileReader::new(Path::new("lightning_logs/version_0/metrics.csv"), b"epoch,step,train_loss\n")
            .unwrap()
    }

    fn push(r: &mut FileReader, text: &str) -> Vec<Event> {
        let mut out = Vec::new();
        r.push(text.as_bytes(), false, &mut out);
        out
    }

    fn steps(events: &[Event]) -> Vec<(Kind, i64, Option<f64>)> {
        events.iter().map(|e| (e.kind, e.step.unwrap(), e.m.get("loss"))).collect()
    }

    const SHORT: &str = "epoch,lr-AdamW,step,train_loss_step\n0,,9,2.5\n0,0.001,10,\n0,,19,nan\n";
    const LONG: &str = "epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss\n\
        0,,9,,2.5,\n0,0.001,10,,,\n0,,19,,nan,\n0,,19,,,3.5\n0,,19,2.25,,\n1,,29,,1.5,\n";

    #[test]
    fn rows_of_training_and_validation() {
        let mut r = reader();
        assert_eq!((r.kind(), r.name()), (FileKind::Whole, "lightning-csv"));
        let events = push(&mut r, LONG);
        assert_eq!(
            format!("{:?}", steps(&events)),
            "[(Step, 9, Some(2.5)), (Step, 10, None), (Step, 19, Some(NaN)), (Eval, 19, Some(3.5)), \
             (Step, 19, None), (Step, 29, Some(1.5))]"
        );
        assert_eq!(events[1].m.get("lr"), Some(0.001));
        assert_eq!(events[4].m.get("train_loss_epoch"), Some(2.25));
        assert_eq!(events[3].name.as_deref(), Some("val"));
    }

    #[test]
    fn a_new_header_publishes_nothing_twice() {
        let mut r = reader();
        assert_eq!(push(&mut r, SHORT).len(), 3);
        assert_eq!(push(&mut r, &LONG[..70]).len(), 0, "while it is written");
        assert_eq!(push(&mut r, LONG).len(), 3);
        let mut later = reader();
        later.resume(3, Some(19));
        assert_eq!(push(&mut later, LONG).len(), 3);
        let mut out = Vec::new();
        r.push(SHORT.as_bytes(), true, &mut out);
        assert_eq!(out.len(), 3, "another run");
    }

    #[test]
    fn a_header_that_is_repeated_begins_another_run() {
        let mut r = reader();
        let first = "step,loss\n1,2.5\n2,2.25\n";
        assert_eq!(push(&mut r, first).len(), 2);
        let both = format!("{first}step,lr,nll_loss\n1,0.1,2.5\n");
        let second = push(&mut r, &both);
        assert_eq!(steps(&second), [(Kind::Step, 1, Some(2.5))]);
        assert_eq!(second[0].m.get("lr"), Some(0.1));
        let more = push(&mut r, &format!("{both}2,0.1,2.25\n"));
        assert_eq!(steps(&more), [(Kind::Step, 2, Some(2.25))]);
    }

    #[test]
    fn a_long_table_is_published_part_by_part() {
        let rows: Vec<String> = (0..5000).map(|n| format!("{n},2.5\n")).collect();
        let text = format!("step,loss\n{}", rows.concat());
        let bytes = |buffer: &mut [u8], at: u64| {
            let rest = &text.as_bytes()[at as usize..];
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        };
        let (mut r, mut begins, mut published) = (reader(), true, Vec::new());
        loop {
            let mut out = Vec::new();
            let whole = Whole { read: &bytes, len: text.len() as u64, at_rest: false, begins };
            let more = r.read(&whole, &mut out).unwrap().more;
            assert!(out.len() <= TURN_EVENTS + 1, "{} events", out.len());
            published.extend(out.iter().map(|e| e.step.unwrap()));
            begins = false;
            if !more {
                break;
            }
        }
        assert_eq!((published, r.position()), ((0..5000).collect(), 5000));
    }

    #[test]
    fn a_row_without_an_end_waits() {
        let mut r = reader();
        assert_eq!(push(&mut r, "step,loss\n1,2.5\n2,1").len(), 1);
        assert_eq!(push(&mut r, "step,loss\n1,2.5\n2,1.5\n").len(), 1);
        assert_eq!(push(&mut r, "").len(), 0);
    }

    #[test]
    fn quotes() {
        let read = |row| cells(row).collect::<Vec<_>>();
        assert_eq!(read("a,\"b,c\",\"d\"\"e\",,"), ["a", "b,c", "d\"e", "", ""]);
        assert_eq!(read("\"open"), ["open"]);
        assert_eq!(read(""), [""]);
    }

    #[test]
    fn other_tables_are_others() {
        let name = |path: &str, head: &[u8]| FileReader::new(Path::new(path), head).map(|r| r.name());
        assert_eq!(name("metrics.csv", b"epoch,loss\n1,2\n"), Some("csv"));
        assert_eq!(name("metrics.csv", b"not a table\n"), None);
        assert_eq!(name("other.csv", b"step,loss\n1,2\n"), Some("csv"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(step|loss|[0-9.,\"\nénai-]){0,80}", at_rest: bool) {
            let mut out = Vec::new();
            reader().push(text.as_bytes(), at_rest, &mut out);
            reader().push(format!("step,loss\n{text}\n").as_bytes(), at_rest, &mut out);
        }
    }
}
