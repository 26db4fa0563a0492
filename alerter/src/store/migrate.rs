//! Copies a database of SQLite into an empty one of PostgreSQL.
//!
//! The copy is one transaction. Its first statement locks the row of the lease until the end, so no
//! replica can begin to lead meanwhile; and a copy that is interrupted leaves nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use sqlx::AssertSqlSafe;
use stepwatch_kit::build_info;

use super::error::StoreError;
use super::handle::Store;
use super::postgres::PostgresPlan;
use super::postgres::{Postgres, Replica};
use super::sql::{Connection, Pool, QueryBuilder, Row, Value, query, query_as, query_scalar};

/// Tables that describe replicas and not what the alerter knows.
const OF_REPLICAS: [&str; 2] = ["leases", "replicas"];

/// The most rows of one statement. PostgreSQL takes 65,535 parameters, and no table has 100
/// columns.
const BATCH_ROWS: usize = 500;
/// The bytes after which a batch is written. A single row may be larger.
const BATCH_BYTES: usize = 4 << 20;

/// The longest wait for an answer to one statement of the copy. The server may be writing back what
/// came before, and a commit may wait for a standby of the server.
const ANSWER_MAX: Duration = Duration::from_mins(10);

/// No limit of the server for statements ends a long copy. But the server ends a transaction of
/// which it hears nothing: a machine that died within a copy would keep the lease from all
/// replicas.
const BEGIN: &str =
    "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '10min'";

/// A table that was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedTable {
    pub name: String,
    pub rows: i64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("{path} is not there")]
    NoSource { path: PathBuf },
    #[error("{path} is led by an alerter ({address}): stop all replicas first")]
    Led { path: PathBuf, address: String },
    #[error("{path} is not empty: its table {table} has rows. Copy into a new database")]
    NotEmpty { path: PathBuf, table: String },
    #[error(
        "the table {table} of PostgreSQL has the column {column} of the type {found}, which is not known"
    )]
    ColumnType { table: String, column: String, found: String },
    #[error("PostgreSQL has no table {table}")]
    NoTable { table: String },
    #[error("the table {table} cannot be copied")]
    Table { table: String, source: sqlx::Error },
    #[error("the table {table} has {here} rows, of which {there} arrived; nothing was kept")]
    Differs { table: String, here: i64, there: i64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CopyError {
    fn from(err: sqlx::Error) -> Self {
        Self::Store(StoreError::Sql(err))
    }
}

/// The type of a column in PostgreSQL. SQLite's own types are those of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Real,
    Text,
    Blob,
}

#[derive(Debug)]
struct Table {
    name: String,
    columns: Vec<(String, Kind)>,
}

/// Copies every table of the file, whose alerter must have stopped.
pub(crate) async fn copy_to_postgres(from: &Path, to: &PostgresPlan) -> Result<Vec<CopiedTable>, CopyError> {
    // Opening would create it.
    if !from.is_file() {
        return Err(CopyError::NoSource { path: from.to_owned() });
    }
    // The store has the lock of the file, and brings its schema up to date.
    let source = Store::open_file(from, false).await?;
    let database = Postgres::open(to).await?;
    let Some(target) = database.lead(&own()?).await? else {
        let address = database.leader().await?.map_or_else(String::new, |leader| leader.address);
        return Err(CopyError::Led { path: database.place().to_owned(), address });
    };
    let copied = copy_all(&source, &target).await;
    target.close().await;
    source.close().await;
    copied
}

/// This process in the list of replicas, to which nobody forwards requests.
fn own() -> Result<Replica, StoreError> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(|err| StoreError::Io {
        action: "name",
        path: PathBuf::from("this process"),
        source: std::io::Error::other(err),
    })?;
    Ok(Replica {
        id: hex::encode(id),
        address: "stepwatch-alerter store migrate".to_owned(),
        version: build_info::VERSION.to_owned(),
        config: String::new(),
    })
}

