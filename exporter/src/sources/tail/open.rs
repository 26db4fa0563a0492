//! One open file, and how far it is read.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use stepwatch_formats::{FileKind, FileReader, MAX_PENDING_BYTES, kind_of};

use super::framing::{Counts, Cursor, Lines, Records, Take};
use super::state::{Fingerprint, Position};
use crate::reach::Reach;

/// The most bytes read from one file before other files are read and its events are published.
pub(super) const BUDGET_BYTES: usize = 64 * 1024;
/// The number of first bytes by which a file is recognised.
pub(super) const HEAD_BYTES: usize = 256;
/// The most bytes of a table's header. Every table in a directory is read at each search.
const HEADER_BYTES: usize = 4096;
/// The least number of zeros that end a line. Fewer within one come from a writer that died.
const MIN_HOLE: usize = 4096;
/// The most zeros in a row that are read if the file system does not report holes.
pub(super) const MAX_ZEROS: u64 = 16 << 20;
/// How long nothing must be appended before an incomplete step of several records is emitted.
pub(super) const REST: Duration = Duration::from_secs(1);

/// Where to begin in a file that was never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    Start,
    End,
}

/// How a file is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) begin: Begin,
    /// Whether records are detected; otherwise all is lines, as configured.
    pub(super) recognise: bool,
}

/// An open file and how far it is read.
#[derive(Debug)]
pub(super) struct Open {
    file: File,
    ino: u64,
    dev: u64,
    pub(super) uid: u32,
    /// The first bytes, at most [`HEAD_BYTES`].
    head: Vec<u8>,
    at: Cursor,
    /// The number of zeros before the read position.
    zeros: u64,
    /// When it was last seen to grow.
    pub(super) grew: Instant,
    /// The stamp of the file when it was last read to its end.
    seen: Option<Stamp>,
    content: Content,
}

/// The modification and change times of a file, each in seconds and nanoseconds.
type Stamp = [i64; 4];

#[derive(Debug)]
enum Content {
    Lines(Lines),
    Records(Box<Records>),
}

impl Open {
    pub(super) fn new(path: &Path, reach: &Reach, how: How, now: Instant) -> io::Result<Self> {
        let file = reach.open(path)?;
        let meta = file.metadata()?;
        let (mut head, mut buffer) = (Vec::new(), [0; HEAD_BYTES]);
        head.extend_from_slice(read_head(&file, &mut buffer));
        let records = how.recognise && kind_of(path, &head) != FileKind::Lines;
        let reader = records.then(|| FileReader::new(path, &beginning(&file))).flatten();
        let mut this = Self {
            ino: meta.ino(),
            dev: meta.dev(),
            uid: meta.uid(),
            head,
            at: Cursor { offset: 0, backlog_end: meta.len() },
            zeros: 0,
            grew: now,
            seen: None,
            content: reader.map_or_else(
                || Content::Lines(Lines::default()),
                |reader| Content::Records(Box::new(Records::new(path.to_owned(), reader))),
            ),
            file,
        };
        if how.begin == Begin::End {
            this.begin_at_end(meta.len());
        }
        Ok(this)
    }

    fn begin_at_end(&mut self, len: u64) {
        match &mut self.content {
            Content::Lines(lines) => {
                self.at.offset = len;
                // The end may be inside a line, whose rest has no meaning alone.
                let mut last = [0];
                let read = len.checked_sub(1).and_then(|at| self.file.read_at(&mut last, at).ok());
                lines.skipping = read == Some(1) && !matches!(last[0], b'\n' | b'\r');
            }
            // A record's position is known only from the previous one, so the file is read from its
            // start once it grows.
            Content::Records(records) => records.muted_to = len,
        }
    }

    /// Continues at `position` if this is the file that was read before.
    pub(super) fn resumed(mut self, position: &Position, last_step: Option<i64>) -> Option<Self> {
        let same = self.ino == position.ino
            && self.at.backlog_end >= position.offset
            && Fingerprint::from_bytes(self.head.get(..position.head.len)?) == position.head;
        self.at.offset = position.offset;
        match &mut self.content {
            Content::Lines(lines) => lines.skipping = position.skipping,
            Content::Records(records) => records.reader.resume(position.offset, last_step),
        }
        same.then_some(self)
    }

