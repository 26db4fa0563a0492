//! Checks that the database still has the contents that this process wrote.
//!
//! A file can be overwritten in place: another one is copied onto it, or restored into it by SQLite
//! itself. Its path and inode stay the same, and SQLite continues with a mixture of both. So each
//! transaction first reads the name and the last number. A copied file replaces only the main file
//! and not SQLite's log, which hides the main file. So whenever the main file has changed, it is
//! read without the log.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::error::{Result, StoreError};

const SQL: &str = "SELECT (SELECT value FROM meta WHERE key = 'identity'), \
                   (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'proof')";
const OTHER: &str = "was written over with another database";
const OLDER: &str = "was written over with an older copy of itself";

/// The expected contents.
#[derive(Debug)]
pub(super) struct Contents {
    name: String,
    /// The last number that this process committed.
    number: AtomicI64,
    /// The main file when it was last read. The lock is only held briefly.
    main: Mutex<Option<Main>>,
}

#[derive(Debug, Clone, Copy)]
struct Main {
    changed: SystemTime,
    bytes: u64,
    number: i64,
}

impl Contents {
    pub(super) fn new(name: String, number: i64) -> Self {
        Self { name, number: AtomicI64::new(number), main: Mutex::default() }
    }

    pub(super) fn committed(&self, number: i64) {
        self.number.fetch_max(number, Ordering::Relaxed);
    }

    /// Checks the contents that a connection reads, which include the log.
    pub(super) async fn check(&self, connection: &mut SqliteConnection, path: &Path) -> Result<()> {
        let found = read(connection).await?;
        self.compare(path, found, self.number.load(Ordering::Relaxed)).map(drop)
    }

    /// Checks the main file, if it has changed since the last call.
    pub(super) async fn check_main(&self, path: &Path) -> Result<()> {
        // Another check covers the existence of the file.
        let Ok(meta) = fs::metadata(path) else { return Ok(()) };
        let Ok(changed) = meta.modified() else { return Ok(()) };
        let known = *self.main.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|main| main.changed == changed && main.bytes == meta.len()) {
            return Ok(());
        }
        let shorter = known.is_some_and(|main| meta.len() < main.bytes);
        let found = match read_main(path).await {
            // While SQLite writes its log back, the main file is a mixture of old and new pages. An
            // abandoned connection may do that for long.
            Err(err) if err.is_malformed() && !shorter => return Ok(()),
            found => found?,
        };
        let Some(found) = found else { return Ok(()) };
        let number = self.compare(path, found, known.map_or(0, |main| main.number))?;
        let main = Main { changed, bytes: meta.len(), number };
        *self.main.lock().unwrap_or_else(PoisonError::into_inner) = Some(main);
        Ok(())
    }

    fn compare(&self, path: &Path, found: Found, at_least: i64) -> Result<i64> {
        let (name, number) = (found.0, found.1.unwrap_or(0));
        let what = match name {
            Some(name) if name == self.name && number >= at_least => return Ok(number),
            Some(name) if name == self.name => OLDER,
            _ => OTHER,
        };
        Err(StoreError::NotInPlace { path: path.to_owned(), what })
    }
}

type Found = (Option<String>, Option<i64>);

async fn read(connection: &mut SqliteConnection) -> Result<Found> {
    Ok(sqlx::query_as(SQL).fetch_one(connection).await?)
}

/// Reads the main file without the log; `None` if that is not possible. The log may be written back
/// at the same time, so damaged contents are read again.
async fn read_main(path: &Path) -> Result<Option<Found>> {
    const TIMES: u32 = 3;
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(true);
    for time in 1..=TIMES {
        // A process without a free file descriptor has other errors.
        let Ok(mut connection) = options.connect().await else { return Ok(None) };
        match read(&mut connection).await {
            Ok(found) => return Ok(Some(found)),
            Err(err) if time == TIMES => return Err(err),
            Err(_) => {}
        }
    }
    Ok(None)
}
