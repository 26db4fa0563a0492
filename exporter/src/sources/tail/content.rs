//! Chooses by the kind of a file how it is followed: as a growing file, or as one that is
//! rewritten.

use std::path::Path;

use stepwatch_formats::{FileKind, FileReader, kind_of};

use super::TailConfig;
use super::follow::Follower;
use super::framing::Counts;
use super::open::{self, Begin, How};
use super::rewritten_file::RewrittenFile;
use super::state::Position;
use crate::reach::Reach;

pub(super) enum Content {
    Grows(Box<Follower>),
    Rewritten(Box<RewrittenFile>),
}

impl Content {
    pub(super) fn new(config: &TailConfig, path: &Path, reach: &Reach, begin: Begin) -> Self {
        let head = if config.recognises() { open::head(path, reach) } else { Vec::new() };
        if config.recognises() && kind_of(path, &head) == FileKind::Whole {
            if let Some(reader) = FileReader::new(path, &head) {
                return Self::Rewritten(Box::new(RewrittenFile::new(
                    path.to_owned(),
                    reach.clone(),
                    reader,
                    begin,
                )));
            }
        }
        let how = How { begin, recognise: config.recognises() };
        Self::Grows(Box::new(Follower::new(path.to_owned(), reach.clone(), how)))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Grows(follower) => follower.path(),
            Self::Rewritten(file) => file.path(),
        }
    }

    pub(super) fn positions(&self) -> Vec<Position> {
        match self {
            Self::Grows(follower) => follower.positions(),
            Self::Rewritten(file) => vec![file.position()],
        }
    }

    pub(super) fn modified(&self) -> Option<f64> {
        match self {
            Self::Grows(follower) => follower.modified(),
            Self::Rewritten(file) => file.modified(),
        }
    }

    /// Whether there is something to read, as far as that is known without reading.
    pub(super) fn has_grown(&self) -> bool {
        matches!(self, Self::Grows(follower) if follower.has_grown())
    }

    /// The owner of the file.
    pub(super) fn uid(&self) -> Option<u32> {
        match self {
            Self::Grows(follower) => follower.uid(),
            Self::Rewritten(file) => file.uid(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        match self {
            Self::Grows(follower) => follower.counts,
            Self::Rewritten(file) => file.counts,
        }
    }

    /// The reader of its records; `None` for a file of lines.
    pub(super) fn reader(&self) -> Option<&FileReader> {
        match self {
            Self::Grows(follower) => follower.records(),
            Self::Rewritten(file) => Some(file.reader()),
        }
    }
}
