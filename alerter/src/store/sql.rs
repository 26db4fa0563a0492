//! Statements that mean the same in SQLite and PostgreSQL.
//!
//! The store writes each statement once, with the parameters `$1`, `$2` and so on, which both
//! databases understand. The names follow sqlx, whose generic types would put both databases into
//! the signature of every function of the store.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, try_unfold};
use sqlx::postgres::{PgConnection, PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, ColumnIndex, Database, Decode, Encode, Error, Row as _, SqlSafeStr, SqlStr, Type};

/// The longest wait for an answer to the writer and to a test of a connection. It is longer than
/// the limit of PostgreSQL itself for a statement.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Waits for an answer of PostgreSQL. sqlx has no limit, and a connection whose other end has
/// disappeared gives no error for a quarter of an hour. After an error, the connection must not be
/// used again.
pub(super) async fn answered<T>(
    within: Duration,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = |_| Error::Io(io::Error::new(io::ErrorKind::TimedOut, "PostgreSQL does not answer"));
    tokio::time::timeout(within, asked).await.map_err(late)?
}

/// A connection to either database.
#[derive(Debug)]
pub(super) enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

/// Connections to either database.
#[derive(Debug)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    /// With the longest wait for an answer.
    Postgres(PgPool, Duration),
}

impl Pool {
    pub(super) fn size(&self) -> u32 {
        match self {
            Self::Sqlite(pool) => pool.size(),
            Self::Postgres(pool, _) => pool.size(),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool, _) => pool.close().await,
        }
    }
}

/// Where a statement is executed.
pub(super) enum On<'c> {
    Connection(&'c mut Connection),
    Pool(&'c Pool),
}

impl On<'_> {
    /// The same, for one of several statements.
    pub(super) fn again(&mut self) -> On<'_> {
        match self {
            Self::Connection(connection) => On::Connection(connection),
            Self::Pool(pool) => On::Pool(pool),
        }
    }
}

impl<'c> From<&'c mut Connection> for On<'c> {
    fn from(connection: &'c mut Connection) -> Self {
        Self::Connection(connection)
    }
}

impl<'c> From<&'c Pool> for On<'c> {
    fn from(pool: &'c Pool) -> Self {
        Self::Pool(pool)
    }
}

/// The value of a parameter. PostgreSQL must know the type of a NULL.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Integer(Option<i64>),
    Real(Option<f64>),
    Text(Option<Cow<'a, str>>),
    Blob(Option<Cow<'a, [u8]>>),
}

macro_rules! values {
    ($($from:ty => |$value:ident| $to:expr;)*) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from($value: $from) -> Self {
                $to
            }
        })*
    };
}

values! {
    i64 => |n| Self::Integer(Some(n));
    &'a i64 => |n| Self::Integer(Some(*n));
    Option<i64> => |n| Self::Integer(n);
    u32 => |n| Self::Integer(Some(n.into()));
    f64 => |x| Self::Real(Some(x));
    Option<f64> => |x| Self::Real(x);
    &'a str => |text| Self::Text(Some(text.into()));
    &'a &'a str => |text| Self::Text(Some((*text).into()));
    String => |text| Self::Text(Some(text.into()));
    &'a String => |text| Self::Text(Some(text.as_str().into()));
    &'a &'a String => |text| Self::Text(Some(text.as_str().into()));
    Option<String> => |text| Self::Text(text.map(Cow::from));
    Option<&'a str> => |text| Self::Text(text.map(Cow::from));
    Option<&'a String> => |text| Self::Text(text.map(|text| text.as_str().into()));
    &'a Option<String> => |text| Self::Text(text.as_deref().map(Cow::from));
    &'a [u8] => |bytes| Self::Blob(Some(bytes.into()));
    &'a Vec<u8> => |bytes| Self::Blob(Some(bytes.as_slice().into()));
}

/// A type of a column in both databases.
pub(super) trait Column<'r>:
    Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>
{
}

impl<'r, T> Column<'r> for T where T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>
{}

#[derive(Debug)]
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    pub(super) fn try_get<'r, T, I>(&'r self, index: I) -> Result<T, Error>
    where
        T: Column<'r>,
        I: ColumnIndex<SqliteRow> + ColumnIndex<PgRow>,
    {
        match self {
            Self::Sqlite(row) => row.try_get(index),
            Self::Postgres(row) => row.try_get(index),
        }
    }
}

/// What a statement returns for each row.
pub(super) trait Output: Sized {
    fn read(row: Row) -> Result<Self, Error>;
}

impl Output for Row {
    fn read(row: Row) -> Result<Self, Error> {
        Ok(row)
    }
}

