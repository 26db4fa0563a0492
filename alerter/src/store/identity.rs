//! Checks the identity of the database file: it must be the expected one, and not a new one.
//!
//! SQLite continues to write into a file that was removed or replaced, and creates an empty one if
//! there is none. Both would lose incidents, silences and messages without an error. So each
//! transaction first checks that the open file is still the one at its path. In addition, the
//! database and a hidden file next to it have the same random name, so that a start with an empty
//! or foreign database is refused unless the operator requests it.
//!
//! The last commits are only in SQLite's log until that is written back. If the log of a killed
//! process is removed, an older database with the same name is left. So both files also have a
//! number that rises while there are writes: the hidden file has a number that the database
//! certainly has on disk.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::sqlite::SqliteConnection;
use tokio::time::Instant;

use super::contents::Contents;
use super::error::{Result, StoreError};
use super::index::Index;

/// The file mode of the store and the files next to it, because they contain names, labels and
/// notes.
const OWNER_ONLY: u32 = 0o600;

/// The shortest interval between two updates of the number, and so its greatest age.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// The digits of the number. The text has a constant length, because it is overwritten in place.
const DIGITS: usize = 20;

/// The identity of the file that was opened.
#[derive(Debug)]
pub(super) struct Identity {
    path: PathBuf,
    pub(super) contents: Contents,
    place: (u64, u64),
    /// The device and inode of SQLite's log, which has the last commits. It appears with the first
    /// transaction of a connection, and disappears with the last connection.
    log: Mutex<Option<(u64, u64)>>,
    pub(super) index: Index,
    /// When the number in the hidden file is updated next; at once after a start.
    count_due: Mutex<Option<Instant>>,
}

/// Creates the file if it does not exist, and makes it unreadable for others.
pub(super) fn protect(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).mode(OWNER_ONLY).open(path)?;
    for suffix in ["", "-wal", "-shm"] {
        let name = with_suffix(path, suffix);
        match fs::metadata(&name) {
            Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(&name, Permissions::from_mode(OWNER_ONLY))?;
            }
            _ => {}
        }
    }
    Ok(())
}

