//! Splits the bytes of a file into lines or records. An incomplete piece waits for its end.

use std::borrow::Cow;
use std::path::PathBuf;

use stepwatch_formats::{FileReader, KEPT_BYTES, MAX_PENDING_BYTES};
use stepwatch_wire::Event;

/// Bytes of a line that are kept; the rest of it is dropped and counted.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;

/// Takes the parsed content of a file. `backlog`: it was in the file before the exporter started.
/// `local`: the times of the events have no zone and are given as if they were UTC.
pub(super) trait Take {
    fn line(&mut self, text: &str, backlog: bool);
    fn events(&mut self, events: Vec<Event>, backlog: bool, local: bool);
}

/// What was lost, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lines longer than [`MAX_LINE_BYTES`].
    pub(super) cut_lines: u64,
    /// Times that a file became shorter.
    pub(super) truncations: u64,
    /// Files given up because too many had lost their name.
    pub(super) abandoned: u64,
    /// Records whose checksum or structure is wrong.
    pub(super) bad_records: u64,
    /// Records and files that are too large to be read.
    pub(super) oversized: u64,
    /// Files that cannot be read beyond a damaged place.
    pub(super) damaged: u64,
    /// Records without training data.
    pub(super) unmatched: u64,
    /// Bytes that were never written.
    pub(super) skipped_bytes: u64,
}

/// How far a file is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    /// The next byte to read.
    pub(super) offset: u64,
    /// Length of the file when it was opened.
    pub(super) backlog_end: u64,
}

impl Cursor {
    /// What ends here was in the file before we were.
    pub(super) fn in_backlog(self) -> bool {
        self.offset <= self.backlog_end
    }
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Read, but not yet ended by a newline.
    pub(super) partial: Vec<u8>,
    /// Inside a line that was too long: everything to its end is dropped.
    pub(super) skipping: bool,
}

#[derive(Debug)]
pub(super) struct Records {
    pub(super) path: PathBuf,
    pub(super) reader: FileReader,
    /// Read, but not yet a whole record.
    pub(super) pending: Vec<u8>,
    /// Where the file must end before more of it can be parsed; what is there is read again then.
    pub(super) needed: u64,
    /// Everything before this was there before us and is not wanted.
    pub(super) muted_to: u64,
    /// What was being gathered when the file came to rest was given out.
    pub(super) rested: bool,
    pub(super) stopped: bool,
}

impl Lines {
    pub(super) fn split(
        &mut self,
        mut chunk: &[u8],
        at: &mut Cursor,
        counts: &mut Counts,
        out: &mut dyn Take,
    ) {
        while let Some(end) = memchr::memchr2(b'\n', b'\r', chunk) {
            at.offset += end as u64 + 1;
            let backlog = at.in_backlog();
            if self.partial.is_empty() && !self.skipping && end <= MAX_LINE_BYTES {
                give(&chunk[..end], backlog, out);
            } else {
                self.add(&chunk[..end], counts);
                self.end_line(backlog, out);
            }
            chunk = &chunk[end + 1..];
        }
        self.add(chunk, counts);
        at.offset += chunk.len() as u64;
    }

    /// Adds to the line being read, as far as a line may go.
    fn add(&mut self, bytes: &[u8], counts: &mut Counts) {
        if self.skipping {
            return;
        }
        let room = MAX_LINE_BYTES - self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            self.skipping = true;
            counts.cut_lines += 1;
        }
    }

    /// Keeps the beginning of the line being read, and drops the rest of it.
    pub(super) fn give_up(&mut self) {
        if self.partial.len() > KEPT_BYTES {
            self.partial.truncate(KEPT_BYTES);
            self.skipping = true;
        }
        self.partial.shrink_to(KEPT_BYTES);
    }

    /// The line being read is complete. The beginning of one that was too long is still used.
    pub(super) fn end_line(&mut self, backlog: bool, out: &mut dyn Take) {
        self.skipping = false;
        let bytes = core::mem::take(&mut self.partial);
        give(&bytes, backlog, out);
    }
}

fn give(bytes: &[u8], backlog: bool, out: &mut dyn Take) {
    let text = core::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    if !text.is_empty() {
        out.line(text, backlog);
    }
}

impl Records {
    pub(super) fn new(path: PathBuf, reader: FileReader) -> Self {
        Self { path, reader, pending: Vec::new(), needed: 0, muted_to: 0, rested: true, stopped: false }
    }

    /// Reads no more of it.
    pub(super) fn give_up(&mut self, counts: &mut Counts) {
        self.stopped = true;
        counts.damaged += 1;
    }

    /// Leaves an unfinished record in the file, unless it is small: it is read again when there is
    /// as much of it as is needed. Returns how many bytes are left.
    pub(super) fn put_back(&mut self, at: Cursor, counts: &mut Counts) -> u64 {
        self.needed = 0;
        let left = self.pending.len() as u64;
        if self.stopped || self.pending.len() <= KEPT_BYTES {
            self.pending.shrink_to(KEPT_BYTES);
            return 0;
        }
        let needs = self.reader.needs(&self.pending).max(left + 1);
        self.pending = Vec::new();
        if needs > MAX_PENDING_BYTES as u64 {
            // Nothing that is worth so much memory is so long.
            self.give_up(counts);
            return 0;
        }
        self.needed = at.offset - left + needs;
        left
    }

    /// Offers everything that is pending, which ends at `at`.
    pub(super) fn push(&mut self, at_rest: bool, at: Cursor, counts: &mut Counts, out: &mut dyn Take) {
        let mut events = Vec::new();
        let mut done = 0;
        loop {
            let pushed = self.reader.push(&self.pending[done..], at_rest, &mut events);
            done += pushed.consumed;
            counts.bad_records += pushed.bad_records;
            counts.unmatched += pushed.unmatched;
            counts.oversized += pushed.oversized;
            if let Some(why) = pushed.stop {
                tracing::warn!(why, offset = at.offset, "a tailed file cannot be read any further");
                self.give_up(counts);
            }
            if pushed.consumed == 0 || self.stopped || done == self.pending.len() {
                break;
            }
        }
        self.pending.drain(..done);
        if self.pending.len() > MAX_PENDING_BYTES {
            // The reader promised otherwise; memory is worth more than the rest of the file.
            self.give_up(counts);
        }
        if self.stopped {
            self.pending = Vec::new();
        }
        if at.offset > self.muted_to {
            let local = self.reader.has_local_times();
            out.events(events, at.in_backlog(), local);
        }
    }
}
