//! A Python script that writes what a trainer would, a step for each command.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use stepwatch_tests::daemon::command;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{bins, say, trainer};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a script may take to answer: it imports its packages first, and PyTorch takes a minute
/// on a busy machine.
pub(crate) const IMPORTED: Duration = Duration::from_mins(5);

/// A running script. It prints `ok` when it has done what a line asks for, and ends when there are
/// no more.
pub(crate) struct Writer {
    child: Child,
    input: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

/// True where the interpreter of the tests can import all of these modules. Prints loudly where it
/// cannot, and fails where `STEPWATCH_REQUIRE_PEERS=1` promises that it can.
pub(crate) async fn has(modules: &[&str]) -> bool {
    can_import("STEPWATCH_PYTHON", &trainer::python(), modules, "STEPWATCH_REQUIRE_PEERS").await
}

/// The same of PyTorch and what stands on it, too large for every machine that runs the tests:
/// `STEPWATCH_REQUIRE_TORCH=1` promises that they are there.
pub(crate) async fn has_torch(modules: &[&str]) -> bool {
    can_import("STEPWATCH_TORCH_PYTHON", &trainer::torch_python(), modules, "STEPWATCH_REQUIRE_TORCH").await
}

async fn can_import(variable: &str, interpreter: &Path, modules: &[&str], promise: &str) -> bool {
    let imports: Vec<_> = modules.iter().map(|m| format!("import {m}")).collect();
    let mut python = command(interpreter);
    let found = python.args(["-c", &imports.join(";")]).stderr(Stdio::null()).status().await;
    let found = found.is_ok_and(|s| s.success());
    if !found {
        let required = std::env::var_os(promise).is_some_and(|v| v == "1");
        let list = modules.join(", ");
        assert!(!required, "{list} cannot be imported by {variable}, and {promise}=1");
        say::loud(&format!("NOT TESTED: Python cannot import {list} ({variable} names the interpreter)"));
    }
    found
}

/// The script of this name in this directory.
pub(crate) fn script(name: &str) -> PathBuf {
    bins::root().join("tests/tests/writers").join(name)
}

/// `name dir`, in a directory of its own; the caller may set more.
pub(crate) fn python(name: &str, dir: &Path) -> Command {
    run_script(trainer::python(), name, dir)
}

/// The same by the interpreter that has PyTorch.
pub(crate) fn torch_python(name: &str, dir: &Path) -> Command {
    run_script(trainer::torch_python(), name, dir)
}

fn run_script(interpreter: PathBuf, name: &str, dir: &Path) -> Command {
    let mut python = command(interpreter);
    python.arg(script(name)).arg(dir).current_dir(dir).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

impl Writer {
    pub(crate) fn start(mut python: Command) -> anyhow::Result<Self> {
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = python.spawn().context("cannot start Python")?;
        let answers = child.stdout.take().context("stdout is piped")?;
        let input = child.stdin.take();
        Ok(Self { child, input, answers: BufReader::new(answers).lines() })
    }

    /// Sends it a line and waits until it has done it.
    pub(crate) async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("its input was closed")?;
        input.write_all(format!("{line}\n").as_bytes()).await?;
        input.flush().await?;
        let answer = async {
            while let Some(answer) = self.answers.next_line().await? {
                if answer == "ok" {
                    return Ok(());
                }
            }
            bail!("the writer ended at {line:?}")
        };
        tokio::time::timeout(IMPORTED, answer).await.with_context(|| format!("no answer to {line:?}"))?
    }

    /// A line that it prints by itself.
    pub(crate) async fn line(&mut self) -> anyhow::Result<String> {
        let line =
            tokio::time::timeout(PATIENCE, self.answers.next_line()).await.context("it says nothing")??;
        line.context("the writer ended")
    }

    /// Lets it end, and returns its exit code.
    pub(crate) async fn end(mut self) -> anyhow::Result<Option<i32>> {
        self.input = None;
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.context("it does not end")??;
        Ok(status.code())
    }
}
