//! A copy of the ring in files that outlive this process, together with how far each source had
//! read when the records were published.
//!
//! After `kill -9` the next start has every record that a reader may have seen, under the same
//! numbers, so a reader resumes at its cursor without a gap. A source that resumes at its [`Mark`]
//! repeats nothing and omits nothing, because one call writes the records and the mark. The journal
//! does not survive a power cut: it is in a directory in memory (`/run`), and is void after a
//! reboot.
//!
//! The format is text, in batches: records as they are streamed, `@key value` for a mark, and `.`
//! at the end of a batch. Data after the last `.` was being written when the process died, and no
//! reader has seen it. Two files alternate, each with as many bytes of records as the ring.
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

/// The magic bytes of a journal, with the version of the format.
const MAGIC: &str = "#stepwatch-stream-1";
/// The most marks kept; a source beyond them must keep its position elsewhere.
const MAX_MARKS: usize = 16_384;
/// The most bytes of one mark, key and value.
const MAX_MARK_BYTES: usize = 16 * 1024;
/// The most bytes read of a file.
const MAX_FILE_BYTES: u64 = 1024 * 1024 * 1024;
/// The line that ends a batch.
const COMMIT: &str = ".\n";

/// How far a source had read when a batch was published. An empty value removes the mark.
#[derive(Debug, Clone, Copy)]
pub struct Mark<'a> {
    /// The name of the source's position. Must contain no space.
    pub key: &'a str,
    /// The position, on one line.
    pub value: &'a str,
}

/// An open journal, and what earlier processes left in it.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    kernel_boot: String,
    boot: String,
    file: Arc<File>,
    /// The file before the current one, if this process opened it.
    previous: Option<Arc<File>>,
    /// The offset of the next batch, in bytes.
    end: u64,
    /// Bytes of records in the file.
    written: usize,
    /// Bytes of records after which the other file is used.
    limit: usize,
    marks: BTreeMap<String, String>,
    /// The batch being written; the buffer is reused.
    batch: Vec<u8>,
}

/// Records of earlier processes, numbered from `first`.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) first: u64,
    pub(super) records: VecDeque<Place>,
}

/// The place of a record in a file. It stays valid after the file has lost its name.
#[derive(Debug, Clone)]
pub(super) struct Place {
    file: Arc<File>,
    at: u64,
    len: u32,
}

impl Place {
    fn new(file: &Arc<File>, at: u64, range: Range<usize>) -> Self {
        // A record has some kilobytes at most.
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Self { file: Arc::clone(file), at: at + range.start as u64, len }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn is_in(&self, files: &[Arc<File>]) -> bool {
        files.iter().any(|file| Arc::ptr_eq(file, &self.file))
    }

    /// Appends the record to `text`, newline included.
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
    /// Whether the mark was kept; there may be no room for it.
    pub(super) mark: bool,
    /// The two files that still have a name, if the batch began a new file.
    pub(super) files: Option<[Arc<File>; 2]>,
}

impl Appended {
    /// The place of the record with this range in the batch.
    pub(super) fn place(&self, range: Range<usize>) -> Place {
        Place::new(&self.file, self.at, range)
    }
}

impl Journal {
    /// Continues the journal at `path`, or begins one whose cursors are of `boot`. A journal of
    /// another kernel boot is discarded, because a power cut may have removed its end.
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

    /// The id of the ring that cursors contain.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    pub(super) fn mark(&self, key: &str) -> Option<&str> {
        self.marks.get(key).map(String::as_str)
    }

    /// Writes whole records, the first of them numbered `first`, and a mark. After a crash both are
    /// there, or neither.
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

    /// Removes both files, so that no later start continues this journal.
    pub(super) fn discard(&self) {
        for path in [self.path.clone(), other(&self.path)] {
            let _ = remove(&path);
        }
    }

    /// Switches to the other file, which begins at record `first`.
    fn turn(&mut self, first: u64) -> io::Result<()> {
        fs::rename(&self.path, other(&self.path))?;
        self.previous = Some(std::mem::replace(&mut self.file, Arc::new(create(&self.path)?)));
        (self.written, self.end) = (0, 0);
        self.begin(first)
    }

    /// Writes the header and every mark, because the file with the older marks is overwritten.
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

/// The state that earlier processes left.
#[derive(Debug, Default)]
struct Past {
    boot: Option<String>,
    first: u64,
    records: VecDeque<Place>,
    /// How many of the records are in files before the last one added.
    older: usize,
    marks: BTreeMap<String, String>,
}

impl Past {
    /// Adds a file, the older one first. Returns the length of its complete batches in bytes;
    /// `None` if the file is not a journal of this kernel boot or has no complete batch.
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

/// The number of the first record, the id of the ring, and the offset of the first record.
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

/// The path of the file that is not being written.
fn other(path: &Path) -> PathBuf {
    path.with_extension("old")
}

fn create(path: &Path) -> io::Result<File> {
    open_private(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
}

/// Opens a file for appending after its complete batches.
fn reopen(path: &Path, committed: u64) -> io::Result<File> {
    let mut file = open_private(path, OpenOptions::new().read(true).write(true))?;
    file.set_len(committed)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// `None` if there is no such file.
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