async fn copy_all(source: &Store, target: &Store) -> Result<Vec<CopiedTable>, CopyError> {
    let mut writer = target.inner.writer.lock().await;
    let (Some(connection), Some(lease)) = (writer.kept(), &target.inner.lease) else {
        return Err(StoreError::LeaseLost.into());
    };
    if let Connection::Postgres(connection) = &mut *connection {
        sqlx::raw_sql(BEGIN).execute(connection).await?;
    }
    let copied = match lease.fence(connection).await {
        Ok(_) => copy_tables(&source.inner.readers, connection, target.path()).await,
        Err(err) => Err(err.into()),
    };
    let end = if copied.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = query(end).execute_within(ANSWER_MAX, connection).await;
    let copied = copied?;
    ended?;
    Ok(copied)
}

async fn copy_tables(from: &Pool, to: &mut Connection, path: &Path) -> Result<Vec<CopiedTable>, CopyError> {
    let tables = tables(from, to).await?;
    for Table { name, .. } in &tables {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM \"{name}\")");
        if query_scalar::<bool>(AssertSqlSafe(sql)).fetch_one(&mut *to).await? {
            return Err(CopyError::NotEmpty { path: path.to_owned(), table: name.clone() });
        }
    }
    let mut copied = Vec::new();
    for table in tables {
        let of_table = |source| CopyError::Table { table: table.name.clone(), source };
        let there = copy_table(from, to, &table).await.map_err(of_table)?;
        let here = count(from, &table.name).await?;
        if here != there {
            return Err(CopyError::Differs { table: table.name, here, there });
        }
        copied.push(CopiedTable { name: table.name, rows: there });
    }
    Ok(copied)
}

/// The tables of SQLite with the columns that they have in PostgreSQL.
async fn tables(from: &Pool, to: &mut Connection) -> Result<Vec<Table>, CopyError> {
    let sql = "SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT), CAST(data_type AS TEXT) \
               FROM information_schema.columns WHERE table_schema = current_schema() \
               ORDER BY table_name, ordinal_position";
    let mut known: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let rows: Vec<(String, String, String)> = query_as(sql).fetch_all(&mut *to).await?;
    for (table, column, kind) in rows {
        known.entry(table).or_default().push((column, kind));
    }
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' \
               AND name NOT LIKE 'sqlite%' AND name <> '_sqlx_migrations' ORDER BY name";
    let names: Vec<String> = query_scalar(sql).fetch_all(from).await?;
    let mut tables = Vec::new();
    for name in names.into_iter().filter(|name| !OF_REPLICAS.contains(&name.as_str())) {
        let Some(columns) = known.remove(&name) else { return Err(CopyError::NoTable { table: name }) };
        let mut typed = Vec::new();
        for (column, found) in columns {
            let Some(kind) = Kind::of(&found) else {
                return Err(CopyError::ColumnType { table: name, column, found });
            };
            typed.push((column, kind));
        }
        tables.push(Table { name, columns: typed });
    }
    Ok(tables)
}

