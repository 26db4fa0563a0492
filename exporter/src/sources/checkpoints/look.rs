//! Looks at one checkpoint on disk: its size, when it was last written, and whether a file in it
//! says that it is complete.

use std::ffi::CStr;
use std::fs::Metadata;
use std::io::Read as _;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat};

use super::layout;
use crate::reach::Located;

/// The most files of one checkpoint whose sizes are added up: two a rank of the largest jobs.
const MAX_FILES: usize = 50_000;
/// The deepest nesting of directories within a checkpoint.
const MAX_DEPTH: usize = 6;
/// The most bytes of a file in a checkpoint that says whether it is complete. It is read again at
/// each look, and anybody may write one.
const MAX_METADATA_BYTES: u64 = 64 * 1024;

/// The size and times of a checkpoint on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Look {
    pub(super) bytes: u64,
    pub(super) files: usize,
    /// The Unix time in seconds when anything in it was last written.
    pub(super) modified: f64,
    pub(super) marked: bool,
    /// Whether there were more files than are counted.
    pub(super) cut: bool,
}

impl Look {
    /// Looks at the checkpoint of this name.
    pub(super) fn at(found: &Located, name: &str) -> Self {
        let mut look = Self::default();
        if found.metadata.is_dir() {
            look.modified = modified(&found.metadata);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(dir) = rustix::fs::open(found.again(), flags, Mode::empty()) {
                look.walk(&dir, 0, name, "");
            }
        } else {
            look.add(found.metadata.len(), modified(&found.metadata));
        }
        look
    }

    fn add(&mut self, bytes: u64, modified: f64) {
        self.bytes += bytes;
        self.files += 1;
        self.modified = self.modified.max(modified);
    }

    /// Whether a file in the checkpoint says that it is complete.
    fn reads_committed(dir: &OwnedFd, name: &CStr) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(dir, name, flags, Mode::empty()) else { return false };
        let mut bytes = Vec::new();
        let read = std::fs::File::from(file).take(MAX_METADATA_BYTES).read_to_end(&mut bytes);
        read.is_ok() && layout::is_committed(&bytes)
    }

    /// Walks from one open directory to the next, so that none can be replaced by a link meanwhile.
    /// `within`: the name of this one.
    fn walk(&mut self, dir: &OwnedFd, depth: usize, checkpoint: &str, within: &str) {
        for entry in Dir::read_from(dir).into_iter().flatten().flatten() {
            if self.files >= MAX_FILES {
                self.cut = true;
                return;
            }
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let text = name.to_str().unwrap_or_default();
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if depth < MAX_DEPTH => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    if let Ok(below) = openat(dir, name, flags, Mode::empty()) {
                        self.walk(&below, depth + 1, checkpoint, text);
                    }
                }
                FileType::RegularFile => {
                    let sign = match depth {
                        0 => layout::sign(text, checkpoint),
                        1 if layout::is_last_within(within, text) => Some(layout::Sign::Last),
                        _ => None,
                    };
                    self.marked |= match sign {
                        Some(layout::Sign::Last) => true,
                        Some(layout::Sign::Content) => Self::reads_committed(dir, name),
                        None => false,
                    };
                    let modified = stat.st_mtime as f64 + stat.st_mtime_nsec as f64 / 1e9;
                    self.add(stat.st_size.cast_unsigned(), modified);
                }
                _ => {}
            }
        }
    }
}

fn modified(meta: &Metadata) -> f64 {
    let since = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0.0, |s| s.as_secs_f64())
}
