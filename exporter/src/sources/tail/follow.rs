//! Follows the content under one name, although the file is truncated, renamed, deleted and
//! recreated.
//!
//! The path only locates a file; the file itself is followed. A renamed file is read to its end,
//! and for [`DRAIN`] afterwards, because its writer may keep it open. The file that takes its name
//! is read from its beginning. A file is recognised by its inode and its first bytes, because inode
//! numbers are reused and `copytruncate` keeps them. It polls, because inotify does not work on NFS
//! and Lustre.

use std::collections::VecDeque;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_formats::FileReader;

use super::find::MAX_NAMES_SHARED;
use super::framing::{Counts, Take};
use super::name::is_rotated;
use super::open::{Begin, How, Open, REST, modified};
use super::state::Position;
use crate::reach::{Reach, Refusal};

/// How long a renamed file is still polled. A trainer does not reopen its log after a rename, and a
/// step can take minutes; an open file costs nothing.
pub(super) const DRAIN: Duration = Duration::from_mins(15);
/// The most renamed or deleted files that are polled at once.
const MAX_RETIRED: usize = 4;

/// The most bytes of buffer that a file keeps between two polls.
const MAX_BUFFER: usize = 4096;

/// Follows one path.
#[derive(Debug)]
pub(super) struct Follower {
    path: PathBuf,
    reach: Reach,
    current: Option<Open>,
    retired: VecDeque<Open>,
    /// Files that were read but cannot be found now: from before a restart, or on a file system
    /// that does not answer.
    lost: Vec<Position>,
    /// Where to begin in the file that exists at the first look. Later files are read from their
    /// start.
    begin: Begin,
    recognise: bool,
    /// The last step that an earlier process of the exporter published.
    last_step: Option<i64>,
    pub(super) counts: Counts,
    /// Whether something was read, or another file found.
    moved: bool,
    /// A buffer that is reused if it is small, because there are many files.
    buffer: Vec<u8>,
}

impl Follower {
    pub(super) fn new(path: PathBuf, reach: Reach, how: How) -> Self {
        Self {
            path,
            reach,
            current: None,
            retired: VecDeque::new(),
            lost: Vec::new(),
            begin: how.begin,
            recognise: how.recognise,
            last_step: None,
            counts: Counts::default(),
            moved: false,
            buffer: Vec::new(),
        }
    }

    /// Looks for the file for the first time.
    pub(super) fn open(&mut self, now: Instant) {
        // An error occurs again at the next poll and is reported then.
        let _ = self.look(now);
    }

    /// Continues where an earlier process stopped: finds each saved file under its old name, or
    /// under a new one in the same directory.
    pub(super) fn resume(&mut self, saved: Vec<Position>, last_step: Option<i64>, now: Instant) {
        self.lost = saved;
        self.last_step = last_step;
        // A file that was not read before appeared between two polls, so all of it is new.
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

    /// Whether nothing is left to read under this name or an old one.
    pub(super) fn is_gone(&self) -> bool {
        self.current.is_none() && self.retired.is_empty() && self.lost.is_empty()
    }

    /// The positions of the files that are read now, the named one last. They cover all that
    /// earlier calls of [`Self::poll`] returned.
    pub(super) fn positions(&self) -> Vec<Position> {
        let open = self.opened().map(Open::position);
        self.lost.iter().cloned().chain(open).collect()
    }

    /// Whether the positions may have changed since the last call.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn opened(&self) -> impl Iterator<Item = &Open> {
        self.retired.iter().chain(&self.current)
    }

    /// The device and inode of each file, which identify it on this host.
    pub(super) fn identities(&self) -> impl Iterator<Item = (u64, u64)> {
        self.opened().map(Open::identity)
    }

    /// When one of them was last seen to grow, or was opened.
    pub(super) fn grew(&self) -> Option<Instant> {
        self.opened().map(|o| o.grew).max()
    }

