//! The step `test`: every test binary of the workspace, several at a time, because the tests that
//! start the programs mostly wait.
//!
//! They are built by one command and started from here. A command for some packages alone would
//! compile half of the dependencies again, with other features.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::report::{Closing, human, not_run, progress};
use crate::shell::{Output, Workspace, cargo};
use crate::{fuzz, install, postgres, real};

/// The package of the tests that start the programs, below the root.
const PROGRAM_TESTS: &str = "tests";
/// Binaries of that package that run at once.
const PROGRAM_LANES: usize = 2;
/// Those of them that measure how long something takes, and run when nothing else does.
pub(crate) const TIMED: &[&str] = &["latency"];
/// The package with the store, whose library's tests run once more on PostgreSQL.
const ALERTER: &str = "stepwatch-alerter";

/// A compiled test binary.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TestBinary {
    /// Where its package stands; cargo starts tests there.
    package: PathBuf,
    /// What the package is called; cargo passes it to tests.
    package_name: String,
    is_library: bool,
    path: PathBuf,
}

pub(crate) fn all(w: &Workspace) -> Result<Closing, String> {
    let build = ["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
    let built = w.run("test-build", &mut cargo(&build))?;
    let program_tests = w.root.join(PROGRAM_TESTS);
    let mut binaries: Vec<_> =
        built.lines(|_| true).iter().filter_map(|line| TestBinary::of_message(line)).collect();
    binaries.sort_by_key(|b| (b.package == program_tests, b.clone()));
    if !binaries.iter().any(|b| b.package == program_tests) {
        return Err("cargo names no test binary that starts the programs".into());
    }
    let alerter = binaries.iter().find(|b| b.is_library && b.package_name == ALERTER).cloned();
    let alerter = alerter.ok_or("cargo names no test binary of the alerter's library")?;
    binaries.retain(|b| b.package != program_tests || !TIMED.contains(&&*b.name()));
    let queue = Mutex::new(VecDeque::from(binaries));
    let next = |from_the_end: bool| {
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        if from_the_end { queue.pop_back() } else { queue.pop_front() }
    };
    let lane = |from_the_end: bool| {
        std::iter::from_fn(|| next(from_the_end)).map(|b| b.run(w, &program_tests)).collect::<Vec<_>>()
    };
    let results = std::thread::scope(|threads| {
        let lanes: Vec<_> = (0..PROGRAM_LANES).map(|_| threads.spawn(|| lane(true))).collect();
        let mut results = lane(false);
        results.push(documentation(w));
        results.push(alerter.run_on_postgres(w));
        for lane in lanes {
            results.extend(
                lane.join().unwrap_or_else(|_| vec![Err("the thread that ran tests panicked".into())]),
            );
        }
        results
    });
    let (passed, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let failures: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    // Several binaries may lack the same peer.
    let mut said = BTreeSet::new();
    Ok(passed.into_iter().flatten().flatten().filter(|line| said.insert(line.clone())).collect())
}

/// The tests in the documentation.
fn documentation(w: &Workspace) -> Result<Closing, String> {
    timed("doc", || w.run("test-doc", &mut cargo(&["test", "--workspace", "--locked", "--doc"])))
}

impl TestBinary {
    /// The one that cargo has built, from a message about it.
    fn of_message(line: &str) -> Option<Self> {
        let (_, profile) = line.split_once(r#""profile":{"#)?;
        let is_test = profile.split('}').next()?.contains(r#""test":true"#);
        let manifest = text_of(line, "manifest_path").filter(|_| is_test)?;
        let package = Path::new(manifest).parent()?.to_owned();
        // `path+file:///w/kit#stepwatch-kit@0.1.0`, or without a name where the directory has it.
        let (_, id) = text_of(line, "package_id")?.split_once('#')?;
        let directory = || package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let package_name = id.split_once('@').map_or_else(directory, |(name, _)| name.to_owned());
        let is_library = line.contains(r#""kind":["lib"]"#);
        Some(Self { path: text_of(line, "executable")?.into(), package_name, is_library, package })
    }

    /// The name without cargo's hash.
    fn name(&self) -> String {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        file.rsplit_once('-').map_or_else(|| file.to_string(), |(name, _)| name.to_owned())
    }

    fn run(&self, w: &Workspace, program_tests: &Path) -> Result<Closing, String> {
        let mut command = Command::new(&self.path);
        self.prepare(w, &mut command);
        if self.package == program_tests {
            // They are built. Tests that look for newer sources would each ask cargo to build them.
            command.env("STEPWATCH_BIN_DIR", w.target.join("debug"));
            // The step api-fuzz runs it.
            if w.full {
                command.args(["--skip", fuzz::API_TEST]);
            }
        }
        let package = self.package.strip_prefix(&w.root).unwrap_or(&self.package).display().to_string();
        let name = format!("{package}/{}", self.name());
        // With the hash: a library and a program may have one name.
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        let log = format!("test-{}-{file}", package.replace('/', "-"));
        timed(&name, || w.run(&log, &mut command))
    }

    /// Runs the tests of the store on PostgreSQL in place of SQLite.
    fn run_on_postgres(&self, w: &Workspace) -> Result<Closing, String> {
        let name = format!("{} on PostgreSQL", self.name());
        timed(&name, || postgres::tests(w, &self.path, |command| self.prepare(w, command)))
    }

    /// Gives the tests what cargo would.
    fn prepare(&self, w: &Workspace, command: &mut Command) {
        command.current_dir(&self.package);
        command.env("CARGO_MANIFEST_DIR", &self.package).env("CARGO_PKG_NAME", &self.package_name);
        peers(w, command);
    }
}

/// Runs tests and says at once that they ended: a run that is cut off shows how far it came.
fn timed(name: &str, tests: impl FnOnce() -> Result<Output, String>) -> Result<Closing, String> {
    let began = Instant::now();
    let result = tests();
    let word = if result.is_ok() { "ok" } else { "FAILED" };
    progress(&format!("{word:<8} {name:<44} {:>8}", human(began.elapsed())));
    result.map(|out| closing(&out, name)).map_err(|why| format!("{name}: {why}"))
}

/// The value of a key of a JSON object whose value is text without escapes.
fn text_of<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    json.split_once(&format!(r#""{key}":""#))?.1.split('"').next()
}

/// What the tests may find here, and whether they may do without.
pub(crate) fn peers(w: &Workspace, command: &mut Command) {
    command.env("STEPWATCH_REQUIRE_PEERS", "1").env("STEPWATCH_PYTHON", install::python(w));
    command.env("STEPWATCH_OPENID_PROVIDER", install::node_modules(w));
    // Only then: the training loops of the frameworks take minutes.
    if w.full {
        command.env("STEPWATCH_REQUIRE_TORCH", "1");
        command.env("STEPWATCH_TORCH_PYTHON", real::torch_python(w));
    }
}

/// The runner's closing line, what the tests measured, and what they did not do.
fn closing(out: &Output, name: &str) -> Closing {
    let lines = out.lines(is_closing);
    lines.into_iter().map(|line| format!("{line} ({name})")).chain(left_out(out)).collect()
}

/// What tests print loudly that they did not do.
pub(crate) fn left_out(out: &Output) -> Vec<String> {
    let not_tested = |l: &str| l.strip_prefix("!!! NOT TESTED: ").map(str::to_owned);
    let mut found: Vec<_> =
        out.lines(|l| not_tested(l).is_some()).iter().filter_map(|l| not_tested(l)).collect();
    found.sort();
    found.dedup();
    found.iter().map(|what| not_run(what)).collect()
}

/// The runner's closing line of a test binary that has tests, and figures that tests print on
/// purpose.
pub(crate) fn is_closing(line: &str) -> bool {
    (line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed")) || line.starts_with("figure:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo_names_a_test_binary() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/kit#stepwatch-kit@0.1.0","manifest_path":"/w/kit/Cargo.toml","target":{{"kind":["lib"],"test":true}},"profile":{{"opt_level":"0","test":{test}}},"features":[],"executable":{executable},"fresh":true}}"#
            )
        };
        let binary =
            TestBinary::of_message(&message(true, r#""/w/target/debug/deps/the_kit-0a1b""#)).unwrap();
        assert_eq!((binary.package.to_str(), binary.name().as_str()), (Some("/w/kit"), "the_kit"));
        assert_eq!((binary.package_name.as_str(), binary.is_library), ("stepwatch-kit", true));
        assert_eq!(TestBinary::of_message(&message(false, r#""/w/target/debug/kit""#)), None);
        assert_eq!(TestBinary::of_message(&message(true, "null")), None);
        assert_eq!(TestBinary::of_message("warning: unused"), None);
    }

    #[test]
    fn what_tests_did_not_do_is_printed_once() {
        let out = Output::from_text(
            "test a ... ok\n!!! NOT TESTED: Python cannot import torch\n!!! NOT TESTED: Python cannot import torch\n!!! a word",
        );
        assert_eq!(left_out(&out), [not_run("Python cannot import torch")]);
    }

    #[test]
    fn closing_lines_leave_out_empty_binaries() {
        assert!(is_closing("test result: ok. 10 passed; 0 failed; 0 ignored"));
        assert!(is_closing("test result: FAILED. 0 passed; 1 failed; 0 ignored"));
        assert!(!is_closing("test result: ok. 0 passed; 0 failed; 0 ignored"));
        assert!(is_closing("figure: packet to page p99 12 ms"));
    }
}
