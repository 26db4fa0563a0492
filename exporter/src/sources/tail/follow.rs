//! Complete lines out of a file that grows, is cut, renamed, deleted and made again.
//!
//! The path is only where a file is found; what is followed is the file itself. A renamed file is read to its end, and on for
//! [`DRAIN`] after that, because its writer may keep it open; the file that took its name is read from its beginning. Whether a
//! file is the same as before is told by its inode and by its first bytes, since inode numbers are used again and
//! `copytruncate` keeps them. It polls: inotify is silent on NFS and Lustre.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::state::{Fingerprint, Position};

/// Bytes of a line that are kept; the rest of it is dropped and counted.
pub(super) const MAX_LINE_BYTES: usize = 64 * 1024;
/// Bytes read from one file before the others have their turn.
pub(super) const BUDGET_BYTES: usize = 1024 * 1024;
/// How long a file that lost its name is still watched for more. A trainer does not open its log again when somebody renames it,
/// and a step can take minutes; an open file costs nothing.
pub(super) const DRAIN: Duration = Duration::from_mins(15);
/// Files without a name that are watched at once.
const MAX_RETIRED: usize = 4;
/// First bytes of a file by which it is recognised.
pub(super) const HEAD_BYTES: usize = 256;

/// Follows one path.
#[derive(Debug)]
pub(super) struct Follower {
    path: PathBuf,
    current: Option<Open>,
    retired: VecDeque<Open>,
    /// Files that were read and are not found for now: of an earlier life, or on a file system that does not answer.
    lost: Vec<Position>,
    /// Where to begin in the file that is there at the first look. What comes later is read from its start.
    begin: Begin,
    pub(super) counts: Counts,
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
}

/// A line as it stood in the file.
#[derive(Debug)]
pub(super) struct RawLine {
    pub(super) text: String,
    /// It was in the file before we were.
    pub(super) backlog: bool,
}

/// An open file and how far it is read.
#[derive(Debug)]
struct Open {
    file: File,
    ino: u64,
    /// The first bytes, at most [`HEAD_BYTES`].
    head: Vec<u8>,
    /// The next byte to read.
    offset: u64,
    /// Read, but not yet ended by a newline.
    partial: Vec<u8>,
    /// Inside a line that was too long: everything to its end is dropped.
    skipping: bool,
    /// Length of the file when it was opened.
    backlog_end: u64,
    grew: Instant,
}

/// Where to begin in a file that was never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    Start,
    End,
}

impl Follower {
    pub(super) fn new(path: PathBuf, begin: Begin) -> Self {
        Self {
            path,
            current: None,
            retired: VecDeque::new(),
            lost: Vec::new(),
            begin,
            counts: Counts::default(),
        }
    }

    /// Looks for the file for the first time.
    pub(super) fn open(&mut self, now: Instant) {
        // A failure shows again, and is told, at the next poll.
        let _ = self.look(now);
    }

    /// Goes on where an earlier life stopped: finds each saved file under its old name or under a new one beside it.
    pub(super) fn resume(&mut self, saved: Vec<Position>, now: Instant) {
        self.lost = saved;
        // What is under the name and was not read before came while nobody looked: all of it is new.
        self.begin = Begin::Start;
        self.open(now);
        self.find_renamed(now);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// True if nothing is left to read under this name or an old one.
    pub(super) fn is_gone(&self) -> bool {
        self.current.is_none() && self.retired.is_empty() && self.lost.is_empty()
    }

    /// Files read now, the named one last; what an earlier call of [`Self::poll`] returned is before these positions.
    pub(super) fn positions(&self) -> Vec<Position> {
        let open = self.retired.iter().chain(&self.current).map(Open::position);
        self.lost.iter().cloned().chain(open).collect()
    }

    /// When the named file was last written to, in Unix seconds.
    pub(super) fn modified(&self) -> Option<f64> {
        modified(&self.current.as_ref()?.file.metadata().ok()?)
    }

    /// The last lines before where reading goes on: what a parser must have seen to go on.
    pub(super) fn context(&self, limit: usize) -> Vec<String> {
        self.current
            .as_ref()
            .map_or_else(Vec::new, |o| o.lines_before(o.offset - o.partial.len() as u64, limit))
    }

    /// The last lines of the file.
    pub(super) fn ending(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.lines_before(o.backlog_end, limit))
    }

