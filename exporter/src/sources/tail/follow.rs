//! Follows what is written under one name, although the file is cut, renamed, deleted and made
//! again.
//!
//! The path is only where a file is found; what is followed is the file itself. A renamed file is
//! read to its end, and on for [`DRAIN`] after that, because its writer may keep it open; the file
//! that took its name is read from its beginning. A file is recognised by its inode and by its
//! first bytes, since inode numbers are used again and `copytruncate` keeps them. It polls, because
//! inotify does not work on NFS and Lustre.

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

/// How long a file that lost its name is still watched for more. A trainer does not open its log
/// again when it is renamed, and a step can take minutes; an open file costs nothing.
pub(super) const DRAIN: Duration = Duration::from_mins(15);
/// Files without a name that are watched at once.
const MAX_RETIRED: usize = 4;

/// Memory for reading that a file keeps between two looks.
const MAX_BUFFER: usize = 4096;

/// Follows one path.
#[derive(Debug)]
pub(super) struct Follower {
    path: PathBuf,
    reach: Reach,
    current: Option<Open>,
    retired: VecDeque<Open>,
    /// Files that were read and are not found for now: of an earlier life, or on a file system that
    /// does not answer.
    lost: Vec<Position>,
    /// Where to begin in the file that is there at the first look. What comes later is read from
    /// its start.
    begin: Begin,
    recognise: bool,
    /// What an earlier life published last.
    last_step: Option<i64>,
    pub(super) counts: Counts,
    /// Something was read, or another file found.
    moved: bool,
    /// Memory that is used again, where it is little: there are many files.
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
        // A failure occurs again at the next poll, and is reported then.
        let _ = self.look(now);
    }

    /// Goes on where an earlier life stopped: finds each saved file under its old name or under a
    /// new one beside it.
    pub(super) fn resume(&mut self, saved: Vec<Position>, last_step: Option<i64>, now: Instant) {
        self.lost = saved;
        self.last_step = last_step;
        // A file under the name that was not read before came between two polls: all of it is new.
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

    /// Files read now, the named one last; what an earlier call of [`Self::poll`] gave out is
    /// before these positions.
    pub(super) fn positions(&self) -> Vec<Position> {
        let open = self.opened().map(Open::position);
        self.lost.iter().cloned().chain(open).collect()
    }

    /// Whether the positions may have changed since this was last asked.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn opened(&self) -> impl Iterator<Item = &Open> {
        self.retired.iter().chain(&self.current)
    }

    /// What distinguishes these files from all others of this host: device and inode.
    pub(super) fn identities(&self) -> impl Iterator<Item = (u64, u64)> {
        self.opened().map(Open::identity)
    }

    /// When one of them was last seen to grow, or opened.
    pub(super) fn grew(&self) -> Option<Instant> {
        self.opened().map(|o| o.grew).max()
    }

    /// Nothing has been appended for so long that what is being gathered is complete.
    pub(super) fn is_at_rest(&self, now: Instant) -> bool {
        self.grew().is_some_and(|at| now.saturating_duration_since(at) >= REST)
    }

    /// When the named file was last written to, in Unix seconds.
    pub(super) fn modified(&self) -> Option<f64> {
        modified(&self.current.as_ref()?.file().metadata().ok()?)
    }

    /// There is something to read in the named file.
    pub(super) fn has_grown(&self) -> bool {
        self.current.as_ref().is_some_and(Open::has_grown)
    }

    /// Whose the file is, the named one where there is one.
    pub(super) fn uid(&self) -> Option<u32> {
        self.opened().last().map(|open| open.uid)
    }

    /// Who reads the records of the named file; `None` while it is one of lines.
    pub(super) fn records(&self) -> Option<&FileReader> {
        self.current.as_ref()?.records()
    }

    /// The last lines before where reading goes on: what a parser must have seen to go on.
    pub(super) fn context(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.context(limit))
    }

    /// The last lines of the file that was there at first.
    pub(super) fn ending(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.ending(limit, false))
    }

    /// The last rows of the file that was there at first, if it is a table.
    pub(super) fn ending_rows(&self, limit: usize) -> Vec<String> {
        self.current.as_ref().map_or_else(Vec::new, |o| o.ending_rows(limit))
    }

    /// The last lines that were written, under this name or an old one.
    pub(super) fn last_lines(&self, limit: usize) -> Vec<String> {
        let newest = self.opened().filter(|o| o.file().metadata().is_ok_and(|m| m.len() > 0)).last();
        newest.map_or_else(Vec::new, |o| o.ending(limit, true))
    }

    /// Memory that is taken by what is not complete.
    pub(super) fn pending_bytes(&self) -> usize {
        self.opened().map(Open::pending_bytes).sum()
    }

    /// There is no room for it.
    pub(super) fn give_up_pending(&mut self) {
        self.retired.iter_mut().chain(&mut self.current).for_each(Open::give_up_pending);
    }

    /// Gives out what stands at the end without an end.
    pub(super) fn flush(&mut self, out: &mut dyn Take) {
        for open in self.retired.iter_mut().chain(&mut self.current) {
            open.end(&mut self.counts, out);
        }
    }

    /// Reads what is new, old files first. True if there was more than fits into one turn.
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
                    // A stale handle of NFS: what is under the name decides, when it can be seen
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

    /// Looks at what is under the name. True if that is another file than before.
    fn look(&mut self, now: Instant) -> io::Result<bool> {
        // Whether it is the one that is open may be seen by its name; what else is there, and
        // whether we may read it, is found.
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

    /// A lost file that was cut before it was renamed: all in it is new. Only an old name
    /// distinguishes this from a file of another user that got the same inode number.
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

    /// What had the name is read to its end.
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

/// The name that a saved file has now in the same directory.
fn renamed(path: &Path, position: &Position) -> Option<PathBuf> {
    use std::os::unix::fs::DirEntryExt as _;
    let entries = std::fs::read_dir(path.parent()?).ok()?;
    let same = entries.take(MAX_NAMES_SHARED).flatten().filter(|e| e.ino() == position.ino);
    same.map(|e| e.path()).find(|p| p != path)
}
