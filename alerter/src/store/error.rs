//! Errors of the store.

use std::path::PathBuf;

use crate::errors::innermost;

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
        "{path} was cut short while this alerter runs: SQLite would not survive to use it, and is not used any more. Restart"
    )]
    IndexCut { path: PathBuf },
    #[error("nothing is written to {path}: {why}")]
    Unreadable { path: PathBuf, why: String },
    #[error(
        "{path} {what}, but this alerter kept its incidents here before ({beside} says so). Restore it from a backup, or start \
         once with --new-store to begin without them"
    )]
    Unexpected { path: PathBuf, beside: PathBuf, what: &'static str },
    #[error(
        "{path} is older than what this alerter kept in it ({beside} says so): its log {path}-wal was removed, or it is an \
         older copy. Put the log back, or start once with --new-store to go on with what the file has"
    )]
    Older { path: PathBuf, beside: PathBuf },
    #[error("the lease of the database is lost: another replica has it, or the database lost commits")]
    LeaseLost,
    #[error("what is asked of {path} does not end: does its disk hang?")]
    Stalled { path: PathBuf },
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

pub type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    /// The error without a path, because the readiness probe needs no authentication.
    pub(super) fn in_public(&self) -> String {
        match self {
            Self::NotInPlace { path, what } => {
                let ends = |end: &[u8]| path.as_os_str().as_encoded_bytes().ends_with(end);
                let part = if ends(b"-wal") {
                    "'s log"
                } else if ends(b"-shm") {
                    "'s index"
                } else {
                    ""
                };
                format!("the database{part} {what}")
            }
            Self::IndexCut { .. } => "the database's index was cut short".into(),
            Self::Unreadable { why, .. } => why.clone(),
            Self::Unseen { .. } => "what was written is not there for its readers".into(),
            Self::Stalled { .. } => "what is asked of the database does not end".into(),
            Self::SharedFilesystem { .. }
            | Self::InUse { .. }
            | Self::Newer { .. }
            | Self::Unexpected { .. }
            | Self::Older { .. } => "the database is not the alerter's own".into(),
            other => innermost(other),
        }
    }

    /// Whether SQLite calls the file malformed (`SQLITE_CORRUPT`).
    pub(super) fn is_malformed(&self) -> bool {
        let Self::Sql(sqlx::Error::Database(err)) = self else { return false };
        err.code().as_deref() == Some("11")
    }

    /// Whether the error means that the store refuses all writes, and not only this one.
    pub(super) fn is_refusal(&self) -> bool {
        !matches!(self, Self::AmbiguousId(_) | Self::Damaged { .. } | Self::Unknown { .. })
    }
}
