//! PostgreSQL, which several replicas of the alerter share. One of them has the lease, and writes;
//! the others follow who that is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _};
use stepwatch_kit::config::Secret;
use tokio::sync::Mutex;

use super::error::{Result, StoreError};
use super::handle::Store;
use super::lease::{LEASE, Leader, Lease, now_ms};
use super::open::{FINDERS_MAX, MIGRATIONS, Parts};
use super::sql::{ANSWER_MAX, Connection, Pool, answered, query, query_as};
use super::writer::{Open, Options, Writer};

/// The longest wait for a connection. It is shorter than the lease.
const CONNECT_MAX: Duration = Duration::from_secs(4);

/// The longest read of a list, or at the start of all that the database has.
const LIST_MAX: Duration = Duration::from_secs(30);
/// How much longer a replica waits for an answer than PostgreSQL works on it.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// The longest wait for a lock while the schema is looked at.
const LOCK_LIMIT: &str = "SET lock_timeout = '10s'";

/// How long a replica is listed after it was last heard of.
const LISTED: Duration = Duration::from_mins(10);
/// How long a replica counts as running after it was last heard of.
const RUNNING: Duration = Duration::from_secs(15);

/// A database of PostgreSQL with its secret, ready to use.
#[derive(Debug, Clone)]
pub struct PostgresPlan {
    pub url: Secret,
    pub pool: u32,
    pub advertise_url: Option<String>,
}

/// A database that is open, without the right to write.
#[derive(Clone)]
pub struct Postgres {
    options: PgConnectOptions,
    pool: Arc<Pool>,
    /// The address without a password.
    place: PathBuf,
    /// The connections for lists.
    readers: u32,
}

impl fmt::Debug for Postgres {
    /// Without the options, which have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A replica as it announces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The random name of the process.
    pub id: String,
    /// Where the others reach it.
    pub address: String,
    pub version: String,
    /// A digest of its configuration.
    pub config: String,
}

impl Replica {
    /// Whether the configuration or the version of another replica is not that of this one.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        self.config != other.config || self.version != other.version
    }
}

/// An announced replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub replica: Replica,
    /// Whether it was heard of lately.
    pub running: bool,
}

impl Postgres {
    /// Connects to a database and brings its schema up to date.
    pub async fn open(plan: &PostgresPlan) -> Result<Self> {
        let options = PgConnectOptions::from_str(plan.url.expose().trim()).map_err(|source| {
            StoreError::Open { path: PathBuf::from("the URL of storage.postgres"), source }
        })?;
        let options = options.application_name("stepwatch-alerter");
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        let place = PathBuf::from(format!(
            "postgres://{}:{}/{database}",
            options.get_socket().map_or(options.get_host().to_owned(), |path| path.display().to_string()),
            options.get_port(),
        ));
        let pool = Arc::new(pool(&options, 2, LEASE));
        let database = Self { options, pool, place, readers: plan.pool };
        database.migrate().await?;
        Ok(database)
    }

    async fn migrate(&self) -> Result<()> {
        let open = Open::new(&Options::Postgres(self.options.clone())).await;
        let Open { connection, .. } = open.map_err(|err| match err {
            StoreError::Sql(source) => StoreError::Open { path: self.place.clone(), source },
            err => err,
        })?;
        let Connection::Postgres(mut connection) = connection else { return Ok(()) };
        let migrations = MIGRATIONS.iter().map(|(version, name, sql)| {
            let sql = AssertSqlSafe(in_postgres(sql)).into_sql_str();
            Migration::new(*version, (*name).into(), MigrationType::Simple, sql, false)
        });
        let known = MIGRATIONS.iter().map(|(version, ..)| *version).max().unwrap_or(0);
        // Replicas that start together wait for each other here. The session of a machine that died
        // may keep a lock for hours, which must be an error and not a silent wait.
        let limit = sqlx::raw_sql(LOCK_LIMIT).execute(&mut connection);
        let of_place = |source| StoreError::Open { path: self.place.clone(), source };
        answered(ANSWER_MAX, limit).await.map_err(of_place)?;
        let migrator = Migrator::with_migrations(migrations.collect());
        match migrator.run_direct(None, &mut connection, false).await {
            Ok(()) => Ok(()),
            Err(MigrateError::VersionMissing(found)) => {
                Err(StoreError::Newer { path: self.place.clone(), found, known })
            }
            // The database was not reached, or is about to stop.
            Err(MigrateError::Execute(source)) => Err(StoreError::Open { path: self.place.clone(), source }),
            Err(source) => Err(StoreError::Migrate { path: self.place.clone(), source }),
        }
    }

    /// The address without a password.
    pub fn place(&self) -> &std::path::Path {
        &self.place
    }

