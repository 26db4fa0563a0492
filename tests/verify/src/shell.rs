//! Running commands in the workspace, with their whole output kept in a log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of a failed command shown on the terminal; the log has them all.
const FAILURE_TAIL: usize = 120;

/// A command that takes longer hangs: the slowest one, which builds the tests, takes a third of it.
const LIMIT: Duration = Duration::from_mins(40);
/// The same with `--full`, where the rounds of kills alone take hours.
const FULL_LIMIT: Duration = Duration::from_hours(12);
/// What a command started may write for so long after the command has ended.
const ORPHANS_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
    /// `target/verify`: logs, the Python environment.
    pub(crate) scratch: PathBuf,
    /// What is not run in an ordinary verification is run, and nothing may be left out.
    pub(crate) full: bool,
    verbose: bool,
}

/// The output of a command that succeeded: both streams, as they came.
pub(crate) struct Output {
    lines: Vec<String>,
}

impl Output {
    #[cfg(test)]
    pub(crate) fn from_text(text: &str) -> Self {
        Self { lines: text.lines().map(str::to_owned).collect() }
    }

    /// The lines that satisfy `keep`.
    pub(crate) fn lines(&self, keep: impl Fn(&str) -> bool) -> Vec<String> {
        self.lines.iter().filter(|l| keep(l)).cloned().collect()
    }

    pub(crate) fn last(&self, n: usize) -> Vec<String> {
        let full: Vec<_> = self.lines(|l| !l.trim().is_empty());
        full[full.len().saturating_sub(n)..].to_vec()
    }
}

impl Workspace {
    /// The root is where this program was compiled from; cargo runs it only from there.
    pub(crate) fn find(full: bool, verbose: bool) -> Result<Self, String> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.ancestors().nth(2).ok_or("the workspace root is two levels up")?.to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = root.join(target);
        let scratch = target.join("verify");
        std::fs::create_dir_all(&scratch).map_err(|e| format!("cannot create {}: {e}", scratch.display()))?;
        Ok(Self { root, target, scratch, full, verbose })
    }

    /// Runs a command from the workspace root; `log` names its log file.
    pub(crate) fn run(&self, log: &str, command: &mut Command) -> Result<Output, String> {
        let path = self.scratch.join(format!("{log}.log"));
        let file = File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let shown = format!("{command:?}");
        if command.get_current_dir().is_none() {
            command.current_dir(&self.root);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot run {shown}: {e}"))?;
        let sink = Arc::new(Mutex::new((file, Vec::new())));
        let readers = [
            child.stdout.take().map(|s| self.collect(s, Arc::clone(&sink))),
            child.stderr.take().map(|s| self.collect(s, Arc::clone(&sink))),
        ];
        let limit = if self.full { FULL_LIMIT } else { LIMIT };
        let ended = end_within(&mut child, limit).map_err(|e| format!("cannot wait for {shown}: {e}"))?;
        let read = || readers.iter().flatten().all(|reader| reader.is_finished());
        let complete = within(ORPHANS_LIMIT, || read().then_some(())).is_some();
        let lines = std::mem::take(&mut sink.lock().unwrap_or_else(PoisonError::into_inner).1);
        let why = match ended {
            Some(status) if status.success() && complete => return Ok(Output { lines }),
            Some(status) if status.success() => "it ended, and a process that it started did not".to_owned(),
            Some(status) => status.to_string(),
            None => format!("killed, because it did not end within {} minutes", limit.as_secs() / 60),
        };
        let shown_lines = if self.verbose { Vec::new() } else { excerpt(&lines) };
        Err(format!("{}\n{shown}: {why}; whole output in {}", shown_lines.join("\n"), path.display()))
    }

    fn collect(
        &self,
        stream: impl Read + Send + 'static,
        sink: Arc<Mutex<(File, Vec<String>)>>,
    ) -> std::thread::JoinHandle<()> {
        let verbose = self.verbose;
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if verbose {
                    println!("{line}");
                }
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = writeln!(sink.0, "{line}");
                sink.1.push(line);
            }
        })
    }
}

/// Waits until the process has ended; `None` if it was killed, with all that it started, because
/// the time was over.
fn end_within(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    if let Some(ended) = within(limit, || child.try_wait().transpose()) {
        return ended.map(Some);
    }
    let mut kill = Command::new("kill");
    kill.arg("-9").args(descendants(child.id()).iter().map(u32::to_string));
    // The group of processes is ours too, so they are named one by one.
    kill.stderr(Stdio::null()).status()?;
    child.kill()?;
    child.wait().map(|_| None)
}

#[expect(clippy::disallowed_methods, reason = "it polls a condition, and there is no runtime")]
fn within<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = ready();
        if found.is_some() || began.elapsed() >= limit {
            return found;
        }
        std::thread::sleep(POLL);
    }
}

/// The processes that a process started, and those that they started.
fn descendants(of: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<_> = processes
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(&std::fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == process).map(|(pid, _)| pid));
        next += 1;
    }
    found.split_off(1)
}

/// The parent of a process, of its `/proc/PID/stat`. Its name, in brackets, may contain anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// What a person wants to see of a failure: the failures that a test runner lists, else the end.
fn excerpt(lines: &[String]) -> Vec<&str> {
    let mut listed = Vec::new();
    let mut inside = false;
    for line in lines {
        inside |= line == "failures:";
        if inside {
            listed.push(line.as_str());
        }
        inside &= !line.starts_with("test result:");
    }
    // Cargo's messages for programs would hide what the compiler says to people.
    let for_people =
        || lines.iter().map(String::as_str).filter(|l| !l.starts_with(r#"{"reason":"#)).collect();
    let all = if listed.is_empty() { for_people() } else { listed };
    all[all.len().saturating_sub(FAILURE_TAIL)..].to_vec()
}

/// `cargo ARGS` with the toolchain that runs us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// The path of a program on `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_killed_with_all_that_it_started() {
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut started = String::new();
        stdout.read_line(&mut started).unwrap();
        assert_eq!(descendants(child.id()), [started.trim().parse::<u32>().unwrap()]);
        assert!(end_within(&mut child, Duration::ZERO).unwrap().is_none());
        // Nobody has the other end any more.
        assert_eq!(stdout.read_line(&mut started).unwrap(), 0);
    }

    #[test]
    fn the_parent_of_a_process_with_any_name() {
        assert_eq!(parent("12 (a) 7 (b) S 34 12 0"), Some(34));
        assert_eq!(parent("12"), None);
    }

    #[test]
    fn a_failure_shows_the_failed_tests() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let log = lines(
            "test a ... ok\ntest b ... FAILED\nfailures:\nwhy\ntest result: FAILED.\ntest c ... ok\ntest result: ok.",
        );
        assert_eq!(excerpt(&log), ["failures:", "why", "test result: FAILED."]);
        let build = lines("error: x\n{\"reason\":\"compiler-artifact\"}\nend");
        assert_eq!(excerpt(&build), ["error: x", "end"]);
    }
}
