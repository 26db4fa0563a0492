//! Chooses the paths whose free space is queried, and keeps the answers.

use std::io;
use std::path::{Path, PathBuf};

use crate::collectors::storage::mounts::table::{self, Mount};
use crate::principal::Principal;
use crate::reach::View;
use crate::training::CheckpointPlace;

/// The most file systems that are watched, and the most directories.
const MAX_FILE_SYSTEMS: usize = 64;
pub(super) const MAX_DIRECTORIES: usize = 64;

/// The space of a file system in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) size: u64,
    /// The space for unprivileged programs.
    pub(super) free: u64,
    pub(super) used: u64,
    /// All inodes and the free ones, if they are limited.
    pub(super) inodes: Option<(u64, u64)>,
}

/// A directory whose file system is queried, and the principal who named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) named_by: Principal,
}

impl Directory {
    /// The key for the prober, and the name.
    pub(super) fn key(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

/// The space, and the path without symbolic links; `None` if there is no answer.
pub(super) type Look = Option<(Room, PathBuf)>;

/// The file systems that are watched in any case.
#[derive(Debug)]
pub(super) struct Wanted {
    types: Vec<glob::Pattern>,
    include: Vec<glob::Pattern>,
    exclude: Vec<glob::Pattern>,
}

impl Wanted {
    pub(super) fn new(types: &[String], include: &[String], exclude: &[String]) -> Self {
        let patterns = |texts: &[String]| texts.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self { types: patterns(types), include: patterns(include), exclude: patterns(exclude) }
    }

    pub(super) fn file_systems<'a>(&self, mounts: &'a [Mount]) -> Vec<&'a Mount> {
        let any = |patterns: &[glob::Pattern], text: &str| patterns.iter().any(|p| p.matches(text));
        let wanted = |m: &&Mount| {
            let name = m.name();
            (any(&self.types, &m.fstype) || any(&self.include, &name)) && !any(&self.exclude, &name)
        };
        let mut found = table::file_systems(mounts.iter().filter(wanted));
        found.truncate(MAX_FILE_SYSTEMS);
        found
    }
}

/// The key of a mount for the prober: another mount at the same place is queried anew.
pub(super) fn key(mount: &Mount) -> String {
    format!("{} {}", mount.id, mount.name())
}

/// The directory of a run's checkpoints.
pub(super) fn directory(place: &CheckpointPlace) -> Option<String> {
    let path = place.path.as_deref()?;
    path.parent().filter(|dir| dir.is_absolute()).map(|dir| dir.to_string_lossy().into_owned())
}

/// Reads the space of a path's file system. If the path does not exist, or its namer may not read
/// it, its nearest parent is used: the file system is the same unless another one is mounted.
pub(super) fn look(directory: &Directory) -> Look {
    let real = directory.path.ancestors().find_map(|dir| resolve(dir, directory.named_by).ok())?;
    let stat = rustix::fs::statvfs(&real).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let room = Room {
        size: bytes(stat.f_blocks),
        free: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes: (stat.f_files > 0).then_some((stat.f_files, stat.f_favail)),
    };
    (room.size > 0).then_some((room, real))
}

/// The path without symbolic links. The target of another user's link is not revealed to a user who
/// may not see it.
fn resolve(path: &Path, named_by: Principal) -> io::Result<PathBuf> {
    if named_by.is_trusted() {
        return std::fs::canonicalize(path);
    }
    let found = View::of_user(named_by.uid()).find(path)?;
    std::fs::read_link(found.again())
}
