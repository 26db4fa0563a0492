//! The connection that writes, and why it does not.

use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tokio::time::Instant;

use super::error::Result;

/// A refusal that lasts no longer only delays pages.
pub(crate) const FAIL_OPEN_AFTER: Duration = Duration::from_secs(10);

/// Who writes, which says what it waits for and what it survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The engine's loop: it waits for whoever writes now, and for at most one of those who stand
    /// in line.
    Engine(Durability),
    /// Whoever has reason to be as quick.
    Prompt,
    /// Stands in line: what is done for each message, of which a storm has thousands.
    InTurn,
    /// A sign of life. Only what can be read back is one.
    Heart,
}

/// What a committed transaction survives, besides the death of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The loss of power: `synchronous=FULL`, one fsync a commit.
    Power,
    /// Not the loss of power, which falls back to an earlier commit, whole and in order:
    /// `synchronous=NORMAL`.
    Process,
}

/// Where the connection that writes is between two transactions.
#[derive(Debug)]
pub(super) struct Writer {
    /// To open another one.
    pub(super) options: SqliteConnectOptions,
    /// `None` while a transaction has it, and after one that did not end well.
    pub(super) kept: Option<Open>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: SqliteConnection,
    durability: Durability,
}

/// That the store takes nothing.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// The same without a path.
    pub(super) in_public: String,
    pub(super) since: Instant,
    /// What the engine decided waits for it. That anything smaller is taken then means little.
    pub(super) engine: bool,
}

impl Writer {
    /// Begins with a connection that is open.
    pub(super) fn new(options: SqliteConnectOptions, connection: SqliteConnection) -> Self {
        // A file that went away does not come back as an empty one.
        let options = options.create_if_missing(false);
        Self { options, kept: Some(Open { connection, durability: Durability::Power }) }
    }

    /// As after a transaction that did not end well.
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
