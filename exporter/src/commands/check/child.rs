//! Runs the check in a child process, and the tests of `--active` in another one.
//!
//! A thread that waits in the kernel for a hung driver cannot be killed, and a process does not end
//! before its last thread. A prolog with the check would hang with it, on the very node that must
//! be drained. So one process reads, and another one waits for its result up to a limit, and then
//! abandons it.
//!
//! With `--active` there are three: the one that was started waits for the one that tests, which
//! first waits for the one that reads. What tells the first to end is passed on to the second: it
//! ends its tools, and no load is left on the node when the first has ended. One that hangs is
//! abandoned then too.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use super::report::Findings;
use super::{Options, Report, Verdict, active, collectors, learned, run};
use crate::clock::unix_now;
use crate::config::Config;
use crate::roots::Roots;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, set_parent_process_death_signal};

/// The flag of the process that tests.
const TESTER: &str = "--tester";
/// The time for the child's start, and for the evaluation of what it has read.
const GRACE: Duration = Duration::from_millis(300);
/// The time, besides a look, in which the process that tests ends after it was told to: its tools,
/// and a file system that does not answer, have some seconds of their own.
const ENDS: Duration = Duration::from_secs(10);
/// The most bytes of a report.
const MAX_REPORT_BYTES: u64 = 4 << 20;
/// The most bytes that are read at the end of the child's stderr.
const MAX_STDERR_BYTES: usize = 4 << 10;

/// The output of the child process: one line, which its parent can read without waiting for its
/// exit.
pub fn answer(config: &Config, roots: &Roots, options: &Options) -> String {
    // If the parent gives up waiting, it has no use for the result.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    line(&run(config, roots, options))
}

/// The output of the child process that tests.
pub fn test_answer(config: &Config, roots: &Roots, options: &Options, args: Vec<OsString>) -> String {
    // It ends its tools when its parent dies, even if that is killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    line(&active::test(config, roots, options, args))
}

fn line(report: &Report) -> String {
    serde_json::to_string(report).unwrap_or_default() + "\n"
}

/// Runs the checks, and the tests of `--active`, in a child process that need not end. `args` are
/// the arguments of this process.
pub fn supervised(config: &Config, roots: &Roots, options: &Options, args: Vec<OsString>) -> Report {
    if !options.active {
        return looked(config, roots, options, args);
    }
    let limit = options.timeout.as_duration() + active::longest(config, options);
    ask(config, options, TESTER, args.clone(), limit, || active::test(config, roots, options, args))
}

/// Runs the checks in a child process.
pub(super) fn looked(config: &Config, roots: &Roots, options: &Options, args: Vec<OsString>) -> Report {
    ask(config, options, "--inner", args, options.timeout.as_duration(), || run(config, roots, options))
}

/// The report of a child process that gets this `flag` too. Where none can be started, `here` makes
/// it.
fn ask(
    config: &Config,
    options: &Options,
    flag: &str,
    args: Vec<OsString>,
    limit: Duration,
    here: impl FnOnce() -> Report,
) -> Report {
    let began = Instant::now();
    // A file in memory is used rather than a pipe, so that nobody has to read while the child
    // writes.
    let stderr = memfd_create("stderr", MemfdFlags::CLOEXEC).map(File::from).ok();
    let for_child = stderr.as_ref().and_then(|file| file.try_clone().ok());
    let mut command = Command::new("/proc/self/exe");
    command.args(args).arg(flag).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(for_child.map_or_else(Stdio::null, Stdio::from));
    let Ok(mut child) = command.spawn() else {
        // There is no procfs, or no room for a process.
        return here();
    };
    let (said, heard) = mpsc::sync_channel(2);
    if flag == TESTER {
        let said = said.clone();
        let give_up = move || {
            let _ = said.try_send(Err(io::Error::other("it was told to end, and did not")));
        };
        active::pass_signals_to(child.id(), options.timeout.as_duration() + ENDS, give_up);
    }
    let answer = match child.stdout.take().map(|stdout| read_first_line(stdout, said)) {
        Some(Ok(())) => heard.recv_timeout(limit + GRACE).ok(),
        Some(Err(error)) => Some(Err(error)),
        None => Some(Err(io::Error::other("it has no output"))),
    };
    // A call that hangs here would hang in a job too. A child that ended without an answer shows
    // nothing.
    // Where the tests alone count, that is for the check without them.
    let hangs = answer.is_none() && !options.tests_only;
    let verdict = if hangs { Verdict::Unhealthy } else { Verdict::Unknown };
    let why = match answer {
        Some(Ok(line)) => {
            if let Ok(report) = serde_json::from_str(&line) {
                return report;
            }
            let ended = child.wait().map_or_else(|e| e.to_string(), |status| format!("it ended: {status}"));
            match stderr.and_then(|file| last_line(&file)) {
                Some(line) => format!("{ended}: {line}"),
                None => ended,
            }
        }
        Some(Err(error)) => error.to_string(),
        None => "it did not answer in time".into(),
    };
    // The signal may have no effect, so the child's end is not awaited.
    let _ = child.kill();
    learned::remove_of(child.id());
    // What the process that tests has started dies with it; what these have started does not.
    if flag == TESTER {
        active::end_tools(child.id());
    }
    let mut found = Findings::default();
    found.add(verdict, format!("the process that looks gave no answer: {why}"));
    let findings = found.named(collectors::NAME).collect();
    Report::new(config.node_name(), unix_now(), began.elapsed().as_secs_f64(), findings, options.strictness())
}

/// Reads the first line of the output in a thread, because the output may hang.
fn read_first_line(stdout: ChildStdout, said: SyncSender<io::Result<String>>) -> io::Result<()> {
    let read = move || {
        let mut line = String::new();
        // The end of the output may never come, so only a line is read.
        let read = BufReader::new(stdout.take(MAX_REPORT_BYTES)).read_line(&mut line);
        said.send(read.map(|_| line))
    };
    std::thread::Builder::new().name("answer".into()).spawn(read).map(drop)
}

/// The last line that is not empty.
fn last_line(file: &File) -> Option<String> {
    let len = usize::try_from(file.metadata().ok()?.len()).ok()?;
    let mut end = vec![0; len.min(MAX_STDERR_BYTES)];
    let before = len - end.len();
    file.read_exact_at(&mut end, before as u64).ok()?;
    let end = String::from_utf8_lossy(&end);
    end.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_line_says_why() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(last_line(&file), None);
        writeln!(file, "{}\nthread caused non-unwinding panic. aborting.\n", "x".repeat(9000)).unwrap();
        assert_eq!(last_line(&file).as_deref(), Some("thread caused non-unwinding panic. aborting."));
    }
}