impl Identity {
    pub(super) fn read(path: &Path, contents: Contents) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            contents,
            place: (meta.dev(), meta.ino()),
            log: Mutex::default(),
            index: Index::new(with_suffix(path, "-shm")),
            count_due: Mutex::default(),
        })
    }

    /// Checks that the file at the path is still the open one.
    pub(super) fn check(&self) -> Result<()> {
        let what = match fs::metadata(&self.path) {
            Ok(meta) if (meta.dev(), meta.ino()) != self.place => "was replaced by another file",
            // SQLite would continue with its log, and the next start would lose everything.
            Ok(meta) if meta.len() == 0 => "was emptied",
            Ok(_) => return Ok(()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => "was removed",
            // A missing permission is a different problem, which the transaction itself reports.
            Err(_) => return Ok(()),
        };
        Err(StoreError::NotInPlace { path: self.path.clone(), what })
    }

    /// Whether a transaction must raise the number.
    pub(super) fn wants_count(&self) -> bool {
        let due = *self.count_due.lock().unwrap_or_else(PoisonError::into_inner);
        due.is_none_or(|due| Instant::now() >= due)
    }

    /// Records that the database has this number on disk. The hidden file need not be on disk as
    /// well, because a number that is too low only checks less.
    pub(super) async fn count(&self, number: i64) {
        let path = beside(&self.path);
        let file = path.clone();
        // A hanging disk delays only this transaction.
        let written = tokio::task::spawn_blocking(move || write_number(&file, number));
        if let Err(err) = written.await.map_err(io::Error::other).flatten() {
            let path = path.display();
            tracing::warn!(%err, %path, "cannot write down how far the database came: a loss of its log is not noticed");
        }
        let next = Instant::now() + COUNT_EVERY;
        *self.count_due.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    /// Forgets the log, because a new connection may begin another one.
    pub(super) fn forget_log(&self) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Checks that the log is still the one of the open connection, and contains everything that
    /// was written to it.
    pub(super) fn check_log(&self) -> Result<()> {
        let path = with_suffix(&self.path, "-wal");
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // Another process may write the log back at the same time; then the index differs
        // afterwards.
        let needed = self.index.log_needs();
        let what = match (fs::metadata(&path), *log) {
            (Ok(meta), _) => {
                let place = (meta.dev(), meta.ino());
                if *log.get_or_insert(place) != place {
                    "was replaced by another file"
                } else if meta.len() >= needed || self.index.log_needs() != needed {
                    return Ok(());
                } else if meta.len() == 0 {
                    "was emptied"
                } else {
                    "was cut short"
                }
            }
            (Err(err), Some(_)) if err.kind() == io::ErrorKind::NotFound => "was removed",
            (Err(_), _) => return Ok(()),
        };
        Err(StoreError::NotInPlace { path, what })
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The contents of the hidden file.
struct Expected {
    name: String,
    number: i64,
}

/// Compares the name in the database with the hidden file; `new` gives both a new name.
pub(super) async fn recognise(connection: &mut SqliteConnection, path: &Path, new: bool) -> Result<Contents> {
    let beside = beside(path);
    let fail = |action, source| StoreError::Io { action, path: beside.clone(), source };
    let expected = match fs::read_to_string(&beside) {
        Ok(text) => Some(Expected::parse(&text)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        Err(err) => return Err(fail("read", err)),
    };
    let sql = "SELECT value FROM meta WHERE key = 'identity'";
    let found: Option<String> = sqlx::query_scalar(sql).fetch_optional(&mut *connection).await?;
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'proof'";
    let number: i64 = sqlx::query_scalar(sql).fetch_optional(&mut *connection).await?.unwrap_or(0);
    let known = match (expected, found) {
        _ if new => None,
        (Some(expected), Some(found)) if expected.name == found => {
            if number < expected.number {
                return Err(StoreError::Older { path: path.to_owned(), beside });
            }
            return Ok(Contents::new(found, number));
        }
        (Some(_), found) => {
            let what = if found.is_some() { "is another database" } else { "is empty" };
            return Err(StoreError::Unexpected { path: path.to_owned(), beside, what });
        }
        // The database was restored at another place.
        (None, Some(found)) => Some(found),
        (None, None) => {
            let path = path.display();
            tracing::warn!(%path, "a new database: it begins without incidents and silences. If there were any, is its volume mounted?");
            None
        }
    };
    let name = if let Some(name) = known {
        name
    } else {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|err| fail("name", io::Error::other(err)))?;
        let name = hex::encode(bytes);
        let sql = "INSERT INTO meta (key, value) VALUES ('identity', ?) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        sqlx::query(sql).bind(&name).execute(&mut *connection).await?;
        // The main file gets its name even without the log, so that a missing log can be put back.
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await?;
        name
    };
    write(&beside, &name, number).map_err(|err| fail("write", err))?;
    Ok(Contents::new(name, number))
}

impl Expected {
    /// Parses the hidden file. Without a readable number, any database of this name is accepted.
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let name = lines.next().unwrap_or_default().trim().to_owned();
        Self { name, number: lines.next().and_then(|line| line.parse().ok()).unwrap_or(0) }
    }
}

fn number_line(number: i64) -> String {
    format!("{number:0DIGITS$}\n")
}

/// Overwrites a lower number in place, so that the name is never changed.
fn write_number(path: &Path, number: i64) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    if Expected::parse(&text).number > number {
        return Ok(());
    }
    let name = text.lines().next().unwrap_or_default();
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(format!("\n{}", number_line(number)).as_bytes(), name.len() as u64)
}

/// Writes the file atomically, also in case of a power failure.
fn write(path: &Path, name: &str, number: i64) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&draft)?;
    write!(file, "{name}\n{}", number_line(number))?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

fn beside(path: &Path) -> PathBuf {
    hidden_beside(path, "identity")
}

