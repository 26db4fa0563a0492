//! tensorboard's own writer, as PyTorch and everything above it uses it.

use std::path::Path;

use stepwatch_tests::Exporter;
use stepwatch_wire::Kind;

use crate::seen::Seen;
use crate::writer::{Writer, has, python};

const RUN: &str = "tb";
const MODULES: &[&str] = &["tensorboard", "numpy"];

async fn exporter(dir: &Path, runs: &Path) -> (Exporter, Seen) {
    let source = format!("sources:\n  - tail: {{path: \"{}/events.*\", run: {RUN}}}\n", runs.display());
    let exporter = Exporter::start(dir, &source).await.unwrap();
    let seen = Seen::default();
    seen.follow(&exporter);
    (exporter, seen)
}

/// What the script logs as the loss of a step.
fn loss(step: i64) -> f64 {
    match step {
        7 => f64::NAN,
        8 => f64::INFINITY,
        // A 32-bit float, as its shortest decimal.
        _ => (10.0f32 / step as f32).to_string().parse().unwrap(),
    }
}

fn assert_losses(losses: &[(i64, f64)], steps: impl Iterator<Item = i64>) {
    let want: Vec<_> = steps.map(|s| (s, loss(s))).collect();
    assert_eq!(format!("{losses:?}"), format!("{want:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn scalars_and_tensors_arrive_once_over_a_kill() {
    if !has(MODULES).await {
        return;
    }
    for (what, tag) in [("steps", "lr"), ("tensors", "grad_norm")] {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        std::fs::create_dir(&runs).unwrap();
        let (mut exporter, seen) = exporter(&dir.path().join("exporter"), &runs).await;
        let mut writer = Writer::start(python("tensorboard_writer.py", &runs)).unwrap();
        writer.send(&format!("{what} 1 11")).await.unwrap();
        assert_losses(&seen.steps(RUN, "loss", 10).await, 1..11);
        exporter.daemon.kill().await.unwrap();
        writer.send(&format!("{what} 11 21")).await.unwrap();
        exporter.restart().await.unwrap();
        seen.follow(&exporter);
        writer.send(&format!("{what} 21 31")).await.unwrap();
        seen.steps(RUN, "loss", 30).await;
        assert_eq!(writer.end().await.unwrap(), Some(0));
        assert_losses(&seen.column(RUN, "loss"), 1..31);
        assert_eq!(seen.column(RUN, tag).len(), 30, "{what}");
        let last = seen.events(Kind::Step, RUN).pop().unwrap();
        assert_eq!((last.step, last.ts), (Some(30), Some(1.79e9 + 30.0)));
        if what == "steps" {
            let evals: Vec<_> =
                seen.events(Kind::Eval, RUN).iter().map(|e| (e.step, e.m.get("loss"))).collect();
            assert_eq!(evals, (1..=6).map(|n| (Some(n * 5), Some(3.0))).collect::<Vec<_>>());
        }
    }
}

/// A job that goes on from a checkpoint writes a file of its own, whose steps overlap those of the
/// first.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_that_goes_back_is_a_new_attempt() {
    if !has(MODULES).await {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let (_exporter, seen) = exporter(&dir.path().join("exporter"), &runs).await;
    let mut writer = Writer::start(python("tensorboard_writer.py", &runs)).unwrap();
    writer.send("steps 1 21").await.unwrap();
    seen.steps(RUN, "loss", 20).await;
    writer.send("new 1").await.unwrap();
    writer.send("start 16").await.unwrap();
    writer.send("steps 16 31").await.unwrap();
    assert_losses(&seen.steps(RUN, "loss", 35).await, (1..21).chain(16..31));
    let attempts: Vec<_> = seen.events(Kind::Step, RUN).iter().filter_map(|e| e.attempt).collect();
    assert_eq!(attempts.first().zip(attempts.last()).map(|(a, b)| b - a), Some(1));
    writer.end().await.unwrap();
}
