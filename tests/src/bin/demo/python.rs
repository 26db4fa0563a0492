//! A Python interpreter for training: with NumPy if available, else with pure Python.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use stepwatch_tests::{bins, daemon, trainer};
use tokio::process::{Child, Command};

use crate::screen::Screen;

/// The time limit for pip, which would retry for minutes without a network.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(90);
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Python {
    program: PathBuf,
    pub(crate) numpy: bool,
}

impl Python {
    /// The example trainer, which reports to `ingest`.
    pub(crate) fn trainer(&self, ingest: &Path, args: &[&str]) -> anyhow::Result<Child> {
        let mut python = trainer::python_client_with(&self.program, ingest);
        python.arg(bins::root().join("clients/python/examples/train_tiny.py")).arg("--quiet").args(args);
        if !self.numpy {
            python.arg("--pure-python");
        }
        python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        python.spawn().context("cannot start the trainer")
    }
}

/// The system's interpreter if it has NumPy, else a private environment with NumPy, else one
/// without.
pub(crate) async fn prepare(screen: &mut Screen, pure: bool) -> anyhow::Result<Python> {
    let system = trainer::python();
    anyhow::ensure!(
        runs(&system, "import sys; sys.exit(sys.version_info < (3, 8))").await,
        "needs Python 3.8 or later"
    );
    if pure {
        return Ok(Python { program: system, numpy: false });
    }
    if runs(&system, "import numpy").await {
        return Ok(Python { program: system, numpy: true });
    }
    let dir = environment()?;
    let private = dir.join("bin/python");
    if !runs(&private, "import numpy").await {
        screen.progress("setting up a private Python environment with NumPy");
        if let Err(why) = install(&system, &dir, &private).await {
            screen.progress(&format!("no NumPy ({why:#}): training the smaller model in pure Python"));
            return Ok(Python { program: system, numpy: false });
        }
    }
    Ok(Python { program: private, numpy: true })
}

/// Interrupts the trainer with Ctrl-C, unless it has ended, and waits for its last output.
pub(crate) async fn interrupt(trainer: &mut Child) -> anyhow::Result<()> {
    let pid = trainer.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    if let Some(pid) = pid {
        kill_process(pid, Signal::INT)?;
    }
    tokio::time::timeout(INTERRUPT_TIMEOUT, trainer.wait()).await.context("the trainer does not end")??;
    Ok(())
}

/// The path of the private environment, in the build directory, which `cargo clean` removes.
fn environment() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let profile = exe.parent().context("the demo lies in a target directory")?;
    Ok(profile.join("demo-python"))
}

async fn install(system: &Path, dir: &Path, private: &Path) -> anyhow::Result<()> {
    let mut venv = daemon::command(system);
    venv.args(["-m", "venv", "--clear"]).arg(dir);
    finish(venv).await?;
    let mut pip = daemon::command(private);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "numpy"]);
    finish(pip).await
}

async fn finish(mut command: Command) -> anyhow::Result<()> {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let out = tokio::time::timeout(INSTALL_TIMEOUT, running).await.context("it took too long")??;
    let stderr = String::from_utf8_lossy(&out.stderr);
    let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it failed").to_owned();
    anyhow::ensure!(out.status.success(), last);
    Ok(())
}

async fn runs(python: &Path, code: &str) -> bool {
    let out = daemon::command(python).args(["-c", code]).kill_on_drop(true).output().await;
    out.is_ok_and(|o| o.status.success())
}