macro_rules! outputs {
    ($($scalar:ty),*; $(($($column:ident $n:literal),*))*) => {
        $(impl Output for $scalar {
            fn read(row: Row) -> Result<Self, Error> {
                row.try_get(0)
            }
        })*
        $(impl<$($column: for<'r> Column<'r>),*> Output for ($($column,)*) {
            fn read(row: Row) -> Result<Self, Error> {
                Ok(($(row.try_get::<$column, _>($n)?,)*))
            }
        })*
    };
}

outputs! {
    i64, Option<i64>, bool, String, Option<String>;
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

/// A statement and the values of its parameters.
#[derive(Debug)]
pub(super) struct Query<'a, T = Row> {
    sql: SqlStr,
    values: Vec<Value<'a>>,
    output: PhantomData<fn() -> T>,
}

pub(super) fn query<'a>(sql: impl SqlSafeStr) -> Query<'a> {
    query_as(sql)
}

/// A statement whose rows are read as tuples.
pub(super) fn query_as<'a, T: Output>(sql: impl SqlSafeStr) -> Query<'a, T> {
    Query { sql: sql.into_sql_str(), values: Vec::new(), output: PhantomData }
}

/// A statement with one column.
pub(super) fn query_scalar<'a, T: Output>(sql: impl SqlSafeStr) -> Query<'a, T> {
    query_as(sql)
}

/// Calls a method of sqlx on either database, whose large futures would else be in those of every
/// caller twice; `$wrap` makes rows of its result.
macro_rules! on_either {
    ($query:ident, $on:ident, $method:ident, |$got:ident, $row:ident| $wrap:expr) => {
        match $on.into() {
            On::Connection(Connection::Sqlite(to)) => {
                let ($got, $row) = (Box::pin($query.bound::<Sqlite>().$method(to)).await?, Row::Sqlite);
                $wrap
            }
            On::Connection(Connection::Postgres(to)) => {
                let ($got, $row) = (
                    answered(ANSWER_MAX, Box::pin($query.bound::<Postgres>().$method(to))).await?,
                    Row::Postgres,
                );
                $wrap
            }
            On::Pool(Pool::Sqlite(to)) => {
                let ($got, $row) = (Box::pin($query.bound::<Sqlite>().$method(to)).await?, Row::Sqlite);
                $wrap
            }
            On::Pool(Pool::Postgres(to, within)) => {
                let mut to = Box::pin(to.acquire()).await?;
                let asked = Box::pin($query.bound::<Postgres>().$method(&mut *to));
                let ($got, $row) = (answered(*within, asked).await?, Row::Postgres);
                $wrap
            }
        }
    };
}

impl<'a, T: Output> Query<'a, T> {
    pub(super) fn bind(mut self, value: impl Into<Value<'a>>) -> Self {
        self.values.push(value.into());
        self
    }

    pub(super) async fn fetch_all(self, on: impl Into<On<'_>>) -> Result<Vec<T>, Error> {
        on_either!(self, on, fetch_all, |rows, row| rows.into_iter().map(row).map(T::read).collect())
    }

    pub(super) async fn fetch_optional(self, on: impl Into<On<'_>>) -> Result<Option<T>, Error> {
        on_either!(self, on, fetch_optional, |found, row| found.map(row).map(T::read).transpose())
    }

    pub(super) async fn fetch_one(self, on: impl Into<On<'_>>) -> Result<T, Error> {
        on_either!(self, on, fetch_one, |found, row| T::read(row(found)))
    }

    /// The rows one after the other.
    pub(super) fn fetch(self, pool: &Pool) -> BoxStream<'_, Result<T, Error>> {
        match pool {
            Pool::Sqlite(pool) => {
                self.bound::<Sqlite>().fetch(pool).map(|row| T::read(Row::Sqlite(row?))).boxed()
            }
            Pool::Postgres(pool, within) => {
                let within = *within;
                let rows = self.bound::<Postgres>().fetch(pool);
                let rows = try_unfold(rows, move |mut rows| async move {
                    let Some(row) = answered(within, rows.try_next()).await? else {
                        return Ok::<_, Error>(None);
                    };
                    Ok(Some((T::read(Row::Postgres(row))?, rows)))
                });
                rows.boxed()
            }
        }
    }

    /// Executes the statement, and returns the number of rows that it changed.
    pub(super) async fn execute(self, on: impl Into<On<'_>>) -> Result<Done, Error> {
        Ok(on_either!(self, on, execute, |done, _row| Done::from(done)))
    }

    /// Like [`Self::execute`], with another wait for the answer of PostgreSQL.
    pub(super) async fn execute_within(self, within: Duration, to: &mut Connection) -> Result<Done, Error> {
        Ok(match to {
            Connection::Sqlite(to) => Done::from(self.bound::<Sqlite>().execute(to).await?),
            Connection::Postgres(to) => {
                Done::from(answered(within, self.bound::<Postgres>().execute(to)).await?)
            }
        })
    }
}

