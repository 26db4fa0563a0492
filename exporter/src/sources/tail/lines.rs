//! Parses the content of a file into events with the times of their lines.

use stepwatch_formats::{FileReader, LogReader};
use stepwatch_wire::Event;

use super::framing::Take;
use crate::zone::Zone;

/// A stamp further in the future than this is of another time zone, or of a wrong clock.
const FUTURE_SECONDS: f64 = 60.0;
/// A row of a table that was just written and is further away than this is of another time zone.
/// The nearest to UTC is an hour away.
const OTHER_ZONE_SECONDS: f64 = 3000.0;

/// Reads the lines of one log.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) reader: LogReader,
    zone: Zone,
    /// That of the times of a table.
    table_zone: Zone,
}

/// One poll of a file: its events are added to `events`.
pub(super) struct Turn<'a> {
    pub(super) lines: &'a mut Lines,
    pub(super) events: &'a mut Vec<Event>,
    pub(super) unix: f64,
    /// When the file was last written to.
    pub(super) written: Option<f64>,
}

impl Lines {
    pub(super) fn new(reader: LogReader, unix: f64) -> Self {
        Self { reader, zone: Zone::of_host(unix), table_zone: Zone::UTC }
    }

    /// Gives the parser what was read before, as context.
    pub(super) fn remember(&mut self, context: &[String], last_step: Option<i64>, rested: bool) {
        let mut known = Vec::new();
        for line in context {
            self.reader.line(line, &mut known);
            known.clear();
        }
        if rested {
            self.reader.rest(&mut known);
        }
        if let Some(step) = last_step {
            self.reader.resume(step);
        }
    }

    /// Gives the rows of a table, whose times have no zone, the times of the zone that is known.
    /// The last row was just written, unless it is of the `backlog`, and so shows the zone.
    fn place(&mut self, rows: &mut [Event], unix: f64, backlog: bool) {
        let last = rows.iter().rev().find_map(|row| row.ts).filter(|_| !backlog);
        if let Some(stamp) = last {
            self.table_zone.observe(stamp, unix);
        }
        let offset = self.table_zone.offset();
        // A row that seems to be hours old is of an unknown zone: it arrives now.
        let is_known = last.is_none_or(|stamp| (stamp - offset - unix).abs() < OTHER_ZONE_SECONDS);
        for row in rows {
            row.ts = row.ts.filter(|_| is_known).map(|stamp| stamp - offset);
        }
    }

    /// The last row of a table was written when the file was.
    pub(super) fn find_table_zone(&mut self, reader: &FileReader, ending: &[String], written: Option<f64>) {
        let stamp = ending.iter().rev().find_map(|row| reader.local_stamp(row));
        if let (Some(stamp), Some(written)) = (stamp, written) {
            self.table_zone.observe(stamp, written);
        }
    }

    /// The last line of a file was written when the file was.
    pub(super) fn find_zone(&mut self, ending: &[String], written: Option<f64>) {
        let (Ok(mut scratch), mut unused) = (LogReader::new(None), Vec::new()) else { return };
        for line in ending {
            scratch.line(line, &mut unused);
            unused.clear();
        }
        if let (Some(stamp), Some(written)) = (scratch.local_stamp(), written) {
            self.zone.observe(stamp, written);
        }
    }
}

impl Turn<'_> {
    /// Nothing was appended for a while: what is gathered of a record of several lines is taken as
    /// it is.
    pub(super) fn rest(&mut self) {
        let first = self.events.len();
        self.lines.reader.rest(self.events);
        // It ended with the last write to the file, whenever that was.
        self.time(first, true);
    }

    /// Sets the times of the events from `first` on. `backlog`: they were there before the exporter
    /// started.
    fn time(&mut self, first: usize, backlog: bool) {
        // Of what was there before us and has no stamp, only the last write to the file bounds the
        // time.
        let arrival = match self.written {
            Some(written) if backlog => written.min(self.unix),
            _ => self.unix,
        };
        for event in &mut self.events[first..] {
            let ts = event.ts.filter(|ts| *ts <= self.unix + FUTURE_SECONDS);
            event.ts = Some(ts.unwrap_or(arrival));
        }
    }
}

impl Take for Turn<'_> {
    fn line(&mut self, text: &str, backlog: bool) {
        let Lines { reader, zone, .. } = &mut *self.lines;
        let (stamp, first) = (reader.local_stamp(), self.events.len());
        reader.set_utc_offset(zone.offset());
        reader.line(text, self.events);
        // The stamp of a line that was just written shows its zone.
        let fresh = reader.local_stamp().filter(|s| Some(*s) != stamp && !backlog);
        if let Some(stamp) = fresh {
            let wrong = stamp - zone.offset();
            if zone.observe(stamp, self.unix) != 0.0 {
                let right = stamp - zone.offset();
                let events = self.events[first..].iter_mut();
                events.filter(|e| e.ts == Some(wrong)).for_each(|e| e.ts = Some(right));
            }
        }
        self.time(first, backlog);
    }

    fn events(&mut self, mut events: Vec<Event>, backlog: bool, local: bool) {
        if local {
            self.lines.place(&mut events, self.unix, backlog);
        }
        let first = self.events.len();
        self.events.append(&mut events);
        self.time(first, backlog);
    }
}
