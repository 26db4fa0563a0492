//! `check --active`: tests that put load on the node, because a node that is slow and quiet passes
//! every check that only reads.
//!
//! The tests run well-kept tools where these are installed, one after the other, under one budget
//! of time, and never beside a job: before each test the node has to be idle (`idle`). A test is
//! one file, with one line in [`TESTS`]. Its parser is a function of the tool's output. What was
//! not tested is `not run`, never `ok`.

mod bench;
mod dcgm;
mod disk;
mod guard;
mod memory;
mod nccl;
mod nvbandwidth;
mod perftest;
mod reading;
mod runner;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::report::{Facts, Finding, Strictness, Verdict};
use super::{Options, Report, child, idle};
use crate::clock::unix_now;
use crate::config::Config;
use crate::node_tests::{MAX_MEASUREMENTS, Measurement, Results, TestResult};
use crate::roots::Roots;
use bench::Bench;
use reading::Reading;
use runner::{Runner, Watch};

pub(super) use runner::{end_tools, pass_signals_to};

/// One test.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Memory,
    Disk,
    Perftest,
    Nvbandwidth,
    Nccl,
    Dcgm,
}

/// All tests, one a line, the short ones first: what does not fit into the budget is the longest.
pub(super) static TESTS: &[Test] = &[
    Test { name: "memory_bandwidth", about: "host memory is copied as fast as usual", kind: Kind::Memory },
    Test { name: "fio", about: "directories of check.active.disk are as fast as usual", kind: Kind::Disk },
    Test { name: "perftest", about: "each RDMA port is as fast as usual, to itself", kind: Kind::Perftest },
    Test {
        name: "nvbandwidth",
        about: "copies to, from and between GPUs are as fast as usual",
        kind: Kind::Nvbandwidth,
    },
    Test {
        name: "nccl",
        about: "an all-reduce over the GPUs is right and as fast as usual",
        kind: Kind::Nccl,
    },
    Test { name: "dcgm", about: "the diagnostics of DCGM pass", kind: Kind::Dcgm },
];

/// The file in the state directory that is locked while tests run.
const LOCK: &str = "node-tests.lock";
/// The exit status where the tests alone count and none was begun.
const REFUSED: u8 = 3;
/// A test is not begun with less time than this.
const LEAST: Duration = Duration::from_millis(500);
/// The time besides that of the tools and the looks: for a file system that does not answer.
const BESIDES: Duration = Duration::from_secs(20);

/// The time in which the tests have ended.
pub(super) fn longest(config: &Config, options: &Options) -> Duration {
    // Each test may be repeated, after another look, and one is the last.
    let looks = u32::try_from(2 * TESTS.len() + 1).unwrap_or(u32::MAX);
    let look = options.timeout.as_duration() * looks;
    budget(config, options) + look + BESIDES
}

fn budget(config: &Config, options: &Options) -> Duration {
    options.budget.unwrap_or(config.check.active.budget).as_duration()
}

/// The findings about tests that were named without `--active`.
pub(super) fn passed_over(options: &Options) -> impl Iterator<Item = Finding> {
    let named =
        TESTS.iter().filter(|test| !options.active && options.only.iter().any(|only| only == test.name));
    named.map(|test| {
        Finding::new(test.name, Verdict::Unknown, "not run: it puts load on the node; add --active")
    })
}

/// Makes the checks, and then the tests, in this process. `args` are its arguments.
pub(super) fn test(config: &Config, roots: &Roots, options: &Options, args: Vec<OsString>) -> Report {
    without_cores();
    let mut report = child::looked(config, roots, options, args.clone());
    // Held until the end of the process.
    let held = lock(&config.state_dir);
    if let Err(why) = &held {
        report.findings.push(Finding::new(idle::NAME, Verdict::Unknown, why.clone()));
    }
    let watch = watch(config, roots, options, &args);
    let mut again = || {
        let probe = Options { probe: true, ..options.clone() };
        let args = args.iter().cloned().chain([OsString::from("--probe")]).collect();
        child::looked(config, roots, &probe, args)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => {
            let report = runtime.block_on(async {
                // Signals need the runtime.
                let runner = Runner::new(&config.check.active, budget(config, options)).watched(watch);
                run(config, roots, options, report, &mut again, runner).await
            });
            // A call of the tests that hangs in the kernel is left behind.
            runtime.shutdown_background();
            report
        }
        Err(error) => {
            let finding = Finding::new("active", Verdict::Unknown, format!("no test can be run: {error}"));
            joined(report, vec![finding], options.strictness())
        }
    }
}

