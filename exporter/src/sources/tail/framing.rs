//! Splits the bytes of a file into lines or records. An incomplete piece waits for its end.

use std::borrow::Cow;
use std::path::PathBuf;

use stepwatch_formats::{FileReader, KEPT_BYTES, MAX_PENDING_BYTES};
use stepwatch_wire::Event;

/// The most bytes kept of a line; the rest of it is dropped and counted.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;

/// Receives the parsed content of a file. `backlog` means that it existed before the exporter
/// started, `local` that the times of the events have no zone and are given as if in UTC.
pub(super) trait Take {
    fn line(&mut self, text: &str, backlog: bool);
    fn events(&mut self, events: Vec<Event>, backlog: bool, local: bool);
}

/// Counts of lost content, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lines longer than [`MAX_LINE_BYTES`].
    pub(super) cut_lines: u64,
    /// How often a file became shorter.
    pub(super) truncations: u64,
    /// Renamed files that were abandoned because there were too many.
    pub(super) abandoned: u64,
    /// Records whose checksum or structure is wrong.
    pub(super) bad_records: u64,
    /// Records and files that are too large to be read.
    pub(super) oversized: u64,
    /// Files that cannot be read after a damaged record.
    pub(super) damaged: u64,
    /// Records without training data.
    pub(super) unmatched: u64,
    /// Bytes of holes that were skipped.
    pub(super) skipped_bytes: u64,
}

/// The read position of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    /// The next byte to read.
    pub(super) offset: u64,
    /// The length of the file when it was opened.
    pub(super) backlog_end: u64,
}

impl Cursor {
    /// Whether a line that ends here existed before the file was opened.
    pub(super) fn in_backlog(self) -> bool {
        self.offset <= self.backlog_end
    }
}

#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of a line whose newline is not read yet.
    pub(super) partial: Vec<u8>,
    /// Whether the current line is too long, so that its rest is dropped.
    pub(super) skipping: bool,
}

#[derive(Debug)]
pub(super) struct Records {
    pub(super) path: PathBuf,
    pub(super) reader: FileReader,
    /// The beginning of a record that is not yet complete.
    pub(super) pending: Vec<u8>,
    /// The length that the file must have before more can be parsed. The record is read again then.
    pub(super) needed: u64,
    /// Content before this offset existed at the start and is not published.
    pub(super) muted_to: u64,
    /// Whether gathered records were published when the file came to rest.
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

    /// Appends to the current line, up to its limit.
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

    /// Keeps only the beginning of the current line, to free memory.
    pub(super) fn give_up(&mut self) {
        if self.partial.len() > KEPT_BYTES {
            self.partial.truncate(KEPT_BYTES);
            self.skipping = true;
        }
        self.partial.shrink_to(KEPT_BYTES);
    }

    /// Emits the current line, or the beginning of one that was too long.
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

    /// Stops reading the file, because it is damaged.
    pub(super) fn give_up(&mut self, counts: &mut Counts) {
        self.stopped = true;
        counts.damaged += 1;
    }

    /// Drops an unfinished record from memory unless it is small. It is read again when enough of
    /// it exists. Returns how many bytes have to be read again.
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
            // A record that needs more memory than the limit counts as damage.
            self.give_up(counts);
            return 0;
        }
        self.needed = at.offset - left + needs;
        left
    }

    /// Gives all pending bytes, which end at `at`, to the reader.
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
            // The reader broke its promise, and memory matters more than the rest of the file.
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