    /// The position for a restart, once all emitted events are published.
    pub(super) fn position(&self) -> Position {
        let (offset, skipping) = match &self.content {
            Content::Lines(lines) => (self.at.offset - lines.partial.len() as u64, lines.skipping),
            Content::Records(records) => (records.reader.position(), false),
        };
        Position { ino: self.ino, dev: self.dev, head: Fingerprint::from_bytes(&self.head), offset, skipping }
    }

    /// The device and inode, which identify the file on this host.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the file has content after the read position.
    pub(super) fn has_grown(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() != self.at.offset)
    }

    /// The reader of its records; `None` for a file of lines.
    pub(super) fn records(&self) -> Option<&FileReader> {
        match &self.content {
            Content::Records(records) => Some(&records.reader),
            Content::Lines(_) => None,
        }
    }

    /// The complete lines in the last `limit` bytes before the read position.
    pub(super) fn context(&self, limit: usize) -> Vec<String> {
        match &self.content {
            Content::Lines(lines) => self.lines_before(self.at.offset - lines.partial.len() as u64, limit),
            Content::Records(_) => Vec::new(),
        }
    }

    /// The last lines of the file, as it was when it was opened or as it is now.
    pub(super) fn ending(&self, limit: usize, as_it_is: bool) -> Vec<String> {
        let end = if as_it_is { self.file.metadata().map_or(0, |m| m.len()) } else { self.at.backlog_end };
        match &self.content {
            Content::Lines(_) => self.lines_before(end, limit),
            Content::Records(_) => Vec::new(),
        }
    }

    /// The last rows of the file as it was when it was opened, if it is a table.
    pub(super) fn ending_rows(&self, limit: usize) -> Vec<String> {
        self.lines_before(self.at.backlog_end, limit)
    }

    fn lines_before(&self, end: u64, limit: usize) -> Vec<String> {
        let from = end.saturating_sub(limit as u64);
        let mut buffer = vec![0; (end - from) as usize];
        let n = self.file.read_at(&mut buffer, from).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..n]);
        // The first piece may be only the end of a line.
        text.split(['\n', '\r']).skip(usize::from(from > 0)).map(str::to_owned).collect()
    }

    /// Whether the file was written since the last call. A truncated log may have grown to its old
    /// length.
    fn was_written(&mut self, meta: &Metadata) -> bool {
        let stamp = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
        self.seen.replace(stamp) != Some(stamp)
    }

    /// Whether the file became shorter, or was truncated and has grown again.
    fn was_cut(&mut self, len: u64) -> bool {
        let mut buffer = [0; HEAD_BYTES];
        let head = read_head(&self.file, &mut buffer);
        let same = head.starts_with(&self.head);
        if !same || head.len() > self.head.len() {
            self.head.clear();
            self.head.extend_from_slice(head);
        }
        len < self.at.offset || !same
    }

    /// Reads up to the budget. Returns true if there is more.
    pub(super) fn read(
        &mut self,
        counts: &mut Counts,
        now: Instant,
        buffer: &mut Vec<u8>,
        out: &mut dyn Take,
    ) -> io::Result<bool> {
        let meta = self.file.metadata()?;
        let len = meta.len();
        if len == self.at.offset && !self.was_written(&meta) {
            self.rest(counts, now, out);
            return Ok(false);
        }
        if let Content::Records(records) = &self.content {
            if records.stopped || (self.at.offset == 0 && len == records.muted_to) {
                return Ok(false);
            }
        }
        let waits = self.waits_for().is_some_and(|end| len < end);
        if waits && !self.was_written(&meta) {
            self.rest(counts, now, out);
            return Ok(false);
        }
        if self.was_cut(len) {
            counts.truncations += 1;
            self.begin_anew();
        } else if waits {
            self.grew = now;
            return Ok(false);
        } else if len == self.at.offset {
            self.rest(counts, now, out);
            return Ok(false);
        }
        let budget = match self.waits_for() {
            Some(end) => self.leave_unwanted(end, counts, out),
            None => BUDGET_BYTES.min((self.wanted_from().unwrap_or(len) - self.at.offset) as usize),
        };
        if buffer.len() < budget {
            buffer.resize(budget, 0);
        }
        let n = self.file.read_at(&mut buffer[..budget], self.at.offset)?;
        if n > 0 {
            self.grew = now;
        }
        let chunk = &buffer[..n];
        let nothing = (n >= MIN_HOLE || self.is_between_lines()) && chunk.iter().all(|b| *b == 0);
        self.zeros = if nothing { self.zeros + n as u64 } else { 0 };
        match &mut self.content {
            Content::Lines(lines) if nothing => {
                // No line continues after a hole.
                lines.end_line(self.at.in_backlog(), out);
                let next = self.after_zeros(self.at.offset + n as u64, len);
                counts.skipped_bytes += next - self.at.offset;
                self.at.offset = next;
                return Ok(next < len && n > 0);
            }
            Content::Records(records) if self.zeros >= MAX_ZEROS => {
                tracing::warn!(
                    offset = self.at.offset,
                    "zeros in the place of records: the rest of the file is not read"
                );
                records.give_up(counts);
                counts.skipped_bytes += len - self.at.offset;
                return Ok(false);
            }
            Content::Lines(lines) => lines.split(chunk, &mut self.at, counts, out),
            Content::Records(_) => return Ok(self.records_in(chunk, &meta, counts, out)),
        }
        Ok(self.at.offset < len && n > 0)
    }

    /// The offset where wanted content begins, if the position is before it.
    fn wanted_from(&self) -> Option<u64> {
        match &self.content {
            Content::Records(records) => Some(records.muted_to).filter(|from| self.at.offset < *from),
            Content::Lines(_) => None,
        }
    }

    /// The length that the file must have before it is read further.
    fn waits_for(&self) -> Option<u64> {
        match &self.content {
            Content::Records(records) => Some(records.needed).filter(|end| *end > self.at.offset),
            Content::Lines(_) => None,
        }
    }

    /// How many bytes to read of a record that was left in the file. If it crosses the end of
    /// unwanted content, the records gathered before are discarded first.
    fn leave_unwanted(&mut self, end: u64, counts: &mut Counts, out: &mut dyn Take) -> usize {
        if let Content::Records(records) = &mut self.content {
            if self.at.offset <= records.muted_to && records.muted_to < end {
                records.push(true, self.at, counts, out);
            }
        }
        MAX_PENDING_BYTES.min((end - self.at.offset) as usize)
    }

    /// Parses a chunk of a file of records. Returns true if there is more.
    fn records_in(&mut self, chunk: &[u8], meta: &Metadata, counts: &mut Counts, out: &mut dyn Take) -> bool {
        let Content::Records(records) = &mut self.content else { return false };
        self.at.offset += chunk.len() as u64;
        records.rested = false;
        records.pending.extend_from_slice(chunk);
        // Records gathered from unwanted content must not be emitted with wanted ones.
        let last_unwanted = self.at.offset == records.muted_to;
        records.push(last_unwanted, self.at, counts, out);
        let left = records.put_back(self.at, counts);
        self.at.offset -= left;
        if left > 0 {
            // Later writes may complete the record.
            self.was_written(meta);
        }
        let complete = self.waits_for().is_none_or(|end| end <= meta.len());
        complete && self.at.offset < meta.len() && !chunk.is_empty()
    }

    /// The memory of an incomplete line or record.
    pub(super) fn pending_bytes(&self) -> usize {
        match &self.content {
            Content::Lines(lines) => lines.partial.capacity(),
            Content::Records(records) => records.pending.capacity() + records.reader.pending_bytes(),
        }
    }

    /// Discards the incomplete line or record, because there is no room for it.
    pub(super) fn give_up_pending(&mut self) {
        match &mut self.content {
            Content::Lines(lines) => lines.give_up(),
            Content::Records(records) => records.reader.give_up_pending(),
        }
    }

    /// Reads the rest of a record that was left in the file, because it will not be completed. A
    /// long one is useless without its end.
    fn take_back(&mut self) {
        let Some(end) = self.waits_for().filter(|end| end - self.at.offset <= BUDGET_BYTES as u64) else {
            return;
        };
        let mut rest = vec![0; (end - self.at.offset) as usize];
        let n = self.file.read_at(&mut rest, self.at.offset).unwrap_or(0);
        rest.truncate(n);
        if let Content::Records(records) = &mut self.content {
            records.pending = rest;
            self.at.offset += n as u64;
        }
    }

    /// Emits incomplete records if nothing was appended for [`REST`].
    fn rest(&mut self, counts: &mut Counts, now: Instant, out: &mut dyn Take) {
        let Content::Records(records) = &mut self.content else { return };
        if !records.rested && !records.stopped && now.duration_since(self.grew) >= REST {
            records.rested = true;
            self.end(counts, out);
        }
    }

    fn begin_anew(&mut self) {
        self.at = Cursor { offset: 0, backlog_end: 0 };
        match &mut self.content {
            Content::Lines(lines) => *lines = Lines::default(),
            Content::Records(records) => {
                let path = core::mem::take(&mut records.path);
                if let Some(reader) = FileReader::new(&path, &beginning(&self.file)) {
                    **records = Records::new(path, reader);
                }
            }
        }
    }

    /// Emits the incomplete line or record, because it will not be completed.
    pub(super) fn end(&mut self, counts: &mut Counts, out: &mut dyn Take) {
        self.take_back();
        match &mut self.content {
            Content::Lines(lines) => lines.end_line(self.at.in_backlog(), out),
            Content::Records(records) => {
                records.push(true, self.at, counts, out);
                self.at.offset -= records.put_back(self.at, counts);
            }
        }
    }

    fn is_between_lines(&self) -> bool {
        matches!(&self.content, Content::Lines(lines) if lines.partial.is_empty() && !lines.skipping)
    }

    /// The offset after zeros: that of the next byte that was written. After `copytruncate`, a
    /// writer that does not append leaves a hole of the old length; and any user can make one of
    /// terabytes. If the file system does not report holes, zeros are read up to [`MAX_ZEROS`];
    /// then only the end of the file counts.
    fn after_zeros(&self, offset: u64, len: u64) -> u64 {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) if data > offset || self.zeros < MAX_ZEROS => data.min(len),
            Err(rustix::io::Errno::NXIO) => len,
            Err(_) if self.zeros < MAX_ZEROS => offset,
            Ok(_) | Err(_) => offset.max(len.saturating_sub(BUDGET_BYTES as u64)),
        }
    }
}

