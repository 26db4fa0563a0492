//! The index of SQLite's log, a file that SQLite maps into memory.
//!
//! The kernel kills a process that accesses such memory beyond the end of the file. So before each
//! use of SQLite, the file is checked to be as long as before. If it was not, this process never
//! uses SQLite again, not even to close a connection.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::error::{Result, StoreError};

/// The length of the pieces in which SQLite maps and extends the file
/// (<https://sqlite.org/walformat.html>).
const PIECE: u64 = 32 * 1024;
/// The positions of the database's page size and of the log's last frame (`szPage` and `mxFrame`
/// there).
const PAGE_SIZE_AT: usize = 14;
const LAST_FRAME_AT: usize = 16;
const HEAD: usize = LAST_FRAME_AT + 4;
/// The length of the log's header, and of each frame's header.
const LOG_HEAD: u64 = 32;
const FRAME_HEAD: u64 = 24;

#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// It is unknown whether a connection has the index open.
    Unknown,
    Mapped {
        place: (u64, u64),
        /// The mapped length. The file never becomes shorter while it is open.
        length: u64,
    },
    /// The file was shorter than the mapped part.
    Cut,
}

impl Index {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, state: Mutex::new(State::Unknown) }
    }

    /// Forgets the index, because no connection has it open and SQLite may begin another one.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Cut) {
            *state = State::Unknown;
        }
    }

    /// Checks that everything mapped still exists.
    pub(super) fn check_length(&self) -> Result<()> {
        self.look(false).map(drop)
    }

    /// Also checks that the index is still the one of the open connection.
    pub(super) fn check(&self) -> Result<()> {
        match self.look(true)? {
            None => Ok(()),
            Some(what) => Err(StoreError::NotInPlace { path: self.path.clone(), what }),
        }
    }

    /// The fault of the file at the path, if there is one.
    fn look(&self, open: bool) -> Result<Option<&'static str>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (place, length) = match (fs::metadata(&self.path), *state) {
            (_, State::Cut) => return Err(self.cut()),
            (Ok(meta), _) => ((meta.dev(), meta.ino()), meta.len()),
            (Err(err), State::Mapped { .. }) if err.kind() == io::ErrorKind::NotFound => {
                return Ok(Some("was removed"));
            }
            (Err(_), _) => return Ok(None),
        };
        let (known, least) = match *state {
            State::Mapped { place, length } => (place, length),
            _ if open => (place, PIECE),
            _ => return Ok(None),
        };
        if place != known {
            // The other file is mapped, and is complete as far as is known.
            return Ok(Some("was replaced by another file"));
        }
        if length < least {
            *state = State::Cut;
            return Err(self.cut());
        }
        *state = State::Mapped { place, length };
        Ok(None)
    }

    fn cut(&self) -> StoreError {
        StoreError::IndexCut { path: self.path.clone() }
    }

    /// The least length of the log by the index; zero after a checkpoint that emptied the log.
    pub(super) fn log_needs(&self) -> u64 {
        head(&self.path).map_or(0, |head| needed(&head))
    }
}

fn head(path: &Path) -> io::Result<[u8; HEAD]> {
    let mut head = [0; HEAD];
    File::open(path)?.read_exact(&mut head)?;
    Ok(head)
}

