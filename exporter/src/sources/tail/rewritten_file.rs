//! Follows a file that is rewritten as a whole. It is read again when its size, its time or the
//! file itself changes. One that was read half written is read again once it no longer changes. A
//! long file is read in parts, and then not again for as long as its length takes at
//! [`BYTES_PER_SECOND`].

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stepwatch_formats::{FileReader, MAX_WHOLE_BYTES, Whole};

use super::framing::{Counts, Take};
use super::open::{Begin, REST, modified};
use super::state::{Fingerprint, Position};
use crate::reach::Reach;

/// The long-term rate at which one file is read.
const BYTES_PER_SECOND: u64 = 8 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct RewrittenFile {
    path: PathBuf,
    reach: Reach,
    reader: FileReader,
    /// The metadata of the file when it was last read.
    seen: Option<Looks>,
    /// Since when the metadata is unchanged, if the file was half written then.
    half: Option<Instant>,
    /// Whether the file was at rest, if a turn stopped in the middle of it.
    going: Option<bool>,
    /// Whether the current read is of content from before the start.
    backlog: bool,
    /// Until when the file is not read again.
    rests: Option<Instant>,
    /// Whether its content at the first look is old and not published.
    muted: bool,
    /// Whether the file exists.
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
    fn from_metadata(meta: &Metadata) -> Self {
        Self { file: (meta.dev(), meta.ino()), uid: meta.uid(), len: meta.len(), modified: modified(meta) }
    }
}

impl RewrittenFile {
    pub(super) fn new(path: PathBuf, reach: Reach, reader: FileReader, begin: Begin) -> Self {
        let muted = begin == Begin::End;
        Self {
            path,
            reach,
            reader,
            seen: None,
            half: None,
            going: None,
            backlog: false,
            rests: None,
            muted,
            there: false,
            counts: Counts::default(),
        }
    }

    /// Publishes only content after the steps that were reported before a restart, or by another
    /// source of the run.
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
        let (dev, ino) = self.seen.map_or((0, 0), |s| s.file);
        Position {
            ino,
            dev,
            head: Fingerprint::from_bytes(&[]),
            offset: self.reader.position(),
            skipping: false,
        }
    }

    /// Reads new content, or a part of it. Returns true if there is more.
    pub(super) fn poll(&mut self, now: Instant, out: &mut dyn Take) -> io::Result<bool> {
        let waits = |half: Option<Instant>| half.is_none_or(|since| now.duration_since(since) < REST);
        // A plain lookup of the name shows whether it changed. The new file, and the right to read
        // it, are checked by `reach`.
        let unchanged =
            std::fs::metadata(&self.path).is_ok_and(|meta| self.seen == Some(Looks::from_metadata(&meta)));
        if unchanged && self.going.is_none() && waits(self.half) {
            self.there = true;
            return Ok(false);
        }
        if self.going.is_none() && self.rests.is_some_and(|until| now < until) {
            return Ok(false);
        }
        let found = match self.reach.find(&self.path) {
            Ok(found) => found,
            Err(e) => {
                self.there = false;
                self.going = None;
                return if e.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(e) };
            }
        };
        self.there = true;
        let looks = Looks::from_metadata(&found.metadata);
        let same = self.seen == Some(looks);
        let goes_on = self.going.take().filter(|_| same);
        if same && goes_on.is_none() && waits(self.half) {
            return Ok(false);
        }
        self.half = None;
        if looks.len > MAX_WHOLE_BYTES {
            self.counts.oversized += 1;
            self.seen = Some(looks);
            return Ok(false);
        }
        let file = found.open()?;
        let read = |part: &mut [u8], at: u64| file.read_at(part, at);
        let at_rest = goes_on.unwrap_or(same);
        let whole = Whole { read: &read, len: looks.len, at_rest, begins: goes_on.is_none() };
        let mut events = Vec::new();
        let pushed = self.reader.read(&whole, &mut events)?;
        let backlog = self.seen.is_none() || self.backlog && goes_on.is_some();
        self.backlog = backlog;
        self.seen = Some(looks);
        if pushed.more {
            self.going = Some(at_rest);
        } else {
            let rest = Duration::from_millis(looks.len * 1000 / BYTES_PER_SECOND);
            self.rests = Some(now + rest);
            if pushed.consumed == 0 && !at_rest {
                self.half = Some(now);
            }
        }
        self.counts.bad_records += pushed.bad_records;
        self.counts.unmatched += pushed.unmatched;
        self.counts.oversized += pushed.oversized;
        self.counts.damaged += u64::from(pushed.stop.is_some());
        if !self.muted {
            // Events without a time get the time when the file was written.
            events.iter_mut().for_each(|e| e.ts = e.ts.or(looks.modified));
            out.events(events, backlog, false);
        }
        self.muted &= self.half.is_some() || pushed.more;
        Ok(pushed.more)
    }
}
