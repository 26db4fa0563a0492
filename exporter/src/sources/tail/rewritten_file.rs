//! A file that is written anew as a whole, read anew when it changed: its size, the time it was
//! written, or the file itself. One that was caught half written is read once more when it stays as
//! it is.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use stepwatch_formats::{FileReader, MAX_WHOLE_BYTES};

use super::framing::{Counts, Take};
use super::open::{Begin, REST, modified};
use super::state::{Fingerprint, Position};
use crate::reach::Reach;

#[derive(Debug)]
pub(super) struct RewrittenFile {
    path: PathBuf,
    reach: Reach,
    reader: FileReader,
    /// What it looked like when it was last read.
    seen: Option<Looks>,
    /// Since when it is as it was seen, if it was only half written then.
    half: Option<Instant>,
    /// What it says at the first look is of before, and not wanted.
    muted: bool,
    /// It is under its name.
    there: bool,
    pub(super) counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Looks {
    file: (u64, u64),
    uid: u32,
    len: u64,
    modified: Option<f64>,
}

impl Looks {
    fn of(meta: &Metadata) -> Self {
        Self { file: (meta.dev(), meta.ino()), uid: meta.uid(), len: meta.len(), modified: modified(meta) }
    }
}

impl RewrittenFile {
    pub(super) fn new(path: PathBuf, reach: Reach, reader: FileReader, begin: Begin) -> Self {
        let muted = begin == Begin::End;
        Self { path, reach, reader, seen: None, half: None, muted, there: false, counts: Counts::default() }
    }

    /// Tells only what comes after what an earlier life, or another source, told of the run.
    pub(super) fn resume(&mut self, saved: Option<&Position>, last_step: Option<i64>) {
        self.muted &= saved.is_none();
        self.reader.resume(saved.map_or(0, |p| p.offset), last_step);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn reader(&self) -> &FileReader {
        &self.reader
    }

    pub(super) fn is_there(&self) -> bool {
        self.there
    }

    pub(super) fn modified(&self) -> Option<f64> {
        self.seen?.modified
    }

    pub(super) fn uid(&self) -> Option<u32> {
        Some(self.seen?.uid)
    }

    pub(super) fn position(&self) -> Position {
        let ino = self.seen.map_or(0, |s| s.file.1);
        Position { ino, head: Fingerprint::of(&[]), offset: self.reader.position(), skipping: false }
    }

    pub(super) fn poll(&mut self, now: Instant, out: &mut dyn Take) -> io::Result<()> {
        let waits = |half: Option<Instant>| half.is_none_or(|since| now.duration_since(since) < REST);
        // Whether it changed may be seen by its name; what it is now, and whether we may read it,
        // by what is found there.
        let unchanged = std::fs::metadata(&self.path).is_ok_and(|meta| self.seen == Some(Looks::of(&meta)));
        if unchanged && waits(self.half) {
            self.there = true;
            return Ok(());
        }
        let found = match self.reach.find(&self.path) {
            Ok(found) => found,
            Err(e) => {
                self.there = false;
                return if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) };
            }
        };
        self.there = true;
        let looks = Looks::of(&found.metadata);
        let at_rest = self.seen == Some(looks);
        if at_rest && waits(self.half) {
            return Ok(());
        }
        self.half = None;
        if looks.len > MAX_WHOLE_BYTES {
            self.counts.oversized += 1;
            self.seen = Some(looks);
            return Ok(());
        }
        let file = found.open()?;
        let mut bytes = vec![0; looks.len as usize];
        // Shorter than it was a moment ago, it is being written: the next look sees that it
        // changed.
        file.read_exact_at(&mut bytes, 0)?;
        let backlog = self.seen.is_none();
        self.seen = Some(looks);
        let mut events = Vec::new();
        let pushed = self.reader.push(&bytes, at_rest, &mut events);
        if pushed.consumed == 0 && !at_rest {
            self.half = Some(now);
        }
        self.counts.bad_records += pushed.bad_records;
        self.counts.unmatched += pushed.unmatched;
        self.counts.oversized += pushed.oversized;
        self.counts.damaged += u64::from(pushed.stop.is_some());
        if !self.muted {
            // What has no time of its own was true when it was written.
            events.iter_mut().for_each(|e| e.ts = e.ts.or(looks.modified));
            events.into_iter().for_each(|e| out.event(e, backlog));
        }
        self.muted &= self.half.is_some();
        Ok(())
    }
}
