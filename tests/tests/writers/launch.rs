//! `stepwatch run` around a command that does not use Stepwatch: its output, its end, and its
//! death.

use std::path::Path;
use std::process::Stdio;

use stepwatch_tests::{Exporter, trainer};
use stepwatch_wire::{Event, Kind};
use tokio::process::Child;

use crate::seen::Seen;

/// A trainer that prints as Megatron does, for two ranks, and fails.
const SCRIPT: &str = r#"
import os, sys, time
parent = os.getppid()
for step in range(1, 6):
    for rank in (0, 1):
        print(f"[rank{rank}]: iteration {step}/ 100 | elapsed time per iteration (ms): 1500.0 | lm loss: {step}.5E+00 | grad norm: 0.5 |")
if "wait" in sys.argv:
    print("waiting", file=sys.stderr)
    while os.getppid() == parent:
        time.sleep(0.05)
raise ValueError("no such token")
"#;

async fn launch(exporter: &Exporter, dir: &Path, run: &str, argument: &str) -> Child {
    let script = dir.join("train.py");
    tokio::fs::write(&script, SCRIPT).await.unwrap();
    let mut launcher = trainer::python_client(&exporter.ingest());
    launcher
        .args(["-m", "stepwatch", "run", "--run", run, "--"])
        .arg(trainer::python())
        .arg(script)
        .arg(argument);
    launcher.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
}

/// Loss by rank and step.
fn losses(seen: &Seen, run: &str) -> Vec<(Option<u32>, Option<i64>, Option<f64>)> {
    seen.events(Kind::Step, run).iter().map(|e| (e.rank, e.step, e.m.get("loss"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_read_and_its_end_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&dir.path().join("exporter"), "").await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut launcher = launch(&exporter, dir.path(), "launched", "").await;
    assert_eq!(launcher.wait().await.unwrap().code(), Some(1), "its exit code is the command's");
    let of_rank = |rank: u32| move |e: &Event| e.rank == Some(rank);
    for rank in [0, 1] {
        let bye = seen.event(Kind::Bye, "launched", of_rank(rank)).await;
        assert_eq!((bye.code, bye.text.as_deref()), (Some(1), Some("ValueError: no such token")));
    }
    let published = losses(&seen, "launched");
    for rank in [0, 1] {
        let want: Vec<_> = (1..6).map(|s| (Some(rank), Some(s), Some(s as f64 + 0.5))).collect();
        assert_eq!(published.iter().filter(|t| t.0 == Some(rank)).copied().collect::<Vec<_>>(), want);
    }
    assert!(seen.events(Kind::Event, "launched").is_empty(), "the lines themselves go no further");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_is_killed_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Exporter::start(&dir.path().join("exporter"), "").await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    let mut launcher = launch(&exporter, dir.path(), "killed", "wait").await;
    seen.event(Kind::Step, "killed", |e| e.step == Some(5)).await;
    launcher.kill().await.unwrap();
    let dead = seen.event(Kind::Event, "killed", |e| e.name.as_deref() == Some("launcher_dead")).await;
    assert_eq!(dead.rank, Some(0));
    assert!(seen.events(Kind::Bye, "killed").is_empty());
    assert!(seen.events(Kind::Event, "killed").iter().all(|e| e.name.as_deref() != Some("rank_dead")));
}
