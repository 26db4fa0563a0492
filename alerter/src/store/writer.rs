//! The connection that writes, and its state.

use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::time::Instant;

use super::error::Result;

/// A shorter refusal only delays pages.
pub(crate) const FAIL_OPEN_AFTER: Duration = Duration::from_secs(10);

/// The class of a writer, which determines its priority and durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The engine's loop, which waits for the present writer and at most one of the queue.
    Engine(Durability),
    /// Writers with the same priority.
    Prompt,
    /// Writers in the queue, for work per message, of which a storm has thousands.
    InTurn,
    /// A heartbeat, which only counts if it can be read back.
    Heart,
}

/// The failures that a committed transaction survives in addition to the death of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A power failure: `synchronous=FULL`, one fsync per commit.
    Power,
    /// No power failure, which rolls back to an earlier whole commit: `synchronous=NORMAL`.
    Process,
}

/// The writing connection between two transactions.
#[derive(Debug)]
pub(super) struct Writer {
    /// The options to open another connection.
    pub(super) options: SqliteConnectOptions,
    /// The connection. `None` while a transaction uses it, and after a failed one.
    pub(super) kept: Option<Open>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: SqliteConnection,
    durability: Durability,
}

/// A refusal of writes.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// The reason without a path.
    pub(super) in_public: String,
    pub(super) since: Instant,
    /// When the refusal was last seen. Only a transaction that began later disproves it.
    pub(super) seen: Instant,
    /// Whether a decision of the engine waits for it. A smaller successful write proves little.
    pub(super) engine: bool,
}

impl Writer {
    /// Starts with an open connection.
    pub(super) fn new(options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        // A removed file must not be recreated empty.
        let options = options.create_if_missing(false);
        Self { options, kept: Some(Open { connection, durability: Durability::Power }) }
    }

    /// Drops the connection after a failed transaction.
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