/// The path of a hidden file next to the database. It is hidden so that removing `alerter.db*`
/// leaves it.
pub(crate) fn hidden_beside(path: &Path, end: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".");
    name.push(end);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use sqlx::Connection as _;
    use sqlx::sqlite::SqliteConnectOptions;
    use stepwatch_model::time::Ts;

    use super::super::commit::Commit;
    use super::super::error::StoreError;
    use super::super::handle::Store;
    use super::super::open::resolved;
    use super::super::tests::{reopen, said};
    use super::super::writer::Who;
    use super::*;

    async fn stored() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        drop(Store::open(&path).await.unwrap());
        drop(reopen(&path).await);
        (dir, path)
    }

    /// The error of an open, once no other process has the file open.
    async fn fails(path: &Path) -> StoreError {
        loop {
            match Store::open(path).await {
                Err(StoreError::InUse { .. }) => tokio::task::yield_now().await,
                Err(err) => return err,
                Ok(_) => panic!("it opened"),
            }
        }
    }

    #[tokio::test]
    async fn a_removed_or_emptied_store_is_missed_at_the_next_start() {
        for emptied in [false, true] {
            let (dir, path) = stored().await;
            // SQLite removes its additional files when its last connection closes, and has them
            // mapped until then.
            let beside = ["-wal", "-shm"].map(|end| dir.path().join(format!("alerter.db{end}")));
            while beside.iter().any(|path| path.exists()) {
                tokio::task::yield_now().await;
            }
            if emptied {
                drop(fs::File::create(&path).unwrap());
            } else {
                fs::remove_file(&path).unwrap();
            }
            let err = fails(&path).await.to_string();
            assert!(err.contains("is empty") && err.contains("--new-store"), "{err}");
            assert!(fails(&path).await.to_string().contains("is empty"), "nor by trying again");
            drop(Store::open_as(&path, true).await.unwrap());
            drop(reopen(&path).await);
        }
    }

    /// A copy of the files that a killed process leaves.
    fn left_behind(path: &Path, ends: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join(path.file_name().unwrap());
        for end in ends {
            fs::copy(with_suffix(path, end), with_suffix(&to, end)).unwrap();
        }
        fs::copy(beside(path), beside(&to)).unwrap();
        (dir, to)
    }

    #[tokio::test]
    async fn a_log_that_was_removed_while_nobody_looked_is_missed_at_the_next_start() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        let commit = Commit { effects: vec![said("01", 1, "lost?")], ..Commit::default() };
        store.commit(&commit).await.unwrap();
        let (_whole, whole) = left_behind(&path, &["", "-wal"]);
        let again = Store::open(&whole).await.unwrap();
        assert_eq!(again.timeline("01").await.unwrap().len(), 1, "an ordinary kill");
        let (_older, older) = left_behind(&path, &[""]);
        for _ in 0..2 {
            let err = fails(&older).await.to_string();
            assert!(err.contains("alerter.db-wal") && err.contains("--new-store"), "{err}");
        }
        // The rest is accepted if the operator requests it, and from then on.
        drop(Store::open_as(&older, true).await.unwrap());
        drop(reopen(&older).await);
        // A log that SQLite itself wrote back is not missing.
        drop(store);
        let store = reopen(&path).await;
        assert_eq!(store.timeline("01").await.unwrap().len(), 1);
        let mut other =
            SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path)).await.unwrap();
        store.commit(&commit).await.unwrap();
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut other).await.unwrap();
        let (_back, back) = left_behind(&path, &[""]);
        drop(Store::open(&back).await.unwrap());
    }

    #[tokio::test]
    async fn a_name_without_a_number_is_enough() {
        let (_dir, path) = stored().await;
        let name = Expected::parse(&fs::read_to_string(beside(&path)).unwrap()).name;
        for text in [name.clone(), format!("{name}\n"), format!("{name}\nx\n")] {
            fs::write(beside(&path), text).unwrap();
            let store = reopen(&path).await;
            store.touch(Ts(1)).await.unwrap();
        }
        assert_eq!(fs::read_to_string(beside(&path)).unwrap().len(), name.len() + 1 + DIGITS + 1);
    }

    #[tokio::test]
    async fn the_store_of_another_is_refused_and_one_that_was_moved_is_not() {
        let ((_dir, path), (other_dir, other)) = (stored().await, stored().await);
        let elsewhere = other_dir.path().join("moved.db");
        fs::copy(&path, &elsewhere).unwrap();
        drop(Store::open(&elsewhere).await.unwrap());
        fs::copy(&path, &other).unwrap();
        assert!(fails(&other).await.to_string().contains("is another database"));
    }

    #[tokio::test]
    async fn nobody_else_may_read_the_files() {
        let (dir, path) = stored().await;
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        for entry in fs::read_dir(dir.path()).unwrap().flatten() {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, OWNER_ONLY, "{}", entry.path().display());
        }
    }

    #[tokio::test]
    async fn a_store_that_is_emptied_while_it_is_open_takes_nothing_more() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert!(store.touch(Ts(1)).await.unwrap_err().to_string().contains("was emptied"));
        assert!(store.refusal().is_some());
    }

    #[tokio::test]
    async fn a_store_whose_log_goes_away_takes_nothing_more() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        store.touch(Ts(2)).await.unwrap();
        let (log, aside) = (with_suffix(&path, "-wal"), path.with_extension("aside"));
        fs::rename(&log, &aside).unwrap();
        let err = store.touch(Ts(3)).await.unwrap_err().to_string();
        assert!(err.contains("alerter.db-wal") && err.contains("was removed"), "{err}");
        fs::write(&log, "").unwrap();
        assert!(store.touch(Ts(3)).await.unwrap_err().to_string().contains("was replaced"));
        fs::rename(&aside, &log).unwrap();
        store.touch(Ts(3)).await.unwrap();
    }

    #[tokio::test]
    async fn a_log_that_is_emptied_by_hand_is_missed_and_one_that_was_written_back_is_not() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        let mut other =
            SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(&path)).await.unwrap();
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut other).await.unwrap();
        assert_eq!(fs::metadata(with_suffix(&path, "-wal")).unwrap().len(), 0);
        store.touch(Ts(2)).await.unwrap();
        let log = with_suffix(&path, "-wal");
        OpenOptions::new().write(true).truncate(true).open(log).unwrap();
        let err = store.touch(Ts(3)).await.unwrap_err().to_string();
        assert!(err.contains("alerter.db-wal") && err.contains("was emptied"), "{err}");
    }

    /// Writes SQLite's log back from another program.
    async fn write_back(path: &Path) {
        let options = SqliteConnectOptions::new().filename(path);
        let mut other = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut other).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_the_log_is_being_written_back_to_is_in_its_place() {
        /// The position in the first page of the total number of pages.
        const PAGES: u64 = 28;
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        write_back(&path).await;
        store.touch(Ts(2)).await.unwrap();
        // The first page is written first, when the additional pages do not exist yet.
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&0x00ff_ffff_u32.to_be_bytes(), PAGES).unwrap();
        let contents = &store.inner.identity.as_ref().unwrap().contents;
        contents.check_main(&path).await.unwrap();
        file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
        let err = contents.check_main(&path).await.unwrap_err();
        assert!(err.is_malformed(), "it never becomes shorter: {err}");
    }

    #[tokio::test]
    async fn a_store_that_is_written_over_in_its_place_takes_nothing_more() {
        for older in [false, true] {
            let ((_dir, path), (_other, other)) = (stored().await, stored().await);
            let store = reopen(&path).await;
            store.touch(Ts(1)).await.unwrap();
            write_back(&path).await;
            let aside = path.with_extension("aside");
            fs::copy(if older { &path } else { &other }, &aside).unwrap();
            store.touch(Ts(2)).await.unwrap();
            write_back(&path).await;
            store.touch(Ts(3)).await.unwrap();
            write_back(&path).await;
            store.look().await;
            assert_eq!(store.refusal(), None, "its log may be written back");
            fs::write(&path, fs::read(&aside).unwrap()).unwrap();
            store.look().await;
            let why = if older { "with an older copy of itself" } else { "with another database" };
            assert!(store.refusal().unwrap().contains(why), "{:?}", store.refusal());
            assert!(store.touch(Ts(4)).await.unwrap_err().to_string().contains(why));
        }
    }

    /// Restores as SQLite's own backup does: in a transaction, into the log.
    #[tokio::test]
    async fn a_store_that_is_restored_into_takes_nothing_more() {
        for (sql, why) in [
            ("UPDATE meta SET value = '1' WHERE key = 'proof'", "with an older copy of itself"),
            ("UPDATE meta SET value = 'x' WHERE key = 'identity'", "with another database"),
            ("DELETE FROM meta", "with another database"),
        ] {
            let (_dir, path) = stored().await;
            let store = reopen(&path).await;
            store.touch(Ts(1)).await.unwrap();
            store.touch(Ts(2)).await.unwrap();
            let options = SqliteConnectOptions::new().filename(&path);
            let mut other = SqliteConnection::connect_with(&options).await.unwrap();
            sqlx::raw_sql(sql).execute(&mut other).await.unwrap();
            store.look().await;
            assert!(store.refusal().unwrap().contains(why), "{sql}: {:?}", store.refusal());
            assert!(store.touch(Ts(3)).await.unwrap_err().to_string().contains(why), "{sql}");
        }
    }

    #[tokio::test]
    async fn a_link_to_a_store_is_the_store() {
        let (dir, path) = stored().await;
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let store = reopen(&link).await;
        store.touch(Ts(1)).await.unwrap();
        assert!(matches!(Store::open(&path).await, Err(StoreError::InUse { .. })));
        assert_eq!(fs::read_dir(links.path()).unwrap().count(), 1, "everything is beside the file itself");
        fs::rename(dir.path().join("alerter.db-wal"), dir.path().join("aside")).unwrap();
        assert!(store.touch(Ts(2)).await.unwrap_err().to_string().contains("was removed"));
    }

    #[test]
    fn links_are_followed_as_far_as_they_lead() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let link = |name: &str, to: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link("a", "b");
        link("b", "new.db");
        link("loop", "loop");
        assert_eq!(resolved(&root.join("a")), root.join("new.db"));
        assert_eq!(resolved(&root.join("new.db")), root.join("new.db"));
        assert_eq!(resolved(&root.join("loop")), root.join("loop"));
        assert_eq!(resolved(Path::new("no/such/file.db")), Path::new("no/such/file.db"));
    }

    #[tokio::test]
    async fn a_store_that_goes_away_while_it_is_open_takes_nothing_more() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).unwrap();
        assert!(store.touch(Ts(1)).await.unwrap_err().to_string().contains("was removed"));
        assert!(store.refusal().is_some());
        fs::copy(&aside, &path).unwrap();
        assert!(store.touch(Ts(1)).await.unwrap_err().to_string().contains("was replaced"));
        fs::rename(&aside, &path).unwrap();
        store.touch(Ts(1)).await.unwrap();
        assert_eq!(store.refusal(), None);
    }

    /// The transaction checked the file before it was removed, so its commit does not prove the
    /// later state.
    #[tokio::test]
    async fn a_commit_does_not_hide_that_the_file_went_meanwhile() {
        let (_dir, path) = stored().await;
        let store = reopen(&path).await;
        store.touch(Ts(1)).await.unwrap();
        let aside = path.with_extension("aside");
        let work = async |_: &mut super::super::sql::Connection| {
            fs::rename(&path, &aside).unwrap();
            store.look_soon();
            assert!(store.refusal().is_some());
            Ok(())
        };
        store.write(Who::Prompt, work).await.unwrap();
        assert!(store.refusal().is_some(), "the file is still away");
        fs::rename(&aside, &path).unwrap();
        store.touch(Ts(2)).await.unwrap();
        assert_eq!(store.refusal(), None);
    }
}
