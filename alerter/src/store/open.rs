//! Opens the store: checks the filesystem, locks the file, and migrates the schema.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, SqlSafeStr as _};
use tokio::sync::{Mutex, Notify};

use super::busy::Busy;
use super::error::{Result, StoreError};
use super::filesystem;
use super::handle::{Inner, Store};
use super::identity::{self, Identity};
use super::lease::Lease;
use super::lock::FileLock;
use super::sql::{Connection, Pool};
use super::writer::{Options, Writer};

/// A schema version, its name, and the SQL that migrates to it.
pub(super) type Step = (i64, &'static str, &'static str);

/// The migrations, one line per schema version. From the first release on they are append-only: the
/// text of an applied migration never changes.
pub(super) const MIGRATIONS: &[Step] = &[
    (1, "init", include_str!("../../migrations/0001_init.sql")),
    (2, "oncall overrides", include_str!("../../migrations/0002_oncall_overrides.sql")),
    (3, "replicas", include_str!("../../migrations/0003_replicas.sql")),
];

const READERS_MAX: u32 = 4;
pub(super) const FINDERS_MAX: u32 = 2;

/// How long a statement waits for another program that has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Opens the database, creating it and its directory as needed, and brings its schema up to
    /// date.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_as(path, false).await
    }

    /// Like [`Self::open`]; `new` accepts a database other than the last one.
    pub async fn open_as(path: impl AsRef<Path>, new: bool) -> Result<Self> {
        let _busy = Busy::now();
        #[cfg(test)]
        if let Some(store) = super::tests::on_postgres(path.as_ref()).await? {
            return Ok(store);
        }
        Self::open_file(path.as_ref(), new).await
    }

    /// Like [`Self::open_as`], also in tests on PostgreSQL.
    pub(super) async fn open_file(path: &Path, new: bool) -> Result<Self> {
        let _busy = Busy::now();
        // SQLite's log, the lock and the hidden files belong to the file itself.
        let path = resolved(path);
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let fail = |action, source| StoreError::Io { action, path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(|e| fail("create the directory", e))?;
        let shared = filesystem::shared(directory).map_err(|e| fail("look at the filesystem of", e))?;
        if let Some(filesystem) = shared {
            return Err(StoreError::SharedFilesystem { path, filesystem });
        }
        let lock = FileLock::acquire(&path)?;
        let of_file = |action| {
            let path = path.clone();
            move |source| StoreError::Io { action, path, source }
        };
        identity::protect(&path).map_err(of_file("create"))?;

        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let open = |source| StoreError::Open { path: path.clone(), source };
        let mut connection = options.connect().await.map_err(open)?;
        migrate(&mut connection, &path).await?;
        let contents = identity::recognise(&mut connection, &path, new).await?;
        let identity = Identity::read(&path, contents).map_err(of_file("look at"))?;
        let writer =
            Mutex::new(Writer::new(Options::Sqlite(options.clone()), Connection::Sqlite(connection)));
        let options = options.read_only(true);
        let pool = |connections| {
            let pool = SqlitePoolOptions::new()
                .max_connections(connections)
                // A local file does not disappear between two queries.
                .test_before_acquire(false)
                .idle_timeout(None)
                .max_lifetime(None)
                .connect_lazy_with(options.clone());
            Pool::Sqlite(pool)
        };
        let (readers, finders) = (pool(READERS_MAX), pool(FINDERS_MAX));
        let parts =
            Parts { path, identity: Some(identity), lease: None, writer, readers, finders, lock: Some(lock) };
        Ok(Self::of(parts))
    }

    pub(super) fn of(parts: Parts) -> Self {
        let Parts { path, identity, lease, writer, readers, finders, lock } = parts;
        let (posted, changed, line) = (Notify::new(), Notify::new(), Mutex::new(()));
        let (alerts, refusal) = (std::sync::Mutex::default(), std::sync::Mutex::default());
        let unrecorded = std::sync::Mutex::default();
        let inner = Inner {
            path,
            identity,
            lease,
            writer,
            line,
            refusal,
            unreadable: std::sync::Mutex::default(),
            looking: AtomicBool::new(false),
            abandoned: OnceLock::new(),
            transaction_began: std::sync::Mutex::default(),
            recorded: AtomicI64::default(),
            unrecorded,
            readers,
            finders,
            alerts,
            posted,
            changed,
            _lock: lock,
        };
        Self { inner: Arc::new(inner) }
    }
}

/// The parts of a store that the two databases have in different ways.
pub(super) struct Parts {
    pub(super) path: PathBuf,
    pub(super) identity: Option<Identity>,
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) writer: Mutex<Writer>,
    pub(super) readers: Pool,
    pub(super) finders: Pool,
    pub(super) lock: Option<FileLock>,
}

/// The path with its links resolved, as far as it exists.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        if let Ok(real) = path.canonicalize() {
            return real;
        }
        let directory = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        let Ok(target) = path.read_link() else {
            let real = directory.canonicalize().ok();
            return real.zip(path.file_name()).map_or(path.clone(), |(real, name)| real.join(name));
        };
        path = directory.join(target);
    }
    path
}

async fn migrate(connection: &mut SqliteConnection, path: &Path) -> Result<()> {
    let migrations = MIGRATIONS.iter().map(|(version, name, sql)| {
        Migration::new(*version, (*name).into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    let known = MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0);
    match Migrator::with_migrations(migrations.collect()).run_direct(None, connection, false).await {
        Ok(()) => Ok(()),
        Err(MigrateError::VersionMissing(found)) => {
            Err(StoreError::Newer { path: path.to_owned(), found, known })
        }
        Err(source) => Err(StoreError::Migrate { path: path.to_owned(), source }),
    }
}