/// The first bytes of a file of records, by which its format is detected.
fn beginning(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; stepwatch_formats::HEAD_BYTES];
    let mut len = 0;
    while let Ok(n @ 1..) = file.read_at(&mut bytes[len..], len as u64) {
        len += n;
    }
    bytes.truncate(len);
    bytes
}

/// The first bytes of a file; empty if it does not exist. A JSON file is recognised by a key, which
/// may come after many others, and a table by its header.
pub(super) fn head(path: &Path, reach: &Reach) -> Vec<u8> {
    let Ok(file) = reach.open(path) else { return Vec::new() };
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension == Some("json") {
        return beginning(&file);
    }
    if extension == Some("csv") {
        let mut buffer = vec![0; HEADER_BYTES];
        let n = file.read_at(&mut buffer, 0).unwrap_or(0);
        buffer.truncate(n);
        return buffer;
    }
    read_head(&file, &mut [0; HEAD_BYTES]).to_vec()
}

fn read_head<'a>(file: &File, buffer: &'a mut [u8; HEAD_BYTES]) -> &'a [u8] {
    let n = file.read_at(buffer, 0).unwrap_or(0);
    &buffer[..n]
}

pub(super) fn modified(meta: &Metadata) -> Option<f64> {
    since_epoch(meta.modified().ok()?)
}

pub(super) fn since_epoch(at: SystemTime) -> Option<f64> {
    Some(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64())
}