impl<T> Query<'_, T> {
    fn bound<DB>(self) -> sqlx::query::Query<'static, DB, <DB as Database>::Arguments>
    where
        DB: Database,
        Option<i64>: for<'t> Encode<'t, DB> + Type<DB>,
        Option<f64>: for<'t> Encode<'t, DB> + Type<DB>,
        for<'t> Option<&'t str>: Encode<'t, DB> + Type<DB>,
        for<'t> Option<&'t [u8]>: Encode<'t, DB> + Type<DB>,
    {
        let mut query = sqlx::query::<DB>(self.sql);
        for value in &self.values {
            query = match value {
                Value::Integer(n) => query.bind(*n),
                Value::Real(x) => query.bind(*x),
                // PostgreSQL has no text with NUL.
                Value::Text(Some(text)) if text.contains('\0') => {
                    query.bind(Some(text.replace('\0', "\u{fffd}").as_str()))
                }
                Value::Text(text) => query.bind(text.as_deref()),
                Value::Blob(bytes) => query.bind(bytes.as_deref()),
            };
        }
        query
    }
}

/// A statement in parts.
#[derive(Debug)]
pub(super) struct QueryBuilder<'a> {
    sql: String,
    values: Vec<Value<'a>>,
}

impl<'a> QueryBuilder<'a> {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), values: Vec::new() }
    }

    pub(super) fn push(&mut self, sql: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = write!(self.sql, "{sql}");
        self
    }

    pub(super) fn push_bind(&mut self, value: impl Into<Value<'a>>) -> &mut Self {
        self.values.push(value.into());
        let n = self.values.len();
        self.push(format_args!("${n}"))
    }

    /// Appends `VALUES (...), (...)`, with a row for each of `rows`.
    pub(super) fn push_values<R>(
        &mut self,
        rows: impl IntoIterator<Item = R>,
        mut bind: impl FnMut(Separated<'_, 'a>, R),
    ) {
        self.push("VALUES ");
        for (n, row) in rows.into_iter().enumerate() {
            self.push(if n == 0 { "(" } else { ", (" });
            bind(self.separated(", "), row);
            self.push(")");
        }
    }

    pub(super) fn separated(&mut self, separator: &'static str) -> Separated<'_, 'a> {
        Separated { builder: self, separator, first: true }
    }

    /// The finished statement.
    pub(super) fn build(&mut self) -> Query<'a> {
        self.build_query_as()
    }

    /// The finished statement, whose rows are read as tuples.
    pub(super) fn build_query_as<T: Output>(&mut self) -> Query<'a, T> {
        let sql = AssertSqlSafe(core::mem::take(&mut self.sql)).into_sql_str();
        Query { sql, values: core::mem::take(&mut self.values), output: PhantomData }
    }
}

/// Parts of a list.
pub(super) struct Separated<'b, 'a> {
    builder: &'b mut QueryBuilder<'a>,
    separator: &'static str,
    first: bool,
}

impl fmt::Debug for Separated<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}

impl<'a> Separated<'_, 'a> {
    fn separate(&mut self) {
        if !core::mem::replace(&mut self.first, false) {
            self.builder.push(self.separator);
        }
    }

    pub(super) fn push(&mut self, sql: impl Display) -> &mut Self {
        self.separate();
        self.push_unseparated(sql)
    }

    pub(super) fn push_unseparated(&mut self, sql: impl Display) -> &mut Self {
        self.builder.push(sql);
        self
    }

    pub(super) fn push_bind(&mut self, value: impl Into<Value<'a>>) -> &mut Self {
        self.separate();
        self.push_bind_unseparated(value)
    }

    pub(super) fn push_bind_unseparated(&mut self, value: impl Into<Value<'a>>) -> &mut Self {
        self.builder.push_bind(value);
        self
    }
}

/// The number of rows that a statement changed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done(u64);

impl Done {
    pub(super) fn rows_affected(self) -> u64 {
        self.0
    }
}

impl From<sqlx::sqlite::SqliteQueryResult> for Done {
    fn from(done: sqlx::sqlite::SqliteQueryResult) -> Self {
        Self(done.rows_affected())
    }
}

impl From<sqlx::postgres::PgQueryResult> for Done {
    fn from(done: sqlx::postgres::PgQueryResult) -> Self {
        Self(done.rows_affected())
    }
}