    /// Reads what is new, old files first. True if there was more than fits into one turn.
    pub(super) fn poll(&mut self, now: Instant, lines: &mut Vec<RawLine>) -> io::Result<bool> {
        let mut more = false;
        let counts = &mut self.counts;
        self.retired.retain_mut(|open| {
            let Ok(unfinished) = open.read(counts, now, lines) else { return false };
            more |= unfinished;
            let drained = now.duration_since(open.grew) >= DRAIN;
            if drained {
                open.end_line(lines);
            }
            !drained
        });
        if let Some(open) = &mut self.current {
            match open.read(&mut self.counts, now, lines) {
                Ok(unfinished) => more |= unfinished,
                Err(err) => {
                    // A stale handle of NFS: what is under the name decides, when it can be seen again.
                    self.lost.push(open.position());
                    self.current = None;
                    return Err(err);
                }
            }
            if more {
                return Ok(true); // finish it before looking whether it still has its name
            }
        }
        Ok(self.look(now)? || more)
    }

    /// Looks at what is under the name. True if that is another file than before.
    fn look(&mut self, now: Instant) -> io::Result<bool> {
        let ino = match std::fs::metadata(&self.path) {
            Ok(meta) => Some(meta.ino()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        let begin = std::mem::replace(&mut self.begin, Begin::Start);
        if ino.is_some() && ino == self.current.as_ref().map(|o| o.ino) {
            return Ok(false);
        }
        if let Some(open) = self.current.take() {
            self.retire(open, now);
        }
        if ino.is_none() {
            return Ok(false);
        }
        let known =
            self.lost.iter().enumerate().find_map(|(i, p)| Some((i, Open::resume(&self.path, p, now)?)));
        if let Some((i, open)) = known {
            self.lost.remove(i);
            self.current = Some(open);
        } else {
            self.current = Some(Open::new(&self.path, begin, now)?);
        }
        self.find_renamed(now);
        self.lost.clear(); // the directory answers, and they are not in it
        Ok(true)
    }

    /// Looks for lost files under other names in the same directory.
    fn find_renamed(&mut self, now: Instant) {
        for position in std::mem::take(&mut self.lost) {
            match renamed(&self.path, &position, now) {
                Some(open) => self.retire(open, now),
                None => self.lost.push(position),
            }
        }
    }

    fn retire(&mut self, mut open: Open, now: Instant) {
        open.grew = now;
        if self.retired.len() == MAX_RETIRED {
            self.retired.pop_front();
            self.counts.abandoned += 1;
        }
        self.retired.push_back(open);
    }
}

impl Open {
    fn new(path: &Path, begin: Begin, now: Instant) -> io::Result<Self> {
        let file = open(path)?;
        let meta = file.metadata()?;
        let mut this = Self {
            ino: meta.ino(),
            head: Vec::new(),
            offset: 0,
            partial: Vec::new(),
            skipping: false,
            backlog_end: meta.len(),
            grew: now,
            file,
        };
        this.read_head();
        if begin == Begin::End {
            this.offset = meta.len();
            // The end may be inside a line, whose rest alone means nothing.
            let mut last = [0];
            let read = meta.len().checked_sub(1).and_then(|at| this.file.read_at(&mut last, at).ok());
            this.skipping = read == Some(1) && !is_end(last[0]);
        }
        Ok(this)
    }

    /// The file under `path`, if it is the one that was read before.
    fn resume(path: &Path, position: &Position, now: Instant) -> Option<Self> {
        let mut this = Self::new(path, Begin::Start, now).ok()?;
        let same = this.ino == position.ino
            && this.backlog_end >= position.offset
            && Fingerprint::of(this.head.get(..position.head.len)?) == position.head;
        this.offset = position.offset;
        this.skipping = position.skipping;
        same.then_some(this)
    }

    fn position(&self) -> Position {
        Position {
            ino: self.ino,
            head: Fingerprint::of(&self.head),
            offset: self.offset - self.partial.len() as u64,
            skipping: self.skipping,
        }
    }

    /// The complete lines in the last `limit` bytes before `end`.
    fn lines_before(&self, end: u64, limit: usize) -> Vec<String> {
        let from = end.saturating_sub(limit as u64);
        let mut buffer = vec![0; (end - from) as usize];
        let n = self.file.read_at(&mut buffer, from).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..n]);
        // The first is only the end of a line.
        text.split(['\n', '\r']).skip(usize::from(from > 0)).map(str::to_owned).collect()
    }

