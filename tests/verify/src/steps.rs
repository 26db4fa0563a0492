//! The steps, in the order in which a mistake is cheapest to find.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::report::{Closing, Phase, Step, not_run};
use crate::shell::{Workspace, cargo};
use crate::test::{is_closing, left_out, peers};
use crate::{extend, fuzz, house, install, real, test};

/// How often `--full` repeats the tests that race with real processes.
const LOOPS: usize = 20;

/// The profile of programs whose memory is measured, and the directory of what it builds.
const OPTIMIZED: &str = "optimized";

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
    "paging",
    "receivers",
];

pub(crate) fn all() -> Vec<Step> {
    use Phase::{Alone, BesideTests, Install, Static, Tests};
    let step = |phase, name, about, run| Step { name, about, long: false, phase, run };
    let long_step = |name, about, run| Step { long: true, ..step(Alone, name, about, run) };
    vec![
        step(Install, "install", "what the tests need and this machine lacks", install::all),
        step(
            Static,
            "house",
            "short files and functions, imports one way, no unused dependency",
            house::check,
        ),
        step(Static, "fmt", "rustfmt --check of every file", fmt),
        step(Static, "clippy", "cargo clippy, warnings are errors", clippy),
        step(Tests, "test", "cargo test, with real peers", test::all),
        step(BesideTests, "rules", "promtool check and test of rules/", rules),
        step(
            BesideTests,
            "python",
            "the Python client's tests, and dashboards by Grafana's types",
            python_tests,
        ),
        // From here on they wait until the tests are built: the tests themselves mostly wait, and
        // leave time for others.
        step(BesideTests, "demo", "cargo demo, to its end", demo),
        step(BesideTests, "memory", "attacks on an optimized exporter, held to its bound of memory", memory),
        step(
            BesideTests,
            "deploy",
            "the chart by Helm, its objects by the schemas of Kubernetes, images and Compose",
            deploy,
        ),
        step(BesideTests, "doc", "cargo doc, warnings are errors", doc),
        step(BesideTests, "deny", "licences and advisories of dependencies", deny),
        step(Alone, "latency", "from a packet to the request that wakes somebody", latency),
        step(
            Alone,
            "python-bench",
            "the Python client's cost in the training loop, with its limits",
            python_bench,
        ),
        long_step(
            "python-real",
            "the Python adapters against the frameworks themselves, and Google's goodput of the ledger's logs",
            real::all,
        ),
        long_step(
            "fuzz",
            "every fuzz target, with the sanitizers, over its corpus and beyond",
            fuzz::targets,
        ),
        long_step("api-fuzz", "every route of the alerter against its OpenAPI document", fuzz::api),
        long_step(
            "kill",
            "500 rounds of kills, clocks and receivers that fail, and 500 of blows to replicas",
            kill,
        ),
        long_step("extend", "a new detector, as one file and one line", extend::detector),
        long_step("hostile", "every attack on both programs, with its bounds", hostile),
        long_step("loops", "end-to-end and kill tests, 20 times", loops),
        long_step(
            "long",
            "a tail at 1,000 lines a second, a driver that hangs for a minute, a million collections, 20,000 alerts and incidents, a report of a month of 1,000 runs",
            long,
        ),
    ]
}

