//! A run is one run: which processes, files and telemetry come to it, published by the real
//! exporter from real processes, in the environments that schedulers and launchers make for them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use stepwatch_tests::daemon::command;
use stepwatch_tests::poll::PATIENCE;
use stepwatch_tests::{Exporter, bins, exposition, poll_until, trainer};
use stepwatch_wire::Kind;
use tokio::process::{Child, Command};

use crate::seen::Seen;
use crate::writer::{IMPORTED, Writer, has_torch, script};

const SLURM: &[(&str, &str)] = &[("SLURM_JOB_ID", "101"), ("SLURM_JOB_NAME", "pretrain")];

/// A script called `train.py` in a directory of its own, which reports to this exporter.
fn train(exporter: &Exporter, dir: &Path, variables: &[(&str, &str)]) -> Command {
    std::fs::create_dir_all(dir.join("logs")).unwrap();
    let file = dir.join("train.py");
    std::fs::copy(script("identity_writer.py"), &file).unwrap();
    let mut python = trainer::python_client(&exporter.ingest());
    python.arg(file);
    place(&mut python, exporter, dir, variables);
    python
}

/// The same below `stepwatch run`.
fn launched(exporter: &Exporter, dir: &Path, variables: &[(&str, &str)]) -> Command {
    let file = dir.join("train.py");
    std::fs::create_dir_all(dir.join("logs")).unwrap();
    std::fs::copy(script("identity_writer.py"), &file).unwrap();
    let mut python = trainer::python_client(&exporter.ingest());
    python.args(["-m", "stepwatch", "run", "--"]).arg(trainer::python()).arg(file);
    place(&mut python, exporter, dir, variables);
    python
}

fn place(python: &mut Command, exporter: &Exporter, dir: &Path, variables: &[(&str, &str)]) {
    python
        .env("LOG", log(dir))
        .env("OTLP", format!("{}/v1/metrics", exporter.url()))
        .envs(variables.iter().copied())
        .current_dir(dir);
}

fn log(dir: &Path) -> PathBuf {
    dir.join("logs/train.log")
}

async fn start(command: Command) -> Writer {
    let mut writer = Writer::start(command).unwrap();
    assert_eq!(writer.line().await.unwrap(), "ok");
    writer
}

async fn exporter(dir: &Path, sources: &str) -> Exporter {
    Exporter::start(&dir.join("exporter"), sources).await.unwrap()
}

fn tail(dir: &Path, more: &str) -> String {
    format!("sources:\n  - tail: {{path: \"{}\", poll_interval: 10ms{more}}}\n", log(dir).display())
}

/// A source that finds the processes of a control group, and that group.
fn discovered(dir: &Path) -> (String, PathBuf) {
    let group = dir.join("cgroup");
    std::fs::create_dir_all(&group).unwrap();
    (format!("  - discover: {{interval: 200ms, cgroups: [\"{}\"]}}\n", group.display()), group)
}

/// The output of `stepwatch-exporter runs`.
async fn runs(exporter: &Exporter, format: &str) -> String {
    let mut asked = command(bins::path(bins::EXPORTER).unwrap());
    let asked = asked.args(["runs", "--format", format, "--url", &exporter.url()]).output().await.unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    String::from_utf8(asked.stdout).unwrap()
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    run: String,
    attempt: u64,
    step: i64,
    kinds: Vec<String>,
    why: Vec<String>,
}

async fn rows(exporter: &Exporter) -> Vec<Row> {
    let answer: Value = serde_json::from_str(&runs(exporter, "json").await).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let row = |row: &Value| {
        let mut kinds: Vec<String> =
            row["sources"].as_array().unwrap().iter().map(|s| text(&s["kind"])).collect();
        kinds.sort();
        kinds.dedup();
        Row {
            run: text(&row["run"]),
            attempt: row["attempt"].as_u64().unwrap(),
            step: row["step"].as_i64().unwrap_or(-1),
            kinds,
            why: row["sources"].as_array().unwrap().iter().map(|s| text(&s["why"])).collect(),
        }
    };
    answer["runs"].as_array().unwrap().iter().map(row).collect()
}