/// A tool that crashes leaves no core behind, which may be as large as the memory that it mapped.
fn without_cores() {
    let limit = getrlimit(Resource::Core);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit });
}

/// Lets no other process test the node at the same time.
fn lock(state: &Path) -> Result<File, String> {
    let path = state.join(LOCK);
    let mut options = OpenOptions::new();
    // Another user may own the directory: no link in it is followed, and no pipe waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits().cast_signed());
    let file = options.open(&path).map_err(|error| {
        let path = path.display();
        format!("another test may run on this node: {path} cannot be locked: {error}")
    })?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    locked.map(|()| file).map_err(|_| "another test runs on this node".to_owned())
}

/// Looks for jobs while a tool computes on the GPUs.
fn watch(config: &Config, roots: &Roots, options: &Options, args: &[OsString]) -> Watch {
    let options = Options { watch: true, ..options.clone() };
    let args: Vec<OsString> = args.iter().cloned().chain([OsString::from("--watch")]).collect();
    let (config, roots) = (config.clone(), roots.clone());
    Watch::new(move || {
        let report = child::looked(&config, &roots, &options, args.clone());
        idle::refusal(&report.findings)
    })
}

/// Makes the tests after the checks of `report`. `again` looks whether the node is still idle.
async fn run(
    config: &Config,
    roots: &Roots,
    options: &Options,
    report: Report,
    again: &mut dyn FnMut() -> Report,
    runner: Runner,
) -> Report {
    let active = &config.check.active;
    let mut bench = Bench { config: active, roots, runner, gpus: gpus(&report.facts) };
    let (mut findings, mut measurements) = (Vec::new(), Vec::new());
    let mut results: BTreeMap<String, TestResult> = BTreeMap::new();
    let mut last: Option<(String, TestResult)> = None;
    let mut refusal = idle::refusal(&report.findings);
    let refused = refusal.is_some();
    let report = if options.tests_only { without_faults(report) } else { report };
    let wanted: Vec<&Test> = TESTS.iter().filter(|test| options.wants(test.name)).collect();
    for (i, test) in wanted.iter().enumerate() {
        if i > 0 && refusal.is_none() && !bench.runner.is_interrupted() {
            refusal = idle::refusal(&again().findings);
        }
        // A job that is there now may have begun beside the test.
        results.extend(last.take().filter(|_| refusal.is_none()));
        let found = match &refusal {
            // A node that is in use says nothing about itself, and has the results of before.
            Some(why) => Reading::refused(why),
            None => twice(&mut bench, test, options, again).await,
        };
        refusal = refusal.or_else(|| bench.runner.occupied().map(str::to_owned));
        // What was cut short says nothing about the node either.
        if refusal.is_none() && !bench.runner.is_interrupted() {
            let result = TestResult {
                ts: unix_now(),
                verdict: verdict_name(found.verdict()).to_owned(),
                gpus: report.facts.get(GPUS).cloned().unwrap_or_default(),
                measurements: found.measurements.iter().take(MAX_MEASUREMENTS).cloned().collect(),
                attempt: None,
            };
            last = Some((test.name.to_owned(), result));
        }
        measurements.extend(found.measurements);
        findings.extend(found.findings.named(test.name));
    }
    let loaded = last.as_ref().is_some_and(|(_, result)| !result.measurements.is_empty());
    let told = bench.runner.is_interrupted();
    let busy = loaded && (told || idle::refusal(&again().findings).is_some());
    results.extend(last.filter(|_| !busy));
    if !wanted.is_empty() && findings.iter().all(|f: &Finding| f.verdict == Verdict::NotRun) {
        let text = "no test was run, so nothing is proven";
        findings.push(Finding::new("active", Verdict::Unknown, text));
    }
    if !measurements.is_empty() && measurements.iter().all(|m: &Measurement| m.reference.is_none()) {
        let text = "nothing was compared: no measure has a reference (check.active.reference)";
        findings.push(Finding::new("active", Verdict::Measured, text));
    }
    findings.extend(save(&config.state_dir, results));
    let joined = joined(report, findings, options.strictness());
    let exit = if options.tests_only && refused { REFUSED } else { joined.exit };
    Report { exit, measurements, ..joined }
}