    /// Whether nothing was appended for so long that gathered records count as complete.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        self.grew().is_some_and(|at| now.saturating_duration_since(at) >= REST)
    }

    /// The Unix time in seconds when the named file was last written.
    pub(super) fn modified(&self) -> Option<f64> {
        modified(&self.current.as_ref()?.file().metadata().ok()?)
    }

    /// Whether there is something to read in the named file.
    pub(super) fn has_grown(&self) -> bool {
        self.current.as_ref().is_some_and(Open::has_grown)
    }

    /// The owner of the file; of the named one, if it exists.
    pub(super) fn uid(&self) -> Option<u32> {
        self.opened().last().map(|open| open.uid)
    }

    /// The reader of the named file's records; `None` for a file of lines.
    pub(super) fn records(&self) -> Option<&FileReader> {
        self.current.as_ref()?.records()
    }

    /// The last lines before the read position, which a parser needs as context.
    pub(super) fn context(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.context(limit))
    }

    /// The last lines of the file as it was when it was opened.
    pub(super) fn ending(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.ending(limit, false))
    }

    /// The last rows of the file as it was when it was opened, if it is a table.
    pub(super) fn ending_rows(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.ending_rows(limit))
    }

    /// The last lines that were written, under this name or an old one.
    pub(super) fn last_lines(&self, limit: usize) -> Vec<String> {
        let newest = self.opened().filter(|o| o.file().metadata().is_ok_and(|m| m.len() > 0)).last();
        newest.map_or_else(Vec::new, |o| o.ending(limit, true))
    }

    /// The memory of incomplete lines and records.
    pub(super) fn pending_bytes(&self) -> usize {
        self.opened().map(Open::pending_bytes).sum()
    }

    /// Discards incomplete lines and records, because there is no room for them.
    pub(super) fn give_up_pending(&mut self) {
        self.retired.iter_mut().chain(&mut self.current).for_each(Open::give_up_pending);
    }

    /// Emits the incomplete line or record at the end.
    pub(super) fn flush(&mut self, out: &mut dyn Take) {
        for open in self.retired.iter_mut().chain(&mut self.current) {
            open.end(&mut self.counts, out);
        }
    }

    /// Reads new content, old files first. Returns true if there was more than fits into one turn.
    pub(super) fn poll(&mut self, now: Instant, out: &mut dyn Take) -> io::Result<bool> {
        let more = self.read(now, out);
        if self.buffer.len() > MAX_BUFFER {
            self.buffer = Vec::new();
        }
        more
    }

    fn read(&mut self, now: Instant, out: &mut dyn Take) -> io::Result<bool> {
        let mut more = false;
        let moved = |open: &Open| open.grew == now;
        let (counts, buffer) = (&mut self.counts, &mut self.buffer);
        self.retired.retain_mut(|open| {
            let Ok(unfinished) = open.read(counts, now, buffer, out) else { return false };
            more |= unfinished;
            self.moved |= moved(open);
            let drained = now.duration_since(open.grew) >= DRAIN;
            if drained {
                open.end(counts, out);
            }
            !drained
        });
        if let Some(open) = self.current.as_mut().filter(|_| !more) {
            match open.read(&mut self.counts, now, &mut self.buffer, out) {
                Ok(unfinished) => {
                    more |= unfinished;
                    self.moved |= moved(open);
                }
                Err(err) => {
                    // The NFS handle is stale. The file under the name decides, once it is visible
                    // again.
                    self.lost.push(open.position());
                    self.current = None;
                    return Err(err);
                }
            }
        }
        if more {
            return Ok(true); // finish it before looking whether it still has its name
        }
        self.look(now)
    }

    /// Checks the file under the name. Returns true if it is a different one.
    fn look(&mut self, now: Instant) -> io::Result<bool> {
        // A plain lookup of the name shows whether it is still the open file. Another file, and the
        // right to read it, are checked by `reach`.
        let open = self.current.as_ref().map(Open::identity);
        let same = |meta: &Metadata| Some((meta.dev(), meta.ino())) == open;
        if open.is_some() && std::fs::metadata(&self.path).is_ok_and(|meta| same(&meta)) {
            return Ok(false);
        }
        let found = match self.reach.find(&self.path) {
            Ok(found) => Some(found.metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => {
                if Refusal::from_error(&e).is_some() {
                    self.lose_name(now);
                }
                return Err(e);
            }
        };
        let begin = std::mem::replace(&mut self.begin, Begin::Start);
        if open.is_some() && found.as_ref().is_some_and(same) {
            return Ok(false);
        }
        self.moved = true;
        self.lose_name(now);
        if found.is_none() {
            return Ok(false);
        }
        let known = self.lost.iter().enumerate().find_map(|(i, p)| Some((i, self.find(&self.path, p, now)?)));
        if let Some((i, open)) = known {
            self.lost.remove(i);
            self.current = Some(open);
        } else {
            let how = How { begin, recognise: self.recognise };
            self.current = Some(Open::new(&self.path, &self.reach, how, now)?);
        }
        self.find_renamed(now);
        self.lost.clear(); // the directory answers, and they are not in it
        Ok(true)
    }

    fn find(&self, path: &Path, position: &Position, now: Instant) -> Option<Open> {
        let how = How { begin: Begin::Start, recognise: self.recognise };
        Open::new(path, &self.reach, how, now).ok()?.resumed(position, self.last_step)
    }

    /// Looks for lost files under other names in the same directory.
    fn find_renamed(&mut self, now: Instant) {
        for position in std::mem::take(&mut self.lost) {
            let path = renamed(&self.path, &position);
            let same = path.as_deref().and_then(|path| self.find(path, &position, now));
            match same.or_else(|| self.find_cut(&path?, now)) {
                Some(open) => self.retire(open, now),
                None => self.lost.push(position),
            }
        }
    }

    /// Opens a lost file that was truncated before it was renamed: all in it is new. Only the
    /// rotated name distinguishes it from a file of another user that got the same inode number.
    fn find_cut(&mut self, path: &Path, now: Instant) -> Option<Open> {
        let old = path.file_name()?.to_str()?.strip_prefix(self.path.file_name()?.to_str()?)?;
        if !old.starts_with(['.', '-']) || !is_rotated(path) {
            return None;
        }
        let open =
            Open::new(path, &self.reach, How { begin: Begin::Start, recognise: self.recognise }, now).ok()?;
        self.counts.truncations += 1;
        Some(open)
    }

    /// Moves the current file to those that are read to their end.
    fn lose_name(&mut self, now: Instant) {
        if let Some(open) = self.current.take() {
            self.retire(open, now);
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

/// The present name of a saved file in the same directory.
fn renamed(path: &Path, position: &Position) -> Option<PathBuf> {
    use std::os::unix::fs::DirEntryExt as _;
    let entries = std::fs::read_dir(path.parent()?).ok()?;
    let same = entries.take(MAX_NAMES_SHARED).flatten().filter(|e| e.ino() == position.ino);
    same.map(|e| e.path()).find(|p| p != path)
}
