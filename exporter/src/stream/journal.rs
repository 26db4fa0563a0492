//! A copy of the ring in files that outlive this process, together with how far sources had read
//! when the records were published.
//!
//! After `kill -9` the next start has every record that a reader may have seen, under the same
//! numbers, so a reader goes on by its cursor as if nothing had happened; and a source that goes on
//! from its [`Mark`] repeats nothing and leaves nothing out, because records and mark were written
//! by one call. It is no log and survives no power cut: it lives in a directory in memory (`/run`),
//! is written to that end alone, and is void after a reboot.
//!
//! Text, in batches: records as they are streamed, `@key value` for a mark, and `.` when the batch
//! is complete. What stands behind the last `.` was being written when the process died, and no
//! reader has seen it. Two files take turns, each with as many bytes of records as the ring.
//!
//! The ring holds the latest records itself and finds the others by their [`Place`] here.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::persisted_state::open_private;

/// The magic bytes of a journal, and the version of what follows.
const MAGIC: &str = "#stepwatch-stream-1";
/// Marks kept; a source beyond them remembers its position by its own means only.
const MAX_MARKS: usize = 16_384;
/// Bytes of one mark.
const MAX_MARK_BYTES: usize = 16 * 1024;
/// A file larger than this is not ours.
const MAX_FILE_BYTES: u64 = 1024 * 1024 * 1024;
/// Ends a batch.
const COMMIT: &str = ".\n";

/// How far a source had read when a batch was published; an empty value forgets.
#[derive(Debug, Clone, Copy)]
pub struct Mark<'a> {
    /// Without spaces.
    pub key: &'a str,
    /// One line.
    pub value: &'a str,
}

/// An open journal, and what earlier processes left in it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    kernel_boot: String,
    boot: String,
    file: Arc<File>,
    /// The file whose turn it was before, if that was in this process.
    previous: Option<Arc<File>>,
    /// Where the next batch begins.
    end: u64,
    /// Bytes of records in the file.
    written: usize,
    /// How many there may be before the other file has its turn.
    limit: usize,
    marks: BTreeMap<String, String>,
    /// The batch being written: memory that is used again.
    batch: Vec<u8>,
}

/// Records of earlier processes, numbered from `first`.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) first: u64,
    pub(super) records: VecDeque<Place>,
}

/// Where a record stands, for as long as this is held: the file may have lost its name.
#[derive(Debug, Clone)]
pub(super) struct Place {
    file: Arc<File>,
    at: u64,
    len: u32,
}

impl Place {
    fn new(file: &Arc<File>, at: u64, range: Range<usize>) -> Self {
        // A record is some kilobytes at most.
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Self { file: Arc::clone(file), at: at + range.start as u64, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn is_in(&self, files: &[Arc<File>]) -> bool {
        files.iter().any(|file| Arc::ptr_eq(file, &self.file))
    }

    /// Appends the record, newline included.
    pub(super) fn read(&self, text: &mut Vec<u8>) -> io::Result<()> {
        let start = text.len();
        text.resize(start + self.len(), 0);
        self.file.read_exact_at(&mut text[start..], self.at)?;
        if text[start] == b'{' && text.ends_with(b"\n") {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "another program wrote to the journal"))
    }
}

/// A batch that was written.
#[derive(Debug)]
pub(super) struct Appended {
    file: Arc<File>,
    at: u64,
    /// Whether the mark is kept, for which there may be no room.
    pub(super) mark: bool,
    /// A new file was begun for it: the files that have a name now.
    pub(super) files: Option<[Arc<File>; 2]>,
}

impl Appended {
    /// Where this part of the records stands.
    pub(super) fn place(&self, range: Range<usize>) -> Place {
        Place::new(&self.file, self.at, range)
    }
}

impl Journal {
    /// Goes on with the journal at `path`, or begins one whose cursors are of `boot`. One of
    /// another start of the kernel is not gone on with: what a power cut left of it may lack
    /// its end.
    pub(super) fn open(
        path: &Path,
        kernel_boot: &str,
        boot: String,
        limit: usize,
    ) -> io::Result<(Self, Kept)> {
        let mut past = Past::default();
        past.add(read(&other(path))?, kernel_boot);
        let committed = past.add(read(path)?, kernel_boot);
        let next = past.first + past.records.len() as u64;
        let written = past.records.iter().skip(past.older).map(Place::len).sum();
        let (file, boot, fresh) = match (&past.boot, committed) {
            (Some(boot), Some(len)) => (reopen(path, len)?, boot.clone(), false),
            (kept, _) => (create(path)?, kept.clone().unwrap_or(boot), true),
        };
        let mut this = Self {
            path: path.to_owned(),
            kernel_boot: kernel_boot.to_owned(),
            boot,
            file: Arc::new(file),
            previous: None,
            end: committed.unwrap_or(0),
            written: if fresh { 0 } else { written },
            limit,
            marks: std::mem::take(&mut past.marks),
            batch: Vec::new(),
        };
        if fresh {
            this.begin(next.max(1))?;
        }
        Ok((this, Kept { first: past.first.max(1), records: past.records }))
    }

    /// The life of the ring, which cursors name.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    pub(super) fn mark(&self, key: &str) -> Option<&str> {
        self.marks.get(key).map(String::as_str)
    }

