use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use super::super::report::Findings;
use super::runner::{End, Output};
use super::*;
use crate::node_tests::ActiveConfig;

/// Enough for what a test waits for, and a short time for tools to end themselves.
const BUDGET: Duration = Duration::from_mins(1);
const GRACE: Duration = Duration::from_millis(50);

pub(super) fn bench_of(config: &ActiveConfig) -> Bench<'_> {
    let roots: &'static Roots = Box::leak(Box::default());
    let runner = Runner::with(config, runner::places(), BUDGET, GRACE);
    Bench { config, roots, runner, gpus: 0 }
}

/// The findings of a test without references, one a line.
pub(super) fn says(reading: Reading) -> String {
    judged(reading, &ActiveConfig::default())
}

fn judged(mut reading: Reading, config: &ActiveConfig) -> String {
    reading.judge(config);
    let line = |f: Finding| {
        let action = f.action.map(|action| format!("; {action}")).unwrap_or_default();
        format!("{} {}{action}\n", f.verdict.as_str(), f.text)
    };
    reading.findings.named("test").map(line).collect()
}

fn sh_in(runner: &mut Runner, script: &str) -> impl Future<Output = End> {
    let args = [OsStr::new("-c").to_owned(), OsStr::new(script).to_owned()];
    async move {
        let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
        runner.run(Path::new("/bin/sh"), &args, None).await
    }
}

fn runner(budget: Duration) -> Runner {
    Runner::with(&ActiveConfig::default(), runner::places(), budget, GRACE)
}

async fn sh(script: &str) -> Output {
    match sh_in(&mut runner(BUDGET), script).await {
        End::Exited(output) => output,
        end => panic!("{end:?}"),
    }
}

/// Whether a process with this argument runs.
fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let command = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
    processes.map(command).any(|words| words.split(|b| *b == 0).any(|word| word == argument.as_bytes()))
}

async fn gone(argument: &str) {
    let waited = async {
        while runs(argument) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waited).await.expect("it still runs");
}

#[tokio::test]
async fn a_tool_gets_nothing_of_the_job_around_it() {
    let output = sh("env").await;
    assert!(output.stdout.contains("LC_ALL=C\n"), "numbers have a point: {}", output.stdout);
    let known = [
        "PATH",
        "LC_ALL",
        "HOME",
        "LD_LIBRARY_PATH",
        "TMPDIR",
        "STEPWATCH_NODE_TEST",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    ];
    for line in output.stdout.lines() {
        let name = line.split_once('=').map_or(line, |(name, _)| name);
        assert!(known.contains(&name), "{line}");
    }
    assert!(!output.stdout.contains("CARGO_"), "this test has such variables");
    assert_eq!((output.failure, output.cut), (None, false));
}

#[tokio::test]
async fn useful_words_of_a_failure_are_kept() {
    let output = sh("echo table; echo 'Error: no host engine' >&2; echo >&2; exit 226").await;
    assert_eq!(output.failure.as_deref(), Some("exit status: 226"));
    assert_eq!(output.why(), "exit status: 226: Error: no host engine");
    assert_eq!(sh("echo only this").await.why(), "it ended without an error: only this");
    assert_eq!(sh("printf 'a {\"x\": 1} b'").await.json(), Some(serde_json::json!({"x": 1})));
    assert_eq!(sh("printf '} {'").await.json(), None);
    let many = sh("yes 0123456789 | head -c 3000000; echo end >&2").await;
    assert_eq!((many.stdout.len(), many.cut, many.failure.is_none()), (1 << 20, true, true));
    assert_eq!(many.why(), "it ended without an error, with more output than is read: end");
}

