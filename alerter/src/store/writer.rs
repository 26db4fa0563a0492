//! The connection that writes, and its state.

use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::time::Instant;

use super::error::Result;

/// A refusal that lasts no longer only delays pages.
pub(crate) const FAIL_OPEN_AFTER: Duration = Duration::from_secs(10);

/// The kind of a writer, which decides what it waits for and which crashes it survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The engine's loop: it waits for the present writer, and for at most one of the queue.
    Engine(Durability),
    /// Writers that must be as quick.
    Prompt,
    /// Writers that queue: what is done for each message, of which a storm has thousands.
    InTurn,
    /// A sign of life, which only counts if it can be read back.
    Heart,
}

/// What a committed transaction survives besides the death of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The loss of power: `synchronous=FULL`, one fsync a commit.
    Power,
    /// Not the loss of power, which falls back to an earlier commit, whole and in order:
    /// `synchronous=NORMAL`.
    Process,
}

/// The writing connection between two transactions.
#[derive(Debug)]
pub(super) struct Writer {
    /// Opens another one.
    pub(super) options: SqliteConnectOptions,
    /// `None` while a transaction has it, and after one that failed.
    pub(super) kept: Option<Open>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: SqliteConnection,
    durability: Durability,
}

/// The store refuses writes.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// The same without a path.
    pub(super) in_public: String,
    pub(super) since: Instant,
    /// When the last of it was seen. Only a transaction that began later disproves it.
    pub(super) seen: Instant,
    /// A decision of the engine waits for it. A smaller write that succeeds proves little.
    pub(super) engine: bool,
}

impl Writer {
    /// Begins with a connection that is open.
    pub(super) fn new(options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        // A file that was removed does not come back as an empty one.
        let options = options.create_if_missing(false);
        Self { options, kept: Some(Open { connection, durability: Durability::Power }) }
    }

    /// The state after a failed transaction.
    #[cfg(test)]
    pub(super) fn lose(&mut self) {
        self.kept = None;
    }

    pub(super) fn kept(&mut self) -> Option<&mut SqliteConnection> {
        self.kept.as_mut().map(|open| &mut open.connection)
    }
}

impl Open {
    pub(super) async fn new(options: &SqliteConnectOptions) -> Result<Self> {
        Ok(Self { connection: options.connect().await?, durability: Durability::Power })
    }

    pub(super) async fn survive(&mut self, wanted: Durability) -> Result<()> {
        if self.durability == wanted {
            return Ok(());
        }
        let pragma = match wanted {
            Durability::Power => "PRAGMA synchronous = FULL",
            Durability::Process => "PRAGMA synchronous = NORMAL",
        };
        sqlx::raw_sql(pragma).execute(&mut self.connection).await?;
        self.durability = wanted;
        Ok(())
    }
}
