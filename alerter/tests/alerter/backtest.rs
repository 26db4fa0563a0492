//! `stepwatch-alerter backtest` as people type it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn backtest(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepwatch-alerter"));
    command.current_dir(dir).arg("backtest").args(args).output().unwrap()
}

fn put(dir: &Path, name: &str, loss: impl Fn(i64) -> String) {
    let mut text = "step,loss,step_time_seconds\n".to_owned();
    for step in 1..=400 {
        writeln!(text, "{step},{},1.5", loss(step)).unwrap();
    }
    fs::write(dir.join(name), text).unwrap();
}

fn usual(step: i64) -> String {
    format!("{:.4}", 2.5 + 0.02 * (step as f64 * 1.7).sin())
}

#[test]
fn a_directory_becomes_a_page_and_lines() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("runs")).unwrap();
    put(dir.path(), "runs/healthy.csv", usual);
    put(dir.path(), "runs/broken.csv", |step| if step < 300 { usual(step) } else { "nan".into() });
    let out = backtest(dir.path(), &["--format", "json", "--html", "report.html", "runs"]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    let objects: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(objects.len(), 3, "{lines}");
    assert_eq!(
        (objects[0]["kind"].as_str(), objects[0]["file"].as_str()),
        (Some("nonfinite"), Some("runs/broken.csv"))
    );
    let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
    assert!(
        page.contains("<a href=\"#f1\">broken.csv</a>") && page.contains("Nothing to say about this run.")
    );
    assert_eq!(page.matches("<article").count(), 1);
}

#[test]
fn the_exit_status_distinguishes_what_went_wrong() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "run.csv", usual);
    fs::write(dir.path().join("prose.txt"), "dear diary\n").unwrap();
    fs::write(dir.path().join("bad.yaml"), "routes:\n  - {notify: [nobody]}\n").unwrap();
    fs::write(dir.path().join("labels.csv"), "file,start_step\nrun,early\n").unwrap();
    for (args, status, message) in [
        (&["run.csv"][..], 0, ""),
        (&["run.csv", "prose.txt"], 1, "prose.txt: no training step found; this reads CSV"),
        (&["missing.csv"], 1, "missing.csv: No such file"),
        (&["--config", "bad.yaml", "run.csv"], 64, "there is no receiver \"nobody\""),
        (
            &["--tune", "loss_spike", "--labels", "labels.csv", "run.csv"],
            1,
            "labels.csv:2: start_step is not an integer",
        ),
        (
            &["--html", "no/such/dir/report.html", "run.csv"],
            1,
            "cannot write no/such/dir/report.html: No such file",
        ),
    ] {
        let out = backtest(dir.path(), args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{args:?}: {err}");
        assert!(err.contains(message), "{args:?}: {err}");
    }
}
