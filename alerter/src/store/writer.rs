//! The connection that writes, and its state.

use std::fmt;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::time::Instant;

use super::error::Result;
use super::sql::{ANSWER_MAX, Connection, answered, query};

/// A shorter refusal only delays pages.
pub(crate) const FAIL_OPEN_AFTER: Duration = Duration::from_secs(10);

/// The limits of a transaction on PostgreSQL. Each is shorter than the lease.
macro_rules! limits {
    () => {
        "SET LOCAL statement_timeout = '4s'; SET LOCAL idle_in_transaction_session_timeout = '4s'"
    };
}

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
    pub(super) options: Options,
    /// The connection. `None` while a transaction uses it, and after a failed one.
    pub(super) kept: Option<Open>,
}

/// The options to open a connection that writes.
pub(super) enum Options {
    Sqlite(SqliteConnectOptions),
    Postgres(PgConnectOptions),
}

impl fmt::Debug for Options {
    /// Without the options, which have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite(_) => "Sqlite",
            Self::Postgres(_) => "Postgres",
        })
    }
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: Connection,
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
    pub(super) fn new(options: Options, connection: Connection) -> Self {
        let options = match options {
            // A removed file must not be recreated empty.
            Options::Sqlite(options) => Options::Sqlite(options.create_if_missing(false)),
            options @ Options::Postgres(_) => options,
        };
        Self { options, kept: Some(Open { connection, durability: Durability::Power }) }
    }

    /// Drops the connection after a failed transaction.
    #[cfg(test)]
    pub(super) fn lose(&mut self) {
        self.kept = None;
    }

    pub(super) fn kept(&mut self) -> Option<&mut Connection> {
        self.kept.as_mut().map(|open| &mut open.connection)
    }
}

impl Open {
    pub(super) async fn new(options: &Options) -> Result<Self> {
        let connection = match options {
            Options::Sqlite(options) => Connection::Sqlite(Box::pin(options.connect()).await?),
            Options::Postgres(options) => {
                Connection::Postgres(answered(ANSWER_MAX, Box::pin(options.connect())).await?)
            }
        };
        Ok(Self { connection, durability: Durability::Power })
    }

    /// Begins a transaction with this durability.
    pub(super) async fn begin(&mut self, durability: Durability) -> Result<()> {
        self.survive(durability).await?;
        let begin = match &mut self.connection {
            // Reads in the transaction then include the last write, even if an abandoned connection
            // commits late.
            connection @ Connection::Sqlite(_) => {
                query("BEGIN IMMEDIATE").execute(connection).await?;
                return Ok(());
            }
            Connection::Postgres(connection) => connection,
        };
        // A proxy may give each transaction another session of PostgreSQL, so the settings belong
        // to the transaction. A transaction that its process has left open would keep the lease
        // from others, so PostgreSQL ends it.
        let sql = match durability {
            Durability::Power => concat!("BEGIN; ", limits!()),
            Durability::Process => concat!("BEGIN; SET LOCAL synchronous_commit = off; ", limits!()),
        };
        answered(ANSWER_MAX, sqlx::raw_sql(sql).execute(begin)).await?;
        Ok(())
    }

    async fn survive(&mut self, wanted: Durability) -> Result<()> {
        let Connection::Sqlite(connection) = &mut self.connection else { return Ok(()) };
        if self.durability == wanted {
            return Ok(());
        }
        let pragma = match wanted {
            Durability::Power => "PRAGMA synchronous = FULL",
            Durability::Process => "PRAGMA synchronous = NORMAL",
        };
        sqlx::raw_sql(pragma).execute(connection).await?;
        self.durability = wanted;
        Ok(())
    }
}