/// Copies the rows in the order in which SQLite keeps them, and returns how many arrived. Only a
/// batch of them is in memory.
async fn copy_table(from: &Pool, to: &mut Connection, table: &Table) -> Result<i64, sqlx::Error> {
    let sql = format!("SELECT {} FROM \"{}\"", table.column_names(), table.name);
    let mut rows = query(AssertSqlSafe(sql)).fetch(from);
    let (mut batch, mut bytes, mut arrived) = (Vec::new(), 0, 0);
    while let Some(row) = rows.next().await {
        let values = table.values(&row?)?;
        bytes += values.iter().map(size).sum::<usize>();
        batch.push(values);
        if batch.len() >= BATCH_ROWS || bytes >= BATCH_BYTES {
            arrived += insert(to, table, core::mem::take(&mut batch)).await?;
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        arrived += insert(to, table, batch).await?;
    }
    Ok(arrived)
}

async fn insert(
    to: &mut Connection,
    table: &Table,
    batch: Vec<Vec<Value<'static>>>,
) -> Result<i64, sqlx::Error> {
    let mut sql = QueryBuilder::new(format!("INSERT INTO \"{}\" ({}) ", table.name, table.column_names()));
    sql.push_values(batch, |mut row, values| {
        for value in values {
            row.push_bind(value);
        }
    });
    let done = sql.build().execute_within(ANSWER_MAX, to).await?;
    Ok(i64::try_from(done.rows_affected()).unwrap_or(i64::MAX))
}

async fn count(of: &Pool, table: &str) -> Result<i64, sqlx::Error> {
    query_scalar(AssertSqlSafe(format!("SELECT COUNT(*) FROM \"{table}\""))).fetch_one(of).await
}

fn size(value: &Value<'_>) -> usize {
    match value {
        Value::Integer(_) | Value::Real(_) => size_of::<u64>(),
        Value::Text(text) => text.as_ref().map_or(0, |text| text.len()),
        Value::Blob(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len()),
    }
}

impl Kind {
    fn of(data_type: &str) -> Option<Self> {
        Some(match data_type {
            "bigint" => Self::Integer,
            "double precision" => Self::Real,
            "text" => Self::Text,
            "bytea" => Self::Blob,
            _ => return None,
        })
    }
}

impl Table {
    fn column_names(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        names.join(", ")
    }

    fn values(&self, row: &Row) -> Result<Vec<Value<'static>>, sqlx::Error> {
        let kinds = self.columns.iter().map(|(_, kind)| *kind).enumerate();
        let value = |(n, kind): (usize, Kind)| -> Result<Value<'static>, sqlx::Error> {
            Ok(match kind {
                Kind::Integer => Value::Integer(row.try_get(n)?),
                Kind::Real => Value::Real(row.try_get(n)?),
                Kind::Text => Value::Text(row.try_get::<Option<String>, _>(n)?.map(Cow::Owned)),
                Kind::Blob => Value::Blob(row.try_get::<Option<Vec<u8>>, _>(n)?.map(Cow::Owned)),
            })
        };
        kinds.map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use stepwatch_kit::config::Secret;
    use tempfile::TempDir;

    use super::super::tests::{by_hand, postgres_url};
    use super::*;

    /// More rows than a batch has, all types, NULLs, and text that PostgreSQL does not take.
    const FILL: &str = "
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1201)
            INSERT INTO timeline SELECT 'x', i, '2026', i, 'me', 'what', NULL FROM n;
        INSERT INTO engine_state VALUES ('k', x'00ff10');
        INSERT INTO meta VALUES ('nul', 'a' || char(0) || 'b');
        INSERT INTO incidents VALUES ('i', 'r', 'speed', 'slow', 'page', 'open', 's', 1, 2, 3, NULL,
            4.5, NULL, 5.0, '', '', NULL, NULL, NULL, 1, NULL, 0, '{}', ',', 0, NULL);
        INSERT INTO accounted_runs VALUES (7, 'llama-70b');
        INSERT INTO run_hours VALUES (1, 2, 450, 5, 6, 7, 8, 9, NULL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);";

    fn plan(url: String) -> PostgresPlan {
        PostgresPlan { url: Secret::new(url), pool: 2, advertise_url: None }
    }

    async fn filled() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerter.db");
        let store = Store::open_file(&path, false).await.unwrap();
        by_hand(&store, FILL).await.unwrap();
        store.close().await;
        (dir, path)
    }

    async fn change(path: &Path, sql: &'static str) {
        let store = Store::open_file(path, false).await.unwrap();
        by_hand(&store, sql).await.unwrap();
        store.close().await;
    }

    fn rows(copied: &[CopiedTable], name: &str) -> Option<i64> {
        copied.iter().find(|table| table.name == name).map(|table| table.rows)
    }

    #[tokio::test]
    async fn a_file_that_is_missing_or_in_use_is_refused_before_anything_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let (path, nowhere) = (dir.path().join("alerter.db"), || plan("postgres://127.0.0.1:1/x".into()));
        let err = copy_to_postgres(&path, &nowhere()).await.unwrap_err();
        assert!(matches!(err, CopyError::NoSource { .. }), "{err}");
        assert!(!path.exists());
        let _running = Store::open_file(&path, false).await.unwrap();
        let err = copy_to_postgres(&path, &nowhere()).await.unwrap_err();
        assert!(matches!(err, CopyError::Store(StoreError::InUse { .. })), "{err}");
    }

    #[tokio::test]
    async fn everything_arrives_and_only_in_an_empty_database() {
        let (dir, path) = filled().await;
        let Some(url) = postgres_url(&dir.path().join("all")).await.unwrap() else { return };
        let copied = copy_to_postgres(&path, &plan(url.clone())).await.unwrap();
        assert_eq!(rows(&copied, "timeline"), Some(1201));
        assert_eq!((rows(&copied, "run_hours"), rows(&copied, "silences")), (Some(1), Some(0)));
        assert_eq!(rows(&copied, "leases"), None);
        let err = copy_to_postgres(&path, &plan(url.clone())).await.unwrap_err();
        assert!(matches!(err, CopyError::NotEmpty { .. }), "{err}");
        let database = Postgres::open(&plan(url.clone())).await.unwrap();
        let store = database.lead(&own().unwrap()).await.unwrap().unwrap();
        let readers = &store.inner.readers;
        let nul: String =
            query_scalar("SELECT value FROM meta WHERE key = 'nul'").fetch_one(readers).await.unwrap();
        assert_eq!(nul, "a\u{fffd}b");
        let null = "SELECT COUNT(*) FROM timeline WHERE suppressed IS NULL AND seq = at_ms";
        assert_eq!(query_scalar::<i64>(null).fetch_one(readers).await.unwrap(), 1201);
        let row = query("SELECT value FROM engine_state WHERE key = 'k'").fetch_one(readers).await.unwrap();
        assert_eq!(row.try_get::<Vec<u8>, _>(0).unwrap(), [0, 0xff, 0x10]);
        let hour = query("SELECT cents, gpu_ms FROM run_hours").fetch_one(readers).await.unwrap();
        let value = query("SELECT value, expected FROM incidents").fetch_one(readers).await.unwrap();
        assert_eq!(value.try_get::<Option<f64>, _>(0).unwrap(), Some(4.5));
        assert_eq!(value.try_get::<Option<f64>, _>(1).unwrap(), None);
        assert_eq!(hour.try_get::<Option<i64>, _>(0).unwrap(), Some(450));
        assert_eq!(hour.try_get::<Option<String>, _>(1).unwrap(), None);
        let err = copy_to_postgres(&path, &plan(url)).await.unwrap_err();
        assert!(matches!(err, CopyError::Led { .. }), "{err}");
    }

    #[tokio::test]
    async fn a_copy_that_fails_leaves_nothing() {
        let (dir, path) = filled().await;
        let Some(url) = postgres_url(&dir.path().join("failed")).await.unwrap() else { return };
        // The last table in the order of names.
        change(&path, "INSERT INTO timeline VALUES ('x', 'no number', '', 1, '', '', NULL)").await;
        let err = copy_to_postgres(&path, &plan(url.clone())).await.unwrap_err();
        assert!(matches!(&err, CopyError::Table { table, .. } if table == "timeline"), "{err}");
        change(&path, "DELETE FROM timeline WHERE seq = 'no number'").await;
        let copied = copy_to_postgres(&path, &plan(url)).await.unwrap();
        assert_eq!(rows(&copied, "accounted_runs"), Some(1), "the first copy left none");
    }
}