    fn read_head(&mut self) {
        let mut head = vec![0; HEAD_BYTES];
        let n = self.file.read_at(&mut head, 0).unwrap_or(0);
        head.truncate(n);
        self.head = head;
    }

    /// Whether the file became shorter, or was cut and has grown again since.
    fn was_cut(&mut self, len: u64) -> bool {
        let known = std::mem::take(&mut self.head);
        self.read_head();
        len < self.offset || !self.head.starts_with(&known)
    }

    /// Reads up to the budget. True if there is more.
    fn read(&mut self, counts: &mut Counts, now: Instant, lines: &mut Vec<RawLine>) -> io::Result<bool> {
        let len = self.file.metadata()?.len();
        if len == self.offset {
            return Ok(false);
        }
        if self.was_cut(len) {
            counts.truncations += 1;
            (self.offset, self.skipping, self.backlog_end) = (0, false, 0);
            self.partial.clear();
        }
        let mut buffer = vec![0; BUDGET_BYTES.min((len - self.offset) as usize)];
        let n = self.file.read_at(&mut buffer, self.offset)?;
        if n > 0 {
            self.grew = now;
        }
        let chunk = &buffer[..n];
        if chunk.iter().all(|b| *b == 0) && self.partial.is_empty() {
            self.offset = self.data_after(self.offset + n as u64).min(len);
        } else {
            self.split(chunk, counts, lines);
        }
        Ok(self.offset < len && n > 0)
    }

    /// The next byte that was ever written. A writer that does not append leaves a hole of zeros, as long as the file once was,
    /// when it goes on after `copytruncate`.
    fn data_after(&self, offset: u64) -> u64 {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)).unwrap_or(offset)
    }

    fn split(&mut self, mut chunk: &[u8], counts: &mut Counts, lines: &mut Vec<RawLine>) {
        while let Some(end) = memchr::memchr2(b'\n', b'\r', chunk) {
            self.add(&chunk[..end], counts);
            self.offset += end as u64 + 1;
            chunk = &chunk[end + 1..];
            self.end_line(lines);
        }
        self.add(chunk, counts);
        self.offset += chunk.len() as u64;
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

    /// The line being read is complete. One that was too long still tells what its beginning says.
    fn end_line(&mut self, lines: &mut Vec<RawLine>) {
        self.skipping = false;
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        if !text.is_empty() {
            lines.push(RawLine { text: text.to_owned(), backlog: self.offset <= self.backlog_end });
        }
    }
}

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Opens for reading without ever waiting for a writer, and only what can be followed.
fn open(path: &Path) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Entries of a directory that are looked through for a renamed file.
const MAX_ENTRIES: usize = 10_000;

/// A saved file that has another name in the same directory now.
fn renamed(path: &Path, position: &Position, now: Instant) -> Option<Open> {
    use std::os::unix::fs::DirEntryExt as _;
    let entries = std::fs::read_dir(path.parent()?).ok()?;
    let found = entries.take(MAX_ENTRIES).flatten().find(|e| e.ino() == position.ino && e.path() != path)?;
    Open::resume(&found.path(), position, now)
}

pub(super) fn modified(meta: &std::fs::Metadata) -> Option<f64> {
    let since = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}