fn needed(head: &[u8; HEAD]) -> u64 {
    let page = head[PAGE_SIZE_AT..].first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes));
    let last = head[LAST_FRAME_AT..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    // The largest page size does not fit into the field.
    let page = if page == 1 { 1 << 16 } else { u64::from(page) };
    if last == 0 { 0 } else { LOG_HEAD + u64::from(last) * (FRAME_HEAD + page) }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use sqlx::Connection as _;
    use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
    use stepwatch_model::time::Ts;

    use super::super::commit::Commit;
    use super::super::handle::Store;
    use super::super::read::Filter;
    use super::super::tests::{reopen, said};
    use super::*;

    async fn written() -> (tempfile::TempDir, PathBuf, Store) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        drop(Store::open(&path).await.unwrap());
        let store = reopen(&path).await;
        let commit = Commit { effects: vec![said("01", 1, "kept")], ..Commit::default() };
        store.commit(&commit).await.unwrap();
        store.incidents(&Filter::default()).await.unwrap();
        (dir, path, store)
    }

    fn cut(path: &Path, end: &str, length: u64) {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        OpenOptions::new().write(true).open(name).unwrap().set_len(length).unwrap();
    }

    /// Each of these lengths would kill this process if SQLite were used.
    #[tokio::test]
    async fn sqlite_is_not_used_again_once_its_index_was_cut_short() {
        for length in [0, 100, PIECE - 1] {
            let (_dir, path, store) = written().await;
            cut(&path, "-shm", length);
            let read = store.incidents(&Filter::default()).await.unwrap_err().to_string();
            assert!(read.contains("alerter.db-shm") && read.contains("was cut short"), "{read}");
            assert_eq!(store.refusal_in_public().unwrap(), "the database's index was cut short");
            // A file that was extended again has lost its contents.
            cut(&path, "-shm", PIECE);
            let write = store.touch(Ts(2)).await.unwrap_err().to_string();
            assert!(write.contains("alerter.db-shm"), "{write}");
            assert!(store.timeline("01").await.is_err());
            store.clone().close().await;
            drop(store);
        }
    }

    #[tokio::test]
    async fn an_index_that_is_cut_short_while_nothing_is_written_is_missed() {
        let (_dir, path, store) = written().await;
        store.look().await;
        assert_eq!(store.refusal(), None);
        cut(&path, "-shm", 0);
        store.look().await;
        assert!(store.refusal().unwrap().contains("was cut short"));
        assert!(store.touch(Ts(2)).await.is_err());
    }

    #[tokio::test]
    async fn an_index_that_goes_away_is_missed_and_may_be_put_back() {
        let (dir, path, store) = written().await;
        let (index, aside) = (dir.path().join("alerter.db-shm"), dir.path().join("aside"));
        fs::rename(&index, &aside).unwrap();
        let err = store.touch(Ts(2)).await.unwrap_err().to_string();
        assert!(err.contains("alerter.db-shm was removed"), "{err}");
        store.timeline("01").await.unwrap();
        fs::copy(&aside, &index).unwrap();
        assert!(store.touch(Ts(2)).await.unwrap_err().to_string().contains("was replaced"));
        fs::rename(&aside, &index).unwrap();
        store.touch(Ts(2)).await.unwrap();
        assert_eq!(store.refusal(), None);
        drop(path);
    }

    #[tokio::test]
    async fn a_log_that_is_cut_short_is_missed_and_one_that_was_written_back_is_not() {
        let (_dir, path, store) = written().await;
        let mut other =
            SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path)).await.unwrap();
        for how in ["PASSIVE", "RESTART", "TRUNCATE"] {
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("PRAGMA wal_checkpoint({how})")))
                .execute(&mut other)
                .await
                .unwrap();
            store.look().await;
            assert_eq!(store.refusal(), None, "{how}");
            store.touch(Ts(2)).await.unwrap();
        }
        cut(&path, "-wal", 100);
        store.look().await;
        assert!(store.refusal().unwrap().contains("was cut short"), "{:?}", store.refusal());
        let err = store.touch(Ts(3)).await.unwrap_err().to_string();
        assert!(err.contains("alerter.db-wal was cut short"), "{err}");
    }

    #[test]
    fn a_log_is_as_long_as_its_frames() {
        let head = |page: u16, last: u32| {
            let mut head = [0; HEAD];
            head[PAGE_SIZE_AT..LAST_FRAME_AT].copy_from_slice(&page.to_ne_bytes());
            head[LAST_FRAME_AT..].copy_from_slice(&last.to_ne_bytes());
            needed(&head)
        };
        assert_eq!(head(4096, 0), 0);
        assert_eq!(head(4096, 2), 32 + 2 * (24 + 4096));
        assert_eq!(head(1, 1), 32 + 24 + 65_536);
    }
}