    /// Writes whole records, the first of them numbered `first`, and a mark; they are kept together
    /// or not at all.
    pub(super) fn append(
        &mut self,
        first: u64,
        records: &[u8],
        mark: Option<Mark<'_>>,
    ) -> io::Result<Appended> {
        let turns = self.written > self.limit;
        if turns {
            self.turn(first)?;
        }
        let fits = |m: &Mark<'_>| {
            m.key.len() + m.value.len() <= MAX_MARK_BYTES
                && !m.key.is_empty()
                && !m.key.contains([' ', '\n'])
                && !m.value.contains('\n')
                && (self.marks.len() < MAX_MARKS || self.marks.contains_key(m.key))
        };
        let mark = mark.filter(fits);
        self.batch.clear();
        self.batch.extend_from_slice(records);
        if let Some(mark) = mark {
            write_mark(&mut self.batch, mark.key, mark.value);
        }
        self.batch.extend_from_slice(COMMIT.as_bytes());
        (&*self.file).write_all(&self.batch)?;
        let file = Arc::clone(&self.file);
        let files = self.previous.clone().filter(|_| turns).map(|previous| [previous, Arc::clone(&file)]);
        let appended = Appended { file, at: self.end, mark: mark.is_some(), files };
        self.end += self.batch.len() as u64;
        self.written += records.len();
        match mark {
            Some(Mark { key, value: "" }) => drop(self.marks.remove(key)),
            Some(Mark { key, value }) => match self.marks.get_mut(key) {
                Some(old) => value.clone_into(old),
                None => drop(self.marks.insert(key.to_owned(), value.to_owned())),
            },
            None => {}
        }
        Ok(appended)
    }

    /// Gives the journal up: what is in it must not be gone on with.
    pub(super) fn discard(&self) {
        for path in [self.path.clone(), other(&self.path)] {
            let _ = remove(&path);
        }
    }

    /// The other file's turn: it begins at record `first`.
    fn turn(&mut self, first: u64) -> io::Result<()> {
        fs::rename(&self.path, other(&self.path))?;
        self.previous = Some(std::mem::replace(&mut self.file, Arc::new(create(&self.path)?)));
        (self.written, self.end) = (0, 0);
        self.begin(first)
    }

    /// A file begins with every mark, because the one before the last is gone then.
    fn begin(&mut self, first: u64) -> io::Result<()> {
        let mut text = format!("{MAGIC} {} {} {first}\n", self.kernel_boot, self.boot).into_bytes();
        for (key, value) in &self.marks {
            write_mark(&mut text, key, value);
        }
        text.extend_from_slice(COMMIT.as_bytes());
        self.end += text.len() as u64;
        (&*self.file).write_all(&text)
    }
}

/// What was read of earlier processes.
#[derive(Debug, Default)]
struct Past {
    boot: Option<String>,
    first: u64,
    records: VecDeque<Place>,
    /// How many of them are not of the file that was added last.
    older: usize,
    marks: BTreeMap<String, String>,
}

impl Past {
    /// Adds a file, the older one first. Returns how much of it was committed; `None` if it is none
    /// of ours, or void.
    fn add(&mut self, found: Option<(File, Vec<u8>)>, kernel_boot: &str) -> Option<u64> {
        let (file, bytes) = found?;
        let file = Arc::new(file);
        let (first, boot, body) = header(&bytes, kernel_boot)?;
        let follows = self.boot.as_deref() == Some(boot) && first == self.first + self.records.len() as u64;
        if !follows {
            *self = Self { boot: Some(boot.to_owned()), first, ..Self::default() };
        }
        self.older = self.records.len();
        let (mut batch, mut marks, mut committed) = (Vec::new(), Vec::new(), None);
        let mut at = body;
        while let Some(len) = memchr::memchr(b'\n', &bytes[at..]) {
            let line = at..at + len + 1;
            at = line.end;
            match bytes[line.start] {
                b'{' => batch.push(Place::new(&file, 0, line)),
                b'@' => marks.extend(mark(&bytes[line])),
                b'.' => {
                    committed = Some(at as u64);
                    self.records.extend(batch.drain(..));
                    marks.drain(..).for_each(|(key, value)| self.set(key, value));
                }
                _ => break, // damaged: nothing behind it is known
            }
        }
        committed
    }

    fn set(&mut self, key: String, value: String) {
        if value.is_empty() {
            self.marks.remove(&key);
        } else {
            self.marks.insert(key, value);
        }
    }
}

/// Number of the first record, life of the ring, and where the records begin.
fn header<'a>(bytes: &'a [u8], kernel_boot: &str) -> Option<(u64, &'a str, usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let mut words = core::str::from_utf8(&bytes[..end]).ok()?.split(' ');
    let ours = words.next() == Some(MAGIC) && words.next() == Some(kernel_boot);
    let (boot, first) = (words.next()?, words.next()?.parse().ok()?);
    ours.then_some((first, boot, end + 1))
}

fn mark(line: &[u8]) -> Option<(String, String)> {
    let line = core::str::from_utf8(line).ok()?;
    let (key, value) = line.strip_prefix('@')?.trim_end_matches('\n').split_once(' ')?;
    Some((key.to_owned(), value.to_owned()))
}

fn write_mark(text: &mut Vec<u8>, key: &str, value: &str) {
    text.push(b'@');
    text.extend_from_slice(key.as_bytes());
    text.push(b' ');
    text.extend_from_slice(value.as_bytes());
    text.push(b'\n');
}

/// The file whose turn it is not.
fn other(path: &Path) -> PathBuf {
    path.with_extension("old")
}

fn create(path: &Path) -> io::Result<File> {
    open_private(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
}

/// Goes on in a file behind what was committed.
fn reopen(path: &Path, committed: u64) -> io::Result<File> {
    let mut file = open_private(path, OpenOptions::new().read(true).write(true))?;
    file.set_len(committed)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// Nothing, if there is no such file.
fn read(path: &Path) -> io::Result<Option<(File, Vec<u8>)>> {
    let file = match open_private(path, OpenOptions::new().read(true)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    (&file).take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(Some((file, bytes)))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
