//! The tests of the alerter's store once more, on PostgreSQL in place of SQLite.

use std::path::Path;
use std::process::Command;

use crate::shell::{Output, Workspace};

/// The program that starts a server and runs a command with it, beside the directory of the tests.
const WITH_POSTGRES: &str = "with-postgres";
/// The modules whose tests run. Those of the outbox and of the runtime use virtual time, which
/// passes while PostgreSQL, another process, works.
const MODULES: &[&str] = &["store::"];
/// Tests that run at once. Each has several connections.
const THREADS: &str = "8";

/// Tests that are about SQLite: names, and beginnings of names.
const OF_SQLITE: &[&str] = &[
    // The file, its log and its index.
    "store::identity::tests::",
    "store::index::tests::",
    "store::tests::a_file_that_is_no_database_says_so",
    "store::tests::one_file_one_alerter",
    "store::tests::refusal::a_file_that_was_replaced_is_noticed",
    // Its pragmas and its tables about itself.
    "store::hours::tests::a_month_of_a_thousand_runs_takes_less_than_50_mb",
    "store::tests::a_commit_without_effects_does_not_wait_for_the_disk",
    "store::tests::refusal::what_did_not_fit_is_committed_when_it_fits",
    // The text of its errors, and the body of a trigger.
    "store::tests::refusal::a_commit_that_fails_is_followed_by_commits_and_not_by_parts_of_it",
];

/// Runs the tests of `binary`; `prepare` gives the command what tests are given otherwise.
pub(crate) fn tests(
    w: &Workspace,
    binary: &Path,
    prepare: impl FnOnce(&mut Command),
) -> Result<Output, String> {
    let list = w.run("test-postgres-list", Command::new(binary).args(["--list", "--format", "terse"]))?;
    let names = list.lines(|line| line.ends_with(": test"));
    if let Some(unknown) = unknown(&names, OF_SQLITE) {
        return Err(format!("no test is called {unknown}, which is left out on PostgreSQL"));
    }
    // Beside the directory `deps`.
    let program = binary.ancestors().nth(2).unwrap_or(binary).join(WITH_POSTGRES);
    let mut command = Command::new(program);
    command.arg(binary).args(MODULES).args(["--test-threads", THREADS]);
    OF_SQLITE.iter().for_each(|name| {
        command.args(["--skip", name]);
    });
    prepare(&mut command);
    w.run("test-postgres", &mut command)
}

/// A name that no test has.
fn unknown<'a>(listed: &[String], names: &[&'a str]) -> Option<&'a str> {
    let is_there = |name: &str| listed.iter().any(|line| line.starts_with(name));
    names.iter().find(|name| !is_there(name)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists() {
        let listed = ["store::a::b: test", "outbox::c: test"].map(str::to_owned);
        assert_eq!(unknown(&listed, &["store::a::", "outbox::c"]), None);
        assert_eq!(unknown(&listed, &["store::a::", "a::b"]), Some("a::b"));
    }

    #[test]
    fn nothing_is_left_out_that_is_not_run_otherwise() {
        for name in OF_SQLITE {
            assert!(MODULES.iter().any(|module| name.starts_with(module)), "{name}");
        }
    }
}