/// Makes a test, and a second time if it failed: one failure alone is no fault, but wrong data are.
async fn twice(
    bench: &mut Bench<'_>,
    test: &Test,
    options: &Options,
    again: &mut dyn FnMut() -> Report,
) -> Reading {
    let first = once(bench, test, options).await;
    if first.verdict() != Verdict::Unhealthy || first.is_certain() {
        return first;
    }
    if let Some(why) = idle::refusal(&again().findings) {
        return first.failed_once(&why);
    }
    let second = once(bench, test, options).await;
    first.repeated(second)
}

async fn once(bench: &mut Bench<'_>, test: &Test, options: &Options) -> Reading {
    let mut found = make(bench, test.kind).await;
    if options.only.iter().any(|only| only == test.name) {
        found.require();
    }
    found.judge(bench.config);
    found
}

/// What was found without load is for the check without tests.
fn without_faults(mut report: Report) -> Report {
    for finding in &mut report.findings {
        finding.verdict = finding.verdict.min(Verdict::Unknown);
    }
    report
}

/// Adds the results to those of the node.
fn save(state: &Path, new: BTreeMap<String, TestResult>) -> Option<Finding> {
    if new.is_empty() {
        return None;
    }
    // A damaged file is replaced.
    let mut results = Results::load(state).unwrap_or_default();
    for (test, result) in new {
        results.add(test, result);
    }
    results.tests.retain(|name, _| TESTS.iter().any(|test| test.name == name));
    let error = results.save(state).err()?;
    let text = format!("the results are not published: cannot write to {}: {error}", state.display());
    let action = "run the check as a user who may write there";
    Some(Finding { action: Some(action.into()), ..Finding::new("active", Verdict::Warning, text) })
}

/// The report with further findings.
fn joined(report: Report, findings: Vec<Finding>, strictness: Strictness) -> Report {
    let Report { node, ts, seconds, facts, findings: mut all, .. } = report;
    all.extend(findings);
    let seconds = seconds.max(unix_now() - ts);
    Report { facts, ..Report::new(node, ts, seconds, all, strictness) }
}

/// The fact with the models of the GPUs.
const GPUS: &str = "gpu.name";

/// The number of GPUs, from `7 x NVIDIA H100, 1 x NVIDIA H200` or `NVIDIA H100`.
fn gpus(facts: &Facts) -> usize {
    let Some(models) = facts.get(GPUS) else { return 0 };
    let count =
        |model: &str| model.split_once(" x ").and_then(|(count, _)| count.parse().ok()).unwrap_or(1_usize);
    models.split(", ").map(count).sum()
}

/// A verdict as metrics name it.
fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NotRun => "not_run",
        Verdict::Ok | Verdict::Measured | Verdict::Warning | Verdict::Unknown | Verdict::Unhealthy => {
            verdict.as_str()
        }
    }
}

/// Makes one test, if there is time.
async fn make(bench: &mut Bench<'_>, kind: Kind) -> Reading {
    if bench.runner.is_interrupted() {
        return Reading::unknown("not run: the check was told to stop");
    }
    if bench.runner.left() < LEAST {
        // It could have been tested.
        return Reading::unknown("not run: the budget of time is used up");
    }
    match kind {
        Kind::Memory => memory::test(bench.roots),
        Kind::Disk => disk::test(bench).await,
        Kind::Perftest => perftest::test(bench).await,
        Kind::Nvbandwidth => nvbandwidth::test(bench).await,
        Kind::Nccl => nccl::test(bench).await,
        Kind::Dcgm => dcgm::test(bench).await,
    }
}

#[cfg(test)]
mod tests;
