//! The handle to the open store.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use stepwatch_model::time::Ts;
use tokio::sync::{Mutex, Notify};

use super::alert_rows::AlertRows;
use super::busy::Busy;
use super::error::{Result, StoreError};
use super::held::Unrecorded;
use super::identity::Identity;
use super::lease::Lease;
use super::lock::FileLock;
use super::sql::{Connection, Pool};
use super::writer::{Refusal, Writer};

/// A handle to the open store. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    /// The file of SQLite, or the address of PostgreSQL without a password.
    pub(super) path: PathBuf,
    /// The file of SQLite; `None` on PostgreSQL.
    pub(super) identity: Option<Identity>,
    /// The right to write to PostgreSQL; `None` on SQLite, whose file is locked.
    pub(super) lease: Option<Arc<Lease>>,
    pub(super) writer: Mutex<Writer>,
    /// The queue of writers that are not urgent, such as deliveries.
    pub(super) line: Mutex<()>,
    /// The present refusal. The lock is only held briefly.
    pub(super) refusal: std::sync::Mutex<Option<Refusal>>,
    /// Why messages to send cannot be read. The lock is only held briefly.
    pub(super) unreadable: std::sync::Mutex<Option<Refusal>>,
    /// Whether a check of the files is in progress.
    pub(super) looking: AtomicBool,
    /// Set once SQLite must not be used again.
    pub(super) abandoned: OnceLock<()>,
    /// When the present transaction began. The lock is only held briefly.
    pub(super) transaction_began: std::sync::Mutex<Option<tokio::time::Instant>>,
    /// The time of the last commit or heartbeat that was written, in Unix milliseconds; 0 before
    /// the first.
    pub(super) recorded: AtomicI64,
    /// Messages that are sent although the store refuses writes. The lock is only held briefly.
    pub(super) unrecorded: std::sync::Mutex<Unrecorded>,
    pub(super) readers: Pool,
    /// The pool for lookups by key, which are fast and for which a person may wait.
    pub(super) finders: Pool,
    /// The alert rows after the last commit with alerts; `None` before the first, and after a
    /// failed one. Only the engine's loop commits alerts.
    pub(super) alerts: std::sync::Mutex<Option<AlertRows>>,
    /// Notified after a commit that added to the outbox.
    pub(super) posted: Notify,
    /// Notified when an incident or one of its conversations has changed.
    pub(super) changed: Notify,
    // The lock comes last, so that the file is closed before another alerter can lock it.
    pub(super) _lock: Option<FileLock>,
}

pub(super) struct StoreReader<'a> {
    pool: &'a Pool,
    _busy: Busy,
}

impl Deref for StoreReader<'_> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool
    }
}

impl Store {
    /// Notes the time of the last write.
    pub(crate) fn note_recorded(&self, at: Ts) {
        self.inner.recorded.store(at.0, Ordering::Relaxed);
    }

    /// Adopts the last write of an earlier start.
    pub(crate) async fn resume_recorded(&self) -> Result<Option<Ts>> {
        let alive = self.alive_at().await?;
        if let Some(at) = alive {
            self.note_recorded(at);
        }
        Ok(alive)
    }

    /// The time of [`Store::alive_at`] from memory, because the database may be missing.
    pub(crate) fn recorded_at(&self) -> Option<Ts> {
        Some(Ts(self.inner.recorded.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Resolves after the next commit that adds to the outbox; at once if there was one since the
    /// last call.
    pub(crate) async fn posted(&self) {
        self.inner.posted.notified().await;
    }

    /// Makes [`Store::posted`] resolve.
    pub(crate) fn post(&self) {
        self.inner.posted.notify_one();
    }

    /// Resolves after the next change of an incident or one of its conversations; at once if there
    /// was one since the last call.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    pub(super) fn reader(&self) -> Result<StoreReader<'_>> {
        self.may_read()?;
        Ok(StoreReader { pool: &self.inner.readers, _busy: Busy::now() })
    }

    /// A connection for lookups by key.
    pub(super) fn finder(&self) -> Result<StoreReader<'_>> {
        self.may_read()?;
        Ok(StoreReader { pool: &self.inner.finders, _busy: Busy::now() })
    }

    /// Keeps SQLite's open files until the process ends, because closing them would use SQLite.
    pub(super) fn abandon(&self, why: &StoreError) {
        if matches!(why, StoreError::IndexCut { .. }) && self.inner.abandoned.set(()).is_ok() {
            tracing::error!(%why, "the database is not used again until a restart");
            std::mem::forget(Arc::clone(&self.inner));
        }
    }

    /// Closes the database: SQLite's log is written back into its file, and the lease of PostgreSQL
    /// is given up, so that another replica takes over at once. Dropping the last handle is also
    /// safe, but then the next start or take-over is slower.
    pub async fn close(self) {
        if self.usable().is_err() {
            return;
        }
        // First, because the others wait for it, and a read may take long.
        self.give_up_lease().await;
        self.inner.readers.close().await;
        self.inner.finders.close().await;
        let mut writer = self.inner.writer.lock().await;
        let _busy = Busy::now();
        // After a refusal there may be no connection.
        if let Some(Connection::Sqlite(connection)) = writer.kept()
            && let Err(err) = sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await
        {
            tracing::warn!(%err, "cannot write the log back into the database file; the next start will");
        }
    }

    async fn give_up_lease(&self) {
        let Some(lease) = &self.inner.lease else { return };
        let mut writer = self.inner.writer.lock().await;
        let _busy = Busy::now();
        // After a refusal there may be no connection.
        let Some(connection) = writer.kept() else {
            // It expires, because it is not renewed any more.
            return lease.lose();
        };
        if let Err(err) = lease.release(connection).await {
            tracing::warn!(%err, "cannot give up the lease; another replica takes over when it expires");
        }
    }
}
