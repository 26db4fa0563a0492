//! The memory of the alerter: incidents, their history, the outbox, the engine's state and the
//! stream cursors.
//!
//! One file of SQLite in WAL mode, written by one connection, so that whatever belongs together is
//! one transaction: an incident, the messages about it, the detector state it came from and the
//! cursor up to which the stream was read. After a crash all of them are there or none is
//! (principle 3). Readers have their own small pools and never wait for the writer; those who look
//! for one incident do not stand in line with those who list all. Of those who write, the engine's
//! loop waits for at most one other, because whoever acknowledges something waits for it.
//!
//! It decides nothing: what an incident means is the engine's matter, when a message is sent the
//! outbox's. Two alerters on one file, or a file on a network filesystem, are refused at
//! [`Store::open`] because both corrupt quietly.

mod alerts;
mod audit;
pub(crate) mod busy;
mod callbacks;
mod commit;
mod delivery;
mod filesystem;
mod identity;
mod lock;
mod open;
mod outcome;
mod read;
mod rings;
mod rows;
mod standing;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod unrecorded;
mod write;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sqlx::sqlite::SqlitePool;
use stepwatch_model::time::Ts;
use tokio::sync::{Mutex, Notify};

use self::busy::Busy;
use self::write::{Durability, Refusal, Who, Writer};

pub use audit::{AuditFilter, Audited};
pub(crate) use callbacks::Counterpart;
pub use commit::Commit;
pub(crate) use delivery::Claim;
pub(crate) use outcome::DeliveryOutcome;
pub use read::{Delivery, DeliveryState, Filter};

/// A handle to the open store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    identity: identity::Identity,
    writer: Mutex<Writer>,
    /// Where deliveries, and whatever is in no hurry, wait for their turn to wait for the writer.
    line: Mutex<()>,
    /// Never held for long.
    refusal: std::sync::Mutex<Option<Refusal>>,
    /// When the transaction under way began. Never held for long.
    transaction_began: std::sync::Mutex<Option<tokio::time::Instant>>,
    /// What is sent although the store refuses. Never held for long.
    unrecorded: std::sync::Mutex<unrecorded::Unrecorded>,
    readers: SqlitePool,
    /// For what is found by a key: it takes no time, and a person may wait for it.
    finders: SqlitePool,
    /// Of the last commit with alerts; not known before there was one, and after one that did not
    /// end well. Only the engine's loop commits alerts.
    alerts: std::sync::Mutex<Option<alerts::Rows>>,
    /// Rung after a commit that put something into the outbox.
    posted: Notify,
    // Last: the file is closed before another alerter may have it.
    _lock: lock::FileLock,
}

struct Reader<'a> {
    pool: &'a SqlitePool,
    _busy: Busy,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "{path} is on {filesystem}, a filesystem shared between machines: SQLite's write-ahead log needs memory and locks \
         that only a local disk gives, and would corrupt there. Put storage.sqlite on a local disk"
    )]
    SharedFilesystem { path: PathBuf, filesystem: &'static str },
    #[error(
        "{path} is in use by another stepwatch-alerter (process {holder}): one file belongs to one alerter"
    )]
    InUse { path: PathBuf, holder: String },
    #[error(
        "{path} was written by a newer stepwatch-alerter (schema {found}, this one knows {known}): run that version, or \
         restore a backup"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("cannot migrate {path}")]
    Migrate { path: PathBuf, source: sqlx::migrate::MigrateError },
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot open {path}")]
    Open { path: PathBuf, source: sqlx::Error },
    #[error("{0:?} begins the ids of more than one incident: give more characters")]
    AmbiguousId(String),
    #[error("{what} in the store does not read")]
    Damaged { what: String, source: serde_json::Error },
    #[error("{what} in the store is {found:?}, which this version does not know")]
    Unknown { what: &'static str, found: String },
    #[error(
        "what was written to {path} is not there for its readers: was the file replaced? Then start again"
    )]
    Unseen { path: PathBuf },
    #[error(
        "{path} {what} while this alerter runs: nothing that is written would be found again. Put the file back, or restart"
    )]
    NotInPlace { path: PathBuf, what: &'static str },
    #[error(
        "{path} {what}, but this alerter kept its incidents here before ({beside} says so). Restore it from a backup, or start \
         once with --new-store to begin without them"
    )]
    Unexpected { path: PathBuf, beside: PathBuf, what: &'static str },
    #[error("a transaction in {path} does not end: does its disk hang?")]
    Stalled { path: PathBuf },
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

pub type Result<T> = std::result::Result<T, StoreError>;

impl Deref for Reader<'_> {
    type Target = SqlitePool;

    fn deref(&self) -> &SqlitePool {
        self.pool
    }
}

impl StoreError {
    /// Whether the store takes nothing, as opposed to: not this.
    fn is_refusal(&self) -> bool {
        !matches!(self, Self::AmbiguousId(_) | Self::Damaged { .. } | Self::Unknown { .. })
    }
}

impl Store {
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

    fn reader(&self) -> Reader<'_> {
        Reader { pool: &self.inner.readers, _busy: Busy::now() }
    }

    /// To read what is found by a key.
    fn finder(&self) -> Reader<'_> {
        Reader { pool: &self.inner.finders, _busy: Busy::now() }
    }

    /// Writes the log back into the database file and closes it. Dropping the last handle is safe
    /// too, only slower to reopen.
    pub async fn close(self) {
        self.inner.readers.close().await;
        self.inner.finders.close().await;
        let mut writer = self.inner.writer.lock().await;
        let _busy = Busy::now();
        // After a refusal there may be none, and nothing to write back with.
        let Some(connection) = writer.kept() else { return };
        if let Err(err) = sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection).await {
            tracing::warn!(%err, "cannot write the log back into the database file; the next start will");
        }
    }
}

/// RFC 3339 in UTC with milliseconds: for eyes, and its order is the order of time.
fn text_of(ts: Ts) -> String {
    match jiff::Timestamp::from_millisecond(ts.0) {
        Ok(t) => t.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string(),
        Err(_) => ts.to_string(),
    }
}

/// The serde name of a unit variant, as it stands in a column.
fn name_of(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable_name(&format!("{other:?}")),
    }
}

/// Only unit variants come here, which serde writes as strings; a wrong name in a column is better
/// than a lost page.
fn unreachable_name(got: &str) -> String {
    debug_assert!(false, "not a unit variant: {got}");
    got.to_owned()
}
