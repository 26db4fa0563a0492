//! What a file is decides how it is followed: as one that grows, or as one that is written anew.

use std::path::Path;

use stepwatch_formats::{FileKind, FileReader, kind_of};

use super::TailConfig;
use super::follow::Follower;
use super::open::{self, Begin, How};
use super::pieces::Counts;
use super::state::Position;
use super::whole::Whole;
use crate::reach::Reach;

pub(super) enum Content {
    Grows(Box<Follower>),
    Whole(Box<Whole>),
}

impl Content {
    pub(super) fn new(config: &TailConfig, path: &Path, reach: &Reach, begin: Begin) -> Self {
        let head = if config.recognises() { open::head(path, reach) } else { Vec::new() };
        if config.recognises() && kind_of(path, &head) == FileKind::Whole {
            if let Some(reader) = FileReader::new(path, &head) {
                return Self::Whole(Box::new(Whole::new(path.to_owned(), reach.clone(), reader, begin)));
            }
        }
        let how = How { begin, recognise: config.recognises() };
        Self::Grows(Box::new(Follower::new(path.to_owned(), reach.clone(), how)))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Grows(follower) => follower.path(),
            Self::Whole(whole) => whole.path(),
        }
    }

    pub(super) fn positions(&self) -> Vec<Position> {
        match self {
            Self::Grows(follower) => follower.positions(),
            Self::Whole(whole) => vec![whole.position()],
        }
    }

    pub(super) fn modified(&self) -> Option<f64> {
        match self {
            Self::Grows(follower) => follower.modified(),
            Self::Whole(whole) => whole.modified(),
        }
    }

    /// Whose the file is.
    pub(super) fn uid(&self) -> Option<u32> {
        match self {
            Self::Grows(follower) => follower.uid(),
            Self::Whole(whole) => whole.uid(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        match self {
            Self::Grows(follower) => follower.counts,
            Self::Whole(whole) => whole.counts,
        }
    }

    /// Who reads it, where it is not lines.
    pub(super) fn reader(&self) -> Option<&FileReader> {
        match self {
            Self::Grows(follower) => follower.records(),
            Self::Whole(whole) => Some(whole.reader()),
        }
    }
}