    /// The replica that has the lease; `None` before the first.
    pub(crate) async fn leader(&self) -> Result<Option<Leader>> {
        Lease::leader(&self.pool).await
    }

    /// Takes the lease, if it is free, and opens the store with it.
    pub(crate) async fn lead(&self, replica: &Replica) -> Result<Option<Store>> {
        // A replica that takes the lease and cannot connect would keep the others from it.
        let options = Options::Postgres(self.options.clone());
        let Open { connection, .. } = Open::new(&options).await?;
        let Some(lease) = Lease::take(&self.pool, &replica.id, &replica.address).await? else {
            return Ok(None);
        };
        Ok(Some(Store::of(Parts {
            path: self.place.clone(),
            identity: None,
            lease: Some(Arc::new(lease)),
            writer: Mutex::new(Writer::new(options, connection)),
            readers: pool(&self.options, self.readers, LIST_MAX),
            finders: pool(&self.options, FINDERS_MAX, LEASE),
            lock: None,
        })))
    }

    /// Ends the lease of a process that has not given it up.
    #[cfg(test)]
    pub(super) async fn expire_lease(&self) -> Result<()> {
        query("UPDATE leases SET expires_ms = 0").execute(&*self.pool).await?;
        Ok(())
    }

    /// Tells the other replicas about this one.
    pub(crate) async fn announce(&self, replica: &Replica) -> Result<()> {
        let sql = concat!(
            "INSERT INTO replicas (id, address, version, config, seen_ms) VALUES ($1, $2, $3, $4, ",
            now_ms!(),
            ") ON CONFLICT (id) DO UPDATE SET address = excluded.address, version = excluded.version, \
             config = excluded.config, seen_ms = excluded.seen_ms"
        );
        let insert = query(sql).bind(&replica.id).bind(&replica.address).bind(&replica.version);
        insert.bind(&replica.config).execute(&*self.pool).await?;
        let sql = concat!("DELETE FROM replicas WHERE seen_ms < ", now_ms!(), " - $1");
        query(sql).bind(LISTED.as_millis() as i64).execute(&*self.pool).await?;
        Ok(())
    }

    /// Removes this replica from the list, because it stops.
    pub(crate) async fn withdraw(&self, replica: &Replica) -> Result<()> {
        query("DELETE FROM replicas WHERE id = $1").bind(&replica.id).execute(&*self.pool).await?;
        Ok(())
    }

    /// The replicas that were heard of within [`LISTED`], in the order of their addresses.
    pub(crate) async fn replicas(&self) -> Result<Vec<Announced>> {
        let sql = concat!(
            "SELECT id, address, version, config, seen_ms >= ",
            now_ms!(),
            " - $1 FROM replicas ORDER BY address, id"
        );
        let rows: Vec<(String, String, String, String, bool)> =
            query_as(sql).bind(RUNNING.as_millis() as i64).fetch_all(&*self.pool).await?;
        let announced = |(id, address, version, config, running)| Announced {
            replica: Replica { id, address, version, config },
            running,
        };
        Ok(rows.into_iter().map(announced).collect())
    }
}

fn pool(options: &PgConnectOptions, connections: u32, statement_max: Duration) -> Pool {
    let options = options.clone().options([("statement_timeout", statement_max.as_millis())]);
    let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(CONNECT_MAX);
    // The pool itself tests a connection that comes back without a time limit, and counts it until
    // then: a few that do not answer would leave no other.
    let pool = pool.after_release(|connection, _| {
        Box::pin(async move { answered(ANSWER_MAX, connection.ping()).await.map(|()| true) })
    });
    Pool::Postgres(pool.connect_lazy_with(options), statement_max + ON_THE_WAY)
}

/// The text of a migration, which is written for SQLite, for PostgreSQL. Text is compared by bytes,
/// as SQLite does.
fn in_postgres(sql: &str) -> String {
    let comments_removed = sql.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    let sql: Vec<&str> = comments_removed.collect();
    sql.join("\n")
        .replace(" TEXT", " TEXT COLLATE \"C\"")
        .replace(" BLOB", " BYTEA")
        .replace("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_password_is_not_shown() {
        let options =
            PgConnectOptions::from_str("postgres://stepwatch:canary@db.example.com/alerts").unwrap();
        let pool = Arc::new(pool(&options, 1, LEASE));
        let place = PathBuf::from("postgres://db.example.com:5432/alerts");
        let database = Postgres { options: options.clone(), pool, place, readers: 1 };
        let shown = format!("{database:?} {:?} {:?}", database.pool, Options::Postgres(options));
        assert!(shown.contains("db.example.com") && !shown.contains("canary"), "{shown}");
    }
}