/// Waits until the list of runs is as wanted.
async fn until(exporter: &Exporter, what: &str, wanted: impl Fn(&[Row]) -> bool) -> Vec<Row> {
    let found = async || Some(rows(exporter).await).filter(|rows| wanted(rows));
    match poll_until(what, PATIENCE, found).await {
        Ok(found) => found,
        Err(err) => panic!("{err}; there was {:#?}", rows(exporter).await),
    }
}

/// Whether it is called after its script and its start.
fn is_unnamed(run: &str) -> bool {
    let parts: Vec<&str> = run.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|p| p.len()).collect();
    parts[0] == "train" && lengths == [5, 8, 6, 8]
}

#[tokio::test(flavor = "multi_thread")]
async fn two_scripts_at_one_time_are_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), "").await;
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (mut one, mut other) =
        (start(train(&exporter, &a, &[])).await, start(train(&exporter, &b, &[])).await);
    for step in 1..=5 {
        one.send(&format!("client {step} {step}")).await.unwrap();
        other.send(&format!("client {} {}", 10 * step, 10 * step)).await.unwrap();
    }
    let rows = until(&exporter, "two runs", |rows| {
        rows.len() == 2 && rows.iter().all(|r| r.step == 5 || r.step == 50)
    })
    .await;
    assert!(rows.iter().all(|r| is_unnamed(&r.run) && r.attempt == 1), "{rows:#?}");
    assert_ne!(rows[0].run, rows[1].run);
    assert!(rows[0].why[0].starts_with("train, started "), "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_of_one_name_are_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let sources = format!("sources:\n  - tail: {{path: \"{}/*/logs/train.log\"}}\n", dir.path().display());
    let exporter = exporter(dir.path(), &sources).await;
    let mut writers = Vec::new();
    for job in ["101", "102"] {
        let variables = [("SLURM_JOB_ID", job), ("SLURM_JOB_NAME", "pretrain")];
        let mut writer = start(train(&exporter, &dir.path().join(job), &variables)).await;
        writer.send("client 1 5").await.unwrap();
        writer.send("log 1 6").await.unwrap();
        writers.push(writer);
    }
    let rows = until(&exporter, "two runs", |rows| rows.len() == 2 && rows.iter().all(|r| r.step == 6)).await;
    let names: Vec<_> = rows.iter().map(|r| (r.run.as_str(), r.attempt)).collect();
    assert_eq!(names, [("pretrain-101", 1), ("pretrain-102", 1)]);
    let text = runs(&exporter, "text").await;
    assert!(text.contains("pretrain-101  attempt 1  step 6  uid ") && text.contains("  job 101\n"), "{text}");
    assert!(text.contains("writes it: job 102 (SLURM_JOB_ID), named pretrain"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_seen_by_five_sources_is_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let (found, group) = discovered(dir.path());
    let exporter = exporter(dir.path(), &format!("{}{found}", tail(dir.path(), ""))).await;
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut job = launched(&exporter, dir.path(), SLURM);
    job.env("CGROUP", group);
    let mut writer = start(job).await;
    for way in ["log", "otlp", "client"] {
        writer.send(&format!("{way} 1 5")).await.unwrap();
    }
    let all = ["client", "discover", "launcher", "otlp", "tail"];
    let rows = until(&exporter, "five sources", |rows| rows.iter().any(|r| r.kinds == all)).await;
    assert_eq!(rows.len(), 1, "{rows:#?}");
    assert_eq!((rows[0].run.as_str(), rows[0].attempt), ("pretrain-101", 1));
    for metric in ["loss", "grad_norm", "lr"] {
        seen.steps("pretrain-101", metric, 5).await;
    }
}

/// Nothing says whose a line is, and what is between two jobs is no restart.
#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_that_write_one_log_restart_nothing() {
    for is_found in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (found, group) = discovered(dir.path());
        let sources = if is_found { format!("sources:\n{found}") } else { tail(dir.path(), "") };
        let exporter = exporter(dir.path(), &sources).await;
        let job = |id| {
            let variables = [("SLURM_JOB_ID", id), ("SLURM_JOB_NAME", "pretrain")];
            let mut job = train(&exporter, dir.path(), &variables);
            job.env("CGROUP", &group);
            job
        };
        let (mut one, mut other) = (start(job("101")).await, start(job("102")).await);
        let mut steps = 1_i64..;
        let mut write = async || {
            let step = steps.next().unwrap();
            one.send(&format!("log {step} {step}")).await.unwrap();
            let further = 1_000_000 + step;
            other.send(&format!("log {further} {further}")).await.unwrap();
            further
        };
        let warned = |line: &str| line.contains("several trainers write this log");
        let deadline = Instant::now() + PATIENCE;
        while !exporter.daemon.has_logged(0, warned) {
            assert!(Instant::now() < deadline, "{:#?}", exporter.daemon.log());
            write().await;
        }
        let attempts = |rows: &[Row]| rows.iter().map(|r| (r.run.clone(), r.attempt)).collect::<Vec<_>>();
        let before = attempts(&rows(&exporter).await);
        for _ in 0..50 {
            write().await;
        }
        let last = write().await;
        // Whichever of them is followed.
        let is_last = |row: &Row| [last, last - 1_000_000].contains(&row.step);
        let rows = until(&exporter, "the last step", |rows| rows.iter().any(is_last)).await;
        assert_eq!(attempts(&rows), before, "{rows:#?}");
        poll_until("what is left out is counted", PATIENCE, async || {
            let page = exporter.metrics().await.ok()?;
            let labels = [("kind", "tail"), ("reason", "interleaved")];
            exposition::value(&page, "train_source_dropped_total", &labels).filter(|n| *n >= 50.0)
        })
        .await
        .unwrap();
    }
}

/// What a shell makes of a script whose output is copied to its log.
fn piped(python: &Command, dir: &Path, shell: &str) -> Command {
    let python = python.as_std();
    let mut piped = command("bash");
    piped.args(["-c", shell, "bash"]).arg(python.get_program()).args(python.get_args());
    piped.envs(python.get_envs().filter_map(|(name, value)| Some((name, value?))));
    piped.env("LOG", "/dev/stdout").env("COPY", log(dir)).current_dir(dir);
    piped
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_behind_tee_is_of_the_script_before_it() {
    for shell in [
        r#""$@" | tee -a "$COPY""#,
        r#""$@" 2>&1 | cat | tee -a "$COPY""#,
        r#"exec > >(tee -a "$COPY"); "$@""#,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let exporter = exporter(dir.path(), &tail(dir.path(), "")).await;
        let mut writer = start(piped(&train(&exporter, dir.path(), &[]), dir.path(), shell)).await;
        writer.send("log 1 6").await.unwrap();
        writer.send("client 1 5").await.unwrap();
        let rows = until(&exporter, "both sources", |rows| {
            rows.iter().any(|r| r.kinds == ["client", "tail"] && r.step == 6)
        })
        .await;
        assert!(rows.len() == 1 && is_unnamed(&rows[0].run) && rows[0].attempt == 1, "{shell}: {rows:#?}");
        // Of a shell that became the script, `tee` is a child.
        let how = if shell.starts_with("exec") { "writes it" } else { "writes it through a pipe: train" };
        assert!(rows[0].why.iter().any(|w| w.contains(how)), "{shell}: {rows:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_file_is_of_the_process_in_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let sources = format!("sources:\n  - tail: {{path: \"{}/logs/*tfevents*\"}}\n", dir.path().display());
    let exporter = exporter(dir.path(), &sources).await;
    let mut writer = start(train(&exporter, dir.path(), &[])).await;
    writer.send("events 1 6").await.unwrap();
    writer.send("client 1 5").await.unwrap();
    let rows = until(&exporter, "both sources", |rows| {
        rows.iter().any(|r| r.kinds == ["client", "tail"] && r.step == 6)
    })
    .await;
    assert!(rows.len() == 1 && is_unnamed(&rows[0].run) && rows[0].attempt == 1, "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_writer_ended_while_the_exporter_was_away_stays_of_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut exporter = exporter(dir.path(), &tail(dir.path(), "")).await;
    let mut writer = start(train(&exporter, dir.path(), &[])).await;
    writer.send("log 1 5").await.unwrap();
    let before = until(&exporter, "the log", |rows| rows.iter().any(|r| r.step == 5)).await;
    assert!(is_unnamed(&before[0].run), "{before:#?}");
    exporter.daemon.kill().await.unwrap();
    writer.send("log 6 9").await.unwrap();
    writer.end().await.unwrap();
    exporter.restart().await.unwrap();
    let after = until(&exporter, "the rest", |rows| rows.iter().any(|r| r.step == 9)).await;
    let names = |rows: &[Row]| rows.iter().map(|r| r.run.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_without_a_job_seen_by_five_sources_is_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let (found, group) = discovered(dir.path());
    let exporter = exporter(dir.path(), &format!("{}{found}", tail(dir.path(), ""))).await;
    let mut job = launched(&exporter, dir.path(), &[]);
    job.env("CGROUP", group);
    let mut writer = start(job).await;
    for way in ["otlp", "log", "client"] {
        writer.send(&format!("{way} 1 5")).await.unwrap();
    }
    let all = ["client", "discover", "launcher", "otlp", "tail"];
    let rows = until(&exporter, "five sources", |rows| rows.iter().any(|r| r.kinds == all)).await;
    assert_eq!(rows.len(), 1, "{rows:#?}");
    assert!(is_unnamed(&rows[0].run) && rows[0].attempt == 1, "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_one_source_was_given_is_that_of_its_job() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), &tail(dir.path(), ", run: llama")).await;
    let mut writer = start(launched(&exporter, dir.path(), SLURM)).await;
    writer.send("client 1 5").await.unwrap();
    until(&exporter, "the job", |rows| rows.iter().any(|r| r.run == "pretrain-101" && r.step == 5)).await;
    writer.send("log 1 6").await.unwrap();
    writer.send("client 6 7").await.unwrap();
    let all = ["client", "launcher", "tail"];
    let rows = until(&exporter, "one run", |rows| {
        rows.len() == 1 && rows[0].run == "llama" && rows[0].kinds == all && rows[0].step == 7
    })
    .await;
    assert_eq!(rows[0].attempt, 1, "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_one_node_alone_knows_does_not_tear_a_job_apart() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), &tail(dir.path(), ", run: llama")).await;
    let variables = [SLURM, &[("SLURM_JOB_NUM_NODES", "2")]].concat();
    let mut writer = start(train(&exporter, dir.path(), &variables)).await;
    writer.send("client 1 5").await.unwrap();
    writer.send("log 1 6").await.unwrap();
    until(&exporter, "two runs", |rows| {
        rows.iter().map(|r| (r.run.as_str(), r.step)).eq([("llama", 6), ("pretrain-101", 5)])
    })
    .await;
    let text = runs(&exporter, "text").await;
    assert!(text.contains("is on other nodes too, and is called pretrain-101 there"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_names_in_one_job_are_two_runs() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), "").await;
    let mut writers = Vec::new();
    for name in ["student", "teacher"] {
        let variables = [SLURM, &[("RUN_NAME", name)]].concat();
        let mut writer = start(train(&exporter, &dir.path().join(name), &variables)).await;
        writer.send("client 1 5").await.unwrap();
        writers.push(writer);
    }
    until(&exporter, "two runs", |rows| {
        rows.iter().map(|r| r.run.as_str()).eq(["student", "teacher"]) && rows.iter().all(|r| r.step == 5)
    })
    .await;
    let text = runs(&exporter, "text").await;
    assert!(text.contains("note: sources of pretrain-101 were given 2 names: student, teacher"), "{text}");
}

/// A job that packs a sweep: each of its scripts takes itself for its only rank.
const PACKED: &[(&str, &str)] =
    &[("SLURM_JOB_ID", "101"), ("SLURM_JOB_NAME", "sweep"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];

#[tokio::test(flavor = "multi_thread")]
async fn several_scripts_of_one_job_at_one_time_are_a_run_each() {
    are_a_run_each(PACKED, "sweep-101").await;
}

/// `--rdzv-id=100`, as launch scripts have it that were copied.
#[tokio::test(flavor = "multi_thread")]
async fn several_scripts_of_one_launch_id_at_one_time_are_a_run_each() {
    let launched =
        [("TORCHELASTIC_RUN_ID", "100"), ("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")];
    are_a_run_each(&launched, "train-100").await;
}

async fn are_a_run_each(variables: &[(&str, &str)], run: &str) {
    let dir = tempfile::tempdir().unwrap();
    let sources = format!("sources:\n  - tail: {{path: \"{}/*/logs/train.log\"}}\n", dir.path().display());
    let mut exporter = exporter(dir.path(), &sources).await;
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut writers = Vec::new();
    for name in ["a", "b", "c"] {
        let mut writer = start(train(&exporter, &dir.path().join(name), variables)).await;
        // Its log is found before its hello arrives.
        writer.send("log 1 1").await.unwrap();
        writers.push(writer);
    }
    until(&exporter, "the logs", |rows| rows.iter().any(|r| r.step == 1)).await;
    for (i, writer) in writers.iter_mut().enumerate() {
        writer.send("client 1 1").await.unwrap();
        until(&exporter, "its run", |rows| rows.len() == i + 1).await;
    }
    for step in 2..=30 {
        for (i, writer) in writers.iter_mut().enumerate() {
            let step = 100 * i + step;
            writer.send(&format!("client {step} {step}")).await.unwrap();
        }
    }
    let apart = |rows: &[Row]| {
        let mut steps: Vec<_> = rows.iter().map(|r| (r.step, r.attempt)).collect();
        steps.sort_unstable();
        steps == [(30, 1), (130, 1), (230, 1)]
    };
    let before = until(&exporter, "three runs", apart).await;
    let names = |rows: &[Row]| rows.iter().map(|r| r.run.clone()).collect::<Vec<_>>();
    let found = names(&before);
    assert_eq!(found[0], run);
    assert!(found[1..].iter().all(|own| own.len() == run.len() + ".3fa9c1d2".len()), "{found:?}");
    let text = runs(&exporter, "text").await;
    assert!(text.contains(&format!("is rank 0 of {run} while pid ")), "{text}");
    for run in &found {
        let events = seen.events(Kind::Event, run);
        assert!(events.iter().all(|e| e.name.as_deref() != Some("restart")), "{events:?}");
    }
    // They connect again, in whatever order, and stay what they were.
    exporter.daemon.kill().await.unwrap();
    exporter.restart().await.unwrap();
    for (i, writer) in writers.iter_mut().enumerate().rev() {
        let step = 100 * i + 31;
        writer.send(&format!("client {step} {step}")).await.unwrap();
    }
    let again = until(&exporter, "the same runs", |rows| {
        let mut steps: Vec<_> = rows.iter().map(|r| (r.step, r.attempt)).collect();
        steps.sort_unstable();
        steps == [(31, 1), (131, 1), (231, 1)]
    })
    .await;
    assert_eq!(names(&again), found);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_is_taken_over_from_a_process_that_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), "").await;
    let mut first = start(train(&exporter, &dir.path().join("a"), PACKED)).await;
    first.send("client 1 10").await.unwrap();
    until(&exporter, "the first", |rows| rows.len() == 1 && rows[0].step == 10).await;
    let mut other = start(launched(&exporter, &dir.path().join("b"), PACKED)).await;
    other.send("client 1 20").await.unwrap();
    let rows = until(&exporter, "the other", |rows| rows.len() == 2 && rows[1].step == 20).await;
    assert_eq!(rows[1].kinds, ["client", "launcher"], "a launcher and its child are one run: {rows:#?}");
    drop(first);
    let mut second = start(train(&exporter, &dir.path().join("a"), PACKED)).await;
    second.send("client 6 12").await.unwrap();
    let rows = until(&exporter, "the second attempt", |rows| rows[0].step == 12).await;
    assert_eq!((rows.len(), rows[0].run.as_str(), rows[0].attempt), (2, "sweep-101", 2), "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requeued_job_is_a_new_attempt_of_its_run() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) =
        (exporter(&dir.path().join("n1"), "").await, exporter(&dir.path().join("n2"), "").await);
    let mut first = start(train(&one, &dir.path().join("a"), SLURM)).await;
    first.send("client 1 10").await.unwrap();
    until(&one, "the job", |rows| rows.len() == 1 && rows[0].step == 10).await;
    drop(first);
    let requeued = [SLURM, &[("SLURM_RESTART_COUNT", "1")]].concat();
    // It goes on behind its last step, as it does from a checkpoint that the signal before the
    // requeue made it write.
    let mut second = start(train(&one, &dir.path().join("a"), &requeued)).await;
    second.send("client 11 12").await.unwrap();
    let rows = until(&one, "the attempt", |rows| rows.iter().any(|r| r.step == 12)).await;
    assert_eq!((rows.len(), rows[0].run.as_str(), rows[0].attempt), (1, "pretrain-101", 2), "{rows:#?}");
    // A node that was not in the job before counts as the scheduler does.
    let mut there = start(train(&other, &dir.path().join("b"), &requeued)).await;
    there.send("client 11 12").await.unwrap();
    let rows = until(&other, "the attempt", |rows| rows.iter().any(|r| r.step == 12)).await;
    assert_eq!((rows.len(), rows[0].run.as_str(), rows[0].attempt), (1, "pretrain-101", 2), "{rows:#?}");
}

fn torchrun(exporter: &Exporter, dir: &Path, variables: &[(&str, &str)]) -> Child {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::copy(script("torchrun.py"), dir.join("torchrun")).unwrap();
    let mut python = trainer::python_client(&exporter.ingest());
    python.arg(dir.join("torchrun")).args(["1", "train.py"]).envs(variables.iter().copied());
    python.stdin(Stdio::piped()).stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_torchrun_restarts_is_a_new_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = exporter(dir.path(), "").await;
    let seen = Seen::default();
    seen.follow(&exporter);
    let _one = torchrun(&exporter, &dir.path().join("a"), &[]);
    let _other = torchrun(&exporter, &dir.path().join("b"), &[]);
    let _named = torchrun(&exporter, &dir.path().join("c"), &[("RDZV_ID", "exp7")]);
    let rows = until(&exporter, "second attempts", |rows| {
        rows.len() == 3 && rows.iter().all(|r| r.attempt == 2 && r.step == 8)
    })
    .await;
    let unnamed = rows.iter().filter(|r| is_unnamed(&r.run)).count();
    assert_eq!((unnamed, rows.iter().filter(|r| r.run == "train-exp7").count()), (2, 1), "{rows:#?}");
    for row in &rows {
        // Both ranks are of it. The stream may be read later than the list.
        for rank in [Some(0), Some(1)] {
            seen.event(Kind::Step, &row.run, |e| e.rank == rank).await;
        }
    }
}

/// The launcher of PyTorch itself, and a script that does not know of Stepwatch.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_torchrun_of_pytorch_restarts_is_a_new_attempt() {
    if !has_torch(&["torch"]).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (found, group) = discovered(dir.path());
    let exporter = exporter(dir.path(), &format!("sources:\n{found}")).await;
    let seen = Seen::default();
    seen.follow(&exporter);
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::copy(script("loops/torchrun_loop.py"), work.join("train.py")).unwrap();
    let log = std::fs::File::create(work.join("train.log")).unwrap();
    let mut torchrun = command(trainer::torch_python());
    torchrun.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]);
    torchrun.args(["--max-restarts", "1", "train.py"]).current_dir(&work);
    torchrun.env("CGROUP", group).env("CUDA_VISIBLE_DEVICES", "");
    torchrun.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true);
    let mut launcher = torchrun.spawn().unwrap();
    let done = async || Some(()).filter(|()| work.join("done").exists());
    if let Err(err) = poll_until("the steps of the second attempt", IMPORTED, done).await {
        panic!("{err}:\n{}", std::fs::read_to_string(work.join("train.log")).unwrap());
    }
    let rows = until(&exporter, "the second attempt", |rows| rows.iter().any(|r| r.step == 6)).await;
    assert_eq!((rows.len(), rows[0].attempt), (1, 2), "{rows:#?}");
    assert_eq!(rows[0].kinds, ["discover", "tail"], "{rows:#?}");
    assert!(rows[0].run.starts_with("train-"), "{rows:#?}");
    seen.steps(&rows[0].run, "loss", 6).await;
    drop(launcher.stdin.take());
    assert!(launcher.wait().await.unwrap().success());
}
