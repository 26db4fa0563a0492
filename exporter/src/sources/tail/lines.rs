//! Parses the content of a file into events with the times of their lines.

use stepwatch_formats::{FileReader, LogReader};
use stepwatch_wire::Event;

use super::framing::Take;
use crate::zone::Zone;

/// Seconds in the future above which a time is from another time zone, or from a wrong clock.
const FUTURE_SECONDS: f64 = 60.0;
/// Seconds by which the time of a just written row must differ to be from another time zone. The
/// zones next to UTC differ by an hour.
const OTHER_ZONE_SECONDS: f64 = 3000.0;

/// Reads the lines of one log.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) reader: LogReader,
    zone: Zone,
    /// The time zone of a table's rows.
    table_zone: Zone,
}

/// One poll of a file, which adds its events to `events`.
pub(super) struct Turn<'a> {
    pub(super) lines: &'a mut Lines,
    pub(super) events: &'a mut Vec<Event>,
    pub(super) unix: f64,
    /// The Unix time when the file was last written.
    pub(super) written: Option<f64>,
}

impl Lines {
    pub(super) fn new(reader: LogReader, unix: f64) -> Self {
        Self { reader, zone: Zone::of_host(unix), table_zone: Zone::UTC }
    }

    /// Gives the parser the lines that were read before, as context.
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

    /// Converts the times of a table's rows, which have no zone. Unless it is `backlog`, the last
    /// row was just written, so it shows the zone.
    fn place(&mut self, rows: &mut [Event], unix: f64, backlog: bool) {
        let last = rows.iter().rev().find_map(|row| row.ts).filter(|_| !backlog);
        if let Some(stamp) = last {
            self.table_zone.observe(stamp, unix);
        }
        let offset = self.table_zone.offset();
        // A row that seems to be hours old has an unknown zone, so it gets the time of its arrival.
        let is_known = last.is_none_or(|stamp| (stamp - offset - unix).abs() < OTHER_ZONE_SECONDS);
        for row in rows {
            row.ts = row.ts.filter(|_| is_known).map(|stamp| stamp - offset);
        }
    }

    /// Learns the zone of a table: its last row was written when the file was.
    pub(super) fn find_table_zone(&mut self, reader: &FileReader, ending: &[String], written: Option<f64>) {
        let stamp = ending.iter().rev().find_map(|row| reader.local_stamp(row));
        if let (Some(stamp), Some(written)) = (stamp, written) {
            self.table_zone.observe(stamp, written);
        }
    }

    /// Learns the zone of a log: its last line was written when the file was.
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
    /// Emits a record of several lines that is incomplete, because nothing was appended for a
    /// while.
    pub(super) fn rest(&mut self) {
        let first = self.events.len();
        self.lines.reader.rest(self.events);
        // The record ended with the last write to the file.
        self.time(first, true);
    }

    /// Sets the times of the events from `first` on. `backlog` means that they existed before the
    /// exporter started.
    fn time(&mut self, first: usize, backlog: bool) {
        // For older lines without a time, only the last write to the file limits it.
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
        // A line was just written, so its stamp shows its time zone.
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
