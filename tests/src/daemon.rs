//! A process under test: starts, monitors, signals and kills it.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::poll::PATIENCE;
use crate::say;

/// The number of log lines that are shown when a test fails.
const SHOWN: usize = 60;
/// The most lines kept of a log: more than a program writes at the level `trace` in any test,
/// because a test that waits for a line or searches for a secret must see all of them.
const KEPT: usize = 1_000_000;

/// A running program. Dropping it kills the process; dropping it in a failing test shows its log.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: watch::Receiver<Vec<String>>,
    printed: watch::Receiver<Vec<String>>,
}

/// The lines of an output as they arrive; closed at its end.
fn kept(output: impl AsyncRead + Unpin + Send + 'static) -> watch::Receiver<Vec<String>> {
    let (sink, kept) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            sink.send_modify(|all| {
                if all.len() < KEPT {
                    all.push(line);
                }
            });
        }
    });
    kept
}

impl Daemon {
    pub fn spawn(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let log = kept(child.stderr.take().context("stderr is piped")?);
        let printed = kept(child.stdout.take().context("stdout is piped")?);
        Ok(Self { name: name.to_owned(), child, log, printed })
    }

    /// Waits for the log line with the address the program listens on.
    pub async fn listening(&mut self) -> anyhow::Result<SocketAddr> {
        let line = self.logged(|line| address(line).is_some()).await?;
        address(&line).context("the line has an address")
    }

    /// Waits for a line of the log.
    pub async fn logged(&mut self, wanted: impl Fn(&str) -> bool) -> anyhow::Result<String> {
        let mut lines = self.log.clone();
        let found = |all: &Vec<String>| all.iter().any(|l| wanted(l));
        let seen = tokio::time::timeout(PATIENCE, lines.wait_for(found)).await;
        if let Ok(all) =
            seen.with_context(|| format!("{}: no such line of log in {PATIENCE:?}", self.name))?
        {
            return all.iter().find(|l| wanted(l)).cloned().context("just found");
        }
        // The log has ended, and its last lines have the reason.
        bail!("{} ended: {}\n{}", self.name, self.child.wait().await?, self.tail())
    }

    pub fn log(&self) -> Vec<String> {
        self.log.borrow().clone()
    }

    /// The lines on its standard output.
    pub fn printed(&self) -> Vec<String> {
        self.printed.borrow().clone()
    }

    /// Whether a line from number `first` on matches.
    pub fn has_logged(&self, first: usize, wanted: impl Fn(&str) -> bool) -> bool {
        self.log.borrow().iter().skip(first).any(|line| wanted(line))
    }

    fn tail(&self) -> String {
        let log = self.log.borrow();
        log[log.len().saturating_sub(SHOWN)..].join("\n")
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        match tokio::time::timeout(deadline, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("{} still runs after {deadline:?}\n{}", self.name, self.tail()),
        }
    }

    /// Kills with `kill -9`, and waits until the process has ended.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Sends SIGTERM; returns the exit status.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(PATIENCE).await
    }

    /// Sends SIGSTOP: the process exists but does nothing.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Makes every further write to a file fail, as on a full disk, while reads succeed.
    pub fn fill_disk(&self) -> anyhow::Result<()> {
        self.limit_files(Some(0))
    }

    /// Makes room on the disk again.
    pub fn empty_disk(&self) -> anyhow::Result<()> {
        self.limit_files(getrlimit(Resource::Fsize).current)
    }

    fn limit_files(&self, current: Option<u64>) -> anyhow::Result<()> {
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(Some(self.running()?), Resource::Fsize, Rlimit { current, maximum })?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.running()?, signal)?)
    }

    fn running(&self) -> anyhow::Result<Pid> {
        let pid = self.pid().and_then(|p| Pid::from_raw(i32::try_from(p).ok()?));
        pid.with_context(|| format!("{} has ended", self.name))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say::line(&format!("---- log of {} ----\n{}", self.name, self.tail()));
        }
    }
}

/// What programs log with the address that serves everything. A replica that does not lead forwards
/// the requests.
const LISTENING: [&str; 2] = ["listening", "listening for requests to the replica that leads"];

/// The address in a `listening` line of a JSON log.
fn address(line: &str) -> Option<SocketAddr> {
    let v: Value = serde_json::from_str(line).ok()?;
    LISTENING.iter().any(|message| v["message"] == *message).then(|| v["addr"].as_str()?.parse().ok())?
}

/// A command without environment variables that could affect the test.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let ours = name.starts_with("STEPWATCH_");
        let trainer =
            name.starts_with("SLURM_") || name.starts_with("OMPI_") || name.starts_with("TORCHELASTIC_");
        if ours
            || trainer
            || matches!(&*name, "RANK" | "WORLD_SIZE" | "LOCAL_RANK" | "RUST_LOG")
            || is_proxy(&name)
        {
            command.env_remove(&*name);
        }
    }
    // An empty value turns the heartbeat pages off, which would be in `/dev/shm` by default.
    command.env("STEPWATCH_SHM", "");
    command
}

fn is_proxy(name: &str) -> bool {
    matches!(name.to_ascii_lowercase().as_str(), "http_proxy" | "https_proxy" | "all_proxy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_log() {
        let line = r#"{"timestamp":"2026-01-01T00:00:00Z","level":"INFO","message":"listening","addr":"127.0.0.1:34567"}"#;
        assert_eq!(address(line), Some("127.0.0.1:34567".parse().unwrap()));
        assert_eq!(address("listening"), None);
        assert_eq!(address(r#"{"message":"ready","addr":"127.0.0.1:1"}"#), None);
        assert_eq!(address(r#"{"message":"listening for OTLP","addr":"127.0.0.1:1"}"#), None);
        let standby =
            r#"{"message":"listening for requests to the replica that leads","addr":"127.0.0.1:7"}"#;
        assert_eq!(address(standby), Some("127.0.0.1:7".parse().unwrap()));
    }
}