#[tokio::test]
async fn a_tool_that_hangs_and_ignores_sigterm_is_killed_with_all_that_it_started() {
    let mark = format!("864000.{}", std::process::id());
    let script =
        format!("trap '' TERM; sleep {mark} & (setsid sleep {mark} &) ; while :; do sleep {mark}; done");
    let began = std::time::Instant::now();
    let end = sh_in(&mut runner(Duration::from_millis(400)), &script).await;
    assert!(matches!(end, End::Late(_)), "{end:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    gone(&mark).await;
}

#[tokio::test]
async fn a_tool_that_leaves_a_process_behind_is_not_waited_for() {
    let mark = format!("864001.{}", std::process::id());
    let output = sh(&format!("sleep {mark} & setsid sleep {mark} & echo done")).await;
    assert_eq!(output.stdout, "done\n");
    gone(&mark).await;
}

#[test]
fn references_have_a_band() {
    let config = ActiveConfig {
        reference: BTreeMap::from([("nvbandwidth_h2d".to_owned(), 50e9), ("disk_write".to_owned(), 4e9)]),
        ..ActiveConfig::default()
    };
    let read = |values: &[(&str, &str, f64)]| {
        let mut reading = Reading::default();
        values.iter().for_each(|(measure, device, value)| reading.measure(measure, *device, *value));
        judged(reading, &config)
    };
    let fine = [("nvbandwidth_h2d", "gpu0", 48.6e9), ("nvbandwidth_h2d", "gpu1", 55.5e9)];
    assert_eq!(
        read(&fine),
        "ok nvbandwidth_h2d is 48.6 to 55.5 GB/s on 2 devices; the reference is 50.0 GB/s\n"
    );
    let mut ports = Reading::default();
    ports.measure("rdma_loopback", "mlx5_0/1", 48e9);
    ports.measure("rdma_loopback", "mlx5_4/1", 11.9e9);
    let own = [("rdma_loopback", 48.5e9), ("rdma_loopback@mlx5_4/1", 12e9)];
    let own = own.map(|(name, value)| (name.to_owned(), value)).into();
    assert_eq!(
        judged(ports, &ActiveConfig { reference: own, ..ActiveConfig::default() }),
        "ok rdma_loopback is 11.9 to 48.0 GB/s on 2 devices; the reference is 12.0 to 48.5 GB/s\n",
        "each port has its own"
    );
    let again = "run the test again on the idle node; if it stays so, have the part looked at";
    for (value, verdict, below) in [
        (48.4e9, "warning", "48.4 GB/s, 3.2"),
        (45.6e9, "warning", "45.6 GB/s, 8.8"),
        (45.4e9, "unhealthy", "45.4 GB/s, 9.2"),
    ] {
        assert_eq!(
            read(&[("nvbandwidth_h2d", "gpu0", 50e9), ("nvbandwidth_h2d", "gpu1", value)]),
            format!(
                "{verdict} nvbandwidth_h2d of gpu1 is {below} % below the reference of 50.0 GB/s; {again}\n"
            )
        );
    }
    assert_eq!(
        read(&[("disk_write", "/ckpt", 2e9), ("memory_copy", "", 1e11)]),
        format!(
            "warning disk_write of /ckpt is 2.0 GB/s, 50.0 % below the reference of 4.0 GB/s; {again}\nmeasured memory_copy is 100.0 GB/s\n"
        ),
        "storage is shared, and what has no reference is only measured"
    );
}

#[test]
fn gpus_are_counted() {
    for (models, count) in [("8 x NVIDIA H100", 8), ("NVIDIA GH200 480GB", 1), ("7 x a, 1 x b", 8)] {
        assert_eq!(gpus(&Facts::from([(GPUS.to_owned(), models.to_owned())])), count, "{models}");
    }
    assert_eq!(gpus(&Facts::new()), 0);
}

/// A node with tools that are scripts.
struct Place {
    dir: tempfile::TempDir,
    config: Config,
    options: Options,
}

impl Place {
    fn new(only: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { state_dir: dir.path().to_owned(), ..Config::default() };
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        Self { dir, config, options: Options { active: true, only, ..Options::default() } }
    }

    /// Another program writes the script: while this one has it open, no thread can run it.
    fn tool(&mut self, name: &str, script: &str) {
        let (text, tool) = (self.dir.path().join("text"), self.dir.path().join(name));
        std::fs::write(&text, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
        let made = Command::new("install").args(["-m", "755"]).args([&text, &tool]).status().unwrap();
        assert!(made.success());
        self.config.check.active.tools.insert(name.to_owned(), tool);
    }

    async fn check(&self, busy: &[bool]) -> Report {
        let report = |busy: bool| {
            let mut found = Findings::default();
            if busy {
                found.unknown("a job is on the node: 4711");
            }
            let findings = found.or_ok(|| "idle".into()).named("idle").collect();
            let facts = Facts::from([(GPUS.to_owned(), "8 x NVIDIA H100".to_owned())]);
            Report { facts, ..Report::new("n1".into(), unix_now(), 0.1, findings, Strictness::default()) }
        };
        let mut looks = busy.iter().copied();
        let first = report(looks.next().unwrap_or(false));
        let mut again = || report(looks.next().unwrap_or(false));
        let roots = Roots { sysfs: self.dir.path().into(), ..Roots::default() };
        let runner = Runner::with(&self.config.check.active, Vec::<PathBuf>::new(), BUDGET, GRACE);
        run(&self.config, &roots, &self.options, first, &mut again, runner).await
    }

    fn results(&self) -> Results {
        Results::load(self.dir.path()).unwrap()
    }
}

const PERF: &str = include_str!("../../../../tests/data/active/all_reduce_perf_a100.txt");
const DIAG: &str = include_str!("../../../../tests/data/active/dcgmi_diag_r1_gb10.json");

#[tokio::test]
async fn what_runs_is_reported_and_published_and_what_is_missing_is_not_run() {
    let mut place = Place::new(&[]);
    place.options.skip = vec!["memory_bandwidth".to_owned()];
    place.tool("all_reduce_perf", &format!("[ \"$6\" = 8 ] || exit 9\ncat <<'END'\n{PERF}\nEND"));
    place.tool("dcgmi", &format!("cat <<'END'\n{DIAG}\nEND\nexit 226"));
    place.config.check.active.reference.insert("nccl_all_reduce".to_owned(), 60e9);
    let report = place.check(&[]).await;
    let text = report.text(true);
    assert_eq!((report.verdict, report.exit), (Verdict::Warning, 0), "{text}");
    for line in [
        "not run   perftest    no port of InfiniBand or RoCE is active\n",
        "not run   fio         no directory is named in check.active.disk\n",
        "not run   nvbandwidth nvbandwidth is not installed",
        "warning   dcgm        software on GPU 0: Persistence Mode",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let results = place.results();
    assert_eq!(results.tests["nccl"].gpus, "8 x NVIDIA H100");
    for measurements in [&report.measurements, &results.tests["nccl"].measurements] {
        let [m] = &measurements[..] else { panic!("{measurements:?}") };
        assert_eq!((m.measure.as_str(), m.device.as_str(), m.reference), ("nccl_all_reduce", "", Some(60e9)));
        assert!((m.bytes_per_second - 68.4048e9).abs() < 1.0, "{m:?}");
    }
    let verdicts: Vec<_> =
        results.tests.iter().map(|(name, r)| (name.as_str(), r.verdict.as_str())).collect();
    let expected = [
        ("dcgm", "warning"),
        ("fio", "not_run"),
        ("nccl", "ok"),
        ("nvbandwidth", "not_run"),
        ("perftest", "not_run"),
    ];
    assert_eq!(verdicts, expected);
}

#[tokio::test]
async fn nothing_runs_beside_a_job() {
    let mut place = Place::new(&["nccl", "dcgm"]);
    place.tool("all_reduce_perf", &format!("cat <<'END'\n{PERF}\nEND"));
    place.tool("dcgmi", "touch \"${0%/*}/ran\"; exit 1");
    let report = place.check(&[true]).await;
    assert_eq!((report.verdict, report.exit), (Verdict::Unknown, 2));
    assert!(
        report.text(true).contains("unknown   nccl not run: a job is on the node: 4711"),
        "{}",
        report.text(true)
    );
    assert!(Results::load(place.dir.path()).is_err(), "the results of before stay");
    // A job begins after the first test.
    place.config.check.active.reference.insert("nccl_all_reduce".to_owned(), 60e9);
    let report = place.check(&[false, true]).await;
    assert!(
        report.text(false).contains("ok        nccl nccl_all_reduce is 68.4 GB/s"),
        "{}",
        report.text(false)
    );
    assert!(
        report.text(true).contains("unknown   dcgm not run: a job is on the node"),
        "{}",
        report.text(true)
    );
    assert!(!place.dir.path().join("ran").exists());
    assert!(Results::load(place.dir.path()).is_err(), "the job may have begun beside the first");
    // Beside the last one.
    place.options.only = vec!["nccl".to_owned()];
    assert_eq!(place.check(&[false, true]).await.exit, 0);
    assert!(Results::load(place.dir.path()).is_err());
    place.check(&[]).await;
    assert_eq!(place.results().tests.keys().collect::<Vec<_>>(), ["nccl"]);
}

#[tokio::test]
async fn results_are_those_of_the_gpus_that_were_tested() {
    let place = reduces("68.4", "68.4");
    place.check(&[]).await;
    let mut results = place.results();
    assert_eq!(results.tests["nccl"].gpus, "8 x NVIDIA H100");
    let old = TestResult { gpus: "7 x NVIDIA H100".to_owned(), ..results.tests["nccl"].clone() };
    results.tests.insert("nvbandwidth".to_owned(), old);
    results.save(place.dir.path()).unwrap();
    place.check(&[]).await;
    assert_eq!(place.results().tests["nvbandwidth"].gpus, "7 x NVIDIA H100");
}

#[tokio::test]
async fn wrong_data_are_a_fault_when_they_were_seen_once() {
    let mut place = reduces("68.4", "68.4");
    let wrong = PERF.replace("values : 0 OK", "values : 3 FAILED");
    place.tool(
        "all_reduce_perf",
        &format!("echo run >>\"${{0%/*}}/runs\"\ncat <<'END'\n{wrong}\nEND\nexit 1"),
    );
    let report = place.check(&[]).await;
    let text = report.text(true);
    assert_eq!((report.verdict, report.exit), (Verdict::Unhealthy, 1), "{text}");
    assert!(text.contains("the all-reduce gave wrong results: 3 values are out of bounds"), "{text}");
    let runs = std::fs::read_to_string(place.dir.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 1);
    // Also if they were seen the second time alone.
    let mut slow = Reading::default();
    slow.findings.unhealthy("nccl_all_reduce is slow").device("");
    let mut second = Reading::default();
    second.wrong_data("wrong");
    assert!(judged(slow.repeated(second), &ActiveConfig::default()).starts_with("unhealthy wrong; drain"));
}

#[test]
fn root_runs_no_tool_that_another_user_could_have_put_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (open, tool) = (dir.path().join("open"), dir.path().join("open/fio"));
    let mode = |at: &Path, mode| {
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(&open).unwrap();
    std::fs::write(&tool, "").unwrap();
    let found = |config: &ActiveConfig, root| {
        Runner::with(config, vec![open.clone()], BUDGET, GRACE).found("fio", root)
    };
    let none = ActiveConfig::default();
    for (of_dir, of_tool, right) in [(0o755, 0o755, true), (0o777, 0o755, false), (0o755, 0o775, false)] {
        mode(&open, of_dir);
        mode(&tool, of_tool);
        assert!(found(&none, false).is_ok());
        assert_eq!(found(&none, true).is_ok(), right, "{of_dir:o} {of_tool:o}");
    }
    let refused = found(&none, true).unwrap_err();
    assert!(refused.contains("another user can change what is in"), "{refused}");
    assert!(refused.ends_with("; if that is right, set check.active.tools.fio to it"), "{refused}");
    std::fs::write(open.join("sh"), "").unwrap();
    mode(&open.join("sh"), 0o777);
    let both = Runner::with(&none, vec![open.clone(), "/bin".into()], BUDGET, GRACE);
    assert_eq!(both.found("sh", true).ok(), std::fs::canonicalize("/bin/sh").ok(), "another place has one");
    let named = ActiveConfig { tools: [("fio".to_owned(), tool.clone())].into(), ..ActiveConfig::default() };
    assert_eq!(found(&named, true), Ok(tool.clone()), "whoever owns the node chose it");
}

#[tokio::test]
async fn what_ends_the_tests_is_passed_on_to_the_process_that_makes_them() {
    use std::os::unix::process::ExitStatusExt as _;
    use tokio::signal::unix::{SignalKind, signal};
    // From now on it does not end this process.
    let _kept = signal(SignalKind::hangup()).unwrap();
    let mut child = tokio::process::Command::new("sleep").arg("864005").spawn().unwrap();
    pass_signals_to(child.id().unwrap(), Duration::from_mins(1), || {});
    let passed = async {
        loop {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
            let waited = tokio::time::timeout(Duration::from_millis(20), child.wait());
            if let Ok(status) = waited.await {
                return status.unwrap();
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(20), passed).await.unwrap();
    assert_eq!(status.signal(), Some(15));
}

/// One that waits in the kernel must not make the process that was started immune to signals.
#[tokio::test]
async fn a_process_that_tests_and_does_not_end_when_told_to_is_given_up() {
    use tokio::signal::unix::{SignalKind, signal};
    let _kept = signal(SignalKind::hangup()).unwrap();
    let mut child = tokio::process::Command::new("sh");
    let mut child = child.args(["-c", "trap '' TERM; exec sleep 864006"]).spawn().unwrap();
    let (gave_up, mut given_up) = tokio::sync::oneshot::channel();
    pass_signals_to(child.id().unwrap(), Duration::from_millis(100), move || gave_up.send(()).unwrap());
    let told = async {
        loop {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
            if let Ok(done) = tokio::time::timeout(Duration::from_millis(20), &mut given_up).await {
                return done;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap().unwrap();
    child.kill().await.unwrap();
}

/// A node whose all-reduce gives one rate at first and another one after it, in GB/s.
fn reduces(first: &str, then: &str) -> Place {
    let mut place = Place::new(&["nccl"]);
    let table = |rate: &str| PERF.replace("68.4048", rate);
    let script = format!(
        "if [ -e \"${{0%/*}}/ran\" ]; then cat <<'END'\n{}\nEND\nelse touch \"${{0%/*}}/ran\"; cat <<'END'\n{}\nEND\nfi",
        table(then),
        table(first)
    );
    place.tool("all_reduce_perf", &script);
    place.config.check.active.reference.insert("nccl_all_reduce".to_owned(), 60e9);
    place
}

#[tokio::test]
async fn a_test_fails_only_if_it_failed_twice() {
    let report = reduces("20.0", "21.0").check(&[]).await;
    assert_eq!((report.verdict, report.exit), (Verdict::Unhealthy, 1), "{}", report.text(true));
    assert!(report.text(true).contains("nccl_all_reduce is 21.0 GB/s"), "{}", report.text(true));
    let report = reduces("20.0", "61.0").check(&[]).await;
    let text = report.text(true);
    assert_eq!((report.verdict, report.exit), (Verdict::Warning, 0), "{text}");
    assert!(text.contains("is 20.0 GB/s, 66.7 % below") && text.contains("(once, and not again)"), "{text}");
    // A job begins after the first failure.
    let report = reduces("20.0", "20.0").check(&[false, true]).await;
    let text = report.text(true);
    assert_eq!((report.verdict, report.exit), (Verdict::Warning, 0), "{text}");
    assert!(text.contains("it could not be tried again: a job is on the node: 4711"), "{text}");
}

#[test]
fn another_part_that_fails_the_second_time_is_no_fault() {
    let failed = |devices: &[&str]| {
        let mut reading = Reading::default();
        for device in devices {
            reading.findings.unhealthy(format!("{device} is slow")).device(*device);
        }
        reading
    };
    let twice = |first: &[&str], second: &[&str]| {
        judged(failed(first).repeated(failed(second)), &ActiveConfig::default())
    };
    assert_eq!(
        twice(&["gpu0"], &["gpu0", "gpu1"]),
        "unhealthy gpu0 is slow\nwarning gpu1 is slow (not the time before)\n"
    );
    assert_eq!(
        twice(&["gpu0"], &["gpu1"]),
        "warning gpu1 is slow (not the time before)\nwarning gpu0 is slow (once, and not again)\n"
    );
    let late = failed(&["gpu0"]).repeated(Reading::unknown("the budget is used up"));
    assert_eq!(
        judged(late, &ActiveConfig::default()),
        "warning gpu0 is slow (once, and it could not be tried again: the budget is used up)\n"
    );
}

#[tokio::test]
async fn where_the_tests_alone_count_nothing_else_fails() {
    let mut place = reduces("68.4", "68.4");
    place.options.tests_only = true;
    assert_eq!(place.check(&[]).await.exit, 0);
    assert_eq!(place.check(&[true]).await.exit, 3, "none was begun");
    let mut found = Findings::default();
    found.unhealthy("mounts did not answer in time");
    let findings = found.named("collectors").collect();
    let report = without_faults(Report::new("n1".into(), 0.0, 0.1, findings, Strictness::default()));
    assert_eq!(report.findings[0].verdict, Verdict::Unknown);
    let mut tests_only = Options { active: true, tests_only: true, ..Options::default() };
    assert_eq!(tests_only.chosen().iter().map(|check| check.name).collect::<Vec<_>>(), ["idle"]);
    tests_only.tests_only = false;
    assert!(tests_only.chosen().len() > 1);
}

#[tokio::test]
async fn what_was_compared_with_nothing_is_measured_and_the_report_says_so() {
    let mut place = reduces("68.4", "68.4");
    place.config.check.active.reference.clear();
    let report = place.check(&[]).await;
    let text = report.text(true);
    assert_eq!((report.verdict, report.exit), (Verdict::Measured, 0), "{text}");
    assert!(text.contains("measured  nccl   nccl_all_reduce is 68.4 GB/s\n"), "{text}");
    assert!(text.contains("nothing was compared: no measure has a reference"), "{text}");
    assert_eq!(place.results().tests["nccl"].verdict, "measured");
}

#[tokio::test]
async fn a_tool_is_stopped_when_a_job_begins_beside_it() {
    let every = Duration::from_millis(10);
    let busy = Watch::new(|| Some("a job is on the node: 4711".to_owned()));
    let mut watched = runner(BUDGET).watched(busy).looking_every(every);
    let mark = format!("864002.{}", std::process::id());
    let end = sh_in(&mut watched, &format!("exec sleep {mark}")).await;
    assert!(matches!(&end, End::Occupied(why) if why == "a job is on the node: 4711"), "{end:?}");
    gone(&mark).await;
    let end = sh_in(&mut watched, "echo never").await;
    assert!(matches!(end, End::Occupied(_)), "{end:?}");
    // One look that is late says nothing.
    let looks = std::sync::atomic::AtomicU64::new(0);
    let odd = move || looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 1;
    let late = Watch::new(move || odd().then(|| "job did not answer in time".to_owned()));
    let end = sh_in(&mut runner(BUDGET).watched(late).looking_every(every), "sleep 0.3").await;
    assert!(matches!(end, End::Exited(_)), "{end:?}");
}

#[tokio::test]
async fn a_tool_does_not_outlive_the_thread_that_started_it() {
    let mark = format!("864003.{}", std::process::id());
    let script = format!("exec sleep {mark}");
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let args = [OsStr::new("-c"), OsStr::new(&script)];
            runner(BUDGET).start(Path::new("/bin/sh"), &args, None).map(|_| ())
        })
    });
    thread.join().unwrap().unwrap();
    gone(&mark).await;
}

#[test]
fn what_the_tools_of_a_killed_tester_started_is_found_by_its_number() {
    let mark = format!("864004.{}", std::process::id());
    // No process has this number.
    let tester = u32::MAX;
    let mut child = Command::new("sleep")
        .arg(&mark)
        .env("STEPWATCH_NODE_TEST", format!("{tester}-1-0011"))
        .spawn()
        .unwrap();
    end_tools(tester / 2);
    assert!(child.try_wait().unwrap().is_none());
    end_tools(tester);
    assert!(!child.wait().unwrap().success());
}

#[test]
fn one_process_tests_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let held = lock(dir.path()).unwrap();
    assert_eq!(lock(dir.path()).unwrap_err(), "another test runs on this node");
    drop(held);
    drop(lock(dir.path()).unwrap());
    assert!(lock(&dir.path().join("none")).unwrap_err().contains("cannot be locked"));
    std::fs::remove_file(dir.path().join(LOCK)).unwrap();
    std::os::unix::fs::symlink(dir.path().join("precious"), dir.path().join(LOCK)).unwrap();
    assert!(lock(dir.path()).unwrap_err().contains("cannot be locked"));
}

#[tokio::test]
async fn what_the_user_names_has_to_run_and_something_has_to() {
    let place = Place::new(&["nvbandwidth"]);
    let report = place.check(&[]).await;
    assert_eq!(report.exit, 2);
    assert!(
        report.text(true).contains("unknown   nvbandwidth not run: nvbandwidth is not installed"),
        "{}",
        report.text(true)
    );
    let mut place = Place::new(&[]);
    place.options.skip = vec!["memory_bandwidth".to_owned()];
    let report = place.check(&[]).await;
    assert_eq!(report.exit, 2, "all others are missing");
    assert!(report.text(true).contains("no test was run, so nothing is proven"), "{}", report.text(true));
}

#[test]
fn a_test_that_is_named_without_active_is_not_passed_over_in_silence() {
    let options = Options { only: vec!["nccl".to_owned(), "ecc".to_owned()], ..Options::default() };
    let found: Vec<_> = passed_over(&options).collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].check.as_ref(), found[0].verdict), ("nccl", Verdict::Unknown));
    assert_eq!(passed_over(&Options { active: true, ..options }).count(), 0);
}

#[test]
fn names_are_unique_and_documented() {
    let page = include_str!("../../../../../docs/check.md");
    for test in TESTS {
        assert!(super::super::CHECKS.iter().all(|check| check.name != test.name), "{}", test.name);
        assert!(page.contains(&format!("| `{}` |", test.name)), "{}", test.name);
    }
    // Some stand without marks of code, because names of metrics are what stands in them.
    let words: Vec<_> = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    for measure in crate::node_tests::MEASURES {
        assert!(words.contains(measure), "{measure}");
    }
}
