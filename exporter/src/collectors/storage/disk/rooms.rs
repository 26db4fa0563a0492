//! Which paths are asked for their free space, and the answers.

use std::path::{Path, PathBuf};

use crate::collectors::storage::mounts::table::{self, Mount};
use crate::training::CheckpointPlace;

/// File systems that are watched, and directories.
const MAX_FILE_SYSTEMS: usize = 64;
pub(super) const MAX_DIRECTORIES: usize = 64;

/// Room on a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) size: u64,
    /// Space for programs without privileges.
    pub(super) free: u64,
    pub(super) used: u64,
    /// All and free, where there is a limit.
    pub(super) inodes: Option<(u64, u64)>,
}

/// The room, and the path without symbolic links; `None` when there is no answer to be had.
pub(super) type Look = Option<(Room, PathBuf)>;

/// Which file systems are watched for their own sake.
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

/// The key of a mount for the prober: another mount at the same place is asked anew.
pub(super) fn key(mount: &Mount) -> String {
    format!("{} {}", mount.id, mount.name())
}

/// The directory that a run's checkpoints are put into.
pub(super) fn directory(place: &CheckpointPlace) -> Option<String> {
    let path = place.path.as_deref()?;
    path.parent().filter(|dir| dir.is_absolute()).map(|dir| dir.to_string_lossy().into_owned())
}

/// Asks for the space of the file system that a path is on. For a path that does not exist, its
/// nearest existing parent is asked: the file system is the same unless another one is mounted.
pub(super) fn look(path: &Path) -> Look {
    let real = path.ancestors().find_map(|dir| std::fs::canonicalize(dir).ok())?;
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
