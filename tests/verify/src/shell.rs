//! Running commands in the workspace, with their whole output kept in a log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines of a failed command shown on the terminal; the log has them all.
const FAILURE_TAIL: usize = 120;

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
        let status = child.wait().map_err(|e| format!("cannot wait for {shown}: {e}"))?;
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        let lines = std::mem::take(&mut sink.lock().unwrap_or_else(PoisonError::into_inner).1);
        if status.success() {
            return Ok(Output { lines });
        }
        let shown_lines = if self.verbose { Vec::new() } else { excerpt(&lines) };
        Err(format!("{}\n{shown}: {status}; whole output in {}", shown_lines.join("\n"), path.display()))
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
