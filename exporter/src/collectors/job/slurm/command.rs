//! Runs one command of Slurm, within a time and a size.
//!
//! A command waits for its controller for minutes, may print megabytes, or hang in a file system.
//! It has a process group of its own, which is killed as a whole and awaited, so that neither it
//! nor what it started stays behind. No shell is involved.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use stepwatch_wire::words;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// The most bytes of an output: the jobs of 150,000 lines.
const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// The most bytes kept of a line.
const MAX_LINE_BYTES: usize = 64 << 10;
/// What a command complains with whose controller does not answer: it is gone, too busy to answer
/// in time, or waits for the other one to fail. One that limits the rate of this user works.
const NO_CONTROLLER: [&str; 8] = [
    "Unable to contact slurm controller",
    "Communication connection failure",
    "Message send failure",
    "Message receive failure",
    "Connection timed out",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "in standby mode",
];
/// What it complains with if this node cannot prove who it is: munge does not run there, or its
/// token or its key is not accepted.
const NOT_ADMITTED: &str = "authentication error";
/// The most bytes read of what a command complains, and the most characters kept.
const MAX_COMPLAINT_BYTES: u64 = 4 << 10;
const MAX_COMPLAINT: usize = 160;
/// How long a killed command is awaited. One that waits in the kernel is left to the runtime, which
/// awaits it later.
const REAP: Duration = Duration::from_secs(1);
/// What a command keeps of the environment of this program. Others would change its format
/// (`SQUEUE_FORMAT`) or what it shows (`SLURM_CLUSTERS`).
const KEPT: [&str; 4] = ["PATH", "HOME", "SLURM_CONF", "SLURM_JWT"];
/// English, times in Unix seconds, and the elements of an array written out.
const SET: [(&str, &str); 3] = [("LC_ALL", "C"), ("SLURM_TIME_FORMAT", "%s"), ("SLURM_BITSTR_LEN", "1024")];

#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("cannot start {0}: {1}")]
    Start(String, io::Error),
    #[error("{0} gave no answer within {1:?}")]
    Timeout(&'static str, Duration),
    #[error("{0} printed more than {MAX_OUTPUT_BYTES} bytes")]
    TooLarge(&'static str),
    #[error("cannot read the output of {0}: {1}")]
    Read(&'static str, io::Error),
    #[error("{0} ended with {1}: {2}")]
    Exit(&'static str, ExitStatus, String),
    #[error("no line of {0} is one that this version knows")]
    Malformed(&'static str),
    #[error("no controller is up")]
    Controller,
}

impl Failed {
    /// The reason as the value of a label.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Start(..) => "start",
            Self::Timeout(..) => "timeout",
            Self::TooLarge(_) => "too_large",
            Self::Read(..) => "read",
            Self::Exit(..) => "exit",
            Self::Malformed(_) => "malformed",
            Self::Controller => "controller",
        }
    }

    /// Whether the controller does not answer. Otherwise it may, and this program lacks something.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Timeout(..) | Self::Controller => true,
            Self::Exit(_, _, complaint) => NO_CONTROLLER.iter().any(|of| complaint.contains(of)),
            Self::Start(..) | Self::TooLarge(_) | Self::Read(..) | Self::Malformed(_) => false,
        }
    }

    /// Whether this node cannot prove who it is.
    pub(super) fn is_not_admitted(&self) -> bool {
        matches!(self, Self::Exit(_, _, complaint) if complaint.contains(NOT_ADMITTED))
    }

    pub(super) const REASONS: [&'static str; 7] =
        ["start", "timeout", "too_large", "read", "exit", "malformed", "controller"];
}

/// A command that asks for one thing.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    /// What is asked for, for messages.
    pub(super) what: &'static str,
    pub(super) program: &'a Path,
    pub(super) args: &'a [&'a str],
    pub(super) conf: Option<&'a Path>,
    pub(super) limit: Duration,
}

impl Ask<'_> {
    /// Runs the command, and passes its lines on as they come. What was passed on counts only if
    /// the command succeeded.
    pub(super) async fn run(&self, take: &mut dyn FnMut(&str)) -> Result<(), Failed> {
        let mut child =
            self.command().spawn().map_err(|e| Failed::Start(self.program.display().to_string(), e))?;
        let result = tokio::time::timeout(self.limit, self.listen(&mut child, take)).await;
        let result = result.unwrap_or(Err(Failed::Timeout(self.what, self.limit)));
        if result.is_err() {
            end(&mut child).await;
        }
        result
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        let kept = KEPT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)));
        command.args(self.args).env_clear().envs(kept).envs(SET);
        command.envs(self.conf.map(|conf| ("SLURM_CONF", OsString::from(conf))));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        command
    }

    async fn listen(&self, child: &mut Child, take: &mut dyn FnMut(&str)) -> Result<(), Failed> {
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Failed::Read(self.what, io::Error::other("it has none")));
        };
        let ((), complaint) =
            tokio::try_join!(self.lines(BufReader::new(stdout), take), self.complaint(stderr))?;
        let status = child.wait().await.map_err(|e| Failed::Read(self.what, e))?;
        if status.success() { Ok(()) } else { Err(Failed::Exit(self.what, status, complaint)) }
    }

    async fn lines(
        &self,
        mut stdout: impl AsyncBufRead + Unpin,
        take: &mut dyn FnMut(&str),
    ) -> Result<(), Failed> {
        let (mut line, mut total) = (Vec::new(), 0);
        loop {
            let chunk = stdout.fill_buf().await.map_err(|e| Failed::Read(self.what, e))?;
            if chunk.is_empty() {
                break;
            }
            let (used, ends) = memchr::memchr(b'\n', chunk).map_or((chunk.len(), false), |at| (at + 1, true));
            let room = MAX_LINE_BYTES.saturating_sub(line.len());
            line.extend(chunk.iter().take(used.min(room)));
            stdout.consume(used);
            total += used;
            if total > MAX_OUTPUT_BYTES {
                return Err(Failed::TooLarge(self.what));
            }
            if ends {
                take(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        if !line.is_empty() {
            take(String::from_utf8_lossy(&line).trim_end());
        }
        Ok(())
    }

    /// The last line that the command complained with. All of it is read, so that no full pipe
    /// stops the command.
    async fn complaint(&self, stderr: impl AsyncRead + Unpin) -> Result<String, Failed> {
        let (mut first, mut rest) = (Vec::new(), stderr);
        (&mut rest)
            .take(MAX_COMPLAINT_BYTES)
            .read_to_end(&mut first)
            .await
            .map_err(|e| Failed::Read(self.what, e))?;
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map_err(|e| Failed::Read(self.what, e))?;
        let text = String::from_utf8_lossy(&first);
        let last =
            text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it does not say why");
        Ok(words::line(last).chars().take(MAX_COMPLAINT).collect())
    }
}

/// Ends the command with all that it started.
async fn end(child: &mut Child) {
    // Without an id it has ended, and the number may be another process's by now.
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let Some(group) = group else { return };
    // Fails only if the group is gone.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = tokio::time::timeout(REAP, child.wait()).await;
}
