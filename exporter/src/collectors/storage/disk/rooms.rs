//! Which paths are asked for their free space, and the answers.

use std::io;
use std::path::{Path, PathBuf};

use crate::collectors::storage::mounts::table::{self, Mount};
use crate::principal::Principal;
use crate::reach::View;
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

/// A directory whose file system is asked for its room, and who named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) named_by: Principal,
}

impl Directory {
    /// Its key for the prober, and its name.
    pub(super) fn key(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
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

/// Asks for the space of the file system that a path is on. For a path that does not exist, or that
/// whoever named it may not read, its nearest parent is asked: the file system is the same unless
/// another one is mounted.
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

/// The path without symbolic links. Where links of others lead is not shown to a user who may not
/// see it.
fn resolve(path: &Path, named_by: Principal) -> io::Result<PathBuf> {
    if named_by.is_trusted() {
        return std::fs::canonicalize(path);
    }
    let found = View::of_user(named_by.uid()).find(path)?;
    std::fs::read_link(found.again())
}
