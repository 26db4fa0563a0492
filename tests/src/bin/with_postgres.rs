//! Runs a command with a new PostgreSQL server, such as tests of the alerter:
//! `cargo run --bin with-postgres -- cargo test -p stepwatch-alerter --lib store::`.

use std::process::ExitCode;

use anyhow::Context as _;
use stepwatch_tests::Postgres;
use tokio::process::Command;

/// The variable that the tests of the alerter read.
const URL: &str = "STEPWATCH_TEST_POSTGRES";
/// Each test has databases of its own, and none loses its power.
const SETTINGS: &str = "fsync = off\n";

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().context("usage: with-postgres PROGRAM [ARGUMENT...]")?;
    // Without PostgreSQL it has said so.
    let Some(postgres) = Postgres::start_with(SETTINGS).await? else { return Ok(ExitCode::SUCCESS) };
    let mut command = Command::new(program);
    command.args(arguments).env(URL, postgres.url("postgres")).kill_on_drop(true);
    let succeeded = tokio::select! {
        status = command.status() => status?.success(),
        // The server would go on without this program.
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| false)?,
    };
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
