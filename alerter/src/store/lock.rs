//! Ensures that only one alerter uses a database file.
//!
//! The lock is an flock on a file next to the database. Closing any descriptor of the database
//! itself would drop SQLite's POSIX locks. The kernel releases the flock whenever the process ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::error::{Result, StoreError};

#[derive(Debug)]
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    pub(super) fn acquire(database: &Path) -> Result<Self> {
        let path = beside(database);
        let fail = |action| {
            let path = path.clone();
            move |source| StoreError::Io { action, path, source }
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(fail("open the lock file"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let known = file.read_to_string(&mut holder).is_ok() && !holder.trim().is_empty();
                let holder = if known { holder.trim().to_owned() } else { "unknown".to_owned() };
                return Err(StoreError::InUse { path: database.to_owned(), holder });
            }
            Err(err) => return Err(fail("lock")(err.into())),
        }
        if let Err(err) = sign(&mut file) {
            // For example, on a full disk. The lock is held, and only its text is missing.
            tracing::warn!(%err, path = %path.display(), "cannot write into the lock file whose it is");
        }
        Ok(Self { _file: file })
    }
}

fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn beside(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}
