//! The handle to the open store.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use sqlx::sqlite::SqlitePool;
use stepwatch_model::time::Ts;
use tokio::sync::{Mutex, Notify};

use super::alert_rows::AlertRows;
use super::busy::Busy;
use super::error::{Result, StoreError};
use super::held::Unrecorded;
use super::identity::Identity;
use super::lock::FileLock;
use super::writer::{Refusal, Writer};

/// A handle to the open store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) writer: Mutex<Writer>,
    /// The queue of writers without hurry, such as deliveries.
    pub(super) line: Mutex<()>,
    /// Never held for long.
    pub(super) refusal: std::sync::Mutex<Option<Refusal>>,
    /// Why messages to send cannot be read. Never held for long.
    pub(super) unreadable: std::sync::Mutex<Option<Refusal>>,
    /// Somebody looks whether the files are in their place.
    pub(super) looking: AtomicBool,
    /// SQLite must not be used again.
    pub(super) abandoned: OnceLock<()>,
    /// When the transaction under way began. Never held for long.
    pub(super) transaction_began: std::sync::Mutex<Option<tokio::time::Instant>>,
    /// The time of the last commit or sign of life that was written, in Unix milliseconds; 0 before
    /// the first.
    pub(super) recorded: AtomicI64,
    /// Messages that are sent although the store refuses. Never held for long.
    pub(super) unrecorded: std::sync::Mutex<Unrecorded>,
    pub(super) readers: SqlitePool,
    /// The pool for lookups by a key: they are quick, and a person may wait for them.
    pub(super) finders: SqlitePool,
    /// The rows of the last commit with alerts; `None` before the first, and after one that failed.
    /// Only the engine's loop commits alerts.
    pub(super) alerts: std::sync::Mutex<Option<AlertRows>>,
    /// Notified after a commit that put something into the outbox.
    pub(super) posted: Notify,
    /// Notified when an incident or a conversation about one has changed.
    pub(super) changed: Notify,
    // Last: the file is closed before another alerter may have it.
    pub(super) _lock: FileLock,
}

pub(super) struct StoreReader<'a> {
    pool: &'a SqlitePool,
    _busy: Busy,
}

impl Deref for StoreReader<'_> {
    type Target = SqlitePool;

    fn deref(&self) -> &SqlitePool {
        self.pool
    }
}

impl Store {
    /// What was written last is of that time.
    pub(crate) fn note_recorded(&self, at: Ts) {
        self.inner.recorded.store(at.0, Ordering::Relaxed);
    }

    /// Takes what an earlier start wrote last for the last that was written.
    pub(crate) async fn resume_recorded(&self) -> Result<Option<Ts>> {
        let alive = self.alive_at().await?;
        if let Some(at) = alive {
            self.note_recorded(at);
        }
        Ok(alive)
    }

    /// The same as [`Store::alive_at`] without looking into the database, which may not be there.
    pub(crate) fn recorded_at(&self) -> Option<Ts> {
        Some(Ts(self.inner.recorded.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Resolves after the next commit that put something into the outbox; at once if there was one
    /// since the last call.
    pub(crate) async fn posted(&self) {
        self.inner.posted.notified().await;
    }

    /// Makes [`Store::posted`] resolve.
    pub(crate) fn post(&self) {
        self.inner.posted.notify_one();
    }

    /// Resolves after the next change of an incident, or of a conversation about one; at once if
    /// there was one since the last call.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    pub(super) fn reader(&self) -> Result<StoreReader<'_>> {
        self.may_read()?;
        Ok(StoreReader { pool: &self.inner.readers, _busy: Busy::now() })
    }

    /// A connection for lookups by a key.
    pub(super) fn finder(&self) -> Result<StoreReader<'_>> {
        self.may_read()?;
        Ok(StoreReader { pool: &self.inner.finders, _busy: Busy::now() })
    }

    /// Keeps SQLite's open files until this process ends: closing them would use SQLite.
    pub(super) fn abandon(&self, why: &StoreError) {
        if matches!(why, StoreError::IndexCut { .. }) && self.inner.abandoned.set(()).is_ok() {
            tracing::error!(%why, "the database is not used again until a restart");
            std::mem::forget(Arc::clone(&self.inner));
        }
    }

    /// Writes the log back into the database file and closes it. Dropping the last handle is safe
    /// too, only slower to reopen.
    pub async fn close(self) {
        if self.usable().is_err() {
            return;
        }
        self.inner.readers.close().await;
        self.inner.finders.close().await;
        let mut writer = self.inner.writer.lock().await;
        let _busy = Busy::now();
        // After a refusal there may be no connection with which to write back.
        let Some(connection) = writer.kept() else { return };
        if let Err(err) = sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await {
            tracing::warn!(%err, "cannot write the log back into the database file; the next start will");
        }
    }
}
