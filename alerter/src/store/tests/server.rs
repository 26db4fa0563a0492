//! Runs the tests of the store on PostgreSQL: with the URL of a server in
//! `STEPWATCH_TEST_POSTGRES`, each file of a test stands for a database of its own. `cargo verify`
//! does so, without the tests that are about SQLite's file (`tests/verify/src/postgres.rs`).

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use stepwatch_kit::config::Secret;
use tokio::sync::Mutex;

use super::super::{Postgres, Replica, Result, Store};
use crate::store::PostgresPlan;

/// The variable with the URL of a server, whose database is `postgres`.
const SERVER: &str = "STEPWATCH_TEST_POSTGRES";
/// What SQLite's triggers do in their bodies, and how PostgreSQL drops one by its name alone.
const FUNCTIONS: &str = "CREATE OR REPLACE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS \
     $$ BEGIN RAISE EXCEPTION 'no room'; END $$; \
     CREATE OR REPLACE FUNCTION drop_trigger(wanted text) RETURNS void LANGUAGE plpgsql AS \
     $$ DECLARE t regclass; BEGIN \
     SELECT tgrelid::regclass INTO STRICT t FROM pg_trigger WHERE tgname = wanted; \
     EXECUTE format('DROP TRIGGER %I ON %s', wanted, t); END $$";
const RAISES: &str = "BEGIN SELECT RAISE(FAIL, 'no room'); END";
/// The code of the error that a database of this name exists.
const EXISTS: &str = "42P04";

/// Opens the database of PostgreSQL that stands for a file; `None` if this run tests SQLite.
pub(in crate::store) async fn on_postgres(path: &Path) -> Result<Option<Store>> {
    let Some(url) = postgres_url(path).await? else { return Ok(None) };
    let plan = PostgresPlan { url: Secret::new(url), pool: 2, advertise_url: None };
    let database = Postgres::open(&plan).await?;
    let replica = Replica {
        id: format!("{:?}", std::time::Instant::now()),
        address: String::new(),
        version: String::new(),
        config: String::new(),
    };
    // A handle that was dropped has not given its lease up.
    database.expire_lease().await?;
    database.lead(&replica).await
}

/// The URL of the database that stands for a file, which is created if it does not exist.
pub(in crate::store) async fn postgres_url(path: &Path) -> Result<Option<String>> {
    let Ok(server) = std::env::var(SERVER) else { return Ok(None) };
    let name = database(&server, path).await?;
    Ok(Some(of_database(&server, &name)))
}

/// Runs SQL that is written for SQLite on a separate connection; `false` if this run tests SQLite.
pub(super) async fn by_hand(path: &Path, sql: &str) -> Result<bool> {
    let Some(url) = postgres_url(path).await? else { return Ok(false) };
    let mut connection = connect(&url).await?;
    sqlx::raw_sql(AssertSqlSafe(translated(sql))).execute(&mut connection).await?;
    Ok(true)
}

/// The name of the database that stands for a file, which is created if it does not exist.
async fn database(server: &str, path: &Path) -> Result<String> {
    // The databases that this process made, by their files.
    static MADE: Mutex<BTreeMap<PathBuf, String>> = Mutex::const_new(BTreeMap::new());
    let last = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A store on PostgreSQL calls itself by its server and its database.
    if path.starts_with("postgres:") {
        return Ok(last());
    }
    let mut hasher = std::hash::DefaultHasher::new();
    path.hash(&mut hasher);
    let name = format!("t{:x}", hasher.finish());
    let mut made = MADE.lock().await;
    if made.contains_key(path) {
        return Ok(name);
    }
    // The directory of a test is removed at its end, and its databases with it.
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory).unwrap();
    let mut connection = connect(server).await?;
    let over = |file: &PathBuf| !file.parent().is_some_and(Path::exists);
    let unused: Vec<PathBuf> = made.keys().filter(|file| over(file)).cloned().collect();
    for file in unused {
        if let Some(name) = made.remove(&file) {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await;
        }
    }
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    match sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await {
        Ok(_) => {}
        // Another process of the same test has created it.
        Err(sqlx::Error::Database(err)) if err.code().is_some_and(|code| code == EXISTS) => {}
        Err(err) => return Err(err.into()),
    }
    made.insert(path.to_owned(), name.clone());
    Ok(name)
}

fn of_database(server: &str, name: &str) -> String {
    server.replace("/postgres?", &format!("/{name}?"))
}

async fn connect(url: &str) -> Result<PgConnection> {
    Ok(PgConnectOptions::from_str(url)?.connect().await?)
}

/// The SQL of a test, for PostgreSQL.
fn translated(sql: &str) -> String {
    let sql = sql.replace("X'00'", "'\\x00'::bytea");
    if !sql.contains("TRIGGER") {
        return sql;
    }
    let sql = sql.replace(RAISES, "FOR EACH ROW EXECUTE FUNCTION no_room()");
    let each = sql.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    let statement = |statement: &str| match statement.strip_prefix("DROP TRIGGER ") {
        Some(name) => format!("; SELECT drop_trigger('{name}')"),
        None => format!("; {statement}"),
    };
    each.fold(FUNCTIONS.to_owned(), |all, next| all + &statement(next))
}

#[test]
fn sql_of_sqlite_is_translated() {
    assert_eq!(translated("UPDATE a SET b = X'00'"), "UPDATE a SET b = '\\x00'::bytea");
    let trigger =
        translated(&format!("CREATE TRIGGER no1 BEFORE INSERT ON outbox {RAISES}; DROP TRIGGER no2"));
    let expected = "; CREATE TRIGGER no1 BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION no_room(); \
                    SELECT drop_trigger('no2')";
    assert_eq!(trigger.strip_prefix(FUNCTIONS), Some(expected));
}