/// Every file by itself: `cargo fmt` does not find modules that a macro declares.
fn fmt(w: &Workspace) -> Result<Closing, String> {
    let tracked = w.run("fmt-files", Command::new("git").args(["ls-files", "*.rs"]).current_dir(&w.root))?;
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--check", "--edition", "2024", "--config-path", "."]).current_dir(&w.root);
    w.run("fmt", rustfmt.args(tracked.lines(|l| Path::new(l).extension().is_some_and(|e| e == "rs"))))
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
    let types = ["-m", "unittest", "-v", "test_foundation_sdk"];
    closing
        .extend(run("python-grafana", install::python(w), &types, &w.root.join("dashboards/tests"))?.last(2));
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

/// Both programs read the configurations that the chart renders.
fn deploy(w: &Workspace) -> Result<Closing, String> {
    // Of the whole workspace, so that what the step `test` has built is used.
    let programs = ["build", "--locked", "--bin", "stepwatch-exporter", "--bin", "stepwatch-alerter"];
    w.run("deploy-build", &mut cargo(&programs))?;
    let mut python = Command::new(install::python(w));
    python.args(["-m", "unittest", "discover", "-v", "-s", "tests"]).current_dir(w.root.join("deploy/helm"));
    python.env("STEPWATCH_REQUIRE_PEERS", "1").env("STEPWATCH_BIN_DIR", w.target.join("debug"));
    w.run("deploy", &mut python).map(|out| out.last(2))
}

fn latency(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["test", "--locked", "--workspace"]);
    test::TIMED.iter().for_each(|t| {
        command.args(["--test", t]);
    });
    peers(w, &mut command);
    w.run("latency", &mut command).map(|out| out.lines(is_closing))
}

fn python_bench(w: &Workspace) -> Result<Closing, String> {
    let mut python = Command::new(install::python(w));
    python.args(["bench/bench_step.py", "--check"]);
    let out = w.run("python-bench", python.current_dir(w.root.join("clients/python")))?;
    Ok(out.last(4))
}

fn rules(w: &Workspace) -> Result<Closing, String> {
    let root = w.root.join("rules");
    let tests = files(&root.join("tests"), "yml");
    // Below are also the sources that they are made of.
    let beside = |path: &PathBuf| path.parent() == Some(root.as_path());
    let rules: Vec<_> = files(&root, "yml").into_iter().filter(beside).collect();
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

fn loops(w: &Workspace) -> Result<Closing, String> {
    let mut closing = Vec::new();
    for i in 1..=LOOPS {
        let mut command = cargo(&["test", "--quiet", "--locked", "--workspace"]);
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

/// The exporter's tests of attacks once more. A build without optimisation maps so much code that
/// its memory says little about what users have.
fn memory(w: &Workspace) -> Result<Closing, String> {
    let build = ["build", "--profile", OPTIMIZED, "--locked", "-p", "stepwatch-exporter"];
    w.run("memory-build", &mut cargo(&build))?;
    // With all packages, so that what the step `test` has built is used.
    let mut tests = cargo(&["test", "--locked", "--workspace", "--test", "service", "--", "hostile::"]);
    tests.env("STEPWATCH_BIN_DIR", w.target.join(OPTIMIZED));
    w.run("memory", tests.arg("--nocapture")).map(|out| out.lines(is_closing))
}

/// In a release build, which is held to the bounds of docs/security.md.
fn hostile(w: &Workspace) -> Result<Closing, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "--locked", "-p", "stepwatch-hostile"]);
    w.run("hostile", &mut command).map(|out| out.lines(|l| !l.trim().is_empty()))
}

/// Not in a release build, which has no crash points.
fn kill(w: &Workspace) -> Result<Closing, String> {
    let tests = ["--test", "kill", "--test", "replicas", "rounds::"];
    let mut command = cargo(&[&["test", "--locked", "--workspace"], &tests[..]].concat());
    peers(w, &mut command);
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
    let ledger = ["a_report_of_a_month", "a_month_of_a_thousand_runs"];
    let library = ["-p", "stepwatch-alerter", "--lib", "--", "--nocapture"];
    let ledger = of("long-ledger", &[&library[..], &ledger[..]].concat())?;
    let all = [hang, tail, leak, load, ledger];
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
        assert_eq!(names[0], "install");
    }

    #[test]
    fn a_full_verification_does_what_an_ordinary_one_leaves_out() {
        let long: BTreeSet<_> = all().iter().filter(|s| s.long).map(|s| s.name).collect();
        for name in ["python-real", "fuzz", "api-fuzz", "kill", "hostile", "loops", "long"] {
            assert!(long.contains(name), "{name}");
        }
        assert!(LOOPS >= 20 && PROCESS_TESTS.contains(&"paging"));
    }
}
